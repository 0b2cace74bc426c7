"""Frames: ``!II`` (header length, body length), a JSON array, a body. See the wire contract.

A reader hands out room to receive into, so that a large body is received where it stays. Announced lengths are checked before anything is
allocated for them, and memory grows only as bytes really come.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Iterator, List, Optional, Sequence, Tuple

PROTOCOL = 2
"""Version of the protocol; both sides must speak the same."""
PREFIX = struct.Struct("!II")
MAX_BEFORE_PROOF = 64 * 1024
MAX_HEADER = 16 * 1024 * 1024
MAX_BODY = 256 * 1024 * 1024

FIRST_BUFFER = 4 * 1024
SMALL_BUFFER = 256 * 1024
FIRST_ALLOCATION = 4 * 1024 * 1024
JOIN_BELOW = 64 * 1024

Frame = Tuple[List[Any], Any]

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_decode = json.JSONDecoder().decode


class FrameError(ValueError):
    """What came is not a frame, or is larger than allowed."""


def frame_buffers(header: Sequence[Any], parts: Sequence[Any]) -> List[Any]:
    """The frame as buffers to be written one behind the other; small ones are joined."""
    text = _encode(header).encode("ascii")
    length = sum(map(len, parts))
    if len(text) > MAX_HEADER or length > MAX_BODY:
        raise FrameError("a frame of %d + %d bytes is larger than the protocol allows" % (len(text), length))
    buffers: List[Any] = []
    small: List[Any] = [PREFIX.pack(len(text), length), text]
    for part in parts:
        if len(part) < JOIN_BELOW:
            small.append(part)
            continue
        if small:
            buffers.append(b"".join(small))
            small = []
        buffers.append(part)
    if small:
        buffers.append(b"".join(small))
    return buffers


class FrameReader:
    """Receive into ``room()``, say how much came with ``received(count)``, then take ``frames()``."""

    def __init__(self) -> None:
        self.proved = False
        self._view = memoryview(bytearray(FIRST_BUFFER))
        self._start = 0
        self._end = 0
        self._much = False
        self._large: Optional[bytearray] = None
        self._filled = 0
        self._header_length = 0
        self._total = 0

    def room(self) -> memoryview:
        large = self._large
        if large is not None:
            if self._filled == len(large):
                large = self._large = self._grow(large)
            return memoryview(large)[self._filled :]
        if self._end == len(self._view):
            rest = bytes(self._view[self._start : self._end])
            if len(self._view) < SMALL_BUFFER and (self._much or not self._start):
                self._view = memoryview(bytearray(4 * len(self._view)))
            self._view[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        return self._view[self._end :]

    def _grow(self, large: bytearray) -> bytearray:
        grown = bytearray(min(self._total, 2 * len(large)))
        grown[: len(large)] = large
        return grown

    def received(self, count: int) -> None:
        if self._large is None:
            self._end += count
            self._much = 2 * count >= len(self._view)  # then more at once is less work
        else:
            self._filled += count

    def frames(self) -> Iterator[Frame]:
        """The complete frames so far. Bodies belong to the taker."""
        if self._large is not None:
            if self._filled < self._total:
                return
            large, self._large = self._large, None
            yield self._header(large[: self._header_length]), memoryview(large)[self._header_length :]
        while self._end - self._start >= PREFIX.size:
            header_length, body_length = PREFIX.unpack_from(self._view, self._start)
            self._check(header_length, body_length)
            start = self._start + PREFIX.size
            total = header_length + body_length
            if self._end - start < total:
                if total + PREFIX.size > SMALL_BUFFER:
                    self._go_large(start, header_length, total)
                return
            middle = start + header_length
            self._start = start + total
            yield self._header(self._view[start:middle]), bytes(self._view[middle : self._start])
        if self._start == self._end < len(self._view):
            self._start = self._end = 0

    def _check(self, header_length: int, body_length: int) -> None:
        if self.proved:
            if header_length > MAX_HEADER or body_length > MAX_BODY:
                raise FrameError("a frame of %d + %d bytes was announced" % (header_length, body_length))
        elif header_length + body_length + PREFIX.size > MAX_BEFORE_PROOF:
            raise FrameError("a frame of %d + %d bytes was announced before any proof" % (header_length, body_length))

    def _go_large(self, start: int, header_length: int, total: int) -> None:
        here = self._end - start
        large = bytearray(min(total, FIRST_ALLOCATION))
        large[:here] = self._view[start : self._end]
        self._large, self._filled, self._header_length, self._total = large, here, header_length, total
        self._start = self._end = 0

    @staticmethod
    def _header(text: Any) -> List[Any]:
        try:
            header = _decode(str(text, "utf-8"))
        except (ValueError, RecursionError) as error:
            raise FrameError("a header that is no JSON: %s" % error) from None
        if not isinstance(header, list) or not header or not isinstance(header[0], str):
            raise FrameError("a header that is no message")
        return header
