"""No room, no quota, a device that fails: what was promised stays, what was refused does not come back, a failed sync is final."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotfish.errors import JournalError, JournalFull
from pilotfish.store.disk import DISK, Disk
from pilotfish.store.journal import journal_writer as journal_module
from pilotfish.store.journal.journal_writer import RESERVE_FILE, Journal
from tests.support.crashing_disk import FailingCall, Image, MemoryDisk

ROOT = Path(__file__).parents[3]


@pytest.fixture
def small_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "RESERVE_BYTES", 16)
    monkeypatch.setattr(journal_module, "PREALLOCATED_BYTES", 1000)


def read(image: Image) -> list[bytes]:
    _, recovery = Journal.open("/pool", MemoryDisk(image), segment_bytes=400)
    return list(recovery)


class Life:
    """A journal's life on a disk on which one call fails: what was promised, and what was refused."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.promised: list[bytes] = []
        self.refused: list[bytes] = []
        self.ended = False

    def run(self) -> None:
        journal, recovery = Journal.open("/pool", self.disk, segment_bytes=400)
        try:
            assert list(recovery) == []
            for turn in range(24):
                self._append(journal, turn)
                if turn == 12:
                    self._snapshot(journal)
            journal.close()
        except JournalError:
            self.ended = True
            for _ in range(2):
                with pytest.raises(JournalError):
                    journal.append([b"after the end"])

    def _append(self, journal: Journal, turn: int) -> None:
        for attempt in range(3):
            record = b"turn %d attempt %d" % (turn, attempt)
            try:
                journal.append([record, record])
            except JournalFull:
                self.refused.append(record)
                continue
            journal.sync()
            self.promised += [record, record]
            return
        pytest.fail("one failing call must not refuse three times")

    def _snapshot(self, journal: Journal) -> None:
        """A snapshot that fails, for want of room or otherwise, is given up: the journal itself is unharmed."""
        try:
            writer = journal.begin_snapshot()
        except JournalFull:
            return
        try:
            writer.write([b"|".join(self.promised)])
            writer.commit()
            journal.finish_snapshot(writer)
        except (JournalError, JournalFull):
            journal.abandon_snapshot(writer)


def expanded(records: list[bytes]) -> list[bytes]:
    return [part for record in records for part in record.split(b"|")]


@pytest.mark.usefixtures("small_reserve")
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_any_single_call_may_fail_and_nothing_promised_is_lost(error: int) -> None:
    failed, ended = set(), 0
    for at in range(1, 1000):
        disk = MemoryDisk()
        disk.before = failing = FailingCall(at, error)
        life = Life(disk)
        life.run()
        ended += life.ended
        failed.add(failing.failed)
        disk.before = None
        for image in {disk.image(), *(image for mode, image in disk.moment().images())}:
            found = expanded(read(image))
            assert found[: len(life.promised)] == life.promised
            assert not set(found).intersection(life.refused)
            assert life.ended or found == life.promised
        if not failing.failed:
            break
    assert failed >= {"write", "sync", "create", "rename", "remove", "sync_directory", ""}
    assert ended > 0


@pytest.mark.usefixtures("small_reserve")
def test_a_failed_sync_is_never_tried_again() -> None:
    disk = MemoryDisk()
    journal, recovery = Journal.open("/pool", disk)
    assert list(recovery) == []
    journal.append([b"one"])
    disk.before = FailingCall(1, errno.EIO)
    with pytest.raises(JournalError, match="made durable"):
        journal.sync()
    calls = disk.before.calls
    for act in (journal.sync, journal.begin_snapshot, lambda: journal.append([b"two"])):
        with pytest.raises(JournalError, match="takes no records"):
            act()
    journal.close()
    assert disk.before.calls == calls


def fill_and_free(directory: str, disk: Disk, fill: Callable[[], None], free: Callable[[], None], cycles: int) -> None:
    """The disk is full and free again, many times: each time the journal says so, holds, and goes on."""
    journal, recovery = Journal.open(directory, disk)
    assert list(recovery) == []
    promised: list[bytes] = []
    for cycle in range(cycles):
        promised += append_until_full(journal, cycle, fill)
        assert journal.release_reserve(), "with the reserve there is room to write down that there is no room"
        hold = b"held in cycle %d" % cycle
        journal.append([hold])
        journal.sync()
        promised.append(hold)
        free()
        assert journal.restore_reserve()
        promised.append(b"released in cycle %d" % cycle)
        journal.append(promised[-1:])
        journal.sync()
        if cycle % 5 == 4:
            writer = journal.begin_snapshot()
            writer.write(promised)
            writer.commit()
            journal.finish_snapshot(writer)
    journal.close()
    _, recovery = Journal.open(directory, disk)
    assert list(recovery) == promised
    assert not recovery.damage_report.damages
    assert recovery.damage_report.cut is None


