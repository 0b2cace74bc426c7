"""The disk of private pools: it waits for no device, and the death of a process loses nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pilotfish.master.master_server import MasterServer
from pilotfish.model.settings import PoolSettings
from pilotfish.portable.payload_reference import write_payload
from pilotfish.store.disk import UNSYNCED_DISK
from pilotfish.store.journal.journal_writer import Journal
from pilotfish.store.payload_store import PayloadStore
from pilotfish.store.pool_directory import PRIVATE, PoolDirectory

WRITE_AND_DIE = """
import os, signal, sys
from pilotfish.store.disk import UNSYNCED_DISK
from pilotfish.store.journal.journal_writer import Journal
journal, recovery = Journal.open(sys.argv[1], UNSYNCED_DISK)
list(recovery)
for number in range(100):
    journal.append([b"record %d" % number])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the calls that wait for the device."""
    made: list[str] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda descriptor, name=name: made.append(name))
    return made


def test_a_killed_writer_has_lost_nothing(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(tmp_path / "journal")], check=False)
    _, recovery = Journal.open(tmp_path / "journal", UNSYNCED_DISK)
    assert [bytes(record) for record in recovery] == [b"record %d" % number for number in range(100)]
    assert not recovery.damage_report.damages


def test_payloads_are_kept_without_a_sync(tmp_path: Path, syncs: list[str]) -> None:
    shared = tmp_path / "payloads" / "shared"
    (tmp_path / "payloads").mkdir()
    store = PayloadStore(tmp_path / "payloads", shared, UNSYNCED_DISK)
    large = b"x" * 200_000
    kept = store.keep_all([memoryview(write_payload(shared, [large])), memoryview(large)])
    store.sync()
    assert [store.load(payload, whole=True) for payload in kept] == [large, large] and syncs == []
    store.close()


@pytest.mark.parametrize(("name", "is_synced"), [(f"{PRIVATE}1-a", False), ("default", True)])
def test_only_the_records_of_a_shared_pool_are_synced(tmp_path: Path, syncs: list[str], name: str, is_synced: bool) -> None:
    master = MasterServer(PoolDirectory(tmp_path / name).make(), PoolSettings())
    syncs.clear()
    master.journal.append([b"a record"])
    master.journal.sync()
    assert bool(syncs) is is_synced
    master.journal.close()
    master.payloads.close()
    master.lock.release()
