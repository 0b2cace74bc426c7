"""Stores payloads. Small payloads are in memory. Large payloads are in segment files of the master, or in files that processes on this
machine share."""

from __future__ import annotations

import logging
import os
import re
import stat
import struct
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from pilotfish.errors import ConnectionFailed, JournalError, JournalFull
from pilotfish.model.task import SHARED_SEGMENT, Payload, StoredPayload
from pilotfish.portable.payload_format import is_reference, pack_reference, unpack_reference
from pilotfish.portable.payload_reference import shared_path
from pilotfish.store.disk import DISK, FULL, Buffer, Disk, create_durably, read_all, write_all

log = logging.getLogger("pilotfish.payloads")

INLINE_BYTES = 32 * 1024
"""Maximum size of a payload that is kept in memory."""
ABANDONED_S = 3600.0
SYNCS_AT_ONCE = 4
_SHARED_NAME = re.compile(r"[0-9a-f]{16}")

SEGMENT_BYTES = 256 << 20
OPEN_FILES = 8
MAGIC = b"\x89PFP\r\n\x1a\n"
VERSION = 1
HEADER = struct.Struct("<8sHHII")
HEAD = struct.Struct("<4sIQ")
LOCATION = struct.Struct("<QQQ")
MARKER = b"\xf5PFp"
_NAME = re.compile(r"payloads-(\d{8,})\.dat\Z")


class PayloadStore:
    def __init__(self, directory: Path, shared: Path, disk: Disk = DISK) -> None:
        self._stored = PayloadSegments.open(directory, disk)
        self._shared = SharedPayloads(shared, disk)

    def keep_all(self, parts: list[memoryview], *, allow_disk: bool = True) -> list[Payload]:
        """Stores the payloads of a received message. With ``allow_disk``, large payloads go to disk. Raises ConnectionFailed if the disk is
        full."""
        kept: list[Payload] = []
        try:
            for part in parts:
                kept.append(self._keep(part, allow_disk))
        except JournalFull as problem:
            for payload in kept:
                if isinstance(payload, StoredPayload):
                    self.release(payload, refused=True)
            raise ConnectionFailed(str(problem)) from problem
        return kept

    def _keep(self, part: memoryview, allow_disk: bool) -> Payload:
        if is_reference(part):
            return self._admit(part)
        if len(part) <= INLINE_BYTES or not allow_disk:
            return bytes(part)
        return self._stored.put(part)

    def _admit(self, reference: memoryview) -> Payload:
        """Accepts a reference to a shared file. If the file does not exist, stores the bytes of the reference as the payload.

        If the message with the reference is a repetition, nobody uses this wrong payload. If the message is new, the task that needs the
        payload fails with an error.
        """
        try:
            return self._shared.admit(reference)
        except JournalError as problem:
            log.warning("%s", problem)
            return bytes(reference)

    def load(self, payload: Payload, *, whole: bool) -> bytes:
        """Returns the bytes to send for a payload. For a payload in a shared file, these bytes are only a reference. With ``whole``, they
        are always the payload itself.

        For a lost payload, returns zeros, which are never valid in the payload format.
        """
        if isinstance(payload, bytes):
            return payload
        try:
            if payload.segment != SHARED_SEGMENT:
                return self._stored.get(payload)
            return self._shared.get(payload) if whole else pack_reference(payload.offset, payload.length)
        except JournalError as problem:
            log.error("%s", problem)
            return bytes(payload.length)

    def add_reference(self, stored: StoredPayload) -> None:
        """Counts one more reference to a payload.

        Call it for each reference in a replayed journal, and when a further task uses the same payload.
        """
        try:
            (self._shared if stored.segment == SHARED_SEGMENT else self._stored).adopt(stored)
        except JournalError as problem:
            log.error("%s", problem)

    def release(self, stored: StoredPayload, *, refused: bool = False) -> None:
        try:
            if stored.segment == SHARED_SEGMENT:
                self._shared.release(stored, keep_file=refused)
            else:
                self._stored.release(stored)
        except JournalError as problem:
            log.error("%s", problem)

    def sync(self) -> None:
        self._shared.sync()
        self._stored.sync()

    def collect(self) -> None:
        self._stored.collect()
        self._shared.collect()

    def close(self) -> None:
        self._stored.close()


