"""The journal on a real disk: what is appended comes back, in order, over restarts, rotations and snapshots."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pilotfish.errors import JournalError
from pilotfish.store.disk import Disk
from pilotfish.store.journal.journal_reader import DamageReport, JournalReader
from pilotfish.store.journal.journal_writer import Journal

NOTHING_MET = DamageReport()


def opened(directory: Path, segment_bytes: int = 1000) -> tuple[Journal, list[bytes], JournalReader]:
    journal, recovery = Journal.open(directory, segment_bytes=segment_bytes)
    return journal, list(recovery), recovery


def numbered(first: int, last: int) -> list[bytes]:
    return [b"record %d" % number for number in range(first, last + 1)]


def snapshot(journal: Journal, records: Sequence[bytes]) -> None:
    writer = journal.begin_snapshot()
    writer.write(records)
    writer.commit()
    journal.finish_snapshot(writer)


def test_a_new_journal_is_empty_and_its_files_are_private(tmp_path: Path) -> None:
    journal, records, recovery = opened(tmp_path / "journal")
    assert records == []
    assert recovery.damage_report == NOTHING_MET
    assert journal._next_sequence - 1 == 0
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "journal").iterdir()} == {0o600}
    journal.close()


def test_what_is_appended_comes_back_in_order_over_many_segments(tmp_path: Path) -> None:
    journal, _, _ = opened(tmp_path)
    for first in range(1, 301, 3):
        assert journal.append(numbered(first, first + 2)) == first + 2
        journal.sync()
        assert journal._durable == first + 2
    size = journal.size_bytes
    journal.close()
    segments = sorted(tmp_path.glob("journal-*.log"))
    assert segments[0].name == "journal-00000001.log"
    assert len(segments) > 5
    assert size == sum(path.stat().st_size for path in segments)

    journal, records, recovery = opened(tmp_path)
    assert records == numbered(1, 300)
    assert recovery.damage_report == NOTHING_MET
    assert journal.size_bytes == size
    assert journal.append([b"next"]) == 301
    journal.close()


def test_records_may_be_empty_larger_than_a_segment_and_more_than_one_call_takes(tmp_path: Path) -> None:
    written = [b"", b"x" * 5_000_000, *numbered(1, 3000), b"\xf5PFr" * 3000]
    journal, _, _ = opened(tmp_path)
    journal.append(written)
    journal.append([])
    journal.close()
    assert opened(tmp_path)[1] == written


def test_short_writes_are_completed(tmp_path: Path) -> None:
    class Stingy(Disk):
        def write(self, descriptor: int, parts: Sequence[bytes | bytearray | memoryview], offset: int) -> int:
            return os.pwrite(descriptor, b"".join(parts)[:7], offset)

    journal, recovery = Journal.open(tmp_path, Stingy())
    assert list(recovery) == []
    journal.append(numbered(1, 40))
    journal.close()
    assert opened(tmp_path)[1] == numbered(1, 40)


def test_nothing_is_appended_before_all_was_read(tmp_path: Path) -> None:
    journal, recovery = Journal.open(tmp_path)
    with pytest.raises(JournalError, match="not been read to the end"):
        journal.append([b"early"])
    assert list(recovery) == []
    journal.append([b"now"])
    with pytest.raises(JournalError, match="only once"):
        list(recovery)
    journal.close()
    with pytest.raises(JournalError, match="closed"):
        journal.append([b"late"])


def test_a_snapshot_replaces_what_was_before_it_and_nothing_after(tmp_path: Path) -> None:
    journal, _, _ = opened(tmp_path)
    journal.append(numbered(1, 100))
    writer = journal.begin_snapshot()
    journal.append(numbered(101, 110))
    writer.write([b"the first"])
    writer.write([b"hundred"])
    assert len(list(tmp_path.glob("journal-*.log"))) == 2, "nothing goes before the snapshot is there"
    writer.commit()
    before = journal.size_bytes
    journal.finish_snapshot(writer)
    assert journal.size_bytes < before
    assert 0 < journal.snapshot_bytes < journal.size_bytes
    journal.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "journal-00000002.log", "journal.id", "journal.reserve", "snapshot-00000002",
    ]  # fmt: skip

    journal, recovery = Journal.open(tmp_path)
    sources = [(recovery.reading_snapshot, batch) for batch in recovery.batches()]
    assert sources == [(True, [b"the first", b"hundred"]), (False, numbered(101, 110))]
    assert recovery.damage_report == NOTHING_MET
    assert journal._next_sequence - 1 == 110
    snapshot(journal, [b"all"])
    journal.append([b"111"])
    journal.close()
    assert opened(tmp_path)[1] == [b"all", b"111"]
    assert len(list(tmp_path.glob("snapshot-*"))) == 1


def test_a_forked_child_writes_the_snapshot_while_the_parent_goes_on(tmp_path: Path) -> None:
    journal, _, _ = opened(tmp_path)
    journal.append(numbered(1, 50))
    writer = journal.begin_snapshot()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            writer.write([b"fifty"])
            writer.commit()
            status = 0
        finally:
            os._exit(status)
    journal.append(numbered(51, 60))
    journal.sync()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    journal.finish_snapshot(writer)
    journal.close()
    assert opened(tmp_path)[1] == [b"fifty", *numbered(51, 60)]


def test_a_child_that_dies_over_its_snapshot_harms_nothing(tmp_path: Path) -> None:
    journal, _, _ = opened(tmp_path)
    journal.append(numbered(1, 50))
    writer = journal.begin_snapshot()
    child = os.fork()
    if child == 0:
        try:
            writer.write([bytes(300_000)])
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with pytest.raises(JournalError, match="already being written"):
        journal.begin_snapshot()
    with pytest.raises(JournalError, match="older files are kept"):
        journal.finish_snapshot(writer)
    journal.abandon_snapshot(writer)
    assert not list(tmp_path.glob("*.tmp"))
    snapshot(journal, [b"fifty"])
    journal.close()
    assert opened(tmp_path)[1] == [b"fifty"]


def test_a_snapshot_draft_of_a_dead_master_is_removed(tmp_path: Path) -> None:
    journal, _, _ = opened(tmp_path)
    journal.append(numbered(1, 5))
    journal.begin_snapshot().write([bytes(300_000)])
    journal.close()
    assert list(tmp_path.glob("snapshot-*.tmp"))
    assert opened(tmp_path)[1] == numbered(1, 5)
    assert not list(tmp_path.glob("*.tmp"))


def test_a_torn_tail_is_cut_and_said_once(tmp_path: Path) -> None:
    journal, _, _ = opened(tmp_path)
    journal.append(numbered(1, 5))
    journal.close()
    segment = tmp_path / "journal-00000001.log"
    size = segment.stat().st_size
    os.truncate(segment, size - 3)
    journal, records, recovery = opened(tmp_path)
    assert records == numbered(1, 4)
    assert recovery.damage_report.cut is not None
    assert recovery.damage_report.cut.file == segment.name
    assert recovery.damage_report.cut.offset + recovery.damage_report.cut.length == size - 3
    assert recovery.damage_report.damages == []
    journal.append([b"fifth"])
    journal.close()
    _, records, recovery = opened(tmp_path)
    assert records == [*numbered(1, 4), b"fifth"]
    assert recovery.damage_report == NOTHING_MET


@pytest.mark.parametrize("what", ["deleted", "truncated", "replaced", "extended"])
@pytest.mark.parametrize("file", ["journal-00000001.log", "journal-00000002.log", "snapshot-00000001"])
def test_a_file_changed_under_a_live_journal_is_noticed_and_a_snapshot_mends_it(tmp_path: Path, what: str, file: str) -> None:
    journal, _, _ = opened(tmp_path / "first", segment_bytes=100)
    if file.startswith("snapshot"):
        file = "snapshot-00000002"
        snapshot(journal, [b"start"])
        journal.append(numbered(1, 20))
        journal.append(numbered(21, 40))
    else:
        journal.append(numbered(1, 20))
        journal.append(numbered(21, 40))
    journal.sync()
    assert journal.find_changed_files() == []
    path = tmp_path / "first" / file
    if what == "deleted":
        path.unlink()
    elif what == "truncated":
        os.truncate(path, path.stat().st_size - 10)
    elif what == "extended":
        os.truncate(path, path.stat().st_size + 10)
    else:
        (tmp_path / "other").write_bytes(path.read_bytes())
        os.replace(tmp_path / "other", path)
    assert [(changed_files.file, changed_files.what) for changed_files in journal.find_changed_files()] == [(file, what)]
    snapshot(journal, [b"forty"])
    journal.append(numbered(41, 42))
    assert journal.find_changed_files() == []
    journal.close()
    _, records, recovery = opened(tmp_path / "first")
    assert records == [b"forty", *numbered(41, 42)]
    assert recovery.damage_report == NOTHING_MET


WRITER = """
import sys
from pilotfish.store.journal.journal_writer import Journal
journal, recovery = Journal.open(sys.argv[1], segment_bytes=20_000)
number = sum(1 for _ in recovery)
while True:
    group = [b"record %d" % (number + step) for step in range(1, 9)]
    journal.append(group)
    journal.sync()
    number += 8
    print(number, flush=True)
"""


def test_what_was_durable_survives_the_kill_of_its_writer(tmp_path: Path) -> None:
    promised = 0
    for kill in range(4):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            for _ in range(100 + 37 * kill):
                promised = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            promised = max([promised, *(int(line) for line in writer.stdout.read().split())])
        journal, records, recovery = opened(tmp_path)
        journal.close()
        assert records == numbered(1, len(records))
        assert len(records) >= promised
        assert recovery.damage_report.damages == []


def test_a_record_that_is_too_large_is_refused_and_nothing_of_its_group_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotfish.store.journal.record_format.MAX_BODY", 1000)
    journal, _, _ = opened(tmp_path)
    with pytest.raises(JournalError, match="1001 bytes"):
        journal.append([b"small", bytes(1001)])
    journal.append([b"goes on"])
    journal.close()
    assert opened(tmp_path)[1] == [b"goes on"]


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(JournalError, match="file"):
        Journal.open(tmp_path / "file")
