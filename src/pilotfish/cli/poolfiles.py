"""Files of a pool beside its journal: what an application manager wrote, and lines that came from the standard input."""

from __future__ import annotations

import os
from collections.abc import Iterable
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


def lines_file(master: Master, run: int) -> Path:
    """Where the lines are that a run was made of, if they came from the standard input."""
    return _directory(master) / f"lines-{run}.txt"


def keep_lines(master: Master, run: int, lines: Iterable[str]) -> None:
    """The standard input cannot be read again, and the master forgets the input of a task that is done."""
    path = lines_file(master, run)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w", errors="surrogateescape") as file:
        file.writelines(f"{line}\n" for line in lines)


def _directory(master: Master) -> Path:
    return pool_home(str(master.ask("status")["pool"])).directory