def append_until_full(journal: Journal, cycle: int, fill: Callable[[], None]) -> list[bytes]:
    kept: list[bytes] = []
    for turn in range(10_000):
        if turn == 3:
            fill()
        record = b"cycle %d turn %d " % (cycle, turn) + b"x" * 700
        try:
            journal.append([record])
        except JournalFull as full:
            assert full.hint
            return kept
        journal.sync()
        kept.append(record)
    raise AssertionError("the disk was never full")


def test_a_disk_that_is_full_a_hundred_times_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "RESERVE_BYTES", 4000)
    monkeypatch.setattr(journal_module, "PREALLOCATED_BYTES", 4000)
    disk = MemoryDisk()

    def fill() -> None:
        disk.capacity = disk.used() + 1500

    def free() -> None:
        disk.capacity = None

    fill_and_free("/pool", disk, fill, free, cycles=100)


def full_tmpfs(directory: str) -> None:
    """Runs in a process of its own that may mount: a file system of 24 MiB, filled up to the last block by somebody else."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", directory], check=True)
    ballast = os.path.join(directory, "ballast")

    def fill() -> None:
        with open(ballast, "wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC

    fill_and_free(os.path.join(directory, "journal"), DISK, fill, lambda: os.unlink(ballast), cycles=20)


def private_mounts() -> list[str]:
    """The command that lets us mount without anybody else seeing it; empty if the system does not allow it."""
    for command in (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"]):
        trial = [*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        if shutil.which("unshare") and subprocess.run(trial, capture_output=True).returncode == 0:
            return command
    return []


def run_apart(prefix: list[str], function: str, directory: Path) -> None:
    code = f"import sys; from tests.unit.store.test_journal_full import {function}; {function}(sys.argv[1])"
    done = subprocess.run([*prefix, sys.executable, "-c", code, str(directory)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_real_file_system_that_is_full_costs_nothing(tmp_path: Path) -> None:
    prefix = private_mounts()
    if not prefix:
        pytest.skip("mounting a small tmpfs is not permitted here; the same story ran on the disk in memory and under a file size limit")
    run_apart(prefix, "full_tmpfs", tmp_path)


def limited_file_size(directory: str) -> None:
    """The kernel's own refusal, for which no privilege is needed: files may not grow beyond a limit, and later may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    journal, recovery = Journal.open(directory)
    assert list(recovery) == []
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    kept = append_until_full(journal, 0, lambda: None)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.append([b"goes on"])
    journal.close()
    _, recovery = Journal.open(directory)
    assert list(recovery) == [*kept, b"goes on"]


def test_a_limit_on_the_size_of_files_is_survived_like_a_full_disk(tmp_path: Path) -> None:
    run_apart([], "limited_file_size", tmp_path)


def test_a_journal_on_a_full_disk_opens_and_holds() -> None:
    disk = MemoryDisk(capacity=2000)
    journal, recovery = Journal.open("/pool", disk)
    assert list(recovery) == []
    kept = append_until_full(journal, 0, lambda: None)
    assert kept
    full = MemoryDisk(disk.image(), capacity=disk.used())
    journal, recovery = Journal.open("/pool", full)
    assert list(recovery) == kept
    assert not journal.restore_reserve()
    with pytest.raises(JournalFull):
        journal.append([b"no"])
    with pytest.raises(JournalFull):
        journal.begin_snapshot()
    full.capacity = None
    journal.append([b"yes"])
    journal.close()
    assert read(full.image()) == [*kept, b"yes"]


def test_a_new_journal_on_a_full_disk_says_so_and_begins_when_there_is_room() -> None:
    disk = MemoryDisk(capacity=10)
    journal, recovery = Journal.open("/pool", disk)
    assert list(recovery) == []
    with pytest.raises(JournalFull, match="no room"):
        journal.append([b"no"])
    disk.capacity = None
    journal.append([b"yes"])
    journal.close()
    assert read(disk.image()) == [b"yes"]


def test_the_reserve_takes_real_room_and_gives_it_back(tmp_path: Path) -> None:
    journal, recovery = Journal.open(tmp_path)
    assert list(recovery) == []
    reserve = tmp_path / RESERVE_FILE
    assert reserve.stat().st_blocks * 512 >= 1 << 20
    assert journal.release_reserve()
    assert not reserve.exists()
    assert not journal.release_reserve()
    assert journal.restore_reserve()
    assert reserve.stat().st_size == 1 << 20
    journal.close()
