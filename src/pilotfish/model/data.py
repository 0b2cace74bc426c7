"""Contents: immutable bytes, named by their hash. A place that holds them is a replica."""

from __future__ import annotations

import re

from msgspec import Struct

DIGEST = re.compile(r"[0-9a-f]{64}\Z")
"""SHA-256, as ``sha256sum`` prints it."""


class Content(Struct, frozen=True, array_like=True):
    """A file's bytes. ``path`` and the rest say where a person has them, as that file was when it was read; empty: a task made them."""

    digest: str
    size: int
    path: str = ""
    mtime_ns: int = 0
    inode: int = 0


class Made(Struct, frozen=True, array_like=True):
    """What a task has made. ``home``: it was brought to the master; ``here``: the worker that made it has it."""

    digest: str
    size: int
    home: bool
    here: bool = True
