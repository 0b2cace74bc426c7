"""Finds the failed or cancelled task that changed an output file last. Its incomplete file is not an edit of the user."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from pilotfish.client.outputs.task_output import fetch_inputs
from pilotfish.client.session import PoolSession, all_tasks
from pilotfish.model.contents import MAGIC
from pilotfish.portable.payload_format import unpack


class UnsuccessfulAttempt(NamedTuple):
    """The last attempt of a failed or cancelled task. ``task``: text such as ``failed task 41.2``."""

    started_at: float
    ended_at: float
    task: str


class UnsuccessfulTasks:
    """The failed and cancelled executables of the pool that ran in the current directory. Asks the master once, at the first use."""

    def __init__(self, session: PoolSession) -> None:
        self._session = session

    def writer_of(self, path: str, changed_from: float, changed_to: float) -> str:
        """Returns text such as ``failed task 41.2``: a task that names the file ``path`` as its output, and that ran when the file changed.
        Returns an empty text if there is no such task. ``changed_from``, ``changed_to``: the earliest and the latest time of the change."""
        names, patterns = self._attempts
        path = os.path.normpath(path)
        matching = (attempt for pattern, attempt in patterns if fnmatchcase(path, pattern))
        for attempt in chain(names.get(path, []), matching):
            if attempt.started_at <= changed_to and changed_from <= attempt.ended_at:
                return attempt.task
        return ""

    @cached_property
    def _attempts(self) -> tuple[dict[str, list[UnsuccessfulAttempt]], list[tuple[str, UnsuccessfulAttempt]]]:
        """Maps each output to the attempts that name it; and lists the patterns of outputs, each with its attempt."""
        names: dict[str, list[UnsuccessfulAttempt]] = {}
        patterns: list[tuple[str, UnsuccessfulAttempt]] = []
        tasks = list(self._tasks())
        for task, payload in zip(tasks, fetch_inputs(self._session, [task["id"] for task in tasks]), strict=True):
            attempt = UnsuccessfulAttempt(task["started_at"], task["ended_at"], f"{task['state']} task {task['id']}")
            for output in json.loads(bytes(unpack(payload)[0]))["outputs"] if payload else ():
                if MAGIC.intersection(output):
                    patterns.append((os.path.normpath(output), attempt))
                else:
                    names.setdefault(os.path.normpath(output), []).append(attempt)
        return names, patterns

    def _tasks(self) -> Iterator[dict[str, Any]]:
        here = os.getcwd()
        for run in self._session.ask("runs"):
            for state in ("failed", "cancelled") if run["cwd"] == here else ():
                if run["counts"][state]:
                    yield from (
                        task
                        for task in all_tasks(self._session, run["run"], state)
                        if task["kind"] == "exec" and task["started_at"] is not None
                    )
