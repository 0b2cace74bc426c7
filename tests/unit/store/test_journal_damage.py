"""Bits flip, blocks turn to zeros, files go missing: the journal opens, tells what it met, and never returns what was not written."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from itertools import count

import pytest

from pilotfish.errors import JournalError
from pilotfish.store.disk import PAGE_BYTES
from pilotfish.store.journal import journal_writer as journal_module
from pilotfish.store.journal import record_format
from pilotfish.store.journal.journal_reader import Damage, DamageReport, Gap, JournalReader
from pilotfish.store.journal.journal_writer import Journal
from pilotfish.store.journal.record_format import HEAD_BYTES, HEADER_BYTES, FileHeader, decode_header, encode_header
from tests.support.crashing_disk import File, Image, MemoryDisk, flipped

SNAPSHOT_RECORDS = [b"state %d" % number for number in range(4)]
FIRST, SECOND, SNAPSHOT_FILE = "journal-00000002.log", "journal-00000003.log", "snapshot-00000002"


@pytest.fixture(autouse=True)
def small_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "RESERVE_BYTES", 16)
    monkeypatch.setattr(journal_module, "PREALLOCATED_BYTES", 1000)


def numbered(first: int, last: int) -> list[bytes]:
    return [b"record %d" % number for number in range(first, last + 1)]


def small_journal() -> Image:
    """A snapshot of the first five records, a full segment and a current one."""
    disk = MemoryDisk()
    journal, recovery = Journal.open("/pool", disk, segment_bytes=300)
    assert list(recovery) == []
    journal.append(numbered(1, 5))
    writer = journal.begin_snapshot()
    writer.write(SNAPSHOT_RECORDS)
    writer.commit()
    journal.finish_snapshot(writer)
    for number in range(6, 18):
        journal.append(numbered(number, number))
        journal.sync()
    journal.close()
    return disk.image()


EVERYTHING = [*SNAPSHOT_RECORDS, *numbered(6, 17)]


def opened(image: Image) -> tuple[list[bytes], JournalReader, MemoryDisk]:
    """What is read; and the journal takes a record after that which is there the next time, with all the rest."""
    disk = MemoryDisk(image)
    journal, recovery = Journal.open("/pool", disk, segment_bytes=300)
    records = list(recovery)
    journal.append([b"afterwards"])
    journal.close()
    _, again = Journal.open("/pool", MemoryDisk(disk.image()), segment_bytes=300)
    assert list(again) == [*records, b"afterwards"]
    return records, recovery, disk


def content(image: Image, name: str) -> bytes:
    return dict(image)[name]


def with_content(image: Image, name: str, data: bytes | None) -> Image:
    kept = [(other, old) for other, old in image if other != name]
    return tuple(sorted([*kept, *([] if data is None else [(name, data)])]))


def places(image: Image) -> dict[bytes, tuple[str, int, int]]:
    """Where each record lies: file, start of its head, end of its body."""
    found = {}
    for name, data in image:
        for record in EVERYTHING:
            at = data.find(record)
            if at >= 0 and data[at - HEAD_BYTES : at - HEAD_BYTES + 4] == record_format.MARKER and record not in found:
                found[record] = (name, at - HEAD_BYTES, at + len(record))
    assert list(found) == [record for name, _ in image for record in EVERYTHING if found[record][0] == name]
    return found


def test_a_flipped_bit_at_any_place_is_detected_and_costs_at_most_the_record_it_hit() -> None:
    image = small_journal()
    where = places(image)
    flips = 0
    for name in (FIRST, SECOND, SNAPSHOT_FILE):
        for at in range(len(content(image, name))):
            bits = range(8) if at < HEADER_BYTES + 2 * HEAD_BYTES else (at % 8, (at + 3) % 8)
            for bit in bits:
                records, recovery, _ = opened(flipped(image, name, at, bit))
                hit = [record for record in EVERYTHING if where[record][0] == name and where[record][1] <= at < where[record][2]]
                assert records == [record for record in EVERYTHING if record not in hit]
                assert recovery.damage_report.damages or recovery.damage_report.cut
                assert bool(hit) or not recovery.damage_report.gaps
                flips += 1
    assert flips > 2500


def test_a_flipped_bit_in_the_file_that_names_the_pool_is_mended() -> None:
    image = small_journal()
    for at in range(len(content(image, "journal.id"))):
        records, _, disk = opened(flipped(image, "journal.id", at, at % 8))
        assert records == EVERYTHING
        assert content(disk.image(), "journal.id") == content(image, "journal.id")


@pytest.mark.parametrize("length", [1, 16, 100, 200])
def test_zeros_in_the_middle_cost_only_what_they_cover(length: int) -> None:
    image = small_journal()
    where = places(image)
    for name in (FIRST, SECOND, SNAPSHOT_FILE):
        data = content(image, name)
        for start in range(0, len(data) - length, 7):
            end = start + length
            if not any(data[start:end]):
                continue
            records, recovery, _ = opened(with_content(image, name, data[:start] + bytes(length) + data[end:]))
            covered = [record for record in EVERYTHING if where[record][0] == name and where[record][1] < end and where[record][2] > start]
            missing = [record for record in EVERYTHING if record not in records]
            assert set(missing) <= set(covered)
            assert records == [record for record in EVERYTHING if record not in missing]
            assert recovery.damage_report.damages or recovery.damage_report.cut


def test_damage_is_told_with_its_place_and_with_what_is_missing() -> None:
    image = small_journal()
    name, start, end = places(image)[b"record 7"]
    records, recovery, _ = opened(flipped(image, name, end - 1, 0))
    assert b"record 7" not in records
    assert recovery.damage_report == DamageReport([Damage(name, start, end - start)], [Gap(2 + 5, 7, durable=True)])


def test_a_hole_is_told_before_what_is_behind_it() -> None:
    image = small_journal()
    where = places(image)
    for hit in EVERYTHING[:-1]:
        name, _, end = where[hit]
        _, recovery = Journal.open("/pool", MemoryDisk(flipped(image, name, end - 1, 0)))
        for record in recovery:
            damage_report = recovery.damage_report
            behind = EVERYTHING.index(record) > EVERYTHING.index(hit)
            if behind and where[record][0] == name:
                assert [damage.file for damage in damage_report.damages] == [name]
                assert name == SNAPSHOT_FILE or damage_report.gaps
            elif not behind:
                assert damage_report == DamageReport()


def test_a_hole_that_may_never_have_been_durable_is_told_as_such() -> None:
    disk = MemoryDisk()
    journal, recovery = Journal.open("/pool", disk)
    assert list(recovery) == []
    journal.append(numbered(1, 2))
    journal.sync()
    journal.append(numbered(3, 5))
    image = disk.image()
    name = "journal-00000001.log"
    data = content(image, name)
    fourth = data.index(b"record 4")
    found, recovery, _ = opened(with_content(image, name, data[:fourth] + bytes(8) + data[fourth + 8 :]))
    assert found == [*numbered(1, 3), b"record 5"]
    assert recovery.damage_report.gaps == [Gap(4, 4, durable=False)]


def test_random_damage_never_keeps_the_journal_from_opening_nor_returns_what_was_not_written() -> None:
    generator = random.Random(3)
    image = small_journal()
    for _ in range(1500):
        damaged = image
        for _ in range(generator.randint(1, 4)):
            name, data = generator.choice([(name, data) for name, data in damaged if data])
            start = generator.randrange(len(data))
            end = min(len(data), start + generator.choice((1, 10, 100)))
            other = generator.choice([data for _, data in damaged])
            change = generator.choice(("noise", "removed", "doubled", "foreign", "truncated", "deleted"))
            damaged = with_content(
                damaged,
                name,
                {
                    "noise": data[:start] + generator.randbytes(end - start) + data[end:],
                    "removed": data[:start] + data[end:],
                    "doubled": data[:end] + data[start:],
                    "foreign": data[:start] + other + data[start:],
                    "truncated": data[:start],
                    "deleted": None,
                }[change],
            )
        try:
            records, _, _ = opened(damaged)
        except JournalError as refusal:
            pytest.fail(f"refused: {refusal}")
        assert [record for record in EVERYTHING if record in records] == records


def test_what_lies_inside_a_record_is_never_taken_for_one() -> None:
    foreign = MemoryDisk()
    theirs, recovery = Journal.open("/pool", foreign)
    assert list(recovery) == []
    theirs.append(numbered(1, 50))
    disk = MemoryDisk()
    journal, recovery = Journal.open("/pool", disk)
    assert list(recovery) == []
    inside = content(foreign.image(), "journal-00000001.log")
    journal.append([b"first", inside, b"last"])
    name = "journal-00000001.log"
    start = content(disk.image(), name).index(inside) - HEAD_BYTES
    for at in range(start, start + HEAD_BYTES):
        records, _, _ = opened(flipped(disk.image(), name, at, 0))
        assert records == [b"first", b"last"]


def test_a_segment_that_is_gone_is_named() -> None:
    image = small_journal()
    lost = [record for record, place in places(image).items() if place[0] == FIRST]
    records, recovery, _ = opened(with_content(image, FIRST, None))
    assert records == [record for record in EVERYTHING if record not in lost]
    assert recovery.damage_report.damages == [Damage(FIRST, 0, 0, "missing")]
    assert recovery.damage_report.gaps == [Gap(6, 5 + len(lost), durable=True)]

    for name in (FIRST, SECOND):
        image = with_content(image, name, None)
    records, recovery, _ = opened(image)
    assert records == SNAPSHOT_RECORDS
    assert recovery.damage_report.damages == [Damage(FIRST, 0, 0, "missing")]


def test_an_older_snapshot_stands_in_for_a_damaged_one_while_its_segments_are_there() -> None:
    disk = MemoryDisk()
    journal, recovery = Journal.open("/pool", disk)
    assert list(recovery) == []
    journal.append(numbered(1, 5))
    writer = journal.begin_snapshot()
    writer.write(SNAPSHOT_RECORDS)
    writer.commit()
    journal.append(numbered(6, 9))
    image = disk.image()
    assert opened(image)[0] == [*SNAPSHOT_RECORDS, *numbered(6, 9)], "the new one if it is whole"
    size = len(content(image, SNAPSHOT_FILE))
    for at in range(size):
        records, recovery, _ = opened(flipped(image, SNAPSHOT_FILE, at, at % 8))
        assert records == numbered(1, 9)
        assert recovery.damage_report.damages == [Damage(SNAPSHOT_FILE, 0, size, "unused")]


def test_a_read_that_fails_once_costs_nothing() -> None:
    image = small_journal()
    for failing in range(1, 200):
        disk = MemoryDisk(image)
        reads = count(1)

        def refuse_one(file: File, length: int, offset: int, reads: Iterator[int] = reads, failing: int = failing) -> None:
            if next(reads) == failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        disk.before_read = refuse_one
        _, recovery = Journal.open("/pool", disk, segment_bytes=300)
        assert list(recovery) == EVERYTHING
        assert recovery.damage_report == DamageReport()
        if next(reads) <= failing:
            return
    pytest.fail("there should not be that many reads")


@pytest.mark.parametrize("bad_page", [0, 1, 2, 3, 4])
def test_a_page_that_the_device_refuses_costs_that_page_only_as_long_as_it_does(bad_page: int) -> None:
    disk = MemoryDisk()
    journal, recovery = Journal.open("/pool", disk)
    assert list(recovery) == []
    written = [b"%d:" % number + b"x" * 300 for number in range(60)]
    journal.append(written)
    journal.close()
    image = disk.image()
    segment = content(image, "journal-00000001.log")
    assert 4 * PAGE_BYTES < len(segment) < 5 * PAGE_BYTES
    start, end = bad_page * PAGE_BYTES, (bad_page + 1) * PAGE_BYTES
    touched = [record for record in written if start - len(record) < segment.index(record) < end + HEAD_BYTES]
    disk = MemoryDisk(image)

    def refuse(file: File, length: int, offset: int) -> None:
        if file.durable == segment and offset < end and offset + length > start:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.before_read = refuse
    journal, recovery = Journal.open("/pool", disk)
    readable = list(recovery)
    assert readable == [record for record in written if record not in touched]
    assert recovery.damage_report.damages
    assert recovery.damage_report.cut is None
    journal.append([b"afterwards"])
    journal.close()
    _, again = Journal.open("/pool", disk)
    assert list(again) == [*readable, b"afterwards"]
    disk.before_read = None
    _, mended = Journal.open("/pool", disk)
    assert list(mended) == [*written, b"afterwards"], "a device that has recovered gives everything again"


def test_other_versions_are_refused_with_a_sentence_and_nothing_is_changed() -> None:
    image = small_journal()
    for name in (FIRST, SECOND, SNAPSHOT_FILE):
        data = content(image, name)
        header = decode_header(data)
        assert header is not None
        for version, sentence in ((2, "newer Pilotfish"), (60000, "newer Pilotfish"), (0, "old journal format 0")):
            other = encode_header(FileHeader(header.kind, header.number, header.first_sequence, header.pool, version)) + data[HEADER_BYTES:]
            disk = MemoryDisk(with_content(image, name, other))
            with pytest.raises(JournalError, match=sentence) as refusal:
                Journal.open("/pool", disk)
            assert name in str(refusal.value)
            assert refusal.value.hint
            assert disk.image() == with_content(image, name, other)


def test_a_file_of_another_pool_is_refused() -> None:
    image, other = small_journal(), small_journal()
    with pytest.raises(JournalError, match="another pool"):
        Journal.open("/pool", MemoryDisk(with_content(image, FIRST, content(other, FIRST))))


FORMAT_1 = {
    "journal-00000002.log": (
        "8950464a0d0a1a0a01000100020000000200000000000000000102030405060708090a0b0c0d0e0f0d55b28af5504672aefac8a4cb88f05905000000"
        "0200000000000000000000006166746572f55046721fb816e2accc79e00c00000003000000000000000000000074686520736e617073686f74"
    ),
    "snapshot-00000002": (
        "8950464a0d0a1a0a01000200020000000200000000000000000102030405060708090a0b0c0d0e0f157013cef55046721e852eea2ec80a0105000000"
        "0100000000000000000000007374617465f55046729ded555f4efc209100000000020000000000000001000000f5504665f88ae9e76da0fb4c000000"
        "00020000000000000000000000"
    ),
    "journal.id": (
        "70696c6f74666973682d6a6f75726e616c2030303031303230333034303530363037303830393061306230633064306530662063656365653238380a"
    ),
}


def test_a_journal_of_format_1_stays_readable() -> None:
    image = tuple(sorted((name, bytes.fromhex(data)) for name, data in FORMAT_1.items()))
    records, recovery, _ = opened(image)
    assert records == [b"state", b"", b"after", b"the snapshot"]
    assert recovery.damage_report == DamageReport()
