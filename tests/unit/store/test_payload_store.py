"""Large payloads on disk: they come back as they were put or not at all, and their room comes back when nobody refers to them."""

from __future__ import annotations

import errno
import random
from array import array
from pathlib import Path

import pytest

from pilotfish.errors import JournalError, JournalFull
from pilotfish.model.task import StoredPayload
from pilotfish.store import payload_store as payloads_module
from pilotfish.store.payload_store import HEADER, OPEN_FILES, PayloadSegments
from tests.support.crashing_disk import FailingCall, MemoryDisk, flipped

SEGMENT_BYTES = 10_000


def test_what_was_put_comes_back_whole(tmp_path: Path) -> None:
    store = PayloadSegments.open(tmp_path / "payloads")
    numbers = array("d", [1.0, 2.0])
    cases: list[bytes | bytearray | memoryview] = [
        b"one",
        b"",
        bytearray(b"b"),
        memoryview(b"c"),
        memoryview(numbers),
        random.Random(1).randbytes(9_000_000),
        b"x" * 5000,
    ]
    stored = [store.put(payload) for payload in cases]
    store.sync()
    expected = [bytes(payload) for payload in cases]
    assert [store.get(place) for place in stored] == expected
    assert [place.length for place in stored] == [len(data) for data in expected]
    store.close()

    store = PayloadSegments.open(tmp_path / "payloads")
    for place, data in zip(stored, expected, strict=True):
        store.adopt(place)
        assert store.get(place) == data
    assert store.put(b"new").segment == 2, "segments of an earlier master are not added to"
    store.close()


def test_a_segment_goes_when_nothing_refers_to_it_and_no_number_is_used_twice() -> None:
    disk = MemoryDisk()
    store = PayloadSegments.open("/pool", disk, SEGMENT_BYTES)
    stored = [store.put(bytes(4000)) for _ in range(8)]
    assert [place.segment for place in stored] == [1, 1, 2, 2, 3, 3, 4, 4]
    for place in (stored[0], stored[2], stored[3], *stored[6:]):
        store.release(place)
    size = sum(store._sizes.values())
    freed = store.collect()
    assert disk.names("/pool") == ["payloads-00000001.dat", "payloads-00000003.dat", "payloads-00000004.dat"]
    assert sum(store._sizes.values()) == size - freed == disk.used()
    assert store.collect() == 0
    store.close()

    store = PayloadSegments.open("/pool", disk, SEGMENT_BYTES)
    store.adopt(stored[1])
    store.collect()
    assert disk.names("/pool") == ["payloads-00000001.dat", "payloads-00000004.dat"], "the newest stays: its number must not come again"
    assert store.put(b"x").segment == 5
    with pytest.raises(JournalError, match="not there"):
        store.get(stored[4])
    store.close()


def test_a_payload_longer_than_a_segment_has_one_for_itself() -> None:
    store = PayloadSegments.open("/pool", MemoryDisk(), 100)
    stored = [store.put(bytes(length)) for length in (5000, 10, 10, 5000)]
    assert [place.segment for place in stored] == [1, 2, 2, 3]
    assert [len(store.get(place)) for place in stored] == [5000, 10, 10, 5000]


def test_releasing_more_than_was_referred_to_is_refused() -> None:
    store = PayloadSegments.open("/pool", MemoryDisk())
    place = store.put(b"x")
    store.adopt(place)
    store.release(place)
    store.release(place)
    with pytest.raises(JournalError, match="more often"):
        store.release(place)


@pytest.mark.parametrize(
    "place",
    [
        StoredPayload(1, 0, 5),
        StoredPayload(1, -30, 5),
        StoredPayload(1, HEADER.size, 6),
        StoredPayload(1, HEADER.size, 1 << 70),
        StoredPayload(1, HEADER.size, -1),
        StoredPayload(1, 1 << 70, 1),
        StoredPayload(2, HEADER.size, 5),
        StoredPayload(-1, HEADER.size, 5),
    ],
)
def test_a_place_outside_is_refused(place: StoredPayload) -> None:
    store = PayloadSegments.open("/pool", MemoryDisk())
    store.put(b"hello")
    for act in (store.get, store.adopt):
        with pytest.raises(JournalError, match=r"outside|not there"):
            act(place)


def test_a_place_that_is_no_payload_is_refused() -> None:
    store = PayloadSegments.open("/pool", MemoryDisk())
    place = store.put(b"hello")
    store.put(b"world")
    for wrong in (StoredPayload(1, place.offset + 1, 5), StoredPayload(1, place.offset, 4), StoredPayload(1, place.offset, 6)):
        with pytest.raises(JournalError, match="damaged"):
            store.get(wrong)


