"""A run as clients show it: its state in one word, the log of its application manager, and how to forget it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pilotfish.client.session import PoolSession, all_tasks

TAIL_BYTES = 64 << 10
MANAGER_FAILED = "its application manager failed"
"""The reason that the process of a manager gives when it has its run cancelled."""


def manager_log(master: PoolSession, run: int) -> bytes:
    """The end of what the manager of a run wrote; nothing if it wrote nothing, or the run has none."""
    path = master.directory / f"application-{run}.log"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read()
    except OSError:
        return b""


def why_manager_failed(master: PoolSession, row: dict[str, Any]) -> bytes:
    """What the manager of a cancelled run wrote, unless somebody else cancelled it: then that is only the echo of it."""
    for task in all_tasks(master, row["run"], "cancelled", limit=1):
        if (task.get("failure") or {}).get("message") != MANAGER_FAILED:
            return b""
    return manager_log(master, row["run"])


def state_of_run(row: dict[str, Any]) -> str:
    """The state of a run that people see. Rows of a master of the last version have no ``status``."""
    return str(row.get("status") or row["state"])


def forget_run(master: PoolSession, run: int) -> None:
    """Forget a run, and remove its files from the pool directory."""
    master.ask("forget", run=run)
    for name in (f"register-{run}.gz", f"application-{run}.log"):
        with suppress(OSError):
            (master.directory / name).unlink()
