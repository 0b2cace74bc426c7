"""Checks that names of files and targets of links, which come from outside, stay below the sandbox."""

from __future__ import annotations

import errno
import os
from typing import Any, List


class SandboxError(Exception):
    """Cause, blame and message of the failure that this is."""

    def __init__(self, cause: str, blame: str, message: str) -> None:
        super().__init__(message)
        self.failure = [cause, blame, message]


def name_parts(name: Any) -> List[str]:
    """The components of a relative name that stays below."""
    parts = name.split("/") if isinstance(name, str) and _can_be_written(name, 4095) else [""]
    if any(part in ("", ".", "..") or not _can_be_written(part, 255) for part in parts):
        raise SandboxError("missing-input", "user", "%r is no name of a file below the task's directory" % (name,))
    return parts


def check_target(depth: int, target: Any) -> None:
    """Of a link in a directory so deep below. Going up is allowed at the beginning only: behind a name, which may be that of another link,
    nobody could say where it leads."""
    good = isinstance(target, str) and target != "" and not target.startswith("/") and _can_be_written(target, 4095)
    named = False
    for part in target.split("/") if good else ():
        if part == "..":
            depth -= 1
            good = good and depth >= 0 and not named
        named = named or part not in ("", ".", "..")
    if not good:
        message = "%r is no target of a link below the task's directory: it must be relative and lead to nothing outside of it"
        raise SandboxError("missing-input", "user", message % (target,))


def _can_be_written(text: str, most_bytes: int) -> bool:
    try:
        return "\0" not in text and len(os.fsencode(text)) <= most_bytes
    except UnicodeEncodeError:
        return False


def disk_error(what: str, error: OSError) -> SandboxError:
    """Full and broken disks are the worker's fault; everything else about names is the user's."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
        return SandboxError("disk", "worker", "%s: %s" % (what, error.strerror))
    return SandboxError("missing-input", "user", "%s: %s" % (what, error.strerror))


def missing_output(name: str, instead: str = "") -> SandboxError:
    """``instead``: what is there that is no file of that name."""
    message = instead or "the task did not leave the file %r, which was declared as its output" % name
    return SandboxError("missing-output", "task", message)
