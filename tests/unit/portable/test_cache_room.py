"""What the cache of contents lets go when it may not hold more, or when the disk is full."""

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
from pilotfish.portable.transfer.incoming_content import NoRoom, TooLarge

START = 1e9


class Stage:
    """A cache with a clock of its own and contents of a hundred bytes."""

    def __init__(self, directory: str, most_bytes: int) -> None:
        self.now = START
        self.pinned: set[str] = set()
        self.cache = ContentCache(directory, most_bytes, lambda digest: digest in self.pinned, lambda: self.now)

    def add(self, letter: str) -> str:
        """Each is ten minutes younger than the one before."""
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
        """A transfer that nobody goes on with, of fifty bytes."""
        path = Path(self.cache.directory, "incoming", name)
        path.write_bytes(b"x" * 50)
        os.utime(path, (self.now - age_s, self.now - age_s))
        return path


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(str(tmp_path / "cache"), 300)


def test_what_was_used_longest_ago_goes_first(stage: Stage) -> None:
    a, b, c = (stage.add(letter) for letter in "abc")
    stage.now += 600.0
    assert stage.cache.take(a, 100)
    d = stage.add("d")
    assert sorted(stage.cache.contents()) == sorted([a, c, d])
    e = stage.add("e")
    assert sorted(stage.cache.contents()) == sorted([a, d, e]) and b != c
    assert stage.cache.used_bytes == 300


def test_using_a_content_does_not_make_it_look_changed(stage: Stage) -> None:
    a = stage.add("a")
    before = os.stat(stage.path(a)).st_mtime_ns
    stage.now += 100.0
    assert stage.cache.take(a, 100)
    status = os.stat(stage.path(a))
    assert status.st_mtime_ns == before and status.st_atime == stage.now


def test_what_is_wanted_pinned_held_or_was_just_used_stays(stage: Stage) -> None:
    stage.cache.most_bytes = 400
    a, b, c, d = (stage.add(letter) for letter in "abcd")
    stage.pinned.add(a)
    stage.cache.pin(b)
    stage.cache.hold(c)
    stage.now += 600.0
    other = Stage(stage.cache.directory, 400)
    other.now = stage.now
    assert other.cache.take(d, 100)
    with pytest.raises(NoRoom, match="may hold 400 bytes, of which 0 can be had now, and 100 are needed"):
        stage.cache.make_room(100)
    stage.now += 61.0
    stage.cache.make_room(100)
    assert sorted(stage.cache.contents()) == sorted([a, b, c])
    stage.cache.unpin(b)
    stage.cache.let_go([c])
    stage.now += 61.0
    stage.cache.make_room(300)
    assert list(stage.cache.contents()) == [a]


def test_what_others_have_by_another_name_goes_like_the_rest_but_not_for_a_full_disk(stage: Stage, tmp_path: Path) -> None:
    a, b = stage.add("a"), stage.add("b")
    os.link(stage.path(a), tmp_path / "with-the-master")
    stage.now += 600.0
    assert stage.cache.give_way(1000)
    assert list(stage.cache.contents()) == [a] and not os.path.exists(stage.path(b))
    stage.cache.make_room(300)
    assert not stage.cache.contents() and (tmp_path / "with-the-master").exists()


