"""Defines contents (bytes named by hash) and files that one task leaves for another. The copy of a content at a worker is a replica."""

from __future__ import annotations

import re

from msgspec import Struct

DIGEST = re.compile(r"[0-9a-f]{64}\Z")
"""SHA-256 in hexadecimal, as ``sha256sum`` prints it."""
MAGIC = frozenset("*?[")
"""A name with one of these characters is a pattern."""


class Content(Struct, frozen=True, array_like=True):
    """The bytes of a file. ``path``, ``mtime_ns`` and ``inode`` describe the user's file when it was read; empty if a task made it."""

    digest: str
    size: int
    path: str = ""
    mtime_ns: int = 0
    inode: int = 0


class ProducedContent(Struct, frozen=True, array_like=True):
    """A content that a task made. ``at_master``: the master has it. ``at_worker``: the worker has it. ``name``: file name in the task."""

    digest: str
    size: int
    at_master: bool
    at_worker: bool = True
    name: str = ""
    mode: int = 0


class ExpectedFile(Struct, frozen=True, array_like=True):
    """A file, or all files of a directory, that an earlier task of the run will leave.

    ``maker``: index of the earlier task. ``name``: name of the file in the earlier task. ``target``: name of the file in the waiting task.
    """

    maker: int
    name: str
    target: str


class IntermediateFile(Struct, frozen=True, array_like=True):
    """A file that one task left for another: its name in a task's directory, and the content."""

    name: str
    mode: int
    digest: str
    size: int
