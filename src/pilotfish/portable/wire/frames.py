"""Encodes and decodes length-prefixed frames.

A frame is ``!II`` (header length, body length), a JSON array, and a body. Announced lengths are checked before memory is allocated, and
memory grows only as bytes arrive. There are two decoders. ``FrameReader`` provides the buffer to receive into, so that a large body is not
copied. ``FrameSplitter`` splits chunks that its caller has received.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Iterable, Iterator, List, Optional, Sequence, Tuple

from ..payload_format import Buffer

PROTOCOL = 2
"""Version of the protocol. Both sides must use the same version."""
PREFIX = struct.Struct("!II")
PREFIX_BYTES = PREFIX.size
MAX_BEFORE_PROOF = 64 * 1024
"""Maximum size of a frame before the other side has proved that it has the key."""
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
    """The received bytes are not a frame, or the frame is larger than allowed."""


def join_small(buffers: Iterable[Buffer], below_bytes: int) -> Iterator[Buffer]:
    """Joins neighbouring buffers that are smaller than ``below_bytes``. Yields larger buffers without a copy."""
    small: List[Buffer] = []
    for buffer in buffers:
        if len(buffer) < below_bytes:
            small.append(buffer)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield buffer
    if small:
        yield b"".join(small)


def frame_buffers(header: Sequence[Any], parts: Sequence[Buffer]) -> List[Buffer]:
    """Encodes a frame as buffers that are written one after the other. Small buffers are joined."""
    text = _encode(header).encode("ascii")
    length = sum(map(len, parts))
    if len(text) > MAX_HEADER or length > MAX_BODY:
        raise FrameError("a frame of %d + %d bytes is larger than the protocol allows" % (len(text), length))
    return list(join_small([PREFIX.pack(len(text), length), text, *parts], JOIN_BELOW))


def check_lengths(header_length: int, body_length: int, proved: bool) -> None:
    """Raises FrameError if a length exceeds its limit. ``proved``: whether the other side has proved that it has the key."""
    if proved:
        if header_length > MAX_HEADER or body_length > MAX_BODY:
            raise FrameError("a frame of %d + %d bytes was announced: that is no Pilotfish peer" % (header_length, body_length))
    elif header_length + body_length + PREFIX_BYTES > MAX_BEFORE_PROOF:
        raise FrameError("a frame of %d + %d bytes was announced before any proof" % (header_length, body_length))


def decode_header(text: Any) -> List[Any]:
    """Decodes the header of a frame: a JSON array that begins with the kind of the message, a text. Raises FrameError for any other
    bytes."""
    try:
        header = _decode(str(text, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise FrameError("a header that is no JSON: %s" % error) from None
    if not isinstance(header, list) or not header or not isinstance(header[0], str):
        raise FrameError("a header that is no message")
    return header


class FrameReader:
    """Decodes frames. Receive into ``room()``, report the number of bytes with ``received(count)``, then read ``frames()``."""

    def __init__(self) -> None:
        self.proved = False
        self._view = memoryview(bytearray(FIRST_BUFFER))
        self._start = 0
        self._end = 0
        self._was_half_filled = False
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
            if len(self._view) < SMALL_BUFFER and (self._was_half_filled or not self._start):
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
            self._was_half_filled = 2 * count >= len(self._view)  # a larger buffer then saves system calls
        else:
            self._filled += count

    def frames(self) -> Iterator[Frame]:
        """Yields the complete frames. The reader never overwrites their bodies."""
        if self._large is not None:
            if self._filled < self._total:
                return
            large, self._large = self._large, None
            yield decode_header(large[: self._header_length]), memoryview(large)[self._header_length :]
        while self._end - self._start >= PREFIX_BYTES:
            header_length, body_length = PREFIX.unpack_from(self._view, self._start)
            check_lengths(header_length, body_length, self.proved)
            start = self._start + PREFIX_BYTES
            total = header_length + body_length
            if self._end - start < total:
                if total + PREFIX_BYTES > SMALL_BUFFER:
                    self._go_large(start, header_length, total)
                return
            middle = start + header_length
            self._start = start + total
            yield decode_header(self._view[start:middle]), bytes(self._view[middle : self._start])
        if self._start == self._end < len(self._view):
            self._start = self._end = 0

    def _go_large(self, start: int, header_length: int, total: int) -> None:
        here = self._end - start
        large = bytearray(min(total, FIRST_ALLOCATION))
        large[:here] = self._view[start : self._end]
        self._large, self._filled, self._header_length, self._total = large, here, header_length, total
        self._start = self._end = 0


class FrameSplitter:
    """Splits received chunks into frames. Accepts only small frames until the other side has proved that it has the key (``proved``)."""

    __slots__ = ("_chunks", "_have", "_need", "proved")

    def __init__(self) -> None:
        self._chunks: List[bytes] = []
        self._have = 0
        self._need = PREFIX_BYTES
        self.proved = False

    @property
    def missing(self) -> int:
        """Number of missing bytes of the current frame. If the prefix of the frame is incomplete, only bytes of the prefix are counted."""
        return self._need - self._have

    def feed(self, data: bytes) -> List[Tuple[memoryview, memoryview]]:
        """Adds a chunk. Returns the frames that are complete now, as pairs of header and body."""
        if self._chunks:
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(self._chunks)
            self._chunks.clear()
        view = memoryview(data)
        frames = []
        start, size, self._need = 0, len(data), PREFIX_BYTES
        while size - start >= PREFIX_BYTES:
            header_length, body_length = PREFIX.unpack_from(data, start)
            check_lengths(header_length, body_length, self.proved)
            body = start + PREFIX_BYTES + header_length
            if body + body_length > size:
                self._need = body + body_length - start
                break
            frames.append((view[start + PREFIX_BYTES : body], view[body : body + body_length]))
            start = body + body_length
        self._have = size - start
        if start < size:
            self._chunks.append(data[start:])
        return frames

    def rest(self, frames: Iterable[Tuple[memoryview, memoryview]]) -> bytes:
        """Joins ``frames`` and the bytes of the next, incomplete frame. ``frames`` must be the last frames that ``feed`` returned."""
        whole = [part for header, body in frames for part in (PREFIX.pack(len(header), len(body)), header, body)]
        return b"".join([*whole, *self._chunks])
