"""Keeps the head and the tail of standard output and standard error, so that they need limited memory."""

from __future__ import annotations

import sys
from os import dup2, ftruncate, lseek, pread
from typing import Any, List, Tuple

OUTPUT_CAP = 16 * 1024 * 1024
"""Maximum bytes that are kept of each stream of a task, if the task sets no other value."""


class HeadAndTail:
    """The head and the tail of a stream. If the stream has more than ``cap`` bytes, its middle is dropped."""

    def __init__(self, cap: int) -> None:
        self.total = 0
        self._half = max(1, cap // 2)
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        self.total += len(data)
        free = self._half - len(self._head)
        if free > 0:
            self._head += data[:free]
            data = data[free:]
        if data:
            self._tail += data
            if len(self._tail) > 2 * self._half:
                del self._tail[: len(self._tail) - self._half]

    def result(self) -> Tuple[bytes, int]:
        """Returns head and tail, and the number of bytes that were dropped between them."""
        tail = self._tail[-self._half :]
        return bytes(self._head + tail), self.total - len(self._head) - len(tail)

    def since(self, offset: int, limit: int) -> Tuple[int, bytes]:
        """Returns an offset and at most ``limit`` bytes. If the bytes at ``offset`` were dropped, the next kept bytes are returned."""
        if offset < len(self._head):
            return offset, bytes(self._head[offset : offset + limit])
        first = self.total - len(self._tail)
        offset = max(offset, first)
        return offset, bytes(self._tail[offset - first : offset - first + limit])


def read_head_and_tail(descriptor: int, size: int, cap: int) -> Tuple[bytes, int]:
    """Returns head and tail of a file, and the number of bytes that were dropped between them."""
    if size <= cap:
        return _read(descriptor, 0, size), 0
    half = max(1, cap // 2)
    return _read(descriptor, 0, half) + _read(descriptor, size - half, half), size - 2 * half


def _read(descriptor: int, offset: int, length: int) -> bytes:
    pieces: List[bytes] = []
    while length > 0:
        piece = pread(descriptor, length, offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return b"".join(pieces)


class StreamCapture:
    """Captures standard output and error of calls in this process. Descriptors 1 and 2 are files, which are read after each call.

    User code may close or replace descriptors 1 and 2, so duplicates of them are kept.
    """

    def __init__(self, out_duplicate: int, error_duplicate: int) -> None:
        self._duplicates = {1: out_duplicate, 2: error_duplicate}
        self._streams: Tuple[Any, Any] = (sys.stdout, sys.stderr)

    def collect(self) -> Tuple[bytes, bytes, int, int]:
        """Returns the output since the last call: stdout, stderr, and the number of bytes that were dropped from each."""
        streams = self._streams
        try:
            streams[0].flush()
            streams[1].flush()
            out_size, error_size = lseek(1, 0, 2), lseek(2, 0, 2)
        except (OSError, ValueError):
            self._restore()
            return b"", b"", 0, 0
        if sys.stdout is not streams[0] or sys.stderr is not streams[1]:
            sys.stdout, sys.stderr = streams
        if not out_size and not error_size:
            return b"", b"", 0, 0
        out, out_dropped = self._take(1, out_size)
        error, error_dropped = self._take(2, error_size)
        return out, error, out_dropped, error_dropped

    def _take(self, stream: int, size: int) -> Tuple[bytes, int]:
        if not size:
            return b"", 0
        taken = read_head_and_tail(self._duplicates[stream], size, OUTPUT_CAP)
        ftruncate(self._duplicates[stream], 0)
        lseek(stream, 0, 0)
        return taken

    def _restore(self) -> None:
        """Opens the streams again after user code has closed a stream or its descriptor."""
        for stream, duplicate in self._duplicates.items():
            dup2(duplicate, stream)
            ftruncate(duplicate, 0)
        sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1)  # noqa: SIM115
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
        self._streams = (sys.stdout, sys.stderr)
