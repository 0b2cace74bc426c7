"""A task's own command line, parameters and name, as they were written down or from what was typed: the master forgets the input of a
task that is done."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pilotfish.api.nearest import did_you_mean
from pilotfish.api.placeholders import make_template
from pilotfish.api.sweep import make_sweep
from pilotfish.api.tables import LINE
from pilotfish.api.taskfile import read_task_file
from pilotfish.applications.parcel import DamagedParcel, unpack
from pilotfish.cli.pool import Master, all_tasks, find_run, task_name
from pilotfish.cli.register import Line, Recipe, Values, keep_register, read_register
from pilotfish.errors import BadInput

CHUNK = 1000
LINE_COLUMN = "line"
"""What the lines of ``--each-line`` are called where they need a name."""


@dataclass(frozen=True, slots=True)
class Described:
    """A task with its own command line (its name before it), and its values of the run's parameters where they are known."""

    row: dict[str, Any]
    command: str
    values: Values | None
    label: str = ""

    def parameters(self, names: Values) -> str:
        """``alpha=0.1 seed=3``; nothing if they are not known."""
        return " ".join(f"{name}={value}" for name, value in zip(names, self.values or (), strict=False))


@dataclass(slots=True)
class Tasks:
    """The tasks of a run with all that is known of each. To be gone through once."""

    names: Values
    found: Iterator[Described]
    known: bool
    """Whether it is known what was typed or written for them."""


def describe(master: Master, run: dict[str, Any], rows: Iterable[dict[str, Any]], ask: bool = True) -> Tasks:
    """Each task with its own command line, where that can be known; else with the name of its program or function.

    The rows come in the order of their indices. Without ``ask`` the master is not asked for the input of single tasks.
    """
    known = recipe_of(master, run)
    recipe = known or Recipe((), iter(()))

    def matched() -> Iterator[Described]:
        position = 0
        for row in rows:
            line = next(itertools.islice(recipe.lines, row["index"] - position, None), None)
            position = row["index"] + 1
            if line is not None:
                yield Described(row, line.told(), line.values, line.label)
            else:
                yield Described(row, _own_command(master, row) if ask else str(row["name"]), None)

    return Tasks(recipe.names, matched(), known is not None)


def with_commands(master: Master, run: dict[str, Any], rows: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str]]:
    return ((task.row, task.command) for task in describe(master, run, rows).found)


def command_of(master: Master, run: dict[str, Any], row: dict[str, Any]) -> str:
    """The command line of one task."""
    return next(with_commands(master, run, [row]))[1]


def _own_command(master: Master, row: dict[str, Any]) -> str:
    """From the task's input, which the master keeps as long as the task may be run again."""
    name = str(row["name"])
    if row.get("kind") != "exec" or row["state"] == "done":
        return name
    _, payload = master.ask_bytes("payload", task=row["id"], which="input")
    try:
        return shlex.join(json.loads(bytes(unpack(payload)[0]))["argv"]) if payload else name
    except (DamagedParcel, ValueError, KeyError):
        return name


def named_task(master: Master, text: str) -> str | None:
    """The task that a person means by ``3.17``, ``NAME.17`` or ``3.LABEL``; None if no run has such a name, or one has the whole of it."""
    if _run_named(master, text) is not None:
        return None
    problem: BadInput | None = None
    for dot in (place for place, character in enumerate(text) if character == "."):
        run, index = _run_named(master, text[:dot]), text[dot + 1 :]
        if run is None:
            continue
        if index.isdecimal():
            return task_name(f"{run['run']}.{index}")
        recipe = recipe_of(master, run)
        labels = {line.label: place for place, line in enumerate(recipe.lines) if line.label} if recipe else {}
        if index in labels:
            return f"{run['run']}.{labels[index]}"
        fix = did_you_mean(index, labels) or f"A task is RUN.INDEX, such as {run['run']}.0; list them: pilotfish tasks {run['run']}"
        problem = problem or BadInput(f"run {run['run']} has no task {index!r}", fix)
    if problem is not None:
        raise problem
    return None


