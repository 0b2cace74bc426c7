"""Implements pilots, which lists pilots and requests more pilots."""

from __future__ import annotations

from typing import Any

import click

from pilotfish.cli.commands.status_commands import last_stop, status_at_stop
from pilotfish.cli.completions import complete_add
from pilotfish.cli.shared_options import json_option, pool_option
from pilotfish.cli.site_commands.site_requests import add_pilots
from pilotfish.cli.terminal.screen import Column, Screen, clean, duration
from pilotfish.client.session import NoPool, connect_read_only

PILOT_COLUMNS = (
    Column("PILOT", lambda pilot: pilot["pilot"]),
    Column("SITE", lambda pilot: pilot["site"]),
    Column("STATE", lambda pilot: pilot["state"]),
    Column("CORES", lambda pilot: f"{pilot['cores']:g}", right=True),
    Column("BATCH JOB", lambda pilot: pilot.get("job") or "-", elastic=True),
    Column("WAITED", lambda pilot: duration(pilot["waited_s"]), right=True),
    Column("NOTE", lambda pilot: pilot.get("queue_note") or pilot["reason"], elastic=True),
)
WAITING = ("requested", "submitted")


@click.command()
@click.argument("words", nargs=-1, metavar="[add SITE [N]]", shell_complete=complete_add)
@pool_option
@json_option
def pilots(words: tuple[str, ...], pool: str, as_json: bool) -> None:
    """List pilots; request more with add.

    \b
    pilotfish pilots
    pilotfish pilots add SITE 2

    With add, request N pilots (default: 1) at a site immediately, even without waiting tasks.
    """
    if words:
        add_pilots(words, pool, as_json)
        return
    screen = Screen.of()
    try:
        status: dict[str, Any] = status_at_stop(pool, last_stop(pool)) or connect_read_only(pool).ask("status")
    except NoPool:
        status = {}
    rows = [{**row, "waited_s": _waited(row, status["now"])} for row in status.get("pilots", ())]
    if as_json:
        screen.json(rows)
    elif rows:
        screen.table(PILOT_COLUMNS, rows)
    else:
        screen.line(f"Pool {clean(pool)} has no pilots. Request one: pilotfish pilots add SITE")


def _waited(row: dict[str, Any], now: float) -> float | None:
    """Return the seconds from the request of a pilot until its first worker joined, or until now if the pilot still waits. Return None if
    the pilot ended without a worker."""
    # A master of the previous version sends rows without these times.
    until = row.get("joined_at") or (now if row["state"] in WAITING else None)
    return None if until is None or "requested_at" not in row else max(0.0, until - row["requested_at"])
