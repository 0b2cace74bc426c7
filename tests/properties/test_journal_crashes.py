"""The power goes at every moment of a journal's life, in every way; and after that while it is being read back."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from zlib import crc32

import pytest

from pilotfish.store.journal import journal_writer as journal_module
from pilotfish.store.journal import record_scan as scan_module
from pilotfish.store.journal.journal_reader import DamageReport, JournalReader
from pilotfish.store.journal.journal_writer import Journal
from pilotfish.store.journal.snapshot_file import SnapshotWriter
from tests.support.crashing_disk import Image, MemoryDisk, Moment, PowerCut

SEGMENT_BYTES = 4096
APPENDS = 200
MODES = {"lost", "torn", "reordered", "zero-filled"}


@pytest.fixture(autouse=True)
def small_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reserve of full size would be most of what these tests copy and compare."""
    monkeypatch.setattr(journal_module, "RESERVE_BYTES", 16)
    monkeypatch.setattr(journal_module, "PREALLOCATED_BYTES", 1000)


@cache
def body(index: int) -> bytes:
    """Record number ``index``, from empty-looking to longer than a page."""
    generator = random.Random(index)
    length = generator.choice((0, 3, 20, 100, 100, 300, 300 if index % 40 else 5000))
    return b"%d:" % index + generator.randbytes(length)


@cache
def summary(first: int, last: int) -> bytes:
    """What a snapshot says of records ``first`` to ``last``."""
    return b"S%d-%d:" % (first, last) + bytes(last % 50)


@dataclass(slots=True)
class Boundary:
    moment: Moment
    synced: int
    """Records up to this one had been reported as durable."""
    appended: int


@dataclass(slots=True)
class History:
    """Appends with several syncs, rotations and two snapshots, one of them written while appends go on; each moment is taken down."""

    disk: MemoryDisk = field(default_factory=MemoryDisk)
    boundaries: list[Boundary] = field(default_factory=list)
    synced: int = 0
    appended: int = 0

    def run(self) -> None:
        self.disk.before = self.take_down
        journal, recovery = Journal.open("/pool", self.disk, SEGMENT_BYTES)
        assert list(recovery) == []
        generator = random.Random(1)
        writer: SnapshotWriter | None = None
        for turn in range(APPENDS):
            count = generator.choice((1, 1, 2, 5))
            self.appended += count
            journal.append([body(index) for index in range(self.appended - count + 1, self.appended + 1)])
            if generator.random() < 0.7:
                journal.sync()
                self.synced = self.appended
            if turn in (60, 140):
                writer = journal.begin_snapshot()
                self.synced = last = self.appended
                chunks = [summary(first, min(first + 9, last)) for first in range(1, last + 1, 10)]
            if writer and turn in (60, 61, 63, 140):
                writer.write(chunks[:8] if turn < 63 else chunks)
                del chunks[: 8 if turn < 63 else None]
            if writer and turn in (64, 140):
                writer.commit()
            if writer and turn in (66, 140):
                journal.finish_snapshot(writer)
                writer = None
        journal.close()
        self.synced = self.appended
        self.take_down("")

    def take_down(self, call: str) -> None:
        self.boundaries.append(Boundary(self.disk.moment(), self.synced, self.appended))


@cache
def reference_history() -> History:
    history = History()
    history.run()
    return history


def covered(records: list[bytes]) -> list[int]:
    """Which of the history's records these tell of. Fails if one of them is none that was written."""
    indices: list[int] = []
    for record in records:
        head = record.partition(b":")[0]
        if head.startswith(b"S"):
            first, last = (int(number) for number in head[1:].split(b"-"))
            assert record == summary(first, last)
            indices.extend(range(first, last + 1))
        else:
            assert record == body(int(head))
            indices.append(int(head))
    return indices


def read(disk: MemoryDisk) -> tuple[list[int], DamageReport, Journal]:
    journal, recovery = Journal.open("/pool", disk, SEGMENT_BYTES)
    return covered(list(recovery)), recovery.damage_report, journal


