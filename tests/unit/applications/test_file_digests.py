"""What files hash to: read once, and again when they have changed, whatever their times say."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from pilotfish.applications import input_files
from pilotfish.applications.input_files import DigestCache
from pilotfish.applications.reuse import task_keys
from pilotfish.applications.reuse.task_keys import files_version


class Reader:
    """Counts what is read of one file."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "file"
        self.memory = directory / "digests"
        self.read: list[str] = []

    def digest(self) -> str:
        """As another process would find it."""
        with self.file.open("rb") as stream:
            return DigestCache(self.memory, lambda path, done, size: self.read.append(path)).digest(str(self.file), stream.fileno())


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.setattr(input_files, "RACY_S", -1.0)
    return Reader(tmp_path)


def test_a_file_is_read_once(reader: Reader) -> None:
    reader.file.write_bytes(b"one")
    assert reader.digest() == reader.digest() == hashlib.sha256(b"one").hexdigest()
    assert len(reader.read) == 1


def test_other_bytes_of_the_same_size_and_time_are_another_file(reader: Reader) -> None:
    reader.file.write_bytes(b"one")
    status = reader.file.stat()
    reader.digest()
    while reader.file.stat().st_ctime_ns == status.st_ctime_ns:
        reader.file.write_bytes(b"two")
        os.utime(reader.file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert reader.digest() == hashlib.sha256(b"two").hexdigest()


def test_a_file_that_was_changed_just_now_is_not_remembered(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "RACY_S", 3600.0)
    reader.file.write_bytes(b"one")
    os.utime(reader.file, (1, 1))
    assert reader.digest() == reader.digest()
    assert len(reader.read) == 2


def test_a_file_with_a_time_in_the_future_is_read_once(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "RACY_S", 0.0)
    reader.file.write_bytes(b"one")
    os.utime(reader.file, (time.time() + 3600, time.time() + 3600))
    assert reader.digest() == reader.digest()
    assert len(reader.read) == 1
    monkeypatch.setattr(task_keys, "files_hash", lambda inputs: pytest.fail("the file is read"))
    assert files_version({"one": str(reader.file)}) == files_version({"one": str(reader.file)})


def test_a_memory_that_cannot_be_read_costs_a_reading_only(reader: Reader) -> None:
    reader.file.write_bytes(b"one")
    reader.digest()
    reader.memory.write_text('["/a", 1, 2, 3, "old"]\n{"cut')
    assert reader.digest() == hashlib.sha256(b"one").hexdigest()
