"""Reads a journal: first the newest intact snapshot, then all later segments. Skips damaged parts, and reports them.

The reader changes nothing on the disk before the last record is read. After it, the reader does three things:

1. It removes an incomplete write at the end. 2. It makes all records durable, because the master that wrote them possibly died before its
sync. 3. If it has found no damage, it removes files that a snapshot has replaced.

Each of these steps can be interrupted and repeated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import chain

from pilotfish.errors import JournalError
from pilotfish.store.disk import Disk, FileIdentity
from pilotfish.store.journal.record_format import HEAD_BYTES, HEADER_BYTES, SEGMENT, SNAPSHOT, VERSION
from pilotfish.store.journal.record_scan import RecordScan
from pilotfish.store.journal.segment_files import JournalListing, OpenSegment, find_pool, list_files, open_file, segment_name, snapshot_name
from pilotfish.store.journal.snapshot_file import record_bounds, snapshot_is_whole


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that should be records but are not.

    ``what`` is one of three words. "damaged": these bytes are damaged. "missing": the whole file is missing. "unused": a damaged snapshot
    is not used, because older files have the same content.
    """

    file: str
    offset: int
    length: int
    what: str = "damaged"


@dataclass(frozen=True, slots=True)
class Gap:
    """Missing records, from sequence number ``first`` to ``last``.

    ``durable``: whether the records were certainly on disk. If True, damage destroyed them. If False, the records possibly never reached
    the disk, for example because of a power cut. Then nobody has relied on them, because they were never acknowledged.
    """

    first: int
    last: int
    durable: bool


@dataclass(slots=True)
class DamageReport:
    """Damage that the reader has found. The reader adds an entry before it returns the first record after the damage.

    If there are ``damages``, the caller should write a snapshot soon. Without a snapshot, every start finds the same damage again. The
    field ``durable`` of a gap is correct only after the last record has been read.
    """

    damages: list[Damage] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    cut: Damage | None = None
    """An incomplete write at the end of the journal, which was removed. Zeros at the end do not count: they are reserved space."""


@dataclass(slots=True)
class Tail:
    """Position at which the next master writes. ``descriptor`` is -1 if a new segment must begin."""

    number: int
    next_sequence: int
    size: int = 0
    descriptor: int = -1
    files: dict[str, FileIdentity] = field(default_factory=dict)
    """All files of the journal except the segment to which the next record is written."""
    snapshot: str = ""


