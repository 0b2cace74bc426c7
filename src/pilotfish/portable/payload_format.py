"""Packs several byte strings into one payload and unpacks them.

The format is ``!I`` (number of parts), ``!Q`` for each part (length of the part), then the parts. Clients and slots pack and unpack
payloads; the master never does. If a payload is in a shared file, a payload reference of 24 bytes is sent instead. The reference has three
parts: a mark with which no packed payload begins, the number of the file, and the length of the payload.
"""

from __future__ import annotations

import json
import struct
from typing import Any, List, Sequence, Tuple, Union

Buffer = Union[bytes, bytearray, memoryview]
PackedPayload = Union[bytes, List[Buffer]]
"""One byte string, or a list of pieces that are written one after the other."""

MAX_PARTS = 1 << 20
"""Maximum parts of a payload."""
_COUNT = struct.Struct("!I")
_ONE = struct.Struct("!IQ")
_STRUCTS = {count: struct.Struct("!I%dQ" % count) for count in range(9)}
FILES_MARK = b'{"handed"'
"""Beginning of the first part of a payload to which ``add_files`` has added a list of files."""
REFERENCE_MARK = b"\xff\xff\xff\xfePFS1"
_REFERENCE = struct.Struct("!8sQQ")
REFERENCE_BYTES = _REFERENCE.size


class PayloadFormatError(ValueError):
    """The bytes are not a packed payload, or a part of it is missing."""


def _head(count: int) -> struct.Struct:
    return _STRUCTS.get(count) or struct.Struct("!I%dQ" % count)


def pack_head(parts: Sequence[Buffer]) -> bytes:
    """Encodes the number of parts and their lengths, which precede the parts. Each part is a flat buffer of bytes."""
    return pack_lengths([len(part) for part in parts])


def pack_lengths(lengths: Sequence[int]) -> bytes:
    """Encodes the head of a payload whose parts have these lengths. The parts follow the head, one after the other."""
    return _head(len(lengths)).pack(len(lengths), *lengths)


def pack(parts: Sequence[Buffer]) -> bytes:
    return b"".join([pack_head(parts), *parts])


def pack_one(part: bytes) -> bytes:
    """Packs a single part; faster than ``pack``."""
    return _ONE.pack(1, len(part)) + part


def pack_pieces(parts: Sequence[Buffer]) -> List[Buffer]:
    """Packs the parts without copying them."""
    return [pack_head(parts), *parts]


def join_pieces(payload: PackedPayload) -> bytes:
    """Joins a packed payload into one byte string."""
    return payload if isinstance(payload, bytes) else b"".join(payload)


def begins_with(payload: Buffer, mark: bytes) -> bool:
    """Tests whether the first part of a packed payload begins with ``mark``."""
    start = 4 + 8 * int.from_bytes(bytes(payload[:4]), "big")
    return bytes(payload[start : start + len(mark)]) == mark


def unpack(payload: Buffer) -> List[memoryview]:
    """Returns the parts as views into the payload."""
    view = memoryview(payload)
    if len(view) < _COUNT.size:
        raise PayloadFormatError("a payload of %d bytes is too short to hold anything" % len(view))
    (count,) = _COUNT.unpack_from(view)
    if count > MAX_PARTS or len(view) < _COUNT.size + 8 * count:
        raise PayloadFormatError("a payload of %d bytes cannot have %d parts" % (len(view), count))
    head = _head(count)
    lengths = head.unpack_from(view)[1:]
    offset = head.size
    parts = []
    for length in lengths:
        parts.append(view[offset : offset + length])
        offset += length
    if offset != len(view):
        raise PayloadFormatError("a payload has %d bytes; its parts need %d" % (len(view), offset))
    return parts


def add_files(payload: Buffer, entries: Sequence[Any]) -> bytes:
    """Adds a list of files to the payload of a task: input files of this task that other tasks produced. Each entry of the list is [name,
    mode, digest, size], as in the inputs of a task."""
    return pack([json.dumps({"handed": entries}).encode(), payload])


def split_files(payload: memoryview) -> Tuple[List[Any], memoryview]:
    """Returns the entries that ``add_files`` added to a payload, and the payload without them. The list is empty if there are none."""
    if not begins_with(payload, FILES_MARK):
        return [], payload
    try:
        head, rest = unpack(payload)
        return list(json.loads(bytes(head))["handed"]), rest
    except (ValueError, KeyError, TypeError):
        return [], payload  # the task is not valid, which is reported later


def is_reference(payload: Buffer) -> bool:
    return len(payload) == REFERENCE_BYTES and payload[:8] == REFERENCE_MARK


def pack_reference(number: int, length: int) -> bytes:
    """Encodes the reference to a payload of ``length`` bytes in the shared file ``number``."""
    return _REFERENCE.pack(REFERENCE_MARK, number, length)


def unpack_reference(reference: Buffer) -> Tuple[int, int]:
    """Returns the number of the shared file and the length of the payload."""
    _, number, length = _REFERENCE.unpack(reference)
    return number, length
