"""Reads the ledgers of copied output files. Each run has a ledger, ``delivered-N.jsonl`` in the pool directory."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple


class LedgerEntry(NamedTuple):
    """Describes a copied file. The size, the inode and the time of modification show whether the file was replaced or changed later."""

    task: int
    digest: str
    size: int
    inode: int
    mtime_ns: int
    name: str = ""
    """The name of the file in the task's directory. Empty in ledgers that an older version of Pilotfish wrote."""
    failed: bool = False
    """Whether the task that left the file failed."""
    started_at: float = 0.0
    """Start of the attempt that made the file. 0 if it is not known."""

    def is_unchanged(self, status: os.stat_result) -> bool:
        return (self.size, self.inode, self.mtime_ns) == (status.st_size, status.st_ino, status.st_mtime_ns)


def ledger_path(pool: Path, run: int | str) -> Path:
    return pool / f"delivered-{run}.jsonl"


def read_entries(written: bytes) -> Iterator[tuple[str, LedgerEntry]]:
    """Yields the path and the entry of each copied file. Ignores damaged and incomplete lines."""
    for line in written.splitlines():
        with suppress(ValueError, TypeError):
            path, *entry = json.loads(line)
            yield path, LedgerEntry(*entry)


class EarlierFiles:
    """Decides which files of earlier runs a new run is allowed to replace: copied files of failed tasks, and with ``resumes`` all copied
    files. Files that somebody changed after the copy must not be replaced."""

    def __init__(self, pool: Path, resumes: bool) -> None:
        self._pool = pool
        self._resumes = resumes

    @cached_property
    def _entries(self) -> dict[str, list[tuple[str, LedgerEntry]]]:
        """The entries of all ledgers by path, each with the number of its run."""
        found: dict[str, list[tuple[str, LedgerEntry]]] = {}
        for ledger in self._pool.glob(ledger_path(Path(), "*").name):
            with suppress(OSError):
                for path, entry in read_entries(ledger.read_bytes()):
                    found.setdefault(os.path.normpath(path), []).append((ledger.stem.partition("-")[2], entry))
        return found

    def _copies(self, path: str, status: os.stat_result) -> list[tuple[str, LedgerEntry]]:
        return [(run, entry) for run, entry in self._entries.get(os.path.normpath(path), ()) if entry.is_unchanged(status)]

    def later_run(self, path: str, status: os.stat_result, started_at: float) -> str:
        """Returns the run that copied the file at ``path``, if the task of this file started after ``started_at``. Otherwise returns an
        empty text. ``status``: the status of ``path``."""
        at, run = max(((entry.started_at, run) for run, entry in self._copies(path, status)), default=(0.0, ""))
        return run if at > started_at else ""

    def first_protected(self, path: str, status: os.stat_result) -> str:
        """Returns the path of a file that a new run must not replace: ``path`` itself, or a file in the directory ``path``. Returns an
        empty text if there is no such file. ``status``: the status of ``path``."""
        if not stat.S_ISDIR(status.st_mode):
            copies = self._copies(path, status)
            return "" if copies and (self._resumes or all(entry.failed for _, entry in copies)) else path
        with suppress(OSError):
            inside = sorted(os.scandir(path), key=lambda entry: entry.name)
            others = (self.first_protected(entry.path, entry.stat(follow_symlinks=False)) for entry in inside)
            return next(filter(None, others), "")
        return path
