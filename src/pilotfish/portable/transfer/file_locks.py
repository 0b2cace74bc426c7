"""Locks and identifies open files by their descriptors, because a name can refer to a different file later."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
from typing import Iterator, Tuple

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
Stamp = Tuple[int, ...]
_UNLOCKABLE = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)


class WriterBusy(Exception):
    """Another process writes the content, or has just completed it. ``available``: the number of bytes that are written."""

    def __init__(self, available: int) -> None:
        super().__init__("another process is writing it, %d bytes are there" % available)
        self.available = available


@contextlib.contextmanager
def opened(path: str, flags: int = READ) -> Iterator[int]:
    """Opens a file for the ``with`` block, which gets the descriptor."""
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def stamp(descriptor: int) -> Stamp:
    """Returns a stamp that changes if the file is replaced or written: its identity, mode, size and modification time."""
    return stamp_of(os.fstat(descriptor))


def stamp_of(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns


def is_regular(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def is_named(path: str, descriptor: int) -> bool:
    """Returns True if the path still names this file."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except OSError:
        return False


def lock(descriptor: int) -> bool:
    """Locks the file for this process. Raises WriterBusy if another process has the lock. Returns False if the file system has no locks."""
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
    """Unlocks the file. Closing the file is not enough if there are duplicates of the descriptor."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError:
        pass


def has_no_writer(descriptor: int) -> bool:
    """Returns True if no process has the file open for writing, or if the system cannot tell."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # a harmless signal, in case another process opens the file now
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno != errno.EAGAIN
    return True


def sync_directory(path: str) -> None:
    with opened(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as descriptor:
        os.fsync(descriptor)
