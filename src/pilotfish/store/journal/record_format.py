"""Defines the headers and records of journal files. A reader can recognise and check each record without other records.

    header   magic 8, version 2, kind 2, number 4, first sequence 8, pool 16, crc 4   (frozen: all later versions keep it)
    record   marker 4, check 4, crc 4, length 4, sequence 8, unsynced 4, body

In these two lines, the number after the name of a field is the size of the field in bytes. ``check`` is a checksum of length, sequence and
unsynced, so that these three fields can be tested before the body is read. ``crc`` is a checksum of length, sequence, unsynced, ``check``
and body. Both checksums start from a seed, which is computed from the id of the pool and the kind and number of the file. So records of a
different file, or bytes inside a payload, do not count as records of this file.

``unsynced`` is a number N. When this record was written, the last N records before it were not yet durable, and all earlier records were
durable. If a durable record is missing, the cause is damage and not a crash.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from pilotfish.errors import JournalError

MAGIC = b"\x89PFJ\r\n\x1a\n"
VERSION = 1
OLDEST_VERSION = 1
SEGMENT, SNAPSHOT = 1, 2

HEADER = struct.Struct("<8sHHIQ16sI")
HEADER_BYTES = HEADER.size
MARKER = b"\xf5PFr"
END_MARKER = b"\xf5PFe"
PREFIX = struct.Struct("<4sII")
FIELDS = struct.Struct("<IQI")
RECORD_HEAD = struct.Struct("<4sIIIQ")
FIELDS_AT = PREFIX.size
HEAD_BYTES = PREFIX.size + FIELDS.size
MAX_BODY = 1 << 30
MAX_UNSYNCED = (1 << 32) - 1
POOL_BYTES = 16


@dataclass(frozen=True, slots=True)
class FileHeader:
    kind: int
    number: int
    first_sequence: int
    pool: bytes
    version: int = VERSION


def encode_header(header: FileHeader) -> bytes:
    plain = HEADER.pack(MAGIC, header.version, header.kind, header.number, header.first_sequence, header.pool, 0)[:-4]
    return plain + crc32(plain).to_bytes(4, "little")


def decode_header(data: bytes) -> FileHeader | None:
    """Decodes a header. Returns None if the bytes are no intact header."""
    if len(data) < HEADER_BYTES or crc32(data[: HEADER_BYTES - 4]) != int.from_bytes(data[HEADER_BYTES - 4 : HEADER_BYTES], "little"):
        return None
    magic, version, kind, number, first_sequence, pool, _ = HEADER.unpack_from(data)
    return FileHeader(kind, number, first_sequence, pool, version) if magic == MAGIC else None


def require_readable(header: FileHeader, file: str, pool: bytes) -> None:
    """Refuses files of a different version or a different pool."""
    if header.version > VERSION:
        raise JournalError(
            f"{file} was written by a newer Pilotfish (journal format {header.version}; this one knows {VERSION}).",
            "Use that newer version for this pool; nothing was changed.",
        )
    if header.version < OLDEST_VERSION:
        raise JournalError(
            f"{file} has the old journal format {header.version}; this Pilotfish reads {OLDEST_VERSION} to {VERSION}.",
            "Open the pool once with an older Pilotfish that still reads it, or start a new pool; nothing was changed.",
        )
    if header.pool != pool:
        raise JournalError(f"{file} belongs to another pool.", "Move it out of this directory; nothing was changed.")


def seed_of(pool: bytes, kind: int, number: int) -> int:
    return crc32(struct.pack("<16sHI", pool, kind, number))


def frame(bodies: Sequence[bytes], sequence: int, durable: int, seed: int) -> list[bytes]:
    """Encodes records as alternating heads and bodies. ``durable`` is the last sequence number that is known to be on disk."""
    parts: list[bytes] = []
    add = parts.append
    pack_fields, pack_prefix = FIELDS.pack, PREFIX.pack
    unsynced = min(sequence - durable - 1, MAX_UNSYNCED - len(bodies))
    for body in bodies:
        length = len(body)
        if length > MAX_BODY:
            raise JournalError(f"a journal record of {length} bytes is more than the {MAX_BODY} allowed; nothing was written.")
        fields = pack_fields(length, sequence, unsynced)
        check = crc32(fields, seed)
        add(pack_prefix(MARKER, check, crc32(body, crc32(fields, check ^ seed))) + fields)
        add(body)
        sequence += 1
        unsynced += 1
    return parts


def encode_end(count: int, seed: int) -> bytes:
    """Encodes the end of a snapshot. A snapshot without it is incomplete."""
    fields = FIELDS.pack(0, count, 0)
    check = crc32(fields, seed)
    return PREFIX.pack(END_MARKER, check, crc32(fields, check ^ seed)) + fields


def decode_end(data: bytes, seed: int) -> int | None:
    """Returns the number of records of a snapshot, or None if the bytes are not the end of a snapshot."""
    if len(data) != HEAD_BYTES:
        return None
    count: int = FIELDS.unpack_from(data, FIELDS_AT)[1]
    return count if data == encode_end(count, seed) else None


def proven_durable(head: bytes) -> int:
    """Returns the last sequence number that was certainly on disk when the record with this ``head`` was written."""
    _, sequence, unsynced = FIELDS.unpack_from(head, FIELDS_AT)
    return int(sequence) - int(unsynced) - 1
