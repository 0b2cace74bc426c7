"""A task's own command line, parameters and name, as they were written down or from what was typed: the master forgets the input of a
task that is done.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import shlex
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pilotfish.applications.sweeps.placeholders import make_template
from pilotfish.applications.sweeps.sweep import make_sweep
from pilotfish.applications.sweeps.tables import LINE
from pilotfish.applications.sweeps.task_list_file import read_task_file
from pilotfish.client.run_handle import register_file
from pilotfish.client.session import PoolSessionProtocol, all_tasks, find_run, task_name
from pilotfish.errors import BadInput, did_you_mean
from pilotfish.portable.payload_format import unpack

CHUNK = 1000
LINE_COLUMN = "line"
"""What the lines of ``--each-line`` are called where they need a name."""


@dataclass(frozen=True, slots=True)
class DescribedTask:
    """A task with its own command line (its name before it), and its values of the run's parameters where they are known."""

    row: dict[str, Any]
    command: str
    values: Values | None
    label: str = ""

    def parameters(self, names: Values) -> str:
        """``alpha=0.1 seed=3``; nothing if they are not known."""
        return " ".join(f"{name}={value}" for name, value in zip(names, self.values or (), strict=False))


@dataclass(slots=True)
class DescribedTasks:
    """The tasks of a run with all that is known of each. To be gone through once."""

    names: Values
    found: Iterator[DescribedTask]
    known: bool
    """Whether it is known what was typed or written for them."""


def describe(master: PoolSessionProtocol, run: dict[str, Any], rows: Iterable[dict[str, Any]], ask: bool = True) -> DescribedTasks:
    """Each task with its own command line, where that can be known; else with the name of its program or function.

    The rows come in the order of their indices. Without ``ask`` the master is not asked for the input of single tasks.
    """
    known = recipe_of(master, run)
    recipe = known or RunDescription((), iter(()))

    def matched() -> Iterator[DescribedTask]:
        position = 0
        for row in rows:
            line = next(itertools.islice(recipe.lines, row["index"] - position, None), None)
            position = row["index"] + 1
            if line is not None:
                yield DescribedTask(row, line.told(), line.values, line.label)
            else:
                yield DescribedTask(row, _own_command(master, row) if ask else str(row["name"]), None)

    return DescribedTasks(recipe.names, matched(), known is not None)


def with_commands(master: PoolSessionProtocol, run: dict[str, Any], rows: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str]]:
    return ((task.row, task.command) for task in describe(master, run, rows).found)


def command_of(master: PoolSessionProtocol, run: dict[str, Any], row: dict[str, Any]) -> str:
    """The command line of one task."""
    return next(with_commands(master, run, [row]))[1]


def _own_command(master: PoolSessionProtocol, row: dict[str, Any]) -> str:
    """From the task's input, which the master keeps as long as the task may be run again."""
    name = str(row["name"])
    if row.get("kind") != "exec" or row["state"] == "done":
        return name
    _, payload = master.ask_bytes("payload", task=row["id"], which="input")
    try:
        return shlex.join(json.loads(bytes(unpack(payload)[0]))["argv"]) if payload else name
    except (ValueError, KeyError):
        return name


def named_task(master: PoolSessionProtocol, text: str) -> str | None:
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


def _run_named(master: PoolSessionProtocol, name: str) -> dict[str, Any] | None:
    with contextlib.suppress(BadInput):
        return find_run(master, name)
    return None


# --- runs that try some tasks of another once more ----------------------------------------------------------------------------------


def keep_rerun(master: PoolSessionProtocol, origin: dict[str, Any], run: int, tasks: int) -> None:
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


def recipe_of(master: PoolSessionProtocol, run: dict[str, Any]) -> RunDescription | None:
    """What was written down for a run, or else what was typed."""
    if not str(run.get("command", "")).startswith("--"):
        return None
    return read_register(master, run["run"]) or read_recipe(run)


def _only(lines: Iterator[TaskDescription], indices: Iterable[int]) -> Iterator[TaskDescription]:
    position = 0
    for index in indices:
        line = next(itertools.islice(lines, index - position, None), None)
        if line is None:
            return
        position = index + 1
        yield line


# --- from what was typed to the tasks -------------------------------------------------------------------------------------------------


def read_recipe(row: dict[str, Any]) -> RunDescription | None:
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
    return RunDescription(names, _in_directory(cwd, lines)) if total == row["tasks"] else None


def _in_directory(cwd: str, lines: Iterator[TaskDescription]) -> Iterator[TaskDescription]:
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


def _read(words: list[str], opened_at: float) -> tuple[int, Values, Iterator[TaskDescription]]:
    if words[0] == "--tasks":
        _check_unchanged(words[1], opened_at)
        listed = read_task_file(words[1])
        return len(listed), (), (TaskDescription(shlex.join(task.argv), label=task.id) for task in listed)
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
    filled = (
        TaskDescription(shlex.join(template.fill(values, number) for template in templates), values) for number, values in enumerate(sweep)
    )
    return len(sweep), columns_of(sweep.names), filled


def columns_of(names: Values) -> Values:
    return tuple(LINE_COLUMN if name == LINE else name for name in names)


def _check_unchanged(path: str, opened_at: float) -> None:
    """A table that was edited since would tell other values than those that were run. A file moved in its place counts, too."""
    if os.stat(path).st_ctime > opened_at:
        raise BadInput(f"{path} was changed after the run had begun", "")


# What each task of a run is, written down when it is submitted: the files that say so may be edited or gone long before the run is.

MOST_BYTES = 64 << 20
"""Packed, that is millions of tasks. Those of a larger run are known as long as its files are as they were."""

Values = tuple[str, ...]


class TaskDescription(NamedTuple):
    """A task: its command line, its values of the run's parameters, and the name that a task list or DAG gave it."""

    command: str
    values: Values = ()
    label: str = ""

    def told(self) -> str:
        return f"{self.label}: {self.command}" if self.label else self.command


@dataclass(frozen=True, slots=True)
class RunDescription:
    """The tasks of a run in their order, with the names of its parameters."""

    names: Values
    lines: Iterator[TaskDescription]


@contextmanager
def keep_register(master: PoolSessionProtocol, run: int, names: Values = ()) -> Iterator[Callable[[TaskDescription], None]]:
    """Takes the tasks of a run in their order. If there are none, or they cannot be written down, the run does without."""
    packer = zlib.compressobj(1, wbits=31)
    packed = bytearray(packer.compress(_row(names)))
    noted = False

    def note(line: TaskDescription) -> None:
        nonlocal noted
        noted = True
        if len(packed) <= MOST_BYTES:
            packed.extend(packer.compress(_row((line.label, line.command, *line.values))))

    try:
        yield note
    finally:
        packed += packer.flush()
        if noted and len(packed) <= MOST_BYTES:
            with suppress(OSError):
                _write(register_file(master, run), packed)


def read_register(master: PoolSessionProtocol, run: int) -> RunDescription | None:
    """None if there is none."""
    rows = _rows(register_file(master, run))
    names = next(rows, None)
    return (
        None
        if names is None
        else RunDescription(tuple(names), (TaskDescription(command, tuple(values), label) for label, command, *values in rows))
    )


def _row(texts: Values) -> bytes:
    return json.dumps(texts).encode() + b"\n"


def _rows(path: Path) -> Iterator[list[Any]]:
    with suppress(OSError, EOFError, ValueError, zlib.error), gzip.open(path) as file:
        for text in file:
            yield json.loads(text)


def _write(path: Path, content: bytearray) -> None:
    """Whole or not at all."""
    new = path.with_suffix(".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(content)
    new.rename(path)