def test_a_content_is_held_where_there_are_no_links(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", None)
    a = stage.add("a")
    stage.cache.hold(a)
    stage.cache.hold(a)
    stage.now += 600.0
    assert stage.cache.held() == [a] and not stage.cache.give_way(1)


def test_a_pinned_content_is_in_use_for_other_processes_as_well(stage: Stage) -> None:
    a = stage.add("a")
    stage.cache.pin(a)
    stage.now += 600.0
    stage.cache.touch([])
    other = Stage(stage.cache.directory, 300)
    other.now = stage.now + 30.0
    assert not other.cache.give_way(1)


def test_what_could_never_fit_drives_nothing_out(stage: Stage) -> None:
    contents = sorted(stage.add(letter) for letter in "abc")
    stage.pinned.add(contents[0])
    stage.now += 600.0
    for length in (201, 301, 1 << 60):
        with pytest.raises(NoRoom):
            stage.cache.incoming("0" * 64, length)
    assert sorted(stage.cache.contents()) == contents
    assert os.listdir(stage.cache.directory + "/incoming") == []


def test_others_who_use_the_same_directory_are_seen(stage: Stage) -> None:
    other = Stage(stage.cache.directory, 300)
    a = stage.add("a")
    b, c = other.add("b"), other.add("c")
    stage.now = other.now = START + 6000.0
    assert other.cache.take(a, 100)
    stage.now += 61.0
    stage.cache.make_room(200)
    assert list(other.cache.contents()) == [a] and b != c


def test_what_nobody_goes_on_with_counts_and_goes(stage: Stage) -> None:
    a = stage.add("a")
    b = stage.add("b")
    stage.now += 600.0
    recent, older, stale = (stage.leave_behind(name, age_s) for name, age_s in (("1" * 64, 1800.0), ("2" * 64, 4000.0), ("copy", 90000.0)))
    stage.cache.make_room(0)
    assert not stale.exists() and recent.exists() and older.exists()
    assert stage.cache.used_bytes == 300
    stage.cache.make_room(50)
    assert not older.exists() and recent.exists() and sorted(stage.cache.contents()) == sorted([a, b])


def test_what_is_being_written_stays_however_long_it_takes(stage: Stage) -> None:
    other = Stage(stage.cache.directory, 300)
    with other.cache.incoming("0" * 64, 300) as incoming:
        incoming.write(b"x")
        assert other.cache.used_bytes == 300
        stage.now = time.time() + 1e6
        with pytest.raises(NoRoom):
            stage.cache.make_room(300)
        assert os.path.exists(incoming.path)


def test_the_directory_is_not_looked_through_for_every_content(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.cache.most_bytes = 1 << 40
    looks: list[str] = []

    def look_through(directory: str) -> list[CachedFile]:
        looks.append(directory)
        return cache_directory.look_through(directory)

    monkeypatch.setattr("pilotfish.portable.transfer.content_cache.look_through", look_through)
    for letter in "abcdefghij":
        digest = stage.add(letter)
        stage.now -= 600.0
        assert stage.cache.has(digest, 100) and stage.cache.take(digest, 100)
    assert len(looks) <= 2


class FullDisk:
    """Nothing can be written until so many contents are gone."""

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


def test_a_full_disk_makes_room_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = stage.add("a"), stage.add("b")
    stage.cache.most_bytes = 1 << 40
    FullDisk(monkeypatch, stage, until=1)
    c = stage.add("c")
    assert sorted(stage.cache.contents()) == sorted([b, c]) and a != b


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_stays_full_is_said_to_be_so_and_what_came_is_kept(stage: Stage, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    digest = stage.add("a")
    stage.pinned.add(digest)
    stage.cache.most_bytes = 1 << 40
    with stage.cache.incoming("0" * 64, 1000) as incoming:
        incoming.write(b"x" * 10)
        FullDisk(monkeypatch, stage, until=0, number=number)
        with pytest.raises(NoRoom, match=os.strerror(number)):
            incoming.write(b"x" * 90)
    assert stage.cache.incoming("0" * 64, 1000).offset == 10
    assert list(stage.cache.contents()) == [digest]


def test_a_limit_on_the_size_of_files_drives_nothing_out(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    a = stage.add("a")
    FullDisk(monkeypatch, stage, until=0, number=errno.EFBIG)
    with pytest.raises(NoRoom, match="too large"):
        stage.add("b")
    assert list(stage.cache.contents()) == [a]


def test_a_file_cannot_be_taken_over_into_a_full_cache_and_stays_where_it_is(stage: Stage, tmp_path: Path) -> None:
    digest = stage.add("a")
    stage.pinned.add(digest)
    (tmp_path / "output").write_bytes(b"x" * 201)
    with pytest.raises(NoRoom):
        stage.cache.adopt(str(tmp_path / "output"))
    with pytest.raises(NoRoom):
        stage.cache.adopt_copy(hashlib.sha256(b"x" * 201).hexdigest(), 201, str(tmp_path / "output"))
    assert (tmp_path / "output").read_bytes() == b"x" * 201


def test_a_copy_that_nobody_can_go_on_with_goes_when_its_maker_is_gone(stage: Stage) -> None:
    descriptor, path = stage.cache._private_file()
    os.utime(path, (stage.now, stage.now))
    stage.now += 600.0
    stage.cache.make_room(0)
    assert os.path.exists(path), "somebody is writing it"
    os.close(descriptor)
    stage.cache.make_room(0)
    assert not os.path.exists(path)


def test_what_one_pool_holds_another_one_cannot_let_go(stage: Stage) -> None:
    a = stage.add("a")
    stage.cache.serve("-one")
    stage.cache.hold(a)
    other = Stage(stage.cache.directory, 300)
    other.cache.serve("-two")
    assert other.cache.held() == [] and stage.cache.held() == [a]
    other.cache.let_go([a])
    stage.now = other.now = stage.now + 600.0
    assert not other.cache.give_way(1)
    stage.cache.let_go([a])
    assert other.cache.give_way(1)


def test_what_nobody_comes_for_in_a_month_is_not_held_any_more(stage: Stage) -> None:
    a, b = stage.add("a"), stage.add("b")
    stage.cache.serve("-gone")
    stage.cache.hold(a)
    os.utime(f"{stage.cache.directory}/held/{a}-gone", (stage.now, stage.now))
    stage.now += 31 * 86400.0
    stage.cache.serve("-new")
    stage.cache.hold(b)
    os.utime(f"{stage.cache.directory}/held/{b}-new", (stage.now, stage.now))
    assert stage.cache.give_way(1000)
    assert list(stage.cache.contents()) == [b]


def test_what_can_never_fit_is_told_apart_and_without_a_limit_it_may_come_if_the_disk_has_room(stage: Stage) -> None:
    a = stage.add("a")
    stage.now += 600.0
    with pytest.raises(TooLarge, match="raise the site's cache_size"):
        stage.cache.incoming("0" * 64, 301)
    assert list(stage.cache.contents()) == [a]
    stage.cache.strict = False
    stage.cache.incoming("0" * 64, 301).close()
    assert not stage.cache.contents()


def test_who_is_alone_need_not_spare_what_was_just_used(stage: Stage) -> None:
    a, b, c = (stage.add(letter) for letter in "abc")
    stage.now += 1.0
    assert stage.cache.take(a, 100)
    stage.cache.make_room(200)
    assert list(stage.cache.contents()) == [a] and b != c


def test_whoever_hangs_while_it_brings_a_content_does_not_keep_others_from_it_for_ever(stage: Stage) -> None:
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
    assert stage.cache.take(incoming.digest, 100)
