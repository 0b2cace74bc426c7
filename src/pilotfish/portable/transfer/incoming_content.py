"""A content on its way into the cache: what has come so far survives us, and is resumed by whoever comes next.

One process writes at a time, because it holds a lock on the file, which goes with the process. Others may read what is there already.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from typing import Any, Callable, Optional, Protocol, TypeVar

from .content_digest import StreamingDigest
from .file_copy import write_sparsely
from .file_locks import unlock

GROWING, COMPLETE, ABANDONED = "growing", "complete", "abandoned"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OUT_OF_ROOM = "the cache of contents in %r cannot take another %d bytes (%s): make room there, or let the cache lie elsewhere"
Made = TypeVar("Made")


class DigestMismatch(Exception):
    """The bytes are not those of the content."""


class NoRoom(Exception):
    """The disk or the quota is full, or the cache may not be so large; the message is for a person."""


class TooLarge(NoRoom):
    """It would not fit if the cache were empty."""


class InUse(NoRoom):
    """Not now: what is there is needed."""


class CacheOwner(Protocol):
    """What an incoming content asks of its cache."""

    directory: str

    def give_way(self, length: int) -> bool:
        """The disk is full: make room for so many bytes. False if nothing could be removed."""

    def keep(self, descriptor: int, path: str, digest: str) -> str:
        """Put a verified file in its place, which is returned."""

    def left(self, incoming: IncomingContent) -> None:
        """It is written no more, complete or not."""


class IncomingContent:
    """Written by one thread, front to back; any thread may follow it. Made by the cache, with the lock on its file."""

    def __init__(self, owner: CacheOwner, descriptor: int, path: str, digest: str, size: int) -> None:
        self.digest = digest
        self.size = size
        self.path = path
        self.offset = os.fstat(descriptor).st_size
        self.state = GROWING
        self.closed: Callable[[], None] = lambda: None
        """Called when it is written no more."""
        self._owner = owner
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._hash = StreamingDigest(descriptor)
        self._hash.grow(self.offset)

    def __enter__(self) -> IncomingContent:
        return self

    def __exit__(self, *details: Any) -> None:
        self.close()

    def write(self, buffer: Any) -> None:
        """What comes next. The buffer must stay as it is until the next call of anything here."""
        view = memoryview(buffer).cast("B")
        self._insist_on(len(view))
        with_room(self._owner, self.size - self.offset, lambda: write_sparsely(self._descriptor, view, self.offset))
        self._grow(len(view), view)

    def skip(self, length: int) -> None:
        """So many zeros come next; they take no room."""
        self._insist_on(length)
        with_room(self._owner, self.size - self.offset, lambda: os.ftruncate(self._descriptor, self.offset + length))
        self._grow(length)

    def _insist_on(self, length: int) -> None:
        if self.state != GROWING:
            raise ValueError("this content is %s" % self.state)
        if length < 0 or self.offset + length > self.size:
            self._throw_away()
            raise DigestMismatch("more than the %d bytes of %s came" % (self.size, self.digest))

    def _grow(self, length: int, end: Optional[memoryview] = None) -> None:
        with self._changed:
            self.offset += length
            self._changed.notify_all()
        self._hash.grow(self.offset, end)

    def finish(self) -> str:
        """Verify it and put it in its place, which is returned."""
        if self.state != GROWING:
            raise ValueError("this content is %s" % self.state)
        try:
            found = self._hash.result(self.offset)
            length = os.fstat(self._descriptor).st_size
            if length != self.size or found != self.digest:
                raise DigestMismatch("%d of %d bytes of %s came, and they are those of %s" % (length, self.size, self.digest, found))
            place = with_room(self._owner, self.size, lambda: self._owner.keep(self._descriptor, self.path, self.digest))
        except OSError as error:
            self._throw_away()
            raise DigestMismatch("%s cannot be read back: %s" % (self.digest, error.strerror)) from None
        except DigestMismatch:
            self._throw_away()
            raise
        with self._changed:
            self.path = place
            self.state = COMPLETE
        self.close()
        return place

    def close(self) -> None:
        """Without ``finish``, what is there is kept for the next time."""
        with self._changed:
            descriptor, self._descriptor = self._descriptor, -1
            if self.state == GROWING:
                self.state = ABANDONED
            self._changed.notify_all()
        if descriptor >= 0:
            self._hash.stop()
            if self.state == ABANDONED and not self.offset:
                _remove(self.path)
            unlock(descriptor)
            os.close(descriptor)
            self._owner.left(self)
            self.closed()

    def _throw_away(self) -> None:
        _remove(self.path)
        self.close()

    def available(self) -> int:
        """So many bytes can be read. Nobody has verified them yet."""
        return self.offset

    def wait(self, offset: int, timeout_s: float) -> int:
        """Until more than this is available, or it is written no more (see ``state``), or the time is up: what is available."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self.offset <= offset and self.state == GROWING:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            return self.offset

    def open_to_read(self) -> Optional[int]:
        """A descriptor to ``pread`` from, whatever becomes of the file's name; None if it is written no more."""
        with self._changed:
            return os.dup(self._descriptor) if self._descriptor >= 0 else None


def with_room(owner: CacheOwner, length: int, write: Callable[[], Made]) -> Made:
    """Write; if the disk is full, write once more when others have given way."""
    for patience in (True, False):
        try:
            return write()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            if not (patience and error.errno != errno.EFBIG and owner.give_way(length)):
                raise NoRoom(_OUT_OF_ROOM % (owner.directory, length, error.strerror)) from None
    raise AssertionError


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
