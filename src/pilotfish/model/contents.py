"""Contents: immutable bytes, named by their hash. A place that holds them is a replica."""

from __future__ import annotations

import re

from msgspec import Struct

DIGEST = re.compile(r"[0-9a-f]{64}\Z")
"""SHA-256, as ``sha256sum`` prints it."""
MAGIC = frozenset("*?[")
"""Signs that make a name a pattern."""


class Content(Struct, frozen=True, array_like=True):
    """A file's bytes. ``path`` and the rest say where a person has them, as that file was when it was read; empty: a task made them."""

    digest: str
    size: int
    path: str = ""
    mtime_ns: int = 0
    inode: int = 0


class ProducedContent(Struct, frozen=True, array_like=True):
    """What a task has made. ``home``: it was brought to the master; ``here``: its worker has it; ``name``: what the task called it."""

    digest: str
    size: int
    home: bool
    here: bool = True
    name: str = ""
    mode: int = 0


class AwaitedFile(Struct, frozen=True, array_like=True):
    """A file that an earlier task of the run will leave, or all that will be in a directory: the index of that task, what it calls it, and
    what it is to be called for the task that waits."""

    maker: int
    name: str
    here: str


class IntermediateFile(Struct, frozen=True, array_like=True):
    """A file that one task left for another: its name in a task's directory, and its bytes as a content."""

    name: str
    mode: int
    digest: str
    size: int
