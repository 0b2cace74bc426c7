"""Task list files: one task per line.

    # what follows a '#' is a comment; quotes and backslashes work as in a shell, nothing is expanded
    ./sim --seed 1
    in=mesh.dat out=flow.csv cost=2.5   ./sim --mesh mesh.dat
    in=a.txt,b.txt out='*.log'          ./merge a.txt b.txt
    id=prepare                          ./prepare
    after=prepare                       ./use

Fields come before the program, as variables do in a shell: ``in=`` files to bring along, ``out=`` files to bring back (both separated by
commas), ``cost=`` how long the task takes compared with the others, ``id=`` a name by which ``after=`` of others waits for it. A task also
waits for those that make a file that it needs. ``--`` ends the fields.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pilotfish.api.nearest import did_you_mean
from pilotfish.api.sweep import check_count
from pilotfish.api.tables import existing_file, text_of
from pilotfish.api.taskflow import Flow, Links
from pilotfish.errors import BadInput
from pilotfish.model.data import Awaited
from pilotfish.model.task import LEAST_COST, MOST_COST

FIELDS = ("in", "out", "cost", "id", "after")


@dataclass(frozen=True, slots=True)
class ListedTask:
    """One line of a task list."""

    argv: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    cost: float = 1.0
    id: str = ""
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A task list file that was read through once and found good; iterating it reads it again.

    ``flow``: which tasks wait for which, if any do; then tasks come in its order.
    """

    path: Path
    count: int
    flow: Flow | None = None

    def __len__(self) -> int:
        return self.count

    @property
    def made(self) -> frozenset[str]:
        """Files that one task makes and another needs."""
        return self.flow.files if self.flow is not None else frozenset()

    def awaited(self, place: int) -> tuple[Awaited, ...]:
        """Those that this task needs."""
        return self.flow.awaited[place] if self.flow is not None else ()

    def __iter__(self) -> Iterator[ListedTask]:
        tasks = (task for _, task in _tasks_of(self.path))
        if self.flow is None:
            return tasks
        listed = list(tasks)
        return (listed[index] for index in self.flow.order)


def read_task_file(path: str) -> TaskFile:
    file = existing_file(path, "--tasks")
    links = Links(path)
    count = 0
    for line, task in _tasks_of(file):
        count += 1
        links.note(line, task.id, task.after, task.inputs, task.outputs)
    if not count:
        raise BadInput(f"the task list {path} has no tasks", "Write one task per line: the program and its arguments.")
    check_count(count, f"the task list {path}")
    return TaskFile(file, count, links.flow())


def _tasks_of(file: Path) -> Iterator[tuple[int, ListedTask]]:
    """With the numbers of their lines."""
    for number, line in enumerate(text_of(file), 1):
        where = f"{file}, line {number}"
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise BadInput(f"{where}: {str(error).lower()}", "Close the quote, or put a backslash before it.") from None
        if words:
            yield number, parse_words(words, where)


def parse_words(words: list[str], where: str) -> ListedTask:
    """Fields, then the program and its arguments."""
    fields: dict[str, str] = {}
    rest = list(words)
    verbatim = False
    while rest:
        if rest[0] == "--":
            rest.pop(0)
            verbatim = True
            break
        name, equals, value = rest[0].partition("=")
        if not equals or "/" in name:
            break
        if name not in FIELDS:
            known = did_you_mean(name, FIELDS)
            raise BadInput(
                f"{where}: unknown field {name!r} (in {rest[0]!r})",
                known or f"Fields are in=, out=, cost=, id= and after=. For an environment variable write: env {rest[0]} PROGRAM ...",
            )
        if name in fields:
            raise BadInput(f"{where}: {name}= is given twice", f"Separate files by commas: {name}=first,second")
        fields[name] = value
        rest.pop(0)
    if not rest:
        raise BadInput(f"{where}: no program", "Write the program and its arguments after the fields.")
    if not verbatim:
        _refuse_late_fields(rest, where)
    return ListedTask(
        tuple(rest),
        _files(fields, "in", where),
        _files(fields, "out", where),
        _cost(fields.get("cost", "1"), where),
        fields.get("id", ""),
        _files(fields, "after", where),
    )


def _refuse_late_fields(argv: list[str], where: str) -> None:
    for word in argv[1:]:
        name, equals, _ = word.partition("=")
        if equals and name in FIELDS:
            raise BadInput(
                f"{where}: {word!r} comes after the program",
                "Put it before the program; if it is an argument, put -- before the program.",
            )


def _files(fields: dict[str, str], field: str, where: str) -> tuple[str, ...]:
    if field not in fields:
        return ()
    names = tuple(fields[field].split(","))
    if "" in names:
        what = "name" if field == "after" else "file name"
        raise BadInput(f"{where}: {field}={fields[field]} has an empty {what}", f"Separate names by single commas: {field}=first,second")
    return names


def _cost(text: str, where: str) -> float:
    try:
        cost = float(text)
    except ValueError:
        cost = math.nan
    if not LEAST_COST <= cost <= MOST_COST:
        bounds = f"from {LEAST_COST:g} to {MOST_COST:g}"
        raise BadInput(f"{where}: cost={text} is not a number {bounds}", "Write how long it takes compared with the other tasks: cost=2.5")
    return cost
