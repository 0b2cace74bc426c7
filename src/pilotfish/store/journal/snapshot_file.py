"""Writes and verifies snapshot files. A snapshot replaces all segments before it.

Usually a forked child process writes the snapshot to a temporary file. When this file is complete, durable and verified, it gets its final
name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing, suppress

from pilotfish.errors import JournalError, JournalFull
from pilotfish.store.disk import FULL, Disk, write_all
from pilotfish.store.journal.record_format import (
    HEAD_BYTES,
    HEADER_BYTES,
    SNAPSHOT,
    FileHeader,
    decode_end,
    encode_end,
    encode_header,
    frame,
)
from pilotfish.store.journal.record_scan import RecordScan
from pilotfish.store.journal.segment_files import OpenSegment, open_file, snapshot_name

WRITE_BYTES = 256 << 10


class SnapshotWriter:
    """Writes one snapshot. The file is opened at the first write. So if a forked child writes the snapshot, child and parent share no open
    file.

    Records are buffered, so callers can write them one by one.
    """

    def __init__(self, disk: Disk, directory: str, header: FileHeader, seed: int) -> None:
        self.number = header.number
        self._disk = disk
        self._directory = directory
        self._header = header
        self._seed = seed
        self._path = os.path.join(directory, snapshot_name(header.number))
        self._descriptor = -1
        self._size = 0
        self._count = 0
        self._buffered: list[bytes] = []
        self._buffered_bytes = 0

    def write(self, records: Sequence[bytes]) -> None:
        parts = frame(records, self._count + 1, self._count, self._seed)
        self._buffered += parts
        self._buffered_bytes += sum(map(len, parts))
        self._count += len(records)
        if self._buffered_bytes >= WRITE_BYTES:
            self._flush()

    def commit(self) -> None:
        """Makes the snapshot durable, verifies it, and then gives the file its final name."""
        self._buffered.append(encode_end(self._count, self._seed))
        self._flush()
        try:
            self._disk.sync(self._descriptor)
            self._disk.drop_cached(self._descriptor)
            draft = OpenSegment(self._disk, self._path, self._descriptor, self._size, self._header, self._seed)
            if not is_whole(draft):
                raise JournalError(f"{self._path} cannot be read back as it was written; the older files are kept.", "Check the disk.")
            self._disk.rename(self._path + ".tmp", self._path)
            self._disk.sync_directory(self._directory)
            self._disk.close(self._descriptor)
        except OSError as error:
            raise self._problem(error) from error
        self._descriptor = -1

    def discard(self) -> None:
        """Removes the temporary file. The journal does not change."""
        if self._descriptor >= 0:
            self._disk.close(self._descriptor)
            self._descriptor = -1
        with suppress(FileNotFoundError):
            self._disk.remove(self._path + ".tmp")

    def _flush(self) -> None:
        parts, self._buffered, self._buffered_bytes = self._buffered, [], 0
        try:
            if self._descriptor < 0:
                self._descriptor = self._disk.create(self._path + ".tmp")
                self._size = write_all(self._disk, self._descriptor, [encode_header(self._header)], 0)
            self._size = write_all(self._disk, self._descriptor, parts, self._size)
        except OSError as error:
            raise self._problem(error) from error

    def _problem(self, error: OSError) -> JournalError | JournalFull:
        if error.errno in FULL:
            return JournalFull(f"no room for {self._path}: {error.strerror}; the journal itself is unharmed.", "Free some space.")
        return JournalError(f"{self._path} cannot be written: {error.strerror}; the journal itself is unharmed.", "Check the disk.")


def record_bounds(file: OpenSegment) -> tuple[int, int | None]:
    """Returns the offset at which the records end, and the number of records. The number is None if the last part of the file is lost."""
    end = file.size - HEAD_BYTES
    if end < HEADER_BYTES:
        return file.size, None
    count = decode_end(file.read(HEAD_BYTES, end), file.seed)
    return (file.size, None) if count is None else (end, count)


def is_whole(file: OpenSegment) -> bool:
    """Reads the whole snapshot. Returns True if no record is missing or damaged."""
    end, count = record_bounds(file)
    if count is None or file.header is None:
        return False
    scan = RecordScan(file.read, HEADER_BYTES, end, file.seed, expected=1)
    for _ in scan.batches():
        pass
    return scan.records == count and not scan.damages and not scan.gaps


def snapshot_is_whole(disk: Disk, directory: str, number: int, pool: bytes, *, read: bool) -> bool:
    """Returns True if a snapshot is intact. With ``read``, reads the whole file. Without ``read``, checks only its beginning and end, which
    is enough for a snapshot that was verified when it was written."""
    with closing(open_file(disk, directory, SNAPSHOT, number, pool)) as file:
        return is_whole(file) if read else file.header is not None and record_bounds(file)[1] is not None
