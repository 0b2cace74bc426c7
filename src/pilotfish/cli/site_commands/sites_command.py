"""Implements sites: shows the pilots, queue waits and failures of each site."""

from __future__ import annotations

import sys
from typing import Any

import click

from pilotfish.cli.shared_options import json_option, pool_option
from pilotfish.cli.terminal.screen import Column, Screen, clean, duration
from pilotfish.client.session import connect_if_served
from pilotfish.client.sites_file import sites_path
from pilotfish.config import SiteTable, read_sites
from pilotfish.model.site import LOCAL

Row = dict[str, Any]


def _failures(site: Row) -> str:
    return ", ".join(f"{cause} {count}" for cause, count in sorted(site["failures"].items(), key=lambda item: -item[1]))


SITE_COLUMNS = (
    Column("SITE", lambda site: site["site"]),
    Column("BACKEND", lambda site: site["backend"]),
    Column("STATE", lambda site: site["state"]),
    Column("QUEUED", lambda site: site["waiting"], right=True),
    Column("RUNNING", lambda site: site["active"], right=True),
    Column("WORKERS", lambda site: site["workers"], right=True),
    Column("MEDIAN WAIT", lambda site: duration(site["queue_wait_median_s"]), right=True),
    Column("P90 WAIT", lambda site: duration(site["queue_wait_90_s"]), right=True),
    Column("FAILURES", lambda site: _failures(site) or "-", elastic=True),
)


@click.command()
@pool_option
@json_option
def sites(pool: str, as_json: bool) -> None:
    """Show sites, their pilots and recent failures.

    The wait of a pilot is the time from its request until its first worker joined. MEDIAN WAIT and P90 WAIT are the median and the 90th
    percentile of these waits.
    """
    screen = Screen.of()
    master = connect_if_served(pool)
    configured = read_sites(sites_path())
    show_invalid_sites(configured)
    # A master that has never submitted a pilot reports no sites.
    rows = (master.ask("sites") if master is not None else []) or configured_rows(configured)
    if as_json:
        screen.json(rows)
        return
    screen.table(SITE_COLUMNS, rows)
    for row in rows:
        if row["state"] != "ready":
            screen.line(clean(row["reason"]["text"]))
            for command in row["reason"]["commands"]:
                screen.line(f"  fix:    {clean(command)}")
    if all(row["site"] == LOCAL for row in rows) and not configured.bad:
        screen.line("No other sites are configured. Add one: pilotfish site add NAME --backend slurm")


def show_invalid_sites(sites: SiteTable) -> None:
    """Print the errors of the sites with invalid descriptions."""
    errors = Screen.of(sys.stderr)
    for problem in sites.bad.values():
        errors.line(f"error: {clean(problem)}")
        errors.line(f"  fix: {clean(problem.hint)}")


def configured_rows(configured: SiteTable) -> list[Row]:
    """Return a row for each configured site with a valid description. The rows contain no pilots, because only a master knows the
    pilots."""
    return [
        _row(LOCAL, LOCAL, "ready"),
        *(_row(name, site.backend, "paused" if site.paused else "ready", site.via) for name, site in configured.items()),
    ]


def _row(name: str, backend: str, state: str, via: str = "") -> Row:
    reason = {"code": "ready", "text": f"site {name} is ready", "commands": ["pilotfish sites"]}
    if state == "paused":
        text = f"site {name} is paused: it gets no new pilots until a user resumes it"
        reason = {"code": "site-paused", "text": text, "commands": [f"pilotfish site resume {name}"]}
    nothing: Row = {"reason": reason, "used": False, "wanted": None, "held": "", "trouble": "", "last_bad": "", "credentials": []}
    nothing |= {"waiting": 0, "active": 0, "workers": 0, "queue_wait_median_s": None, "queue_wait_90_s": None, "failures": {}}
    return {"site": name, "backend": backend, "via": via, "state": state, **nothing}
