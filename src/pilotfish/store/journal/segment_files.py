"""Names, lists and opens journal files. A file can be read even if the device cannot read some of its pages."""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from zlib import crc32

from pilotfish.store.disk import PAGE_BYTES, Disk, create_durably, read_all
from pilotfish.store.journal.record_format import HEADER_BYTES, POOL_BYTES, SEGMENT, FileHeader, decode_header, require_readable, seed_of

POOL_FILE = "journal.id"
_NAME = re.compile(r"(?:journal-(\d{8,})\.log|snapshot-(\d{8,}))\Z")
_POOL_LINE = re.compile(rb"pilotfish-journal ([0-9a-f]{32}) ([0-9a-f]{8})\n\Z")


def segment_name(number: int) -> str:
    return f"journal-{number:08d}.log"


def snapshot_name(number: int) -> str:
    return f"snapshot-{number:08d}"


@dataclass(slots=True)
class JournalListing:
    """The files of a journal, as listed from its directory."""

    segments: list[int] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)
    drafts: list[str] = field(default_factory=list)

    def file_names(self) -> list[str]:
        return [segment_name(number) for number in self.segments] + [snapshot_name(number) for number in self.snapshots]


def list_files(disk: Disk, directory: str) -> JournalListing:
    listing = JournalListing()
    for name in disk.names(directory):
        if name.endswith(".tmp") and (name == POOL_FILE + ".tmp" or _NAME.match(name[:-4])):
            listing.drafts.append(name)
        elif found := _NAME.match(name):
            (listing.segments if found[1] else listing.snapshots).append(int(found[1] or found[2]))
    listing.segments.sort()
    listing.snapshots.sort()
    return listing


@dataclass(slots=True)
class OpenSegment:
    """A segment or snapshot, opened for reading. Pages that the device cannot read are returned as zeros. Zeros are never a valid
    record."""

    disk: Disk
    name: str
    descriptor: int
    size: int
    header: FileHeader | None
    seed: int
    unreadable: bool = False

    def read(self, length: int, offset: int) -> bytes:
        try:
            return read_all(self.disk, self.descriptor, length, offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        self.unreadable = True
        pieces = []
        start, end = offset, min(offset + length, self.size)
        while start < end:
            wanted = min(PAGE_BYTES - start % PAGE_BYTES, end - start)
            pieces.append(_read_or_empty(self.disk, self.descriptor, wanted, start).ljust(wanted, b"\0"))
            start += wanted
        return b"".join(pieces)

    def close(self) -> None:
        self.disk.close(self.descriptor)


def open_file(disk: Disk, directory: str, kind: int, number: int, pool: bytes) -> OpenSegment:
    """Opens a segment or snapshot. Refuses files of a different version or a different pool."""
    name = segment_name(number) if kind == SEGMENT else snapshot_name(number)
    path = os.path.join(directory, name)
    descriptor = disk.open(path)
    file = OpenSegment(disk, name, descriptor, disk.identify(path).size, None, seed_of(pool, kind, number))
    try:
        header = decode_header(file.read(HEADER_BYTES, 0))
        if header is not None:
            require_readable(header, name, pool)
            if (header.kind, header.number) == (kind, number):
                file.header = header
    except BaseException:
        file.close()
        raise
    return file


def _read_or_empty(disk: Disk, descriptor: int, length: int, offset: int) -> bytes:
    """Reads bytes of a file. Returns no bytes if the device cannot read them."""
    try:
        return read_all(disk, descriptor, length, offset)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


def find_pool(disk: Disk, directory: str, listing: JournalListing) -> bytes | None:
    """Reads the id of the pool from the file POOL_FILE. If this file is lost, reads the id from any intact header. Returns None if there is
    no intact header either."""
    with suppress(FileNotFoundError):
        if found := _POOL_LINE.match(_first_bytes(disk, os.path.join(directory, POOL_FILE), 128)):
            pool = bytes.fromhex(found[1].decode())
            if f"{crc32(pool):08x}".encode() == found[2]:
                return pool
    for name in listing.file_names():
        if header := decode_header(_first_bytes(disk, os.path.join(directory, name), HEADER_BYTES)):
            return header.pool
    return None


def write_pool(disk: Disk, directory: str, pool: bytes) -> None:
    """Writes the id of the pool to the file POOL_FILE. With this file, a reader can read records even if the header of their segment is
    lost."""
    if len(pool) != POOL_BYTES:
        raise ValueError(f"a pool id has {POOL_BYTES} bytes, not {len(pool)}")
    content = b"pilotfish-journal %s %08x\n" % (pool.hex().encode(), crc32(pool))
    disk.close(create_durably(disk, directory, POOL_FILE, content))


def _first_bytes(disk: Disk, path: str, length: int) -> bytes:
    descriptor = disk.open(path)
    try:
        return _read_or_empty(disk, descriptor, length, 0)
    finally:
        disk.close(descriptor)