def _run_named(master: Master, name: str) -> dict[str, Any] | None:
    with contextlib.suppress(BadInput):
        return find_run(master, name)
    return None


# --- runs that try some tasks of another once more ----------------------------------------------------------------------------------


def keep_rerun(master: Master, origin: dict[str, Any], run: int, tasks: int) -> None:
    """A run that tries again what failed in another keeps what its tasks are, whatever becomes of the other."""
    recipe = recipe_of(master, origin)
    if recipe is None:
        return
    failed = [row["index"] for row in all_tasks(master, origin["run"], "failed")]
    if len(failed) != tasks:  # more failed since, and nobody knows which of them are meant
        return
    with keep_register(master, run, recipe.names) as note:
        for line in _only(recipe.lines, failed):
            note(line)


def recipe_of(master: Master, run: dict[str, Any]) -> Recipe | None:
    """What was written down for a run, or else what was typed."""
    if not str(run.get("command", "")).startswith("--"):
        return None
    return read_register(master, run["run"]) or read_recipe(run)


def _only(lines: Iterator[Line], indices: Iterable[int]) -> Iterator[Line]:
    position = 0
    for index in indices:
        line = next(itertools.islice(lines, index - position, None), None)
        if line is None:
            return
        position = index + 1
        yield line


# --- from what was typed to the tasks -------------------------------------------------------------------------------------------------


def read_recipe(row: dict[str, Any]) -> Recipe | None:
    """All tasks of a run, their commands to be pasted into a shell; None when they cannot be known for certain."""
    recipe = str(row.get("command", ""))
    if not recipe.startswith("--"):
        return None
    cwd = str(row.get("cwd") or os.getcwd())
    try:
        # Files of a sweep were named from where the command was typed.
        with contextlib.chdir(cwd):
            total, names, lines = _read(shlex.split(recipe), float(row.get("opened_at") or "inf"))
    except (BadInput, ValueError, KeyError, StopIteration, OSError):
        return None
    # A rerun has the recipe of the whole, but only some of its tasks.
    return Recipe(names, _in_directory(cwd, lines)) if total == row["tasks"] else None


def _in_directory(cwd: str, lines: Iterator[Line]) -> Iterator[Line]:
    """Large files are read while it goes on."""
    while True:
        try:
            with contextlib.chdir(cwd):
                chunk = list(itertools.islice(lines, CHUNK))
        except (BadInput, ValueError, OSError):
            return
        if not chunk:
            return
        yield from chunk


def _read(words: list[str], opened_at: float) -> tuple[int, Values, Iterator[Line]]:
    if words[0] == "--tasks":
        _check_unchanged(words[1], opened_at)
        listed = read_task_file(words[1])
        return len(listed), (), (Line(shlex.join(task.argv), label=task.id) for task in listed)
    parameters: list[str] = []
    tables: list[str] = []
    each_line, zipped = None, False
    rest = iter(words)
    for word in rest:
        if word == "--":
            break
        if word == "--zip":
            zipped = True
        elif word == "--each-line":
            each_line = next(rest)
        else:
            {"--param": parameters, "--params-from": tables}[word].append(next(rest))
    columns = [values[1:] for _, _, values in (text.partition("=") for text in parameters) if values.startswith("@")]
    if each_line == "-":
        raise BadInput("the standard input cannot be read again", "")
    for path in (*tables, *columns, *([each_line] if each_line is not None else [])):
        _check_unchanged(path, opened_at)
    sweep = make_sweep(parameters, tables, each_line, zipped)
    templates = [make_template(word, sweep.names, "the command") for word in rest]
    filled = (Line(shlex.join(template.fill(values, number) for template in templates), values) for number, values in enumerate(sweep))
    return len(sweep), columns_of(sweep.names), filled


def columns_of(names: Values) -> Values:
    return tuple(LINE_COLUMN if name == LINE else name for name in names)


def _check_unchanged(path: str, opened_at: float) -> None:
    """A table that was edited since would tell other values than those that were run. A file moved in its place counts, too."""
    if os.stat(path).st_ctime > opened_at:
        raise BadInput(f"{path} was changed after the run had begun", "")