class SharedPayloads:
    """Payload files that all processes on this machine share.

    A client or slot on this machine writes a large payload to a file and sends a reference to the master (see
    portable/payload_reference.py). The master checks that the file exists, makes it durable, and then acknowledges the message. The master
    counts the references to each file, and removes the file when the last reference is released.
    """

    def __init__(self, directory: Path, disk: Disk = DISK) -> None:
        self._directory = directory
        self._disk = disk
        directory.mkdir(mode=0o700, exist_ok=True)
        self._references: dict[int, int] = {}
        self._unsynced: list[int] = []
        self._helpers = ThreadPoolExecutor(SYNCS_AT_ONCE, "payloads")

    def admit(self, reference: bytes | memoryview) -> StoredPayload:
        """Accepts a received reference if the file exists with the right size."""
        number, length = unpack_reference(reference)
        stored = StoredPayload(SHARED_SEGMENT, number, length)
        self.adopt(stored)
        self._unsynced.append(number)
        return stored

    def sync(self) -> None:
        """Makes admitted files durable. Syncs several files in parallel, because this takes little longer than syncing one file."""
        unsynced, self._unsynced = self._unsynced, []
        if len(unsynced) == 1:
            self._sync_one(unsynced[0])
        elif unsynced:
            list(self._helpers.map(self._sync_one, unsynced))
        if unsynced:
            self._disk.sync_directory(str(self._directory))

    def _sync_one(self, number: int) -> None:
        try:
            descriptor = os.open(self._path(number), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # the last reference was released, and the file was removed
        except OSError as error:
            raise JournalError(f"shared payload {number:016x} cannot be opened: {error.strerror}") from error
        try:
            self._disk.sync(descriptor)
        except OSError as error:
            raise JournalError(f"shared payload {number:016x} cannot be made durable: {error.strerror}", "Check the disk.") from error
        finally:
            os.close(descriptor)

    def adopt(self, stored: StoredPayload) -> None:
        try:
            found = os.stat(self._path(stored.offset), follow_symlinks=False)
        except OSError as error:
            raise JournalError(f"shared payload {stored.offset:016x} is not there: {error.strerror}") from error
        if not stat.S_ISREG(found.st_mode) or found.st_size != stored.length or found.st_uid != os.geteuid():
            raise JournalError(f"shared payload {stored.offset:016x} is not what its reference says")
        self._references[stored.offset] = self._references.get(stored.offset, 0) + 1

    def get(self, stored: StoredPayload) -> bytes:
        try:
            content = self._path(stored.offset).read_bytes()
        except OSError as error:
            raise JournalError(f"shared payload {stored.offset:016x} cannot be read: {error.strerror}") from error
        if len(content) != stored.length:
            raise JournalError(f"shared payload {stored.offset:016x} is damaged")
        return content

    def release(self, stored: StoredPayload, *, keep_file: bool = False) -> None:
        """Removes one reference. With ``keep_file``, the file stays for some time, because its writer possibly sends the reference
        again."""
        left = self._references.get(stored.offset, 0) - 1
        if left > 0:
            self._references[stored.offset] = left
            return
        self._references.pop(stored.offset, None)
        if not keep_file:
            self._path(stored.offset).unlink(missing_ok=True)

    def collect(self) -> None:
        """Removes old files without references. Such a file remains if its writer died before it sent the reference to the master."""
        now = time.time()
        for path in self._directory.iterdir():
            if _SHARED_NAME.fullmatch(path.name) and int(path.name, 16) not in self._references:
                with suppress(FileNotFoundError):
                    if now - path.stat().st_mtime > ABANDONED_S:
                        path.unlink()

    def _path(self, number: int) -> Path:
        return Path(shared_path(self._directory, number))


class PayloadSegments:
    """Stores large payloads in segment files, so that they are not in the journal.

    Segment, offset and length identify a payload. A payload is durable after ``sync``. The journal must not refer to it earlier.
    ``collect`` removes segments without references, so call it only after the releases of these references are durable in the journal.
    Segments of an earlier master get no more payloads. First call ``open``, then ``adopt`` for each reference in the replayed journal, then
    the other methods.
    """

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
                # Possibly the last master died before it synced this segment. The journal can refer to the segment, so it is synced now.
                disk.sync(store._reader(max(sizes)))
                disk.sync_directory(path)
        except OSError as error:
            raise JournalError(f"the payloads in {path} cannot be opened: {error.strerror or error}.", "Check the disk.") from error
        return store

    def put(self, payload: Buffer) -> StoredPayload:
        """Appends one payload with one reference. The payload is durable only after ``sync``."""
        self._require_usable()
        view = memoryview(payload).cast("B")
        length = len(view)
        self._make_room(length)
        segment, offset = self._current, self._sizes[self._current]
        crc = crc32(view, crc32(LOCATION.pack(segment, offset, length)))
        try:
            self._sizes[segment] = write_all(self._disk, self._descriptor, [HEAD.pack(MARKER, crc, length), view], offset)
        except OSError as error:
            if error.errno not in FULL:
                raise self._broken("cannot be written", error) from error
            self._undo_write(offset)
            raise self._full(error) from error
        self._unsynced = True
        self._references[segment] += 1
        return StoredPayload(segment, offset, length)

    def get(self, stored: StoredPayload) -> bytes:
        """Reads a payload. Raises JournalError if the payload is damaged."""
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
        """Counts a reference that is in the journal. Raises JournalError if the segments do not contain the payload."""
        self._require_inside(stored)
        self._references[stored.segment] += 1

    def release(self, stored: StoredPayload) -> None:
        if self._references.get(stored.segment, 0) <= 0:
            raise JournalError(f"{self._describe(stored)} was released more often than it was referred to.")
        self._references[stored.segment] -= 1

    def sync(self) -> None:
        """Makes all payloads durable. After a failure, ``put`` accepts no more payloads."""
        self._require_usable()
        if self._unsynced:
            try:
                self._disk.sync(self._descriptor)
            except OSError as error:
                raise self._broken("cannot be made durable", error) from error
            self._unsynced = False

    def collect(self) -> int:
        """Removes segments without references and returns the number of freed bytes. Keeps the newest segment, so that no segment number is
        used twice."""
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
        """Makes room for a payload of this length. Begins a new segment if this master has none yet, or if the current segment would become
        too long."""
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
        """Returns an open descriptor for reading a segment. If too many files are open, closes the file that was not used for the longest
        time."""
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
    """Refuses a segment of a newer version. Accepts a damaged header, because each payload has its own checksum."""
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
