"""Frames on a stream of bytes: a prefix with two lengths, a JSON header, a binary body. Lengths are judged before anything is kept."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from pilotfish.errors import ConnectionFailed
from pilotfish.model.messages import MAX_BEFORE_PROOF, MAX_BODY, MAX_HEADER, PREFIX_BYTES, Message, encode

Buffer = bytes | bytearray | memoryview

_PREFIX = struct.Struct("!II")


def frame(message: Message, parts: Sequence[Buffer] = ()) -> list[Buffer]:
    """A message and its body as the buffers to send."""
    header = encode(message)
    return [_PREFIX.pack(len(header), sum(map(len, parts))), header, *parts]


def joined(buffers: Iterable[Buffer], below_bytes: int) -> Iterator[Buffer]:
    """Smaller neighbours as one, larger ones as they are, without a copy."""
    small: list[Buffer] = []
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


class FrameSplitter:
    """Cuts a stream of bytes into frames. Until ``trust`` is called, only small ones are accepted."""

    __slots__ = ("_chunks", "_have", "_max_body", "_max_header", "_need")

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = PREFIX_BYTES
        self._max_header = self._max_body = MAX_BEFORE_PROOF

    def trust(self) -> None:
        self._max_header, self._max_body = MAX_HEADER, MAX_BODY

    @property
    def missing(self) -> int:
        """How many bytes are known to be still on their way."""
        return self._need - self._have

    def feed(self, data: bytes) -> list[tuple[memoryview, memoryview]]:
        """The frames that are whole now, as (header, body)."""
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
            header_length, body_length = _PREFIX.unpack_from(data, start)
            if header_length > self._max_header or body_length > self._max_body:
                raise ConnectionFailed(f"a frame of {header_length} + {body_length} bytes was announced: that is no Pilotfish peer")
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

    def rest(self, frames: Iterable[tuple[memoryview, memoryview]]) -> bytes:
        """The bytes of these frames, which were the last, and of what followed them."""
        whole = [part for header, body in frames for part in (_PREFIX.pack(len(header), len(body)), header, body)]
        return b"".join([*whole, *self._chunks])
