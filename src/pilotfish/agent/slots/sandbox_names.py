"""Checks that file names and link targets stay below the sandbox."""

from __future__ import annotations

import errno
import os
from typing import Any, List


class SandboxError(Exception):
    """A failure of the attempt: cause, blame and message."""

    def __init__(self, cause: str, blame: str, message: str) -> None:
        super().__init__(message)
        self.failure = [cause, blame, message]


def name_parts(name: Any) -> List[str]:
    """The components of a relative name that stays below."""
    parts = name.split("/") if isinstance(name, str) and _is_valid(name, 4095) else [""]
    if any(part in ("", ".", "..") or not _is_valid(part, 255) for part in parts):
        raise SandboxError("missing-input", "user", "%r is no name of a file below the task's directory" % (name,))
    return parts


def check_target(depth: int, target: Any) -> None:
    """Check the target of a link at this depth. Going up is allowed at the beginning only: behind a name, which may be another link, its
    end would be unknown."""
    good = isinstance(target, str) and target != "" and not target.startswith("/") and _is_valid(target, 4095)
    named = False
    for part in target.split("/") if good else ():
        if part == "..":
            depth -= 1
            good = good and depth >= 0 and not named
        named = named or part not in ("", ".", "..")
    if not good:
        message = "%r is no target of a link below the task's directory: it must be relative and lead to nothing outside of it"
        raise SandboxError("missing-input", "user", message % (target,))


def _is_valid(text: str, max_bytes: int) -> bool:
    try:
        return "\0" not in text and len(os.fsencode(text)) <= max_bytes
    except UnicodeEncodeError:
        return False


def disk_error(what: str, error: OSError) -> SandboxError:
    """Full and broken disks are the worker's fault; other errors about names are the user's."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
        return SandboxError("disk", "worker", "%s: %s" % (what, error.strerror))
    return SandboxError("missing-input", "user", "%s: %s" % (what, error.strerror))


def missing_output(name: str, instead: str = "") -> SandboxError:
    """``instead``: a description of what is there in place of the file."""
    message = instead or "the task did not leave the file %r, which was declared as its output" % name
    return SandboxError("missing-output", "task", message)
