"""Reads the runs and tasks that a command acts on: ``3``, ``NAME``, ``2-10``, ``3.17``, ``NAME.17``, ``3.LABEL`` and ``3.5-9``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from pilotfish.client.descriptions.task_descriptions import named_task
from pilotfish.client.session import PoolSession, find_run, task_name
from pilotfish.errors import BadInput

TASK = re.compile(r"[0-9]*[.][0-9]*")
RANGE = re.compile(r"([0-9]+)-([0-9]+)")


class NamedSubjects(NamedTuple):
    """The tasks and runs that the words of a command name. ``tasks``: ids of tasks, without repetitions. ``runs``: rows of runs, without
    repetitions."""

    tasks: list[str]
    runs: list[dict[str, Any]]


def read_subjects(master: PoolSession, words: Iterable[str]) -> NamedSubjects:
    """Finds the tasks and runs that these words name. Raises BadInput if a word names nothing."""
    tasks: dict[str, None] = {}
    runs: dict[int, dict[str, Any]] = {}
    for word in words:
        found = _tasks_named(master, word)
        if found:
            tasks.update(dict.fromkeys(found))
        else:
            runs.update({row["run"]: row for row in _runs_named(master, word)})
    return NamedSubjects(list(tasks), list(runs.values()))


def runs_with_name(master: PoolSession, name: str) -> list[int]:
    """Returns the numbers of all runs with this name."""
    return [row["run"] for row in master.ask("runs") if row["name"] == name]


def _tasks_named(master: PoolSession, word: str) -> list[str]:
    """Returns the ids of the tasks that a word names. Returns an empty list if the word can only be the name of a run or a range of
    runs."""
    if "." not in word:
        return []
    run, _, span = word.rpartition(".")
    ends = RANGE.fullmatch(span)
    if ends is None:
        single = named_task(master, word) or (task_name(word) if TASK.fullmatch(word) else None)
        return [single] if single else []
    with suppress(BadInput):  # the word can be a name or a label that only looks like a range
        if find_run(master, word):
            return []
    with suppress(BadInput):
        if label := named_task(master, word):
            return [label]
    row = find_run(master, run)
    first, last = map(int, ends.groups())
    if not first <= last < row["tasks"]:
        number, count = row["run"], row["tasks"]
        raise BadInput(f"{word}: run {number} has the tasks {number}.0 to {number}.{count - 1}", f"List them: pilotfish tasks {number}")
    return [f"{row['run']}.{index}" for index in range(first, last + 1)]


def _runs_named(master: PoolSession, word: str) -> list[dict[str, Any]]:
    ends = RANGE.fullmatch(word)
    if ends is None:
        return [find_run(master, word)]
    with suppress(BadInput):  # the word can be the name of a run that only looks like a range
        return [find_run(master, word)]
    first, last = map(int, ends.groups())
    rows = [row for row in master.ask("runs") if first <= row["run"] <= last]
    if not rows:
        raise BadInput(f"there is no run from {first} to {last}", "List them: pilotfish status")
    return rows
