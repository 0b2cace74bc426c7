"""Reads task list files, with one task per line.

    # a comment follows '#'; quotes and backslashes work as in a shell, nothing is expanded
    ./sim --seed 1
    in=mesh.dat out=flow.csv cost=2.5   ./sim --mesh mesh.dat
    in=a.txt,b.txt out='*.log'          ./merge a.txt b.txt
    id=prepare                          ./prepare
    after=prepare                       ./use

A line has first fields, and then the program with its arguments. Fields are written like variables before a command in a shell. If a field
has several values, commas separate the values.

- ``in=`` and ``out=``: input files and output files.
- ``cost=``: duration relative to the other tasks.
- ``id=``: a name for the task. ``after=``: the names of tasks for which this task waits.

A task also waits for the tasks that produce its input files. The word ``--`` ends the fields.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from pilotfish.applications.dependency_order import DependencyCycle, topological_order
from pilotfish.applications.sweeps.sweep import check_count
from pilotfish.applications.sweeps.tables import existing_file, text_of
from pilotfish.errors import BadInput, did_you_mean
from pilotfish.model.contents import ExpectedFile
from pilotfish.model.task import MAX_COST, MIN_COST

FIELDS = ("in", "out", "cost", "id", "after")
QUOTED = r"""'[^']*'|"(?:\\.|[^"\\])*"|\\."""
WORD = re.compile(rf"""(?:{QUOTED}|[^ \t\r\n'"\\]++)+""")
SPECIAL = re.compile("[#<>|&;]")
OPERATOR = re.compile(rf"{QUOTED}|((?:^&?[0-9]*)?[<>].*|[|&;]+)")
"""Matches quoted texts, and operators of a shell such as ``|``, ``2>&1`` and ``>out.txt``. The group contains the operator."""
WORD_BEFORE_PROGRAM = re.compile(rf"(?:{'|'.join(FIELDS)})=.*|--")


