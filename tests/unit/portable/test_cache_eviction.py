"""Tests what the content cache evicts when it is at its limit, or when the disk is full."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from pilotfish.portable.transfer import cache_directory
from pilotfish.portable.transfer.cache_directory import CachedFile, content_path
from pilotfish.portable.transfer.content_cache import ContentCache
from pilotfish.portable.transfer.file_locks import WriterBusy
from pilotfish.portable.transfer.incoming_content import NoSpace, TooLarge

START = 1e9


class Stage:
    """A cache with its own clock and contents of a hundred bytes."""

    def __init__(self, directory: str, max_bytes: int) -> None:
        self.now = START
        self.pinned: set[str] = set()
        self.cache = ContentCache(directory, max_bytes, lambda digest: digest in self.pinned, lambda: self.now)

    def add(self, letter: str) -> str:
        """Each content is ten minutes younger than the one before."""
        self.now += 600.0
        content = letter.encode() * 100
        digest = hashlib.sha256(content).hexdigest()
        with self.cache.incoming(digest, 100) as incoming:
            incoming.write(content)
            incoming.finish()
        return digest

    def path(self, digest: str) -> str:
        return content_path(self.cache.directory, digest)

    def leave_behind(self, name: str, age_s: float) -> Path:
        """An abandoned transfer of fifty bytes."""
        path = Path(self.cache.directory, "incoming", name)
        path.write_bytes(b"x" * 50)
        os.utime(path, (self.now - age_s, self.now - age_s))
        return path


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(str(tmp_path / "cache"), 300)


def test_the_least_recently_used_content_is_evicted_first(stage: Stage) -> None:
    a, b, c = (stage.add(letter) for letter in "abc")
    stage.now += 600.0
    assert stage.cache.verified_path(a, 100)
    d = stage.add("d")
    assert sorted(stage.cache.contents()) == sorted([a, c, d])
    e = stage.add("e")
    assert sorted(stage.cache.contents()) == sorted([a, d, e]) and b != c
    assert stage.cache.used_bytes == 300


def test_using_a_content_does_not_make_it_look_changed(stage: Stage) -> None:
    a = stage.add("a")
    before = os.stat(stage.path(a)).st_mtime_ns
    stage.now += 100.0
    assert stage.cache.verified_path(a, 100)
    status = os.stat(stage.path(a))
    assert status.st_mtime_ns == before and status.st_atime == stage.now


def test_wanted_pinned_held_and_just_used_contents_stay(stage: Stage) -> None:
    stage.cache.max_bytes = 400
    a, b, c, d = (stage.add(letter) for letter in "abcd")
    stage.pinned.add(a)
    stage.cache.pin(b)
    stage.cache.hold(c)
    stage.now += 600.0
    other = Stage(stage.cache.directory, 400)
    other.now = stage.now
    assert other.cache.verified_path(d, 100)
    with pytest.raises(NoSpace, match="limited to 400 bytes; 0 are available now, and 100 are needed"):
        stage.cache.make_space(100)
    stage.now += 61.0
    stage.cache.make_space(100)
    assert sorted(stage.cache.contents()) == sorted([a, b, c])
    stage.cache.unpin(b)
    stage.cache.release([c])
    stage.now += 61.0
    stage.cache.make_space(300)
    assert list(stage.cache.contents()) == [a]


def test_a_content_with_another_link_is_evicted_like_others_but_not_for_a_full_disk(stage: Stage, tmp_path: Path) -> None:
    a, b = stage.add("a"), stage.add("b")
    os.link(stage.path(a), tmp_path / "with-the-master")
    stage.now += 600.0
    assert stage.cache.free_space(1000)
    assert list(stage.cache.contents()) == [a] and not os.path.exists(stage.path(b))
    stage.cache.make_space(300)
    assert not stage.cache.contents() and (tmp_path / "with-the-master").exists()


def test_a_content_is_held_where_there_are_no_links(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", None)
    a = stage.add("a")
    stage.cache.hold(a)
    stage.cache.hold(a)
    stage.now += 600.0
    assert stage.cache.held() == [a] and not stage.cache.free_space(1)


def test_a_pinned_content_is_in_use_for_other_processes_as_well(stage: Stage) -> None:
    a = stage.add("a")
    stage.cache.pin(a)
    stage.now += 600.0
    stage.cache.touch([])
    other = Stage(stage.cache.directory, 300)
    other.now = stage.now + 30.0
    assert not other.cache.free_space(1)


def test_a_content_that_could_never_fit_evicts_nothing(stage: Stage) -> None:
    contents = sorted(stage.add(letter) for letter in "abc")
    stage.pinned.add(contents[0])
    stage.now += 600.0
    for length in (201, 301, 1 << 60):
        with pytest.raises(NoSpace):
            stage.cache.incoming("0" * 64, length)
    assert sorted(stage.cache.contents()) == contents
    assert os.listdir(stage.cache.directory + "/incoming") == []


def test_other_users_of_the_directory_are_seen(stage: Stage) -> None:
    other = Stage(stage.cache.directory, 300)
    a = stage.add("a")
    b, c = other.add("b"), other.add("c")
    stage.now = other.now = START + 6000.0
    assert other.cache.verified_path(a, 100)
    stage.now += 61.0
    stage.cache.make_space(200)
    assert list(other.cache.contents()) == [a] and b != c


def test_an_abandoned_transfer_counts_and_is_evicted(stage: Stage) -> None:
    a = stage.add("a")
    b = stage.add("b")
    stage.now += 600.0
    recent, older, stale = (stage.leave_behind(name, age_s) for name, age_s in (("1" * 64, 1800.0), ("2" * 64, 4000.0), ("copy", 90000.0)))
    stage.cache.make_space(0)
    assert not stale.exists() and recent.exists() and older.exists()
    assert stage.cache.used_bytes == 300
    stage.cache.make_space(50)
    assert not older.exists() and recent.exists() and sorted(stage.cache.contents()) == sorted([a, b])


def test_a_content_that_is_being_written_stays_however_long_it_takes(stage: Stage) -> None:
    other = Stage(stage.cache.directory, 300)
    with other.cache.incoming("0" * 64, 300) as incoming:
        incoming.write(b"x")
        assert other.cache.used_bytes == 300
        stage.now = time.time() + 1e6
        with pytest.raises(NoSpace):
            stage.cache.make_space(300)
        assert os.path.exists(incoming.path)


def test_the_directory_is_not_scanned_for_every_content(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.cache.max_bytes = 1 << 40
    looks: list[str] = []

    def list_files(directory: str) -> list[CachedFile]:
        looks.append(directory)
        return cache_directory.list_files(directory)

    monkeypatch.setattr("pilotfish.portable.transfer.content_cache.list_files", list_files)
    for letter in "abcdefghij":
        digest = stage.add(letter)
        stage.now -= 600.0
        assert stage.cache.has(digest, 100) and stage.cache.verified_path(digest, 100)
    assert len(looks) <= 2


class FullDisk:
    """Nothing can be written until this many contents are gone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stage: Stage, until: int, number: int = errno.ENOSPC) -> None:
        self.stage = stage
        self.until = until
        self.number = number
        self.real = os.pwrite
        monkeypatch.setattr(os, "pwrite", self.write)

    def write(self, descriptor: int, *arguments: Any) -> int:
        if len(self.stage.cache.contents()) > self.until:
            raise OSError(self.number, os.strerror(self.number))
        return self.real(descriptor, *arguments)


