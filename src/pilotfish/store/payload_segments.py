"""Appends large payloads to segment files, which keeps them out of the journal.

A payload is named by segment, offset and length. It is durable after ``sync``; only then may the journal refer to it. A segment is
removed when no reference to it is left: call ``collect`` only after the releases are durable in the journal. Segments of an earlier
master get no more payloads.
"""

from __future__ import annotations

import os
import re
import struct
from collections import OrderedDict
from collections.abc import Sequence
from zlib import crc32

from pilotfish.errors import JournalError, JournalFull
from pilotfish.model.task import StoredPayload
from pilotfish.store.disk import DISK, FULL, Buffer, Disk, create_durably, read_all, write_all

SEGMENT_BYTES = 256 << 20
OPEN_FILES = 8
MAGIC = b"\x89PFP\r\n\x1a\n"
VERSION = 1
HEADER = struct.Struct("<8sHHII")
HEAD = struct.Struct("<4sIQ")
LOCATION = struct.Struct("<QQQ")
MARKER = b"\xf5PFp"
_NAME = re.compile(r"payloads-(\d{8,})\.dat\Z")


class PayloadSegments:
    """Payloads in segment files. Call ``open``, then ``adopt`` for each reference in the replayed journal, before other use."""

    def __init__(self, disk: Disk, directory: str, sizes: dict[int, int], segment_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._sizes = sizes
        self._references = dict.fromkeys(sizes, 0)
        self._readers: OrderedDict[int, int] = OrderedDict()
        self._current = 0
        self._descriptor = -1
        self._unsynced = False
        self._trouble = ""

    @classmethod
    def open(cls, directory: str | os.PathLike[str], disk: Disk = DISK, segment_bytes: int = SEGMENT_BYTES) -> PayloadSegments:
        path = os.fspath(directory)
        sizes: dict[int, int] = {}
        try:
            disk.make_directory(path)
            for name in disk.names(path):
                if found := _NAME.match(name):
                    sizes[int(found[1])] = disk.identify(os.path.join(path, name)).size
                    _require_readable(disk, os.path.join(path, name))
                elif name.endswith(".tmp") and _NAME.match(name[:-4]):
                    disk.remove(os.path.join(path, name))
            store = cls(disk, path, sizes, segment_bytes)
            if sizes:
                # The last master may have died before it was durable, and references from the journal are about to be adopted.
                disk.sync(store._reader(max(sizes)))
                disk.sync_directory(path)
        except OSError as error:
            raise JournalError(f"the payloads in {path} cannot be opened: {error.strerror or error}.", "Check the disk.") from error
        return store

    def put(self, parts: Sequence[Buffer]) -> StoredPayload:
        """Appends one payload, given in parts, with one reference. It is durable only after ``sync``."""
        self._require_usable()
        views = [part if isinstance(part, bytes) else memoryview(part).cast("B") for part in parts]
        length = sum(map(len, views))
        self._make_room(length)
        segment, offset = self._current, self._sizes[self._current]
        crc = crc32(LOCATION.pack(segment, offset, length))
        for view in views:
            crc = crc32(view, crc)
        try:
            self._sizes[segment] = write_all(self._disk, self._descriptor, [HEAD.pack(MARKER, crc, length), *views], offset)
        except OSError as error:
            if error.errno not in FULL:
                raise self._broken("cannot be written", error) from error
            self._undo_write(offset)
            raise self._full(error) from error
        self._unsynced = True
        self._references[segment] += 1
        return StoredPayload(segment, offset, length)

    def get(self, stored: StoredPayload) -> bytes:
        """Reads a payload. Raises JournalError if it is damaged."""
        self._require_inside(stored)
        try:
            descriptor = self._reader(stored.segment)
            head = read_all(self._disk, descriptor, HEAD.size, stored.offset)
            body = read_all(self._disk, descriptor, stored.length, stored.offset + HEAD.size)
        except OSError as error:
            raise JournalError(f"{self._describe(stored)} cannot be read: {error.strerror or error}.", "Check the disk.") from error
        crc = crc32(body, crc32(LOCATION.pack(stored.segment, stored.offset, stored.length)))
        if head != HEAD.pack(MARKER, crc, stored.length) or len(body) != stored.length:
            raise JournalError(f"{self._describe(stored)} is damaged.", "The task that made it must run again.")
        return body

    def adopt(self, stored: StoredPayload) -> None:
        """Adds a reference that is in the journal. Raises JournalError if its target does not exist."""
        self._require_inside(stored)
        self._references[stored.segment] += 1

    def release(self, stored: StoredPayload) -> None:
        if self._references.get(stored.segment, 0) <= 0:
            raise JournalError(f"{self._describe(stored)} was released more often than it was referred to.")
        self._references[stored.segment] -= 1

    def sync(self) -> None:
        """Makes all payloads durable. After a failure, nothing more is accepted."""
        self._require_usable()
        if self._unsynced:
            try:
                self._disk.sync(self._descriptor)
            except OSError as error:
                raise self._broken("cannot be made durable", error) from error
            self._unsynced = False

    def collect(self) -> int:
        """Removes segments without references; returns the bytes freed. The newest stays, so that no number is used twice."""
        freed = 0
        newest = max(self._sizes, default=0)
        for segment in [number for number, count in self._references.items() if count == 0 and number != newest]:
            if segment in self._readers:
                self._disk.close(self._readers.pop(segment))
            try:
                self._disk.remove(self._path(segment))
            except FileNotFoundError:
                pass
            except OSError:
                continue
            freed += self._sizes.pop(segment)
            del self._references[segment]
        return freed

    def close(self) -> None:
        """Makes all payloads durable and closes the files."""
        try:
            if not self._trouble:
                self.sync()
        finally:
            for descriptor in [*self._readers.values(), *([self._descriptor] if self._descriptor >= 0 else [])]:
                self._disk.close(descriptor)
            self._readers.clear()
            self._descriptor = -1
            self._trouble = self._trouble or "they are closed"

    def _make_room(self, length: int) -> None:
        """Begins a new segment if this master has none yet or the payload would make it too long."""
        header = HEADER.size
        if self._descriptor >= 0:
            size = self._sizes[self._current]
            if size == header or size + HEAD.size + length <= self._segment_bytes:
                return
        self.sync()
        number = max(self._sizes, default=0) + 1
        try:
            descriptor = create_durably(self._disk, self._directory, self._name(number), _encode_header(number, VERSION))
        except OSError as error:
            raise (self._full(error) if error.errno in FULL else self._broken("cannot be continued", error)) from error
        if self._descriptor >= 0:
            self._disk.close(self._descriptor)
        self._descriptor, self._current = descriptor, number
        self._sizes[number], self._references[number] = header, 0

    def _undo_write(self, size: int) -> None:
        try:
            self._disk.truncate(self._descriptor, size)
        except OSError as error:
            raise self._broken("cannot be cut back", error) from error

    def _reader(self, segment: int) -> int:
        """Returns a descriptor for reading; the most recently used files stay open."""
        if segment == self._current and self._descriptor >= 0:
            return self._descriptor
        if segment in self._readers:
            self._readers.move_to_end(segment)
            return self._readers[segment]
        descriptor = self._disk.open(self._path(segment))
        self._readers[segment] = descriptor
        if len(self._readers) > OPEN_FILES:
            self._disk.close(self._readers.popitem(last=False)[1])
        return descriptor

    def _require_inside(self, stored: StoredPayload) -> None:
        size = self._sizes.get(stored.segment)
        if size is None:
            raise JournalError(f"{self._describe(stored)} is in a file that is not there.", "The task that made it must run again.")
        if stored.offset < HEADER.size or stored.length < 0 or stored.offset + HEAD.size + stored.length > size:
            raise JournalError(f"{self._describe(stored)} is outside of its file.", "The task that made it must run again.")

    def _require_usable(self) -> None:
        if self._trouble:
            raise JournalError(f"the payloads in {self._directory} take no more: {self._trouble}.")

    def _broken(self, what: str, error: OSError) -> JournalError:
        self._trouble = f"they {what}: {error.strerror or error}"
        return JournalError(f"the payloads in {self._directory} {what}: {error.strerror or error}.", "Check the disk, then start again.")

    def _full(self, error: OSError) -> JournalFull:
        hint = "Free some space (or quota); nothing is lost, and the work continues by itself."
        return JournalFull(f"no room for payloads in {self._directory}: {error.strerror or error}.", hint)

    def _describe(self, stored: StoredPayload) -> str:
        return f"the payload of {stored.length} bytes at {stored.offset} in {self._path(stored.segment)}"

    def _name(self, segment: int) -> str:
        return f"payloads-{segment:08d}.dat"

    def _path(self, segment: int) -> str:
        return os.path.join(self._directory, self._name(segment))


def _encode_header(number: int, version: int) -> bytes:
    plain = HEADER.pack(MAGIC, version, 0, number, 0)[:-4]
    return plain + crc32(plain).to_bytes(4, "little")


def _require_readable(disk: Disk, path: str) -> None:
    """Refuses segments of a newer version. A damaged header is accepted, because each payload has its own checksum."""
    descriptor = disk.open(path)
    try:
        data = disk.read(descriptor, HEADER.size, 0)
    finally:
        disk.close(descriptor)
    if len(data) == HEADER.size:
        _, version, _, number, _ = HEADER.unpack(data)
        if version > VERSION and data == _encode_header(number, version):
            raise JournalError(
                f"{path} was written by a newer Pilotfish (payload format {version}; this one knows {VERSION}).",
                "Use that newer version for this pool; nothing was changed.",
            )