def test_a_flipped_bit_at_any_place_is_detected() -> None:
    disk = MemoryDisk()
    store = PayloadSegments.open("/pool", disk)
    written = {store.put(data): data for data in (b"hello", b"", b"x" * 100)}
    store.close()
    name, content = disk.image()[0]
    hits = 0
    for at in range(len(content)):
        store = PayloadSegments.open("/pool", MemoryDisk(flipped(disk.image(), name, at, at % 8)))
        for place, data in written.items():
            end = place.offset + payloads_module.HEAD.size + place.length
            if place.offset <= at < end:
                hits += 1
                with pytest.raises(JournalError, match=f"{place.length} bytes at {place.offset} in .*{name} is damaged"):
                    store.get(place)
            else:
                assert store.get(place) == data
    assert hits == len(content) - HEADER.size


def test_a_file_cut_short_under_the_store_is_noticed(tmp_path: Path) -> None:
    store = PayloadSegments.open(tmp_path)
    place = store.put(bytes(1000))
    with (tmp_path / "payloads-00000001.dat").open("r+b") as file:
        file.truncate(500)
    with pytest.raises(JournalError, match="damaged"):
        store.get(place)


def test_a_full_disk_refuses_the_payload_and_takes_it_when_there_is_room() -> None:
    disk = MemoryDisk(capacity=5000)
    store = PayloadSegments.open("/pool", disk)
    first = store.put(b"a" * 3000)
    used = disk.used()
    with pytest.raises(JournalFull, match="no room"):
        store.put(b"b" * 3000)
    assert disk.used() == used
    store.sync()
    disk.capacity = None
    second = store.put(b"c" * 3000)
    store.sync()
    assert (store.get(first), store.get(second)) == (b"a" * 3000, b"c" * 3000)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_any_single_call_may_fail_and_nothing_promised_is_lost(error: int) -> None:
    for at in range(1, 200):
        disk = MemoryDisk()
        disk.before = failing = FailingCall(at, error)
        store = PayloadSegments.open("/pool", disk, SEGMENT_BYTES)
        promised: dict[StoredPayload, bytes] = {}
        for turn in range(12):
            data = b"%d" % turn * 1500
            try:
                place = store.put(data)
                store.sync()
            except (JournalFull, JournalError):
                continue
            promised[place] = data
        disk.before = None
        for image in {disk.image(), *(image for _, image in disk.moment().images())}:
            after = PayloadSegments.open("/pool", MemoryDisk(image), SEGMENT_BYTES)
            for place, data in promised.items():
                after.adopt(place)
                assert after.get(place) == data
        if not failing.failed:
            assert len(promised) == 12
            return
    pytest.fail("there should not be that many calls")


def test_after_a_failed_sync_nothing_is_taken() -> None:
    disk = MemoryDisk()
    store = PayloadSegments.open("/pool", disk)
    place = store.put(b"x")
    disk.before = FailingCall(1, errno.EIO)
    with pytest.raises(JournalError, match="made durable"):
        store.sync()
    for act in (store.sync, lambda: store.put(b"y")):
        with pytest.raises(JournalError, match="take no more"):
            act()
    assert store.get(place) == b"x", "what is there can still be read"


def test_few_files_are_kept_open() -> None:
    disk = MemoryDisk()
    store = PayloadSegments.open("/pool", disk, 100)
    stored = [store.put(b"%d" % number * 100) for number in range(10, 40)]
    for _ in range(2):
        assert [store.get(place) for place in stored] == [b"%d" % number * 100 for number in range(10, 40)]
        assert len(disk.descriptors) <= OPEN_FILES + 1
    store.close()
    assert not disk.descriptors


def test_a_newer_version_is_refused_with_a_sentence() -> None:
    disk = MemoryDisk()
    store = PayloadSegments.open("/pool", disk)
    store.put(b"x")
    store.close()
    name, content = disk.image()[0]
    newer = payloads_module._encode_header(1, 2) + content[HEADER.size :]
    with pytest.raises(JournalError, match="newer Pilotfish"):
        PayloadSegments.open("/pool", MemoryDisk(((name, newer),)))


def test_half_made_segments_of_a_dead_master_are_removed(tmp_path: Path) -> None:
    (tmp_path / "payloads-00000001.dat.tmp").write_bytes(b"half")
    PayloadSegments.open(tmp_path).close()
    assert list(tmp_path.iterdir()) == []