class JournalReader:
    """Iterator over all records. Read it once, to the end. Only then does the journal accept records, and ``damage_report`` is complete."""

    def __init__(self, disk: Disk, directory: str, pool: bytes, listing: JournalListing, resume: Callable[[Tail], None]) -> None:
        self.damage_report = DamageReport()
        self.reading_snapshot = False
        """Whether the reader is reading the snapshot."""
        self._disk = disk
        self._directory = directory
        self._pool = pool
        self._listing = listing
        self._resume = resume
        self._expected = 0
        self._proven = 0
        self._started = False

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self.batches())

    def batches(self) -> Iterator[list[bytes]]:
        """Yields lists of records. This is faster than single records."""
        if self._started:
            raise JournalError("a journal is read only once after it was opened; open it again.")
        self._started = True
        try:
            basis = self._choose_snapshot()
            yield from self._read_snapshot(basis)
            yield from self._read_segments(basis)
        except OSError as error:
            raise JournalError(f"the journal in {self._directory} cannot be read: {error.strerror or error}.", "Check the disk.") from error

    def _choose_snapshot(self) -> int:
        """Returns the number of the snapshot with which reading begins, or 0 for the start of the journal.

        This is usually the newest snapshot. If this snapshot is damaged, reading begins at an older snapshot or at the start of the
        journal. All segments after this point must still exist. If some are missing, the damaged snapshot is read.
        """
        present = set(self._listing.segments)
        bases = [*reversed(self._listing.snapshots), *([0] if 1 in present else [])]
        if not bases:
            return 0
        last = max(bases[0], *present, 1)
        with_all_segments = [basis for basis in bases[1:] if present.issuperset(range(max(basis, 1), last + 1))]
        for basis in [bases[0], *with_all_segments[:-1]] if with_all_segments else []:
            if snapshot_is_whole(self._disk, self._directory, basis, self._pool, read=True):
                return basis
            name = snapshot_name(basis)
            size = self._disk.identify(os.path.join(self._directory, name)).size
            self.damage_report.damages.append(Damage(name, 0, size, "unused"))
        return with_all_segments[-1] if with_all_segments else bases[0]

    def _read_snapshot(self, basis: int) -> Iterator[list[bytes]]:
        if basis == 0:
            self._expected = 1 if 1 in self._listing.segments or not self._listing.segments else 0
            return
        with closing(open_file(self._disk, self._directory, SNAPSHOT, basis, self._pool)) as file:
            self._note_header(file)
            end, count = record_bounds(file)
            scan = RecordScan(file.read, min(HEADER_BYTES, end), end, file.seed, expected=1)
            self.reading_snapshot = True
            yield from self._read_batches(file.name, scan)
            self.reading_snapshot = False
            if count is None and not scan.damages:
                self.damage_report.damages.append(Damage(file.name, file.size, 0))
            if file.header is not None:
                self._expected = file.header.first_sequence
                self._proven = self._expected - 1

    def _read_segments(self, basis: int) -> Iterator[list[bytes]]:
        numbers = [number for number in self._listing.segments if number >= basis]
        self._note_missing(basis, numbers)
        if not numbers:
            self._end(Tail(max(basis, 1), max(self._expected, 1)), basis)
            return
        for number in numbers:
            file = open_file(self._disk, self._directory, SEGMENT, number, self._pool)
            keep_open = False
            try:
                scan = self._begin_segment(file)
                yield from self._read_batches(file.name, scan)
                self._expected, self._proven = scan.expected, max(self._proven, scan.proven)
                if number == numbers[-1]:
                    tail = self._finish_segment(number, file, scan)
                    keep_open = tail.descriptor >= 0
                    self._end(tail, basis)
            finally:
                if not keep_open:
                    file.close()

    def _begin_segment(self, file: OpenSegment) -> RecordScan:
        self._note_header(file)
        if file.header is not None:
            first = file.header.first_sequence
            if 0 < self._expected < first:
                self.damage_report.gaps.append(Gap(self._expected, first - 1, durable=True))
            self._expected = max(self._expected, first)
            self._proven = max(self._proven, first - 1)
        return RecordScan(file.read, min(HEADER_BYTES, file.size), file.size, file.seed, self._expected)

    def _read_batches(self, file: str, scan: RecordScan) -> Iterator[list[bytes]]:
        """Yields batches of records. A batch ends at each gap, so that damage is reported before the records after it are returned."""
        damages = gaps = 0
        for batch in scan.batches():
            if len(scan.damages) > damages or len(scan.gaps) > gaps:
                self._note_damage(file, scan.damages[damages:], scan.gaps[gaps:])
                damages, gaps = len(scan.damages), len(scan.gaps)
            yield batch
        self._note_damage(file, scan.damages[damages:], scan.gaps[gaps:])

    def _finish_segment(self, number: int, file: OpenSegment, scan: RecordScan) -> Tail:
        """Removes an incomplete write at the end of the last segment and returns the tail.

        In three cases, the segment stays unchanged and a new segment follows: the header is lost, the file has an older format, or the
        device could not be read.
        """
        if file.header is None or file.header.version != VERSION or file.unreadable:
            self._disk.sync(file.descriptor)
            # Possibly the device can read these bytes later. So sequence numbers that can be in them are not used again.
            withheld = (file.size - scan.good_end) // HEAD_BYTES if file.unreadable else 0
            return Tail(number + 1, max(self._expected, 1) + withheld)
        if scan.good_end < file.size:
            torn = [damage for damage in self.damage_report.damages if (damage.file, damage.offset) == (file.name, scan.good_end)]
            for damage in torn:
                self.damage_report.damages.remove(damage)
                self.damage_report.cut = damage
            self._disk.truncate(file.descriptor, scan.good_end)
        self._disk.sync(file.descriptor)
        return Tail(number, self._expected, scan.good_end, file.descriptor)

    def _end(self, tail: Tail, basis: int) -> None:
        damage_report = self.damage_report
        damage_report.gaps[:] = [Gap(gap.first, gap.last, durable=gap.last <= self._proven) for gap in damage_report.gaps]
        self._disk.sync_directory(self._directory)
        replaced: list[str] = []
        if basis and not damage_report.damages:
            replaced = [segment_name(number) for number in self._listing.segments if number < basis]
            replaced += [snapshot_name(number) for number in self._listing.snapshots if number != basis]
        for name in [*self._listing.drafts, *replaced]:
            with suppress(FileNotFoundError):
                self._disk.remove(os.path.join(self._directory, name))
        current = segment_name(tail.number)
        others = [name for name in self._listing.file_names() if name not in replaced and name != current]
        tail.files = {name: self._disk.identify(os.path.join(self._directory, name)) for name in others}
        tail.snapshot = snapshot_name(basis) if basis else ""
        self._resume(tail)

    def _note_header(self, file: OpenSegment) -> None:
        if file.header is None:
            self.damage_report.damages.append(Damage(file.name, 0, min(HEADER_BYTES, file.size)))

    def _note_missing(self, basis: int, numbers: list[int]) -> None:
        first = max(basis, 1) if basis or self._listing.snapshots or numbers else 0
        last = max(numbers, default=first)
        if first:
            missing = sorted(set(range(first, last + 1)).difference(numbers))
            self.damage_report.damages += [Damage(segment_name(number), 0, 0, "missing") for number in missing]

    def _note_damage(self, file: str, damages: list[tuple[int, int]], gaps: list[tuple[int, int]]) -> None:
        self.damage_report.damages += [Damage(file, start, end - start) for start, end in damages]
        if not self.reading_snapshot:
            self.damage_report.gaps += [Gap(first, last, durable=False) for first, last in gaps if first > 0]


# The rest of this module reads a journal without changing it. The master of the journal can be writing at the same time.


class ReadOnlyDisk(Disk):
    """A disk for readers that are not the master: calls that would repair the journal do nothing."""

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def sync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, directory: str) -> None:
        pass

    def truncate(self, descriptor: int, size: int) -> None:
        pass

    def remove(self, path: str) -> None:
        pass


def open_read_only(directory: str | os.PathLike[str]) -> JournalReader:
    """Opens a journal for reading only. The reader leaves out an incomplete record at the end."""
    path, disk = os.fspath(directory), ReadOnlyDisk()
    try:
        listing = list_files(disk, path)
        pool = find_pool(disk, path, listing)
    except OSError as error:
        raise JournalError(f"the journal in {path} cannot be read: {error.strerror or error}.") from error
    if pool is None:
        raise JournalError(f"there is no journal in {path}.")
    return JournalReader(disk, path, pool, listing, lambda tail: disk.close(tail.descriptor) if tail.descriptor >= 0 else None)
