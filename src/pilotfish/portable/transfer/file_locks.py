"""What can be told and held of a file by its descriptor, whatever becomes of its name."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
from typing import Tuple

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
Stamp = Tuple[int, ...]
_UNLOCKABLE = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)


class WriterBusy(Exception):
    """Somebody else writes this content just now, or has just completed it (then ``available`` is its size)."""

    def __init__(self, available: int) -> None:
        super().__init__("somebody else writes it, %d bytes are there" % available)
        self.available = available


def stamp(descriptor: int) -> Stamp:
    """Another one if the file is another one, or was written to in the ordinary way."""
    return stamp_of(os.fstat(descriptor))


def stamp_of(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns


def is_regular(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def names(path: str, descriptor: int) -> bool:
    """Whether this is still the name of the file."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except OSError:
        return False


def lock(descriptor: int) -> bool:
    """Be the only writer; the lock goes with the process. False if the file system cannot say who is."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise WriterBusy(os.fstat(descriptor).st_size) from None
    except OSError as error:
        if error.errno in _UNLOCKABLE:
            return False
        raise
    return True


def unlock(descriptor: int) -> None:
    """Closing it is not enough if there are duplicates of the descriptor."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError:
        pass


def nobody_writes(descriptor: int) -> bool:
    """Whether nobody has it open to write. Where that cannot be asked it is assumed: its times must tell."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # one that does not end us, should somebody open it meanwhile
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno != errno.EAGAIN
    return True


def sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
