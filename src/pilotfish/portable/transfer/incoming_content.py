"""Receives one content into the cache, and continues after a lost connection.

The received part remains when this process ends, so that the next writer can continue from there. Only one process at a time writes the
content: the writer locks the file, and the lock ends with the process. Other processes can read the received part.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar

from .cache_directory import remove
from .content_digest import StreamingDigest
from .file_copy import write_sparsely
from .file_locks import unlock

if TYPE_CHECKING:
    from .content_cache import ContentCache

GROWING, COMPLETE, ABANDONED = "growing", "complete", "abandoned"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OUT_OF_SPACE = "the content cache in %r cannot take another %d bytes (%s): free space there, or move the cache elsewhere"
Written = TypeVar("Written")


class DigestMismatch(Exception):
    """The bytes do not match the digest."""


class NoSpace(Exception):
    """The disk or quota is full, or the cache would become too large; the message is for users."""


class TooLarge(NoSpace):
    """The content does not fit even into an empty cache."""


class InUse(NoSpace):
    """There is no space, because the contents in the cache are in use. Try again later."""


class IncomingContent:
    """A content that one thread is writing. Any thread may read the written part. The cache creates and locks it."""

    def __init__(self, owner: ContentCache, descriptor: int, path: str, digest: str, size: int) -> None:
        self.digest = digest
        self.size = size
        self.path = path
        self.offset = os.fstat(descriptor).st_size
        """Number of bytes that can be read. They are not verified yet."""
        self.state = GROWING
        self.on_closed: Callable[[], None] = lambda: None
        """Called when writing has ended."""
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
        """Writes the next bytes. The buffer must not change until the next call of any method."""
        view = memoryview(buffer).cast("B")
        self._check_length(len(view))
        with_space(self._owner, self.size - self.offset, lambda: write_sparsely(self._descriptor, view, self.offset))
        self._grow(len(view), view)

    def skip(self, length: int) -> None:
        """Adds zeros without writing them: the file gets a hole of this length."""
        self._check_length(length)
        with_space(self._owner, self.size - self.offset, lambda: os.ftruncate(self._descriptor, self.offset + length))
        self._grow(length)

    def _check_length(self, length: int) -> None:
        if self.state != GROWING:
            raise ValueError("this content is %s" % self.state)
        if length < 0 or self.offset + length > self.size:
            self._discard()
            raise DigestMismatch("more than the %d bytes of %s came" % (self.size, self.digest))

    def _grow(self, length: int, end: Optional[memoryview] = None) -> None:
        with self._changed:
            self.offset += length
            self._changed.notify_all()
        self._hash.grow(self.offset, end)

    def finish(self) -> str:
        """Verifies the content and moves it to its final path. Returns this path."""
        if self.state != GROWING:
            raise ValueError("this content is %s" % self.state)
        try:
            found = self._hash.result(self.offset)
            length = os.fstat(self._descriptor).st_size
            if length != self.size or found != self.digest:
                raise DigestMismatch("%d of %d bytes of %s came, and they are those of %s" % (length, self.size, self.digest, found))
            final_path = with_space(self._owner, self.size, lambda: self._owner.keep(self._descriptor, self.path, self.digest))
        except OSError as error:
            self._discard()
            raise DigestMismatch("%s cannot be read back: %s" % (self.digest, error.strerror)) from None
        except DigestMismatch:
            self._discard()
            raise
        with self._changed:
            self.path = final_path
            self.state = COMPLETE
        self.close()
        return final_path

    def close(self) -> None:
        """Ends writing. If ``finish`` was not called, the received part is kept for the next writer."""
        with self._changed:
            descriptor, self._descriptor = self._descriptor, -1
            if self.state == GROWING:
                self.state = ABANDONED
            self._changed.notify_all()
        if descriptor >= 0:
            self._hash.stop()
            if self.state == ABANDONED and not self.offset:
                remove(self.path)
            unlock(descriptor)
            os.close(descriptor)
            self._owner.writer_closed(self)
            self.on_closed()

    def _discard(self) -> None:
        remove(self.path)
        self.close()

    def wait(self, offset: int, timeout_s: float) -> int:
        """Waits until one of three things happens: more than ``offset`` bytes are available, writing has ended (see ``state``), or
        ``timeout_s`` seconds are over. Returns the number of available bytes."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self.offset <= offset and self.state == GROWING:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            return self.offset

    def open_to_read(self) -> Optional[int]:
        """Returns a descriptor for ``pread``; None if writing has ended. The descriptor stays valid if the file is renamed or removed."""
        with self._changed:
            return os.dup(self._descriptor) if self._descriptor >= 0 else None


def with_space(owner: ContentCache, length: int, write: Callable[[], Written]) -> Written:
    """Calls ``write``. If the disk is full, frees space in the cache and calls ``write`` a second time."""
    for first_try in (True, False):
        try:
            return write()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            if not (first_try and error.errno != errno.EFBIG and owner.free_space(length)):
                raise NoSpace(_OUT_OF_SPACE % (owner.directory, length, error.strerror)) from None
    raise AssertionError
