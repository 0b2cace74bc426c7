"""Appends records to a journal, makes them durable, and begins a new segment when the current one is long.

    journal, recovery = Journal.open(directory)
    for record in recovery: ...            # read all records before the first append
    journal.append([b"...", b"..."])       # written, not yet durable
    journal.sync()                         # durable: the caller may act on the records

The journal does not interpret the content of records. After a failed sync, it accepts no more records: possibly the operating system has
dropped the unsynced pages, and a second sync would succeed without them. If the disk is full, the journal removes the incomplete write, and
accepts records again when there is space.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pilotfish.errors import JournalError, JournalFull
from pilotfish.store.disk import DISK, FULL, Disk, FileIdentity, create_durably, write_all
from pilotfish.store.journal.journal_reader import JournalReader, Tail
from pilotfish.store.journal.record_format import HEADER_BYTES, POOL_BYTES, SEGMENT, SNAPSHOT, FileHeader, encode_header, frame, seed_of
from pilotfish.store.journal.segment_files import JournalListing, find_pool, list_files, open_file, segment_name, snapshot_name, write_pool
from pilotfish.store.journal.snapshot_file import SnapshotWriter, snapshot_is_whole

SEGMENT_BYTES = 64 << 20
PREALLOCATED_BYTES = 1 << 20
RESERVE_BYTES = 1 << 20
RESERVE_FILE = "journal.reserve"


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file of the journal that a different program changed. ``what``: deleted, replaced, truncated or extended."""

    file: str
    what: str


