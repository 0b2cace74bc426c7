"""Finds the files that several tasks of a command write, such as one table of results for all tasks of a sweep."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from typing import Any

from pilotfish.client.session import PoolSession, all_tasks

REPORT_S = 0.1
"""The start time of a task in its row can be this many seconds too late. It is calculated: the time when the end was reported, less the
duration. The number is small, so that a file that a user edited just before a rerun does not count as an output."""


class SharedOutputs:
    """Files that the tasks of a command write together. A file counts if several tasks of the command name it, and if it changed last while
    an earlier run of the same command had running tasks.

    Any of these tasks can have changed such a file. So the change does not mean that tasks that ended before it must run again.
    ``command``: the command of the run. Parameter values in it do not count. ``words``: the words that are in the commands of several
    tasks.
    """

    def __init__(self, session: PoolSession, command: str, words: frozenset[str]) -> None:
        self._session = session
        self._command = _without_values(command)
        self._words = words
        self._runs: list[dict[str, Any]] | None = None
        self._found: dict[str, bool] = {}
        """The answers of ``is_output`` by path. The first answer is kept, because tasks of the new run can change the file again."""

    def is_output(self, sources: Collection[str], path: str, changed_at: float) -> bool:
        """Returns whether a file counts as an output: its last change was made during a task of an earlier run. Arguments: see
        ``OutputTest``."""
        if not all(source in self._words for source in sources):
            return False
        known = self._found.get(path)
        if known is None:
            known = self._found[path] = any(self._had_task_at(run, changed_at) for run in self._earlier_runs())
        return known

    def found(self) -> list[str]:
        """Returns the paths of the files for which ``is_output`` was true."""
        return [path for path, is_output in self._found.items() if is_output]

    def _earlier_runs(self) -> list[dict[str, Any]]:
        if self._runs is None:
            rows, here = self._session.ask("runs"), os.getcwd()
            self._runs = [row for row in rows if row["cwd"] == here and _without_values(row["command"]) == self._command]
        return self._runs

    def _had_task_at(self, run: dict[str, Any], time: float) -> bool:
        if not run["started_at"] or not run["started_at"] - REPORT_S <= time <= (run["ended_at"] or time):
            return False
        tasks = (task for task in all_tasks(self._session, run["run"]) if task["started_at"] is not None)
        return any(task["started_at"] - REPORT_S <= time <= (task["ended_at"] or time) for task in tasks)


def _without_values(command: str) -> str:
    """Returns a command without the options before ``--`` and without the lists after ``:::``."""
    template = re.split(r"(?:^|\s)-- ", command, maxsplit=1)[-1]
    return re.split(r"\s:::", template, maxsplit=1)[0]
