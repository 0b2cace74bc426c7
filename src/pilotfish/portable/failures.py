"""Defines the form of a failure in messages: [cause, blame, message]. Describes limits of the operating system and how to fix them."""

from __future__ import annotations

import errno
import resource
from typing import List, Optional

Failure = List[str]


class AttemptError(Exception):
    """An attempt cannot start, or its result cannot be sent."""

    def __init__(self, cause: str, blame: str, message: str) -> None:
        super().__init__(message)
        self.failure = [cause, blame, message]


def add_problem(failure: Optional[Failure], problem: Optional[Failure]) -> Optional[Failure]:
    """Returns the failure of an attempt whose output files could not be kept because of ``problem``. If the attempt had failed before, its
    failure stays, and its message also describes the problem."""
    if failure is None or problem is None:
        return failure or problem
    return [failure[0], failure[1], "%s; its output files were not all kept: %s" % (failure[2], problem[2])]


_FIXES = {
    errno.EMFILE: "a process here may have %s files open: allow more (ulimit -n 4096), then start the worker again",
    errno.ENFILE: "all processes of the machine together have too many files open: close some, or raise fs.file-max",
    errno.EAGAIN: "you may have %s processes and threads here: end some, or allow more (ulimit -u), then start the worker again",
    errno.ENOMEM: "the memory of the machine is used up: end something, or give the pool fewer cores (pilotfish workers --local-cores N)",
}
_LIMITS = {errno.EMFILE: resource.RLIMIT_NOFILE, errno.EAGAIN: resource.RLIMIT_NPROC}


def is_limit(error: OSError) -> bool:
    return error.errno in _FIXES


def describe_limit(error: OSError) -> str:
    """Returns a message that says which limit of the operating system was reached, and how to fix that."""
    number = error.errno or 0
    fix = _FIXES[number]
    if number in _LIMITS:
        limit = resource.getrlimit(_LIMITS[number])[0]
        fix %= "a limited number of" if limit == resource.RLIM_INFINITY else "%d" % limit
    return "%s: %s" % (error.strerror, fix)