def check_readable(image: Image) -> frozenset[int]:
    """Opens this disk, twice, appends, loses power again; returns what was there the first time."""
    disk = MemoryDisk(image)
    found, damage_report, journal = read(disk)
    assert found == sorted(set(found)), "in order, and nothing twice"
    missing = set(range(1, max(found, default=0) + 1)).difference(found)
    assert missing == {number for gap in damage_report.gaps for number in range(gap.first, gap.last + 1)}, "what is missing is told"
    assert not any(gap.durable for gap in damage_report.gaps), "and known never to have been promised"
    assert journal._next_sequence - 1 == max(found, default=0)

    for after_cut in {image for mode, image in disk.moment().images() if mode == "lost"}:
        again, salvage_again, second = read(MemoryDisk(after_cut))
        assert again == found, "what was handed out once stays"
        assert salvage_again.cut is None, "and is said once"
        assert second.append([body(len(found))]) == journal._next_sequence
        second.sync()
    return frozenset(found)


def images_of(boundaries: list[Boundary]) -> Iterator[tuple[Boundary, str, Image]]:
    for boundary in boundaries:
        for mode, image in boundary.moment.images():
            yield boundary, mode, image


def check_all(boundaries: list[Boundary]) -> tuple[Counter[str], int]:
    """Every way out of every moment; returns how many of each mode, and how many of the disks differ."""
    outcomes: dict[Image, frozenset[int]] = {}
    modes: Counter[str] = Counter()
    for boundary, mode, image in images_of(boundaries):
        modes[mode] += 1
        if image not in outcomes:
            outcomes[image] = check_readable(image)
        found = outcomes[image]
        assert found.issuperset(range(1, boundary.synced + 1)), "nothing durable is lost"
        assert max(found, default=0) <= boundary.appended
        if mode != "reordered":
            assert len(found) == max(found, default=0), "without reordering there are no holes"
    return modes, len(outcomes)


def test_nothing_durable_is_lost_when_the_power_goes_at_any_moment_in_any_way() -> None:
    boundaries = reference_history().boundaries
    modes, different = check_all(boundaries)
    print(f"{modes.total()} crashes {dict(modes)} at {len(boundaries)} moments, {different} different disks")
    assert set(modes) == MODES
    assert modes.total() >= 4000


@pytest.mark.parametrize(
    ("call", "owner", "method"),
    [
        ("sync", Journal, "sync"),
        ("sync", Journal, "_rotate"),
        ("sync", JournalReader, "_finish_segment"),
        ("truncate", JournalReader, "_finish_segment"),
        ("sync", SnapshotWriter, "commit"),
        ("sync_directory", Journal, "_begin_segment"),
        ("sync_directory", JournalReader, "_end"),
    ],
)
def test_these_checks_notice_a_call_to_the_disk_that_was_forgotten(
    call: str, owner: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original: Callable[..., Any] = getattr(owner, method)

    def forgetful(self: Any, *arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(MemoryDisk, call, lambda *_: None)
            return original(self, *arguments)

    monkeypatch.setattr(owner, method, forgetful)
    history = History()
    history.run()
    with pytest.raises(AssertionError):
        check_all(history.boundaries)


def test_these_checks_notice_that_a_checksum_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    class Agreeable(int):
        def __ne__(self, other: object) -> bool:
            return False

    monkeypatch.setattr(scan_module, "crc32", lambda data, start=0: Agreeable(crc32(data, start)))
    with pytest.raises((AssertionError, ValueError)):
        check_all(reference_history().boundaries)


class CutAt:
    """A ``before`` that stops the machine at the n-th change."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, call: str) -> None:
        if self.left == 0:
            raise PowerCut
        self.left -= 1


def test_power_may_go_five_times_while_the_journal_is_being_read_back() -> None:
    generator = random.Random(2)
    cuts = 0
    everything = [(boundary.synced, image) for boundary, _, image in images_of(reference_history().boundaries)]
    for synced, image in generator.sample(everything, 600):
        for _ in range(5):
            disk = MemoryDisk(image, CutAt(generator.randrange(8)))
            try:
                read(disk)
            except PowerCut:
                cuts += 1
            image = generator.choice([found for _, found in disk.moment().images()])
        found, _, _ = read(MemoryDisk(image))
        assert set(found).issuperset(range(1, synced + 1))
    print(f"{cuts} power cuts during recovery")
    assert cuts >= 1000