@dataclass(frozen=True, slots=True)
class ListedTask:
    """One line of a task list."""

    argv: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    cost: float = 1.0
    id: str = ""
    after: tuple[str, ...] = ()
    line: int = field(default=0, compare=False)
    """Number of the line in the task list."""


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A valid task list file. Each iteration over the object reads the file again.

    ``flow``: the dependencies between the tasks, or None if there are none. With dependencies, an iteration yields the tasks in topological
    order. Without dependencies, it yields them in the order of the lines.
    """

    path: Path
    count: int
    flow: TaskFlow | None = None

    def __len__(self) -> int:
        return self.count

    @property
    def intermediate_files(self) -> frozenset[str]:
        """Returns the intermediate files: one task of the list produces the file, and other tasks of the list need it."""
        return self.flow.files if self.flow is not None else frozenset()

    def future_files(self, place: int) -> tuple[ExpectedFile, ...]:
        """Returns the intermediate files that a task needs. ``place``: position of the task in an iteration over this object."""
        return self.flow.future_files[place] if self.flow is not None else ()

    def __iter__(self) -> Iterator[ListedTask]:
        tasks = (task for _, task in _tasks_of(self.path))
        if self.flow is None:
            return tasks
        listed = list(tasks)
        return (listed[index] for index in self.flow.order)


def read_task_file(path: str) -> TaskFile:
    file = existing_file(path, "--tasks")
    links = DependencyBuilder(path)
    count = 0
    for line, task in _tasks_of(file):
        count += 1
        links.note(line, task.id, task.after, task.inputs, task.outputs)
    if not count:
        raise BadInput(f"the task list {path} has no tasks", "Write one task per line: the program and its arguments.")
    check_count(count, f"the task list {path}")
    return TaskFile(file, count, links.flow())


def _tasks_of(file: Path) -> Iterator[tuple[int, ListedTask]]:
    for number, line in enumerate(text_of(file), 1):
        where = f"{file}, line {number}"
        words = _split(line.rstrip("\r\n"), where)
        if words:
            yield number, replace(parse_words(words, where), line=number)


def _split(line: str, where: str) -> list[str]:
    """Splits a line into words. As in a shell, ``#`` begins a comment only at the start of a word. No shell reads the line, so operators of
    a shell would have no effect. Raises BadInput for such an operator outside of quotes."""
    found = list(WORD.finditer(line)) if SPECIAL.search(line) else []
    comment = next((place for place, word in enumerate(found) if word[0][0] == "#"), None)
    if comment is not None:
        line, found = line[: found[comment].start()], found[:comment]
    try:
        words = shlex.split(line)
    except ValueError as error:
        fix = "Close the quote, or put a backslash before it. A task cannot continue on the next line."
        raise BadInput(f"{where}: {str(error).lower()}", fix) from None
    program = next((place for place, word in enumerate(found) if not WORD_BEFORE_PROGRAM.fullmatch(word[0])), 0)
    for place, raw in enumerate(found):
        operator = next(filter(None, OPERATOR.findall(raw[0])), "")
        if operator:
            fields = [word[0] for word in found[:program] if word[0] != "--"]
            recipe = " ".join([*fields, "sh -c", shlex.quote(line[found[program].start() :].rstrip())])
            let = f"Let a shell run the command: {recipe}; if it is an argument, quote" if place >= program else "Quote"
            message = f"{where}: {operator!r} would be an argument, because no shell reads the line"
            raise BadInput(message, f"{let} it: {shlex.quote(words[place])}")
    return words


def parse_words(words: list[str], where: str) -> ListedTask:
    """Parses the words of one line: fields, program and arguments."""
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
                f"{where}: {word!r} comes after the program", "Put it before the program; if it is an argument, put -- before the program."
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
    if not MIN_COST <= cost <= MAX_COST:
        bounds = f"from {MIN_COST:g} to {MAX_COST:g}"
        raise BadInput(f"{where}: cost={text} is not a number {bounds}", "Write how long it takes compared with the other tasks: cost=2.5")
    return cost


# Dependencies between the tasks of a list come from ``after=``, and from files that one task produces and another task needs.

SHOWN = 6


@dataclass(frozen=True, slots=True)
class TaskFlow:
    """Dependencies between the tasks of a list."""

    order: tuple[int, ...]
    """Indices of the tasks in the list, sorted so that each task comes after its parents."""
    parents: tuple[tuple[int, ...], ...]
    """For each position in ``order``, the parents of the task there. A parent is given by its position in ``order``."""
    files: frozenset[str]
    """Names of the intermediate files."""
    future_files: tuple[tuple[ExpectedFile, ...], ...]
    """For each position in ``order``, the intermediate files that the task there needs."""


@dataclass(slots=True)
class DependencyBuilder:
    """Collects the dependencies of a task list while the list is read."""

    path: str
    _lines: list[int] = field(default_factory=list)
    _ids: dict[str, int] = field(default_factory=dict)
    _after: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _makers: dict[str, list[int]] = field(default_factory=dict)
    _needs: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def note(self, line: int, label: str, after: tuple[str, ...], inputs: Iterable[str], outputs: Iterable[str]) -> None:
        """Adds the task that one line of the list describes."""
        index = len(self._lines)
        self._lines.append(line)
        if label:
            if label in self._ids:
                raise BadInput(
                    f"{self._where(index)}: id={label} is already that of line {self._lines[self._ids[label]]}",
                    "Give each task an id of its own.",
                )
            self._ids[label] = index
        if after:
            self._after[index] = after
        own = [os.path.normpath(name) for name in outputs]
        needed = tuple(name for name in map(os.path.normpath, inputs) if name not in own)
        for name in own:
            self._makers.setdefault(name, []).append(index)
        if needed:
            self._needs[index] = needed

    def flow(self) -> TaskFlow | None:
        """Returns the dependencies, or None if there are none."""
        parents: list[dict[int, None]] = [{} for _ in self._lines] if self._after or self._needs else []
        files: dict[tuple[int, str], int] = {}
        for index, labels in self._after.items():
            parents[index].update((self._named(label, index), None) for label in labels)
        for index, names in self._needs.items():
            for name in names:
                makers = self._makers.get(name, ())
                if len(makers) > 1:
                    both = " and ".join(str(self._lines[maker]) for maker in makers[:2])
                    raise BadInput(
                        f"{self._where(index)}: in={name}: lines {both} both make it", "Let each make a file of a name of its own."
                    )
                for maker in makers:
                    parents[index][maker] = None
                    files[index, name] = maker
        return self._ordered(parents, files) if any(parents) else None

    def _ordered(self, parents: list[dict[int, None]], files: dict[tuple[int, str], int]) -> TaskFlow:
        try:
            order = topological_order(parents)
        except DependencyCycle as cycle:
            lines = [self._lines[place] for place in cycle.places]
            shown = ", ".join(map(str, lines[:SHOWN])) + (", ..." if len(lines) > SHOWN else "")
            what = f"the tasks of lines {shown} wait for each other" if len(lines) > 1 else f"the task of line {shown} waits for itself"
            raise BadInput(f"{self.path}: {what}", "Break the cycle: see their after=, in= and out=.") from None
        places = {index: place for place, index in enumerate(order)}
        future_files: list[list[ExpectedFile]] = [[] for _ in order]
        for (index, name), maker in files.items():
            future_files[places[index]].append(ExpectedFile(places[maker], name, name))
        return TaskFlow(
            tuple(order),
            tuple(tuple(sorted(places[parent] for parent in parents[index])) for index in order),
            frozenset(name for _, name in files),
            tuple(map(tuple, future_files)),
        )

    def _named(self, label: str, index: int) -> int:
        if label not in self._ids:
            near = did_you_mean(label, self._ids)
            raise BadInput(
                f"{self._where(index)}: after={label}: no task has that id",
                near or f"Give it to the task that is meant: id={label} PROGRAM ...",
            )
        return self._ids[label]

    def _where(self, index: int) -> str:
        return f"{self.path}, line {self._lines[index]}"
