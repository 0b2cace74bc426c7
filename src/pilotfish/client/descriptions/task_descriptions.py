"""Finds the command line, parameters and label of each task of a run. Writes and reads the files that store these descriptions.

The master forgets the input of an ended task. So the client that submits a run N also writes the descriptions of its tasks to the register
of the run, the file ``register-N.gz`` in the pool directory. The command line, ``--json`` and Python all read the register, so they show
the same descriptions. A run has no register if its command line determines all tasks. In this case, the descriptions are made again from
the command line.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import shlex
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from getopt import GetoptError, getopt
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pilotfish.applications.sweeps.placeholders import make_template
from pilotfish.applications.sweeps.sweep import make_sweep, split_lists
from pilotfish.applications.sweeps.tables import LINE
from pilotfish.applications.sweeps.task_list_file import read_task_file
from pilotfish.client.session import PoolSession, find_run, task_name
from pilotfish.errors import BadInput, did_you_mean
from pilotfish.portable.payload_format import unpack

CHUNK = 1000
LABELLED_RUNS = 20
"""Maximum number of runs in which ``task_with_label`` looks for a task."""
LINE_COLUMN = "line"
"""Name of the parameter whose values are the lines of ``--each-line``."""


@dataclass(frozen=True, slots=True)
class DescribedTask:
    """A task with its command line, its parameter values (None if they are unknown) and its label in a task list or DAG."""

    row: dict[str, Any]
    command: str
    values: Values | None
    label: str = ""

    def parameters(self, names: Values) -> str:
        """Formats the parameters as ``alpha=0.1 seed=3``. Returns an empty text if they are not known."""
        return " ".join(f"{name}={value}" for name, value in zip(names, self.values or (), strict=False))


@dataclass(slots=True)
class DescribedTasks:
    """The tasks of a run with their descriptions. ``found`` is an iterator, so it can be read only once."""

    names: Values
    found: Iterator[DescribedTask]
    known: bool
    """Whether the run has a register, or a command line from which the tasks can be made."""


def describe(master: PoolSession, run: dict[str, Any], rows: Iterable[dict[str, Any]], ask: bool = True) -> DescribedTasks:
    """Finds the command line of each task. A task without a known command line gets the name of its program or function instead.

    ``rows`` must be in the order of task indices. ``ask``: whether to ask the master for the inputs of tasks without a description. The
    inputs contain the command lines.
    """
    known = describe_run(master, run)
    description = known or RunDescription((), iter(()))

    def matched() -> Iterator[DescribedTask]:
        first, second = itertools.tee(rows)
        for row, line in zip(first, _select(description.lines, (row["index"] for row in second)), strict=True):
            if line.command:
                yield DescribedTask(row, with_outcome(line.text(), row), line.values, line.label)
            else:
                yield DescribedTask(row, _command_from_input(master, row) if ask else str(row["name"]), None)

    return DescribedTasks(description.names, matched(), known is not None)


def with_outcome(command: str, row: dict[str, Any]) -> str:
    """Replaces the macros of a FINAL node by their values. If the values are not known yet, returns the command unchanged."""
    failed = row.get("failed_before")
    if failed is None:
        return command
    for macro, value in (("$FAILED_COUNT", str(failed)), ("$DAG_STATUS", "2" if failed else "0")):
        command = command.replace(f"'{macro}'", value).replace(macro, value)
    return command


def described_rows(master: PoolSession, run: dict[str, Any], rows: Iterable[dict[str, Any]], ask: bool = False) -> Iterator[dict[str, Any]]:
    """Yields the rows of tasks. Each row also has the command line, label and parameters of its task. ``ask``: see ``describe``."""
    tasks = describe(master, run, rows, ask)
    for task in tasks.found:
        parameters = dict(zip(tasks.names, task.values or (), strict=False))
        yield {**task.row, "command": task.command, "label": task.label or None, "parameters": parameters}


def with_commands(master: PoolSession, run: dict[str, Any], rows: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str]]:
    return ((task.row, task.command) for task in describe(master, run, rows).found)


def _command_from_input(master: PoolSession, row: dict[str, Any]) -> str:
    """Reads the command line of an executable from the input payload of its task. Returns the name of the program or function instead if
    the task is a Python call, if it is done, or if its payload was deleted."""
    name = str(row["name"])
    if row.get("kind") != "exec" or row["state"] == "done":
        return name
    _, payload = master.ask_bytes("payload", task=row["id"], which="input")
    return command_in(payload) or name


def command_in(payload: bytes) -> str:
    """Returns the command line in the input payload of an executable. Returns an empty text if the payload contains no command line."""
    try:
        return shlex.join(json.loads(bytes(unpack(payload)[0]))["argv"]) if payload else ""
    except (ValueError, KeyError):
        return ""


def input_names(payload: bytes) -> list[str]:
    """Returns the names of the inputs in the payload of an executable."""
    return [str(entry[0]) for entry in json.loads(bytes(unpack(payload)[0])).get("inputs") or ()]


def named_task(master: PoolSession, text: str) -> str | None:
    """Returns the id of the task that the user means by ``3.17``, ``NAME.17`` or ``3.LABEL``. Returns None if the whole text names a run,
    or if the part before the dot does not name a run. Raises BadInput if this run exists, but has no task with the label after the dot."""
    if _run_named(master, text) is not None:
        return None
    problem: BadInput | None = None
    for dot in (place for place, character in enumerate(text) if character == "."):
        run, index = _run_named(master, text[:dot]), text[dot + 1 :]
        if run is None:
            continue
        if index.isdecimal():
            return task_name(f"{run['run']}.{index}")
        description = describe_run(master, run)
        labels = {line.label: place for place, line in enumerate(description.lines) if line.label} if description else {}
        if index in labels:
            return f"{run['run']}.{labels[index]}"
        fix = did_you_mean(index, labels) or f"A task is RUN.INDEX, such as {run['run']}.0; list them: pilotfish tasks {run['run']}"
        problem = problem or BadInput(f"run {run['run']} has no task {index!r}", fix)
    if problem is not None:
        raise problem
    return None


def task_with_label(master: PoolSession, label: str) -> str:
    """Looks for a task with this label in the last LABELLED_RUNS runs. Returns ``RUN.LABEL`` with the newest run that has such a task, or
    an empty text."""
    for run in master.ask("runs")[-LABELLED_RUNS:][::-1]:
        description = describe_run(master, run)
        if description is not None and any(line.label == label for line in description.lines):
            return f"{run['run']}.{label}"
    return ""


def _run_named(master: PoolSession, name: str) -> dict[str, Any] | None:
    with contextlib.suppress(BadInput):
        return find_run(master, name)
    return None


def describe_run(master: PoolSession, run: dict[str, Any]) -> RunDescription | None:
    """Returns the descriptions of a run's tasks: from the register, or from the command line if there is no register."""
    return read_register(master.directory, run["run"]) or describe_from_command(run)


