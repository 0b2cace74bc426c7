"""A test pilot: does one start at a site, and does its agent find the way back to the master?"""

from __future__ import annotations

import time
from typing import Any

from pilotfish.cli.doctor import BAD, DOUBTFUL, GOOD, Finding
from pilotfish.cli.pool import Master, connect
from pilotfish.cli.render import duration
from pilotfish.cli.siteuse import site_rows
from pilotfish.errors import PilotfishError

LOOK_S = 0.2
GOODBYE_S = 10.0
CHECK = "test pilot"


def check_pilot(name: str, pool: str, patience_s: float) -> Finding:
    """Ask the master for one, wait for its worker, and send it home."""
    try:
        master = connect(pool, start=True)
        master.ask("sites_reread")
        failed_before = dict(_row(master, name)["failures"])
        began = time.monotonic()
        (pilot,) = master.ask("pilots_add", site=name, pilots=1)["pilots"]
        return _wait(master, name, pilot, failed_before, began + patience_s)
    except PilotfishError as error:
        return Finding(CHECK, BAD, f"could not be asked for: {error}", error.hint or "pilotfish doctor")


def _wait(master: Master, name: str, pilot: str, failed_before: dict[str, int], deadline: float) -> Finding:
    began = time.monotonic()
    while True:
        workers = [worker for worker in master.ask("workers", all=False) if worker["pilot"] == pilot]
        took_s = time.monotonic() - began
        if workers:
            return _send_home(master, pilot, workers, took_s)
        row = next((row for row in master.ask("status")["pilots"] if row["pilot"] == pilot), None)
        if row is None:
            return _gone(master, name, pilot, failed_before, took_s)
        if time.monotonic() > deadline:
            return _still_waiting(master, name, row, took_s)
        time.sleep(LOOK_S)


def _send_home(master: Master, pilot: str, workers: list[dict[str, Any]], took_s: float) -> Finding:
    where = (workers[0].get("info") or {}).get("hostname") or workers[0]["worker"]
    for worker in workers:
        master.ask("drain", worker=worker["worker"], reason="it was only a test")
    deadline = time.monotonic() + GOODBYE_S
    while time.monotonic() < deadline and any(row["pilot"] == pilot for row in master.ask("status")["pilots"]):
        time.sleep(LOOK_S)
    return Finding(CHECK, GOOD, f"{pilot} started on {where}, reached the master after {duration(took_s)}, and was sent home")


def _gone(master: Master, name: str, pilot: str, before: dict[str, int], took_s: float) -> Finding:
    """It is no longer known: it failed, or it was withdrawn while it waited, because no work needs it."""
    row = _row(master, name)
    causes = [cause for cause, count in row["failures"].items() if count > before.get(cause, 0)]
    if not causes:
        return _queued(row, f"{pilot} waited for {duration(took_s)} and was withdrawn: no work waits for it")
    told = f"it {row['last_bad']}" if row.get("last_bad") else f"{pilot} did not work ({causes[0]})"
    cure = CURES.get(causes[0], "See what would be run there: pilotfish site show NAME --dry-run").replace("NAME", name)
    return Finding(CHECK, BAD, told, cure)


CURES = {
    "refused": "See what it is asked: pilotfish site show NAME --dry-run; and change it: pilotfish site set NAME KEY=VALUE",
    "bootstrap": "Name a Python of its nodes: pilotfish site set NAME python=/path/to/python3; or another way back: reach=tunnel",
    "expired": "It needs more time: pilotfish site set NAME walltime=1h",
}


def _still_waiting(master: Master, name: str, pilot: dict[str, Any], took_s: float) -> Finding:
    row = _row(master, name)
    if row.get("trouble"):
        return Finding(CHECK, BAD, f"{pilot['pilot']} could not be sent for {duration(took_s)}: {row['trouble']}", f"pilotfish why {name}")
    where = f"is job {pilot['job']} there" if pilot["job"] else "is not submitted yet"
    return _queued(row, f"{pilot['pilot']} {where}, and no worker of it came for {duration(took_s)}")


def _queued(row: dict[str, Any], text: str) -> Finding:
    if row["active"]:
        return Finding(CHECK, GOOD, f"{text}; but other pilots of {row['site']} are active")
    return Finding(CHECK, DOUBTFUL, text, f"Its queue may be long: pilotfish doctor {row['site']} --patience 1h")


def _row(master: Master, name: str) -> dict[str, Any]:
    return next((row for row in site_rows(master) if row["site"] == name), {"site": name, "active": 0, "failures": {}})
