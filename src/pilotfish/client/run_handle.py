"""Reads the state of a run and the log of its manager. Forgets runs."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from pilotfish.client.session import PoolSession, all_tasks
from pilotfish.model.states import TASK_STATES

TAIL_BYTES = 64 << 10
MANAGER_FAILED = "its application manager failed"
"""The reason with which the process of a failed manager cancels its run."""


def manager_log(master: PoolSession, run: int) -> bytes:
    """Returns the end of the log of a run's manager. Returns no bytes if the run has no log."""
    path = master.directory / f"application-{run}.log"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read()
    except OSError:
        return b""


def why_manager_failed(master: PoolSession, row: dict[str, Any]) -> bytes:
    """Returns the log of a manager that failed. Returns no bytes if the run was cancelled for another reason."""
    for task in all_tasks(master, row["run"], "cancelled", limit=1):
        if (task.get("failure") or {}).get("message") != MANAGER_FAILED:
            return b""
    return manager_log(master, row["run"])


def state_of_run(row: dict[str, Any]) -> str:
    """Returns the state of a run as users see it. A row from a master of the previous version has no ``status``."""
    if "status" in row:
        return str(row["status"])
    from pilotfish.core.explain.task_reasons import status_of

    run: Any = SimpleNamespace(**row)
    run.finished, run.counts = row["state"] == "done", [row["counts"].get(state, 0) for state in TASK_STATES]
    return status_of(run)


def forget_run(master: PoolSession, run: int) -> None:
    """Asks the master to forget a run, and removes the run's files from the pool directory."""
    master.ask("forget", run=run)
    for name in (f"register-{run}.gz", f"application-{run}.log"):
        with suppress(OSError):
            (master.directory / name).unlink()
