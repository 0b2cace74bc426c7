"""Computes the SHA-256 of a file, also while the file grows."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from typing import Optional

from .file_copy import BLOCK_BYTES

MIN_THREAD_BYTES = 4 * BLOCK_BYTES


def digest_of(descriptor: int) -> str:
    return StreamingDigest(descriptor).result(os.fstat(descriptor).st_size)


class StreamingDigest:
    """Computes the SHA-256 of a growing file. Hashes a long file in its own thread, because hashing is slower than writing."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._hash = hashlib.sha256()
        self._changed = threading.Condition()
        self._length = 0
        self._hashed = 0
        self._is_complete = False
        self._unread_end: Optional[memoryview] = None
        """The last bytes of the file, if they are still in memory. The hash takes them from there and not from the file."""
        self._error: Optional[OSError] = None
        self._thread: Optional[threading.Thread] = None

    def grow(self, length: int, end: Optional[memoryview] = None) -> None:
        """Reports that the file now has this length. If a thread hashes the file, the thread continues up to this length. ``end``: the
        bytes that were just added; they must not change until the next call."""
        with self._changed:
            while self._unread_end is not None and self._error is None:
                self._changed.wait()
            if end and self._thread is not None and self._hashed == self._length:
                self._unread_end = end
            self._length = length
            self._changed.notify_all()
        if self._thread is None and length - self._hashed >= MIN_THREAD_BYTES:
            thread = threading.Thread(target=self._hash_loop, name="hash", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return  # no more threads are allowed, so ``result`` hashes everything at the end
            self._thread = thread

    def result(self, length: int) -> str:
        """Returns the digest of the whole file, which has this length."""
        with self._changed:
            self._length = length
            self._is_complete = True
            self._changed.notify_all()
        if self._thread is None:
            self._hash_loop()
        else:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._hash.hexdigest()

    def stop(self) -> None:
        """Stops hashing. Then the caller can close the file."""
        with self._changed:
            self._length = self._hashed
            self._is_complete = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _hash_loop(self) -> None:
        block = memoryview(bytearray(min(BLOCK_BYTES, max(self._length, 1))))
        while True:
            with self._changed:
                while self._hashed >= self._length and not self._is_complete:
                    self._changed.wait()
                length = min(len(block), self._length - self._hashed)
                end = self._unread_end
            if end is not None:
                self._hash.update(end)
                with self._changed:
                    self._hashed += len(end)
                    self._unread_end = None
                    self._changed.notify_all()
                continue
            if length <= 0:
                return
            try:
                count = os.preadv(self._descriptor, [block[:length]], self._hashed)
                if not count:
                    raise OSError(errno.EIO, "the file became shorter")
            except OSError as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            self._hash.update(block[:count])
            self._hashed += count
