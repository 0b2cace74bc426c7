"""The power goes at every moment of a journal's life, in every way; and after that while it is being read back."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from pilotfish.store.journal import Journal
from pilotfish.store.recovery import Salvage
from pilotfish.store.snapshot import SnapshotWriter
from tests.crashing_disk import Image, MemoryDisk, Moment, PowerCut

SEGMENT_BYTES = 4096
APPENDS = 200
MODES = {"lost", "torn", "reordered", "zero-filled"}


def body(index: int) -> bytes:
    """Record number ``index``, from empty-looking to longer than a page."""
    generator = random.Random(index)
    length = generator.choice((0, 3, 20, 100, 100, 300, 300 if index % 40 else 5000))
    return b"%d:" % index + generator.randbytes(length)


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


def read(disk: MemoryDisk) -> tuple[list[int], Salvage, Journal]:
    journal, recovery = Journal.open("/pool", disk, SEGMENT_BYTES)
    return covered(list(recovery)), recovery.salvage, journal


def check_readable(image: Image) -> frozenset[int]:
    """Opens this disk, twice, appends, loses power again; returns what was there the first time."""
    disk = MemoryDisk(image)
    found, salvage, journal = read(disk)
    assert found == sorted(set(found)), "in order, and nothing twice"
    missing = set(range(1, max(found, default=0) + 1)).difference(found)
    assert missing == {number for gap in salvage.gaps for number in range(gap.first, gap.last + 1)}, "what is missing is told"
    assert not any(gap.durable for gap in salvage.gaps), "and known never to have been promised"
    assert journal.last_sequence == max(found, default=0)

    for after_cut in {image for mode, image in disk.moment().images() if mode == "lost"}:
        again, salvage_again, second = read(MemoryDisk(after_cut))
        assert again == found, "what was handed out once stays"
        assert salvage_again.cut is None, "and is said once"
        assert second.append([body(len(found))]) == journal.last_sequence + 1
        second.sync()
    return frozenset(found)


def images_of(boundaries: list[Boundary]) -> Iterator[tuple[Boundary, str, Image]]:
    for boundary in boundaries:
        for mode, image in boundary.moment.images():
            yield boundary, mode, image


def test_nothing_durable_is_lost_when_the_power_goes_at_any_moment_in_any_way() -> None:
    outcomes: dict[Image, frozenset[int]] = {}
    modes: Counter[str] = Counter()
    for boundary, mode, image in images_of(reference_history().boundaries):
        modes[mode] += 1
        if image not in outcomes:
            outcomes[image] = check_readable(image)
        found = outcomes[image]
        assert found.issuperset(range(1, boundary.synced + 1))
        assert max(found, default=0) <= boundary.appended
        if mode != "reordered":
            assert len(found) == max(found, default=0), "without reordering there are no holes"
    print(f"{modes.total()} crashes {dict(modes)} at {len(reference_history().boundaries)} moments, {len(outcomes)} different disks")
    assert set(modes) == MODES
    assert modes.total() >= 4000


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
