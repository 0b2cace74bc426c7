"""sites: how the places do to which pilots are sent, and why one of them has no workers."""

from __future__ import annotations

from typing import Any

import click

from pilotfish.cli.options import json_option, pool_option
from pilotfish.cli.pool import Master
from pilotfish.cli.render import Column, Screen, clean, duration, plural
from pilotfish.cli.sitefile import sites_path
from pilotfish.cli.siteuse import served, site_rows, unknown_site
from pilotfish.config import read_sites
from pilotfish.errors import BadInput
from pilotfish.model.site import LOCAL, Site

Row = dict[str, Any]
Reason = dict[str, Any]
SITE_COLUMNS = (
    Column("SITE"),
    Column("BACKEND"),
    Column("STATE"),
    Column("WAITING", right=True),
    Column("ACTIVE", right=True),
    Column("WORKERS", right=True),
    Column("QUEUE WAIT", right=True),
    Column("90 %", right=True),
    Column("FAILURES", elastic=True),
)
TROUBLE = "trouble"
LOGIN = "pilotfish site login"


@click.command()
@pool_option
@json_option
def sites(pool: str, as_json: bool) -> None:
    """Show the sites, their pilots, and how they have done.

    QUEUE WAIT is the median time until a pilot's first worker was there; nine of ten were there within the time below 90 %.
    """
    screen = Screen.of()
    master = served(pool)
    rows = [with_state(row) for row in site_rows(master)] if master is not None else rows_as_written()
    if as_json:
        screen.json(rows)
        return
    screen.table(SITE_COLUMNS, (_cells(row) for row in rows))
    for row in rows:
        if row["state"] != "ready":
            reason = reason_of(row)
            screen.line(f"{screen.paint(clean(row['site']), 'bold')}: {clean(reason['text'])}")
            for command in reason["commands"]:
                screen.line(f"  do      {clean(command)}")
    if all(row["site"] == LOCAL for row in rows):
        screen.line("No other sites are described. Add one: pilotfish site add NAME --backend slurm")


def with_state(row: Row) -> Row:
    """A site that could be used if it answered is in trouble."""
    return {**row, "state": TROUBLE} if row["state"] == "ready" and row.get(TROUBLE) else row


def rows_as_written() -> list[Row]:
    """Without a master nobody knows how they do."""
    return [
        _row(LOCAL, LOCAL, "ready"),
        *(_row(name, site.backend, "paused" if site.paused else "ready", site.via) for name, site in read_sites(sites_path()).items()),
    ]


def _row(name: str, backend: str, state: str, via: str = "") -> Row:
    nothing: Row = {"used": False, "wanted": None, "held": "", TROUBLE: "", "renew": [], "credentials": []}
    nothing |= {"waiting": 0, "active": 0, "workers": 0}
    return {"site": name, "backend": backend, "via": via, "state": state, **nothing, **dict.fromkeys(_WAITS), "failures": {}}


_WAITS = ("queue_wait_median_s", "queue_wait_90_s")


def _cells(row: Row) -> list[object]:
    failures = sorted(row["failures"].items(), key=lambda item: -item[1])
    return [
        row["site"],
        row["backend"],
        row["state"],
        row["waiting"],
        row["active"],
        row["workers"],
        *(duration(row[wait]) for wait in _WAITS),
        ", ".join(f"{cause} {count}" for cause, count in failures) or "-",
    ]


# --- why ------------------------------------------------------------------------------------------------------------------------------


def reason_of(row: Row) -> Reason:
    """Why a site is in its state, and what would change it."""
    name, state = row["site"], row["state"]
    if state == "held":
        return _reason("held", f"held back: {row['held']}", *_cures(name))
    if state == "paused":
        return _reason("site-paused", "it gets no new pilots until somebody resumes it", f"pilotfish site resume {name}")
    if state == TROUBLE and row.get("renew"):
        return _reason("site-trouble", f"its pilots wait: {row[TROUBLE]}", *row["renew"])
    if state == TROUBLE:
        login = f"{LOGIN} {name}"
        return _reason(
            "site-trouble", f"it does not answer: {row[TROUBLE]}", *([login] if login in row[TROUBLE] else []), f"pilotfish doctor {name}"
        )
    if not row["used"]:
        commands = (f"pilotfish run --site {name} -- COMMAND", f"pilotfish workers add {name} 1")
        return _reason("site-unused", "this pool does not use it", *commands)
    told = f"{plural(row['waiting'], 'pilot')} waiting there, {row['active']} active, with {plural(row['workers'], 'worker')}"
    return _reason("ready", told, "pilotfish sites")


def _cures(name: str) -> list[str]:
    if name == LOCAL:
        return ["pilotfish doctor", "pilotfish workers --set 2  (tries again)"]
    return [f"pilotfish doctor {name}", f"pilotfish site resume {name}"]


def _reason(code: str, text: str, *commands: str) -> Reason:
    return {"code": code, "text": text, "commands": list(commands)}


def why_site(master: Master, name: str) -> dict[str, Any]:
    """In the manner of ``why``."""
    rows = {row["site"]: with_state(row) for row in site_rows(master)}
    if name not in rows:
        raise unknown_site(name, list(rows))
    row = rows[name]
    reasons = [reason_of(row)]
    site = _written(name)
    if row["state"] == "ready" and site is not None and row["waiting"] + row["active"] >= site.max_pilots:
        text = f"it has {row['waiting'] + row['active']} pilots, as many as it may"
        reasons.insert(0, _reason("site-limit", text, f"pilotfish site set {name} max_pilots={2 * site.max_pilots}"))
    reasons += [
        _reason("failures", f"{count} of its pilots failed lately: {cause}", f"pilotfish doctor {name}".removesuffix(" local"))
        for cause, count in row["failures"].items()
    ]
    state = "in trouble" if row["state"] == TROUBLE else row["state"]
    return {
        "subject": f"site {name}",
        "state": row["state"],
        "sentence": f"site {name} is {state}: {reasons[0]['text']}",
        "reasons": reasons,
    }


def _written(name: str) -> Site | None:
    try:
        return read_sites(sites_path()).get(name)
    except BadInput:
        return None
