"""What each task of a run is, written down when it is submitted: the files that say so may be edited or gone long before the run is."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pilotfish.cli.pool import Master
from pilotfish.cli.poolfiles import register_file

MOST_BYTES = 64 << 20
"""Packed, that is millions of tasks. Those of a larger run are known as long as its files are as they were."""

Values = tuple[str, ...]


class Line(NamedTuple):
    """A task: its command line, its values of the run's parameters, and the name that a task list or DAG gave it."""

    command: str
    values: Values = ()
    label: str = ""

    def told(self) -> str:
        return f"{self.label}: {self.command}" if self.label else self.command


@dataclass(frozen=True, slots=True)
class Recipe:
    """The tasks of a run in their order, with the names of its parameters."""

    names: Values
    lines: Iterator[Line]


@contextmanager
def keep_register(master: Master, run: int, names: Values = ()) -> Iterator[Callable[[Line], None]]:
    """Takes the tasks of a run in their order. If there are none, or they cannot be written down, the run does without."""
    packer = zlib.compressobj(1, wbits=31)
    packed = bytearray(packer.compress(_row(names)))
    noted = False

    def note(line: Line) -> None:
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


def read_register(master: Master, run: int) -> Recipe | None:
    """None if there is none."""
    rows = _rows(register_file(master, run))
    names = next(rows, None)
    return None if names is None else Recipe(tuple(names), (Line(command, tuple(values), label) for label, command, *values in rows))


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
