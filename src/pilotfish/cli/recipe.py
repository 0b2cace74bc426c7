"""A task's own command line, found again from what was typed: the master forgets the input of a task that is done."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from pilotfish.api.placeholders import make_template
from pilotfish.api.sweep import make_sweep
from pilotfish.api.taskfile import read_task_file
from pilotfish.applications.parcel import DamagedParcel, unpack
from pilotfish.cli.pool import Master
from pilotfish.errors import BadInput

CHUNK = 1000


def with_commands(
    master: Master, run: dict[str, Any], rows: Iterable[dict[str, Any]], ask: bool = True
) -> Iterator[tuple[dict[str, Any], str]]:
    """Each task with its own command line, where that can be known; else with the name of its program or function.

    The rows come in the order of their indices. Without ``ask`` the master is not asked for the input of single tasks.
    """
    lines, position = expand_recipe(run), 0
    for row in rows:
        command = next(itertools.islice(lines, row["index"] - position, None), None)
        position = row["index"] + 1
        yield row, command if command is not None else _own_command(master, row) if ask else str(row["name"])


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


def expand_recipe(row: dict[str, Any]) -> Iterator[str]:
    """The command lines of all tasks of a run, to be pasted into a shell; none when they cannot be known for certain."""
    recipe = str(row.get("command", ""))
    if not recipe.startswith("--"):
        return
    lines: Iterator[str] | None = None
    chunk: list[str] = []
    while chunk or lines is None:
        try:
            # Files of a sweep were named from where the command was typed, and large ones are read while it goes on.
            with contextlib.chdir(str(row.get("cwd") or os.getcwd())):
                if lines is None:
                    total, lines = _lines(shlex.split(recipe))
                    # A rerun has the recipe of the whole, but only some of its tasks.
                    if total != row["tasks"]:
                        return
                chunk = list(itertools.islice(lines, CHUNK))
        except (BadInput, ValueError, KeyError, StopIteration, OSError):
            return
        yield from chunk


def _lines(words: list[str]) -> tuple[int, Iterator[str]]:
    if words[0] == "--tasks":
        listed = read_task_file(words[1])
        return len(listed), (shlex.join(task.argv) for task in listed)
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
    if each_line == "-":
        raise BadInput("the standard input cannot be read again", "")
    sweep = make_sweep(parameters, tables, each_line, zipped)
    templates = [make_template(word, sweep.names, "the command") for word in rest]
    filled = (shlex.join(template.fill(values, number) for template in templates) for number, values in enumerate(sweep))
    return len(sweep), filled