def _select(lines: Iterator[TaskDescription], indices: Iterable[int]) -> Iterator[TaskDescription]:
    """Yields the descriptions of the tasks with these indices. The indices must be in increasing order. Yields UNDESCRIBED for tasks after
    the last line."""
    position = 0
    for index in indices:
        yield next(itertools.islice(lines, index - position, None), UNDESCRIBED)
        position = index + 1


# --- from the command line to the tasks -----------------------------------------------------------------------------------------------


def describe_from_command(row: dict[str, Any]) -> RunDescription | None:
    """Makes the descriptions of a run's tasks from the command line of the run. Returns None if the command line does not determine the
    tasks, or if the descriptions can be wrong, for example because a file of values was changed."""
    description = str(row.get("command", ""))
    if not description.startswith("--"):
        return None
    cwd = str(row.get("cwd") or os.getcwd())
    try:
        # Paths in a sweep are relative to the directory of the command.
        with contextlib.chdir(cwd):
            total, names, lines = _read(shlex.split(description), float(row.get("opened_at") or "inf"))
    except (BadInput, GetoptError, ValueError, IndexError, OSError):
        return None
    # A run lacks the last tasks of its command line while the client submits the tasks, or if the client was killed during the submission.
    is_prefix = total > row["tasks"] and (row.get("incomplete") or row.get("state") == "open")
    return RunDescription(names, _in_directory(cwd, lines)) if is_prefix or total == row["tasks"] else None


def _in_directory(cwd: str, lines: Iterator[TaskDescription]) -> Iterator[TaskDescription]:
    """Yields the items of ``lines``, an iterator that opens files relative to ``cwd``. This process changes to ``cwd`` before each read of
    ``lines`` and back after it."""
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
    options, rest = getopt(words, "", ["param=", "params-from=", "each-line=", "zip", "times="])
    parameters = [value for option, value in options if option == "--param"]
    tables = [value for option, value in options if option == "--params-from"]
    each_line = next((value for option, value in options if option == "--each-line"), None)
    columns = [values[1:] for _, _, values in (text.partition("=") for text in parameters) if values.startswith("@")]
    if each_line == "-":
        raise BadInput("the standard input cannot be read again", "")
    for path in (*tables, *columns, *([each_line] if each_line is not None else [])):
        _check_unchanged(path, opened_at)
    times = next((int(value) for option, value in options if option == "--times"), 1)
    command, lists = split_lists(rest)
    sweep = make_sweep(parameters, tables, each_line, ("--zip", "") in options, lists, times)
    templates = [make_template(word, sweep.names or None, "the command") for word in command]
    filled = (
        TaskDescription(shlex.join(template.fill(values, number) for template in templates), values) for number, values in enumerate(sweep)
    )
    return len(sweep), columns_of(sweep.names), filled


