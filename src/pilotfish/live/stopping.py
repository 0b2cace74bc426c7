"""The mark of a pool that somebody stopped on purpose, and what its master leaves there for those who only look."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct


def stop_marker(directory: Path) -> Path:
    """A file that says that somebody stopped the pool on purpose.

    Clients that still watch must not bring its master back, and a master that is started for somebody who only looks starts nothing.
    """
    return directory / "stopped"


class Stop(Struct, frozen=True):
    """What the marker says: when the pool was stopped (by the wall clock), and its runs as its master left them; None: it did not."""

    at: float
    runs: list[dict[str, Any]] | None = None


def note_stop(directory: Path, runs: list[dict[str, Any]]) -> None:
    """Write the runs into the marker. It is never made here, because whoever wants the work to go on may have removed it just now."""
    stop = read_stop(directory)
    if stop is not None:
        with suppress(OSError), open(os.open(stop_marker(directory), os.O_WRONLY | os.O_TRUNC), "wb") as file:
            file.write(msgspec.json.encode(Stop(stop.at, runs)))


def read_stop(directory: Path) -> Stop | None:
    """None if nobody stopped the pool, or its work was wanted again since."""
    marker = stop_marker(directory)
    try:
        at, content = marker.stat().st_mtime, marker.read_bytes()
    except OSError:
        return None
    try:
        return msgspec.json.decode(content, type=Stop)
    except msgspec.DecodeError:
        return Stop(at)
