"""Outputs of earlier tasks as inputs: ``--input 3.0:mesh.bin`` is what task 3.0 left under that name, wherever it lies by now."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import lru_cache

from pilotfish.api.nearest import did_you_mean
from pilotfish.applications.files import File
from pilotfish.cli.output import fetch_output
from pilotfish.cli.pool import Master, look, task_name
from pilotfish.errors import BadInput

FORM = re.compile(r"([0-9]+[.][0-9]+):(.+)")
REMEMBERED = 256
"""Results of so many tasks."""

Finder = Callable[[Iterable[str]], list[str | File]]


class EarlierOutputs:
    """Finds them among inputs as they were typed, and leaves the others alone. The pool is asked only if there is one."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._master: Master | None = None
        self._files_of = lru_cache(REMEMBERED)(self._ask)

    def __call__(self, inputs: Iterable[str]) -> list[str | File]:
        return [source for text in inputs for source in self._meant(text)]

    def _meant(self, text: str) -> list[str | File]:
        named = FORM.fullmatch(text)
        if named is None or os.path.lexists(text):
            return [text]
        task, name = task_name(named[1]), named[2].rstrip("/")
        files = self._files_of(task)
        found: list[str | File] = [files[one] for one in files if one.startswith(f"{name}/") or one == name or fnmatchcase(one, name)]
        if not found:
            left = f"It left {', '.join(list(files)[:5])}" if files else "It left none: name its outputs with --output or --keep"
            raise BadInput(f"--input {text}: task {task} left no file {name!r}", did_you_mean(name, files) or left)
        return found

    def _ask(self, task: str) -> dict[str, File]:
        self._master = self._master or look(self._pool)
        row = self._master.ask("task", task=task)
        if row["state"] != "done":
            raise BadInput(f"--input {task}: task {task} is {row['state']}, and not done", f"See why: pilotfish why {task}")
        completed = fetch_output(self._master, row).completed
        return completed.files if completed is not None else {}


def is_earlier(text: str) -> bool:
    return FORM.fullmatch(re.sub(r"{[^{}]*}", "0", text)) is not None and not os.path.lexists(text)
