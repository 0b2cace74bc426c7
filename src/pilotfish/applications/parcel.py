"""Parcels: several byte strings in one, the only thing that client and slot agree on about payloads.

``!I`` the number of parts, ``!Q`` the length of each, then the parts. The master carries parcels and never opens them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pilotfish.errors import PilotfishError

Buffer = bytes | bytearray | memoryview
Parcel = bytes | list[Buffer]
"""In one piece, or in several that whoever writes them need not copy together first."""

_COUNT = struct.Struct("!I")
_ONE = struct.Struct("!IQ")
MAX_PARTS = 1_000_000


class DamagedPayload(PilotfishError):
    """The lengths in a parcel do not fit its size: it was cut or is no parcel."""

    code = "P4200"


def pack_one(part: bytes) -> bytes:
    """A parcel of one part, without the detour that several need."""
    return _ONE.pack(1, len(part)) + part


def pack(parts: Sequence[Buffer]) -> bytes:
    return b"".join(pack_apart(parts))


def pack_apart(parts: Sequence[Buffer]) -> list[Buffer]:
    """A parcel in pieces."""
    return [struct.pack(f"!I{len(parts)}Q", len(parts), *(memoryview(part).nbytes for part in parts)), *parts]


def joined(parcel: Parcel) -> bytes:
    return parcel if isinstance(parcel, bytes) else b"".join(parcel)


def unpack(parcel: Buffer) -> list[memoryview]:
    """The parts, as views into the parcel."""
    view = memoryview(parcel)
    if len(view) < _COUNT.size:
        raise DamagedPayload(f"a parcel of {len(view)} bytes is too short to hold anything")
    (count,) = _COUNT.unpack_from(view)
    start = _COUNT.size + 8 * count
    if count > MAX_PARTS or start > len(view):
        raise DamagedPayload(f"a parcel of {len(view)} bytes cannot have {count} parts")
    parts: list[memoryview] = []
    for length in struct.unpack_from(f"!{count}Q", view, _COUNT.size):
        end = start + length
        if end > len(view):
            raise DamagedPayload(f"part {len(parts)} of a parcel reaches {end - len(view)} bytes past its end")
        parts.append(view[start:end])
        start = end
    if start != len(view):
        raise DamagedPayload(f"a parcel has {len(view) - start} bytes too many")
    return parts
