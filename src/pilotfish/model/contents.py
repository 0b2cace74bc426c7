"""Defines contents (bytes named by hash) and files that one task leaves for another task. The copy of a content at a worker is a
replica."""

from __future__ import annotations

import re

from msgspec import Struct

DIGEST = re.compile(r"[0-9a-f]{64}\Z")
"""SHA-256 in hexadecimal, as ``sha256sum`` prints it."""
KEY_PARTS = ("code", "arguments", "inputs", "environment")
"""Parts of a task that determine its result."""
KEY_LENGTH, PART_BYTES = 16, 4
KEY_BYTES = KEY_LENGTH + PART_BYTES * len(KEY_PARTS)
"""Length of a task's record in bytes. The record consists of the task's key and a short hash of each part. See
``core/data/stored_results.py``."""
MAGIC = frozenset("*?[")
"""A name with one of these characters is a pattern."""
RESULT = "/result"
"""Stands for the result of a Python call where a file name is expected. No file of a task has this name, because RESULT is an absolute
path."""

STREAM = "/stream/"
"""Prefix of the names of contents that are no files: long outputs of a task. The hash of the content follows."""


class Content(Struct, frozen=True, array_like=True):
    """The bytes of a file. ``path``, ``mtime_ns`` and ``inode`` describe the user's file at the time of reading. They are empty if a task
    made the content."""

    digest: str
    size: int
    path: str = ""
    mtime_ns: int = 0
    inode: int = 0


class ProducedContent(Struct, frozen=True, array_like=True):
    """A content that a task made. ``at_master``, ``at_worker``: whether the master and the worker have the content. ``name``: file name in
    the task."""

    digest: str
    size: int
    at_master: bool
    at_worker: bool = True
    name: str = ""
    mode: int = 0


class ExpectedFile(Struct, frozen=True, array_like=True):
    """Files that an earlier task of the run will leave for a waiting task: one file, all files of a directory, or all files that match a
    pattern.

    ``maker``: index of the earlier task. ``name``: the file, directory or pattern in the earlier task. ``target``: the name of the file or
    directory in the waiting task. If ``name`` is RESULT, both tasks are calls. The result of the earlier call is an argument of the waiting
    call, or a part of an argument. ``target`` is then the number under which the waiting call finds the result.
    """

    maker: int
    name: str
    target: str


class IntermediateFile(Struct, frozen=True, array_like=True):
    """A file that one task left for another task: the name in the task's directory, and the content."""

    name: str
    mode: int
    digest: str
    size: int
