"""A task's own command line and parameters, found again from what was typed: the master forgets the input of a task that is done."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotfish.api.placeholders import make_template
from pilotfish.api.sweep import make_sweep
from pilotfish.api.tables import LINE
from pilotfish.api.taskfile import read_task_file
from pilotfish.applications.dagman import read_dag
from pilotfish.applications.dagman_nodes import node_tasks
from pilotfish.applications.dagman_rescue import Rescue
from pilotfish.applications.parcel import DamagedParcel, unpack
from pilotfish.cli.pool import Master, all_tasks
from pilotfish.cli.poolfiles import lines_file
from pilotfish.errors import BadInput

CHUNK = 1000
FROM_STDIN = "--each-line - "
LINE_COLUMN = "line"
"""What the lines of ``--each-line`` are called where they need a name."""

Values = tuple[str, ...]
Line = tuple[str, Values]


@dataclass(frozen=True, slots=True)
class Described:
    """A task with its own command line, and its values of the run's parameters where they are known."""

    row: dict[str, Any]
    command: str
    values: Values | None

    def parameters(self, names: Values) -> str:
        """``alpha=0.1 seed=3``; nothing if they are not known."""
        return " ".join(f"{name}={value}" for name, value in zip(names, self.values or (), strict=False))


@dataclass(frozen=True, slots=True)
class Recipe:
    """What was typed, to be made again: each task's command line and values, in the order of the tasks."""

    names: Values
    lines: Iterator[Line]


@dataclass(slots=True)
class Tasks:
    """The tasks of a run with all that is known of each. To be gone through once."""

    names: Values
    found: Iterator[Described]


def describe(master: Master, run: dict[str, Any], rows: Iterable[dict[str, Any]], ask: bool = True) -> Tasks:
    """Each task with its own command line, where that can be known; else with the name of its program or function.

    The rows come in the order of their indices. Without ``ask`` the master is not asked for the input of single tasks.
    """
    recipe = recipe_of(master, run) or Recipe((), iter(()))

    def matched() -> Iterator[Described]:
        position = 0
        for row in rows:
            line = next(itertools.islice(recipe.lines, row["index"] - position, None), None)
            position = row["index"] + 1
            if line is not None:
                yield Described(row, *line)
            else:
                yield Described(row, _own_command(master, row) if ask else str(row["name"]), None)

    return Tasks(recipe.names, matched())


def with_commands(
    master: Master, run: dict[str, Any], rows: Iterable[dict[str, Any]], ask: bool = True
) -> Iterator[tuple[dict[str, Any], str]]:
    return ((task.row, task.command) for task in describe(master, run, rows, ask).found)


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


# --- runs that try some tasks of another once more ----------------------------------------------------------------------------------


def name_rerun(uid: str, number: str) -> str:
    """The uid of a run that tries again what failed in the one with this uid."""
    return f"{uid}+{number}"


def recipe_of(master: Master, run: dict[str, Any]) -> Recipe | None:
    """What was typed for a run; for a rerun, the part of it that failed before."""
    origin_uid = str(run.get("uid", "")).rpartition("+")[0]
    if not origin_uid or not str(run.get("command", "")).startswith("--"):
        return read_recipe(run, lines_file(master, run["run"]) if FROM_STDIN in str(run["command"]) else None)
    origin = next((row for row in master.ask("runs") if row["uid"] == origin_uid), None)
    # What failed stays failed: as many as then are the same as then.
    if origin is None or origin["counts"].get("failed", 0) != run["tasks"]:
        return None
    before = recipe_of(master, origin)
    return None if before is None else Recipe(before.names, _only(before.lines, all_tasks(master, origin["run"], "failed")))


def _only(lines: Iterator[Line], rows: Iterable[dict[str, Any]]) -> Iterator[Line]:
    position = 0
    for row in rows:
        line = next(itertools.islice(lines, row["index"] - position, None), None)
        if line is None:
            return
        position = row["index"] + 1
        yield line


# --- from what was typed to the tasks -------------------------------------------------------------------------------------------------


def read_recipe(row: dict[str, Any], lines_kept: Path | None = None) -> Recipe | None:
    """All tasks of a run, their commands to be pasted into a shell; None when they cannot be known for certain.

    ``lines_kept`` has what came from the standard input.
    """
    recipe = str(row.get("command", ""))
    if not recipe.startswith("--"):
        return None
    cwd = str(row.get("cwd") or os.getcwd())
    try:
        # Files of a sweep were named from where the command was typed.
        with contextlib.chdir(cwd):
            total, names, lines = _read(shlex.split(recipe), float(row.get("opened_at") or "inf"), lines_kept)
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


def _read(words: list[str], opened_at: float, lines_kept: Path | None) -> tuple[int, Values, Iterator[Line]]:
    if words[0] == "--tasks":
        _check_unchanged(words[1], opened_at)
        listed = read_task_file(words[1])
        return len(listed), (), ((shlex.join(task.argv), ()) for task in listed)
    if words[0] == "--dag":
        dag = read_dag(words[1], Rescue(int(words[-1]) if len(words) > 2 else 0, opened_at))  # --dag FILE # rescue 2
        nodes = [(task.command, ()) for task in node_tasks(dag)]
        for path in dag.files:
            _check_unchanged(path, opened_at)
        return len(nodes), (), iter(nodes)
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
    for path in (*tables, *columns, *([each_line] if each_line not in (None, "-") else [])):
        _check_unchanged(path, opened_at)
    if each_line == "-":
        if lines_kept is None:
            raise BadInput("the standard input cannot be read again", "")
        each_line = str(lines_kept)
    sweep = make_sweep(parameters, tables, each_line, zipped)
    templates = [make_template(word, sweep.names, "the command") for word in rest]
    filled = ((shlex.join(template.fill(values, number) for template in templates), values) for number, values in enumerate(sweep))
    return len(sweep), tuple(LINE_COLUMN if name == LINE else name for name in sweep.names), filled


def _check_unchanged(path: str, opened_at: float) -> None:
    """A table that was edited since would tell other values than those that were run. A file moved in its place counts, too."""
    if os.stat(path).st_ctime > opened_at:
        raise BadInput(f"{path} was changed after the run had begun", "")
