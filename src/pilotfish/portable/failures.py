"""Why an attempt did not succeed, as it travels: [cause, blame, message]."""

from __future__ import annotations

import errno
import resource
from typing import List

Failure = List[str]


# Limits of the machine that a worker may meet when it starts a process or opens a file, and what can be done about each.

_CURES = {
    errno.EMFILE: "a process here may have %s files open: allow more (ulimit -n 4096), then start the worker again",
    errno.ENFILE: "all processes of the machine together have too many files open: close some, or raise fs.file-max",
    errno.EAGAIN: "you may have %s processes and threads here: end some, or allow more (ulimit -u), then start the worker again",
    errno.ENOMEM: "the memory of the machine is used up: end something, or give the pool fewer cores (pilotfish workers --set N)",
}
_ASKED = {errno.EMFILE: resource.RLIMIT_NOFILE, errno.EAGAIN: resource.RLIMIT_NPROC}


def is_limit(error: OSError) -> bool:
    return error.errno in _CURES


def describe_limit(error: OSError) -> str:
    """What happened, and what to do."""
    number = error.errno or 0
    cure = _CURES[number]
    if number in _ASKED:
        most = resource.getrlimit(_ASKED[number])[0]
        cure %= "only so many" if most == resource.RLIM_INFINITY else "%d" % most
    return "%s: %s" % (error.strerror, cure)