def test_space_is_freed_once_on_a_full_disk(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = stage.add("a"), stage.add("b")
    stage.cache.max_bytes = 1 << 40
    FullDisk(monkeypatch, stage, until=1)
    c = stage.add("c")
    assert sorted(stage.cache.contents()) == sorted([b, c]) and a != b


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_stays_full_is_reported_and_the_received_part_is_kept(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    digest = stage.add("a")
    stage.pinned.add(digest)
    stage.cache.max_bytes = 1 << 40
    with stage.cache.incoming("0" * 64, 1000) as incoming:
        incoming.write(b"x" * 10)
        FullDisk(monkeypatch, stage, until=0, number=number)
        with pytest.raises(NoSpace, match=os.strerror(number)):
            incoming.write(b"x" * 90)
    assert stage.cache.incoming("0" * 64, 1000).offset == 10
    assert list(stage.cache.contents()) == [digest]


def test_a_limit_on_the_size_of_files_evicts_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    a = stage.add("a")
    FullDisk(monkeypatch, stage, until=0, number=errno.EFBIG)
    with pytest.raises(NoSpace, match="too large"):
        stage.add("b")
    assert list(stage.cache.contents()) == [a]


def test_a_file_that_does_not_fit_into_the_cache_stays_where_it_is(stage: Stage, tmp_path: Path) -> None:
    digest = stage.add("a")
    stage.pinned.add(digest)
    (tmp_path / "output").write_bytes(b"x" * 201)
    with pytest.raises(NoSpace):
        stage.cache.adopt(str(tmp_path / "output"))
    with pytest.raises(NoSpace):
        stage.cache.adopt_copy(hashlib.sha256(b"x" * 201).hexdigest(), 201, str(tmp_path / "output"))
    assert (tmp_path / "output").read_bytes() == b"x" * 201


def test_a_private_copy_is_removed_when_its_writer_is_dead(stage: Stage) -> None:
    descriptor, path = stage.cache._private_file()
    os.utime(path, (stage.now, stage.now))
    stage.now += 600.0
    stage.cache.make_space(0)
    assert os.path.exists(path), "somebody is writing it"
    os.close(descriptor)
    stage.cache.make_space(0)
    assert not os.path.exists(path)


def test_a_pool_cannot_release_contents_that_another_pool_holds(stage: Stage) -> None:
    a = stage.add("a")
    stage.cache.serve("-one")
    stage.cache.hold(a)
    other = Stage(stage.cache.directory, 300)
    other.cache.serve("-two")
    assert other.cache.held() == [] and stage.cache.held() == [a]
    other.cache.release([a])
    stage.now = other.now = stage.now + 600.0
    assert not other.cache.free_space(1)
    stage.cache.release([a])
    assert other.cache.free_space(1)


def test_a_hold_that_is_not_renewed_for_a_month_expires(stage: Stage) -> None:
    a, b = stage.add("a"), stage.add("b")
    stage.cache.serve("-gone")
    stage.cache.hold(a)
    os.utime(f"{stage.cache.directory}/held/{a}-gone", (stage.now, stage.now))
    stage.now += 31 * 86400.0
    stage.cache.serve("-new")
    stage.cache.hold(b)
    os.utime(f"{stage.cache.directory}/held/{b}-new", (stage.now, stage.now))
    assert stage.cache.free_space(1000)
    assert list(stage.cache.contents()) == [b]


def test_a_content_that_never_fits_is_too_large_but_without_a_limit_the_disk_decides(stage: Stage) -> None:
    a = stage.add("a")
    stage.now += 600.0
    with pytest.raises(TooLarge, match="raise the site's cache_size"):
        stage.cache.incoming("0" * 64, 301)
    assert list(stage.cache.contents()) == [a]
    stage.cache.strict = False
    stage.cache.incoming("0" * 64, 301).close()
    assert not stage.cache.contents()


def test_the_only_user_of_the_directory_may_evict_just_used_contents(stage: Stage) -> None:
    a, b, c = (stage.add(letter) for letter in "abc")
    stage.now += 1.0
    assert stage.cache.verified_path(a, 100)
    stage.cache.make_space(200)
    assert list(stage.cache.contents()) == [a] and b != c


def test_a_writer_that_hangs_does_not_block_others_for_ever(stage: Stage) -> None:
    hung = Stage(stage.cache.directory, 300)
    data = b"x" * 100
    with hung.cache.incoming(hashlib.sha256(data).hexdigest(), 100) as incoming:
        incoming.write(data[:50])
        for _ in range(3):
            with pytest.raises(WriterBusy):
                stage.cache.incoming(incoming.digest, 100)
            stage.now += 25.0
        with stage.cache.incoming(incoming.digest, 100) as own:
            own.write(data)
            own.finish()
    assert stage.cache.verified_path(incoming.digest, 100)
