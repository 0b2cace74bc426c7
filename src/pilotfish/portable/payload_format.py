"""Parcels: several byte strings in one payload: ``!I`` how many, ``!Q`` their lengths, then the parts."""

from __future__ import annotations

import struct
from typing import Any, List, Sequence

_COUNT = struct.Struct("!I")
_STRUCTS = {count: struct.Struct("!I%dQ" % count) for count in range(9)}
MAX_PARTS = 1 << 20


class PayloadFormatError(ValueError):
    """A payload that is no parcel."""


def _head(count: int) -> struct.Struct:
    return _STRUCTS.get(count) or struct.Struct("!I%dQ" % count)


def pack_head(parts: Sequence[Any]) -> bytes:
    """What goes before the parts."""
    return _head(len(parts)).pack(len(parts), *map(len, parts))


def pack(parts: Sequence[Any]) -> bytes:
    return b"".join([pack_head(parts), *parts])


def begins_with(payload: Any, mark: bytes) -> bool:
    """Whether the first part of it does, if it is a parcel."""
    start = 4 + 8 * int.from_bytes(bytes(payload[:4]), "big")
    return bytes(payload[start : start + len(mark)]) == mark


def unpack(payload: Any) -> List[memoryview]:
    """The parts, as views of the payload."""
    view = memoryview(payload)
    if len(view) < _COUNT.size:
        raise PayloadFormatError("a payload of %d bytes is no parcel" % len(view))
    (count,) = _COUNT.unpack_from(view)
    if count > MAX_PARTS or len(view) < _COUNT.size + 8 * count:
        raise PayloadFormatError("a parcel of %d parts in %d bytes" % (count, len(view)))
    head = _head(count)
    lengths = head.unpack_from(view)[1:]
    offset = head.size
    parts = []
    for length in lengths:
        parts.append(view[offset : offset + length])
        offset += length
    if offset != len(view):
        raise PayloadFormatError("a parcel whose parts have %d bytes in %d bytes" % (offset, len(view)))
    return parts
