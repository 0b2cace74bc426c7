"""Finds the failed or cancelled task that changed an output file last. Its incomplete file is not an edit of the user."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator
from typing import Any

from pilotfish.client.outputs.task_output import fetch_inputs
from pilotfish.client.session import PoolSession, all_tasks
from pilotfish.portable.payload_format import unpack


def find_unsuccessful_writer(session: PoolSession, path: str, changed_from: float, changed_to: float) -> str:
    """Returns text such as ``failed task 41.2``: a task that names the file ``path`` as its output, and that ran when the file changed.
    Returns an empty text if there is no such task. ``changed_from``, ``changed_to``: the earliest and the latest time of the change."""
    tasks = [task for task in _unsuccessful_tasks(session) if task["started_at"] <= changed_to and changed_from <= task["ended_at"]]
    for task, payload in zip(tasks, fetch_inputs(session, [task["id"] for task in tasks]), strict=True):
        outputs = json.loads(bytes(unpack(payload)[0]))["outputs"] if payload else ()
        if any(_names(output, path) for output in outputs):
            return f"{task['state']} task {task['id']}"
    return ""


def _unsuccessful_tasks(session: PoolSession) -> Iterator[dict[str, Any]]:
    """Yields the failed and cancelled executables that ran in the current directory."""
    here = os.getcwd()
    for run in session.ask("runs"):
        for state in ("failed", "cancelled") if run["cwd"] == here else ():
            if run["counts"][state]:
                yield from (
                    task for task in all_tasks(session, run["run"], state) if task["kind"] == "exec" and task["started_at"] is not None
                )


def _names(output: str, path: str) -> bool:
    """Returns whether an output, which can be a pattern, names the file ``path``."""
    return os.path.normpath(path) in map(os.path.normpath, glob.glob(output) if glob.has_magic(output) else [output])