class Journal:
    """Journal of one pool. Create it with ``open``. The lock of the pool ensures that only one master uses it."""

    def __init__(self, disk: Disk, directory: str, pool: bytes, segment_bytes: int) -> None:
        self.pool = pool
        self._disk = disk
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._trouble = "its records have not been read to the end yet"
        self._descriptor = -1
        self._number = 0
        self._seed = 0
        self._size = 0
        self._last_start = 0
        self._length = 0
        self._preallocates = True
        self._next_sequence = 1
        self._durable = 0
        self._identity = FileIdentity(0, 0, 0)
        self._other_files: dict[str, FileIdentity] = {}
        self._snapshot = ""
        self._snapshot_in_progress = False

    @classmethod
    def open(
        cls, directory: str | os.PathLike[str], disk: Disk = DISK, segment_bytes: int = SEGMENT_BYTES
    ) -> tuple[Journal, JournalReader]:
        """Opens the journal in ``directory``, or creates it. Refuses files of other versions and other pools. Accepts damaged files."""
        path = os.fspath(directory)
        try:
            disk.make_directory(path)
            listing = list_files(disk, path)
            pool = find_pool(disk, path, listing) or os.urandom(POOL_BYTES)
            for kind, numbers in ((SEGMENT, listing.segments), (SNAPSHOT, listing.snapshots)):
                for number in numbers:
                    open_file(disk, path, kind, number, pool).close()
        except OSError as error:
            hint = "Check that the directory is yours and that its file system is there."
            raise JournalError(f"the journal in {path} cannot be opened: {error.strerror or error}.", hint) from error
        journal = cls(disk, path, pool, segment_bytes)
        return journal, JournalReader(disk, path, pool, listing, journal._resume)

    @property
    def size_bytes(self) -> int:
        """Returns the size of the journal on disk, without reserved space."""
        return self._size + sum(identity.size for identity in self._other_files.values())

    @property
    def snapshot_bytes(self) -> int:
        """Returns the size of the snapshot, or 0 if there is none."""
        return self._other_files[self._snapshot].size if self._snapshot in self._other_files else 0

    def append(self, records: Sequence[bytes]) -> int:
        """Writes either all of the records or none. Returns the sequence number of the last record. The records are durable only after
        ``sync``."""
        self._require_usable()
        if self._descriptor < 0 or self._size >= self._segment_bytes:
            self._rotate()
        parts = frame(records, self._next_sequence, self._durable, self._seed)
        start = self._size
        try:
            self._size = write_all(self._disk, self._descriptor, parts, start)
        except OSError as error:
            if error.errno not in FULL:
                raise self._broken("cannot be written", error) from error
            self._undo_write()
            raise self._full(error) from error
        if self._size > self._length:
            self._preallocate()
        self._last_start = start
        self._next_sequence += len(records)
        return self._next_sequence - 1

    def begin_sync(self) -> None:
        """Starts writing the last appended records to the device, so that a later ``sync`` waits less."""
        self._disk.drop_cached(self._descriptor, self._last_start, self._size - self._last_start)

    def sync(self) -> None:
        """Makes all appended records durable. After a failure, the journal accepts no more records, and the master must end and start
        again."""
        self._require_usable()
        if self._durable == self._next_sequence - 1:
            return
        try:
            self._disk.sync(self._descriptor)
        except OSError as error:
            raise self._broken("cannot be made durable", error) from error
        self._durable = self._next_sequence - 1

    def close(self) -> None:
        """Makes all records durable and closes the file."""
        try:
            if not self._trouble:
                self.sync()
                self._trim()
        finally:
            if self._descriptor >= 0:
                self._disk.close(self._descriptor)
            self._descriptor = -1
            self._trouble = self._trouble or "it is closed"

    def begin_snapshot(self) -> SnapshotWriter:
        """Begins a new segment and returns a writer for a snapshot. The caller must write the state at the time of this call to the
        snapshot.

        Write and commit the snapshot in this process or in a forked child. Then call ``finish_snapshot``. If the snapshot failed, call
        ``abandon_snapshot`` instead.
        """
        self._require_usable()
        if self._snapshot_in_progress:
            raise JournalError("a snapshot of the journal is already being written.")
        self._rotate()
        self._snapshot_in_progress = True
        header = FileHeader(SNAPSHOT, self._number, self._next_sequence, self.pool)
        return SnapshotWriter(self._disk, self._directory, header, seed_of(self.pool, SNAPSHOT, self._number))

    def finish_snapshot(self, writer: SnapshotWriter) -> None:
        """Removes the files that a snapshot replaces. If the snapshot is not intact, keeps all files and raises JournalError."""
        self._snapshot_in_progress = False
        name = snapshot_name(writer.number)
        try:
            if not snapshot_is_whole(self._disk, self._directory, writer.number, self.pool, read=False):
                raise JournalError(f"{name} is not whole; the older files are kept.", "Check the disk.")
            self._disk.sync_directory(self._directory)
            identity = self._disk.identify(self._path(name))
        except OSError as error:
            raise JournalError(f"{name} was not written: {error.strerror or error}; the older files are kept.") from error
        kept = {segment_name(number) for number in range(writer.number, self._number)}
        for other in [other for other in self._other_files if other not in kept]:
            # The file is no longer part of the journal, even if it cannot be removed now. The next start removes it.
            with suppress(OSError):
                self._disk.remove(self._path(other))
            del self._other_files[other]
        self._other_files[name] = identity
        self._snapshot = name

    def abandon_snapshot(self, writer: SnapshotWriter) -> None:
        """Removes a failed snapshot. The journal does not change."""
        self._snapshot_in_progress = False
        writer.discard()

    def release_reserve(self) -> bool:
        """Frees the reserved space, so that the next record fits on the full disk. Returns False if no space was reserved."""
        with suppress(OSError):
            self._disk.remove(self._path(RESERVE_FILE))
            return True
        return False

    def restore_reserve(self) -> bool:
        """Reserves the space again that ``release_reserve`` has freed. Returns False if there is not enough space."""
        with suppress(OSError):
            if self._disk.identify(self._path(RESERVE_FILE)).size == RESERVE_BYTES:
                return True
        self.release_reserve()
        try:
            descriptor = self._disk.create(self._path(RESERVE_FILE))
            try:
                self._disk.allocate(descriptor, 0, RESERVE_BYTES)
            finally:
                self._disk.close(descriptor)
        except OSError:
            self.release_reserve()
            return False
        return True

    def find_changed_files(self) -> list[ChangedFile]:
        """Lists journal files that other programs changed. The caller should then write a snapshot at once, because it replaces all these
        files."""
        found = [changed for name, identity in self._other_files.items() if (changed := self._find_change(name, identity))]
        if self._descriptor >= 0:
            identity = FileIdentity(self._identity.device, self._identity.inode, self._length)
            if changed := self._find_change(segment_name(self._number), identity):
                found.append(changed)
        return found

    def _find_change(self, name: str, expected: FileIdentity) -> ChangedFile | None:
        try:
            found = self._disk.identify(self._path(name))
        except FileNotFoundError:
            return ChangedFile(name, "deleted")
        if (found.device, found.inode) != (expected.device, expected.inode):
            return ChangedFile(name, "replaced")
        if found.size == expected.size:
            return None
        return ChangedFile(name, "truncated" if found.size < expected.size else "extended")

    def _resume(self, tail: Tail) -> None:
        """Prepares the journal for writing after the last record that was read."""
        self._trouble = ""
        self._number, self._size, self._descriptor = tail.number, tail.size, tail.descriptor
        self._length = tail.size
        self._next_sequence = tail.next_sequence
        self._durable = tail.next_sequence - 1
        self._other_files, self._snapshot = tail.files, tail.snapshot
        self._seed = seed_of(self.pool, SEGMENT, self._number)
        # Even on a full disk, the journal must open, so that its records can be read. The first append then raises JournalFull.
        with suppress(JournalFull):
            self._write_pool_file()
            if self._descriptor < 0:
                self._begin_segment(tail.number)
            else:
                self._identity = self._disk.identify(self._path(segment_name(tail.number)))
        self.restore_reserve()

    def _write_pool_file(self) -> None:
        try:
            if find_pool(self._disk, self._directory, JournalListing()) is None:  # the file with the id of the pool is missing
                write_pool(self._disk, self._directory, self.pool)
        except OSError as error:
            raise (self._full(error) if error.errno in FULL else self._broken("cannot be begun", error)) from error

    def _rotate(self) -> None:
        self.sync()
        if self._descriptor < 0:
            self._begin_segment(self._number)
            return
        finished, descriptor = segment_name(self._number), self._descriptor
        self._trim()
        identity = FileIdentity(self._identity.device, self._identity.inode, self._length)
        self._begin_segment(self._number + 1)
        self._other_files[finished] = identity
        self._disk.close(descriptor)

    def _begin_segment(self, number: int) -> None:
        """Creates a durable segment and makes it the current segment. If this fails, the old segment stays the current segment."""
        name = segment_name(number)
        header = FileHeader(SEGMENT, number, self._next_sequence, self.pool)
        try:
            descriptor = create_durably(self._disk, self._directory, name, encode_header(header))
            self._identity = self._disk.identify(self._path(name))
        except OSError as error:
            raise (self._full(error) if error.errno in FULL else self._broken("cannot be continued", error)) from error
        self._descriptor, self._number, self._size, self._length = descriptor, number, HEADER_BYTES, HEADER_BYTES
        self._preallocates = True
        self._seed = seed_of(self.pool, SEGMENT, number)

    def _preallocate(self) -> None:
        """Reserves space for later records. A sync that does not extend the file is a third faster, and it cannot fail because the disk is
        full.

        Readers treat zeros at the end of a segment as reserved space. Does nothing if the file system cannot reserve space.
        """
        self._length = self._size
        if self._preallocates:
            try:
                self._disk.allocate(self._descriptor, self._size, PREALLOCATED_BYTES)
                self._length += PREALLOCATED_BYTES
            except OSError:
                self._preallocates = False
                self._trim()

    def _trim(self) -> None:
        """Frees the reserved space that no record has used."""
        with suppress(OSError):
            self._disk.truncate(self._descriptor, self._size)
            self._length = self._size

    def _undo_write(self) -> None:
        """Removes the written part of a failed write, and syncs the file. Without this, refused records could appear again after a
        crash."""
        try:
            self._disk.truncate(self._descriptor, self._size)
            self._disk.sync(self._descriptor)
        except OSError as error:
            raise self._broken("cannot be cut back", error) from error
        self._durable = self._next_sequence - 1
        self._length = self._size

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _require_usable(self) -> None:
        if self._trouble:
            raise JournalError(f"the journal in {self._directory} takes no records: {self._trouble}.")

    def _broken(self, what: str, error: OSError) -> JournalError:
        self._trouble = f"it {what}: {error.strerror or error}"
        hint = "Nothing that was acknowledged is lost. Check the disk, then start again: the journal continues from what is on it."
        return JournalError(f"the journal in {self._directory} {what}: {error.strerror or error}.", hint)

    def _full(self, error: OSError) -> JournalFull:
        hint = "Free some space (or quota); nothing is lost, and the work continues by itself."
        return JournalFull(f"no room for the journal in {self._directory}: {error.strerror or error}.", hint)
