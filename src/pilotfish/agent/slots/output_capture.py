"""Keeps the head and the tail of standard output and standard error, so that they need limited memory."""

from __future__ import annotations

from os import pread
from typing import List, Tuple

OUTPUT_CAP = 16 * 1024 * 1024
"""Maximum bytes of a stream that are kept in memory and sent with the result. A longer stream goes to a file."""


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
        """Returns (start, bytes): at most ``limit`` bytes from ``start``. ``start`` is ``offset``; it is larger if the bytes at ``offset``
        were dropped."""
        if offset < len(self._head):
            return offset, bytes(self._head[offset : offset + limit])
        first = self.total - len(self._tail)
        offset = max(offset, first)
        return offset, bytes(self._tail[offset - first : offset - first + limit])


def read_head_and_tail(descriptor: int, size: int, cap: int) -> Tuple[bytes, int]:
    """Reads the first ``size`` bytes of a file. Returns them, and 0. If they are more than ``cap``, returns head and tail, and the number
    of bytes between them."""
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
