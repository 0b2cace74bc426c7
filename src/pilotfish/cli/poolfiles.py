"""Files of a pool beside its journal: what an application manager wrote, and what each task of a run is."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from pilotfish.cli.pool import Master, all_tasks
from pilotfish.live.home import pool_home

TAIL_BYTES = 64 << 10
MANAGER_FAILED = "its application manager failed"
"""The reason that the process of a manager gives when it has its run cancelled."""


def manager_log(master: Master, run: int) -> bytes:
    """The end of what the manager of a run wrote; nothing if it wrote nothing, or the run has none."""
    path = _directory(master) / f"application-{run}.log"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read()
    except OSError:
        return b""


def why_manager_failed(master: Master, row: dict[str, Any]) -> bytes:
    """What the manager of a cancelled run wrote, unless somebody else cancelled it: then that is only the echo of it."""
    for task in all_tasks(master, row["run"], "cancelled", limit=1):
        if (task.get("failure") or {}).get("message") != MANAGER_FAILED:
            return b""
    return manager_log(master, row["run"])


def register_file(master: Master, run: int) -> Path:
    """Where it is written down what each task of a run is."""
    return _directory(master) / f"register-{run}.gz"


def forget_run(master: Master, run: int) -> None:
    """With what lies beside the journal for it."""
    master.ask("forget", run=run)
    directory = _directory(master)
    for name in (f"register-{run}.gz", f"application-{run}.log"):
        with suppress(OSError):
            (directory / name).unlink()


def _directory(master: Master) -> Path:
    return pool_home(str(master.ask("status")["pool"])).directory
