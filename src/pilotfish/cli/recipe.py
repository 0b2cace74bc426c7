"""A task's own command line, found again from what was typed: the master forgets the input of a task that is done."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
from collections.abc import Iterator
from typing import Any

from pilotfish.api.placeholders import make_template
from pilotfish.api.sweep import make_sweep
from pilotfish.api.taskfile import read_task_file
from pilotfish.errors import BadInput


def expand_recipe(row: dict[str, Any], first: int, count: int) -> list[str]:
    """The command lines of tasks ``first`` and on of a run; empty when they cannot be known for certain."""
    recipe = str(row.get("command", ""))
    if not recipe.startswith("--"):
        return []
    try:
        with contextlib.chdir(str(row.get("cwd") or os.getcwd())):
            # Files of a sweep were named from where the command was typed.
            total, lines = _lines(shlex.split(recipe))
            # A rerun has the recipe of the whole, but only some of its tasks.
            if total != row["tasks"]:
                return []
            return list(itertools.islice(lines, first, first + count))
    except (BadInput, ValueError, KeyError, StopIteration, OSError):
        return []


def _lines(words: list[str]) -> tuple[int, Iterator[str]]:
    if words[0] == "--tasks":
        listed = read_task_file(words[1])
        return len(listed), (" ".join(task.argv) for task in listed)
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
    filled = (" ".join(template.fill(values, number) for template in templates) for number, values in enumerate(sweep))
    return len(sweep), filled