def columns_of(names: Values) -> Values:
    return tuple(LINE_COLUMN if name == LINE else name for name in names)


def _check_unchanged(path: str, opened_at: float) -> None:
    """Raises BadInput if a file of values was changed or replaced after the run began, because the tasks probably used the earlier
    values."""
    if not os.path.isfile(path):
        raise BadInput(f"{path} is not a file", "")
    if os.stat(path).st_ctime > opened_at:
        raise BadInput(f"{path} was changed after the run had begun", "")


# --- registers ------------------------------------------------------------------------------------------------------------------------

MAX_REGISTER_BYTES = 64 << 20
"""Maximum size of a register. It is enough for millions of tasks. A larger run has no register."""
FLUSH_TASKS = 1000
"""The waiting descriptions are written as soon as there are this many."""
FLUSH_S = 1.0
"""The waiting descriptions are written this many seconds after the last write, even if there are fewer than FLUSH_TASKS."""

Values = tuple[str, ...]


class TaskDescription(NamedTuple):
    """Command line of a task, its parameter values, and its label in a task list or DAG."""

    command: str
    values: Values = ()
    label: str = ""

    def text(self) -> str:
        return f"{self.label}: {self.command}" if self.label else self.command


UNDESCRIBED = TaskDescription("")


@dataclass(frozen=True, slots=True)
class RunDescription:
    """Descriptions of a run's tasks in the order of task indices, and the names of the run's parameters."""

    names: Values
    lines: Iterator[TaskDescription]


class TaskRegister:
    """Writes the register of a run: the descriptions of its tasks. The methods are thread-safe. Write errors are ignored, because a run
    works without a register.

    The register is a series of gzip members. Each line of a member is a row in JSON. The first row of the register has the names of the
    parameters. Each later row describes one task: [label, command, values…]. If the index of this task is not the previous index plus one,
    the row begins with the index.
    """

    def __init__(self, directory: Path, run: int, names: Values = ()) -> None:
        self._path = _register_path(directory, run)
        self._names = names
        self._too_large = False
        self._waiting: deque[tuple[int, TaskDescription]] = deque()
        self._flushed_at = time.monotonic()
        self._lock = threading.Lock()

    def note(self, index: int, description: TaskDescription) -> None:
        """Adds the description of a task to the register. Call it in the order of task indices."""
        if not self._too_large:
            self._waiting.append((index, description))

    def flush_if_due(self) -> None:
        """Writes the waiting descriptions if there are many, or if the last write was long ago."""
        count = len(self._waiting)
        if count >= FLUSH_TASKS or (count and time.monotonic() - self._flushed_at >= FLUSH_S):
            self.flush()

    def flush(self) -> None:
        with self._lock, suppress(OSError):
            self._flushed_at = time.monotonic()
            if self._waiting:
                self._append([self._waiting.popleft() for _ in range(len(self._waiting))])

    def _append(self, described: list[tuple[int, TaskDescription]]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with open(os.open(self._path, flags, 0o600), "ab") as file:
            rows: list[tuple[str | int, ...]] = [] if file.tell() else [self._names]
            expected = -1 if file.tell() else 0
            for index, task in described:
                row = (task.label, task.command, *task.values)
                rows.append(row if index == expected else (index, *row))
                expected = index + 1
            packed = gzip.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows), 1)
            self._too_large = file.tell() + len(packed) > MAX_REGISTER_BYTES
            if self._too_large:
                self._path.unlink()
            else:
                file.write(packed)


def read_register(directory: Path, run: int) -> RunDescription | None:
    """Reads the register of a run. Returns None if the run has no register."""
    rows = _rows(_register_path(directory, run))
    names = next(rows, None)
    return None if names is None else RunDescription(tuple(names), _in_order(rows))


def _in_order(rows: Iterator[list[Any]]) -> Iterator[TaskDescription]:
    """Yields one description per index, beginning with index 0. Yields UNDESCRIBED for a missing index."""
    position = index = 0
    for row in rows:
        if isinstance(row[0], int):
            index, *row = row
        if index >= position:  # a smaller index means that another program wrote to the register too
            yield from itertools.repeat(UNDESCRIBED, index - position)
            label, command, *values = row
            yield TaskDescription(command, tuple(values), label)
            position = index + 1
        index += 1


def _register_path(directory: Path, run: int) -> Path:
    return directory / f"register-{run}.gz"


def _rows(path: Path) -> Iterator[list[Any]]:
    with suppress(OSError, EOFError, msgspec.MsgspecError, zlib.error), gzip.open(path) as file:
        for text in file:
            yield msgspec.json.decode(text)
