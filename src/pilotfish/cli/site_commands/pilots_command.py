"""Implements pilots: lists pilots and requests more."""

from __future__ import annotations

from typing import Any

import click

from pilotfish.cli.commands.status_commands import last_stop, status_at_stop
from pilotfish.cli.completions import complete_add
from pilotfish.cli.shared_options import json_option, pool_option
from pilotfish.cli.site_commands.site_requests import add_pilots
from pilotfish.cli.terminal.screen import Column, Screen, clean, duration
from pilotfish.client.session import NoPool, look

PILOT_COLUMNS = (
    Column("PILOT"),
    Column("SITE"),
    Column("STATE"),
    Column("CORES", right=True),
    Column("BATCH JOB", elastic=True),
    Column("WAITED", right=True),
    Column("NOTE", elastic=True),
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

    With add, request N pilots (default: 1) at a site at once, even without waiting tasks.
    """
    if words:
        add_pilots(words, pool, as_json)
        return
    screen = Screen.of()
    try:
        status: dict[str, Any] = status_at_stop(pool, last_stop(pool)) or look(pool).ask("status")
    except NoPool:
        status = {}
    rows = [{**row, "waited_s": _waited(row, status["now"])} for row in status.get("pilots", ())]
    if as_json:
        screen.json(rows)
    elif rows:
        screen.table(PILOT_COLUMNS, (_cells(row) for row in rows))
    else:
        screen.line(f"Pool {clean(pool)} has no pilots. Request one: pilotfish pilots add SITE")


def _waited(row: dict[str, Any], now: float) -> float | None:
    """Return the seconds from the request until the first worker joined, or until now; None if no worker is left to tell."""
    until = row["joined_at"] or (now if row["state"] in WAITING else None)
    return None if until is None else max(0.0, until - row["requested_at"])


def _cells(row: dict[str, Any]) -> list[object]:
    return [
        row["pilot"],
        row["site"],
        row["state"],
        f"{row['cores']:g}",
        row["job"] or "-",
        duration(row["waited_s"]),
        row["queue_note"] or row["reason"],
    ]
