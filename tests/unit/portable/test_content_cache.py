"""Tests the content cache: writing, reading, damage, and files that are moved in."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pilotfish.portable.transfer import content_digest, file_copy, file_locks
from pilotfish.portable.transfer.cache_directory import CacheError, content_path
from pilotfish.portable.transfer.content_cache import ContentCache
from pilotfish.portable.transfer.file_locks import WriterBusy
from pilotfish.portable.transfer.incoming_content import ABANDONED, COMPLETE, DigestMismatch, IncomingContent

MIB = 1 << 20
PATIENCE_S = 60.0


class Clock:
    def __init__(self, now: float = 1e9) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def some_bytes(length: int, seed: int = 1) -> bytes:
    return (hashlib.sha256(b"%d" % seed).digest() * (length // 32 + 1))[:length]


def fill(cache: ContentCache, content: bytes) -> str:
    with cache.incoming(digest_of(content), len(content)) as incoming:
        incoming.write(content)
        incoming.finish()
    return digest_of(content)


def flip_a_byte(path: str) -> None:
    """As a disk does: nothing else shows it."""
    status = os.stat(path)
    os.chmod(path, 0o644)
    with open(path, "r+b") as file:
        file.seek(status.st_size // 2)
        byte = file.read(1)
        file.seek(status.st_size // 2)
        file.write(bytes([byte[0] ^ 1]))
    os.chmod(path, 0o444)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "cache")


@pytest.fixture
def cache(directory: str) -> ContentCache:
    return ContentCache(directory, 1 << 40)


# --- the directory ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "digest", ["", "..", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "../" + "a" * 61, "a" * 64 + "\n", "a" * 63 + "/", None, 7]
)
def test_an_invalid_digest_has_no_path(cache: ContentCache, digest: Any) -> None:
    for ask in (
        lambda: content_path("/c", digest),
        lambda: cache.has(digest, 1),
        lambda: cache.verified_path(digest, 1),
        lambda: cache.incoming(digest, 1),
        lambda: cache.adopt_copy(digest, 1, "/dev/null"),
    ):
        with pytest.raises(ValueError, match="digest"):
            ask()


def test_the_directory_is_ours_alone(tmp_path: Path) -> None:
    place = tmp_path / "cache"
    place.mkdir(0o755)
    place.chmod(0o755)
    ContentCache(str(place), 1)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    place.chmod(0o770)
    with pytest.raises(CacheError, match="others may write"):
        ContentCache(str(place), 1)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(CacheError, match="link"):
        ContentCache(str(tmp_path / "link"), 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="name another directory"):
        ContentCache(str(tmp_path / "file"), 1)


def test_a_directory_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    somebody = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: somebody)
    with pytest.raises(CacheError, match=f"belongs to user {somebody - 1}"):
        ContentCache(str(tmp_path), 1)


def test_a_removed_directory_is_made_again(cache: ContentCache, directory: str) -> None:
    shutil.rmtree(directory)
    digest = fill(cache, b"content")
    assert cache.verified_path(digest, 7)


# --- in and out -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, file_copy.HOLE_BYTES, MIB - 1, MIB, 9 * MIB + 7])
def test_a_content_goes_in_and_is_found(cache: ContentCache, directory: str, length: int) -> None:
    content = some_bytes(length)
    digest = digest_of(content)
    assert cache.verified_path(digest, length) is None and not cache.has(digest, length)
    with cache.incoming(digest, length) as incoming:
        for start in range(0, length, MIB):
            incoming.write(memoryview(content)[start : start + MIB])
        path = incoming.finish()
    assert path == incoming.path == content_path(directory, digest) == cache.verified_path(digest, length)
    assert Path(path).read_bytes() == content and stat.S_IMODE(os.stat(path).st_mode) == 0o444
    assert cache.has(digest, length) and not cache.has(digest, length + 1) and cache.verified_path(digest, length + 1) is None
    assert cache.contents() == {digest: length} and cache.used_bytes == length
    assert os.listdir(directory + "/incoming") == []


def test_a_received_part_is_kept_and_resumed(cache: ContentCache, directory: str) -> None:
    content = some_bytes(7 * MIB)
    incoming = cache.incoming(digest_of(content), len(content))
    assert cache.arriving(incoming.digest) is incoming
    incoming.write(content[: 5 * MIB])
    incoming.close()
    assert incoming.state == ABANDONED and cache.arriving(incoming.digest) is None
    with ContentCache(directory, 1 << 40).incoming(incoming.digest, len(content)) as resumed:
        assert resumed.offset == 5 * MIB
        resumed.write(content[5 * MIB :])
        assert Path(resumed.finish()).read_bytes() == content
        assert resumed.state == COMPLETE


WRITER = """
import sys
from pilotfish.portable.transfer.content_cache import ContentCache
incoming = ContentCache(sys.argv[1], 1 << 40).incoming(sys.argv[2], int(sys.argv[3]))
incoming.write(b"x" * 1000)
print("wrote", flush=True)
sys.stdin.read()
"""


def test_one_process_writes_at_a_time_and_a_killed_writer_blocks_no_other(cache: ContentCache, directory: str) -> None:
    content = b"x" * 3000
    digest = digest_of(content)
    arguments = [sys.executable, "-c", WRITER, directory, digest, "3000"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"wrote\n"
        with pytest.raises(WriterBusy) as caught:
            cache.incoming(digest, 3000)
        assert caught.value.available == 1000
        other.kill()
    with cache.incoming(digest, 3000) as incoming:
        assert incoming.offset == 1000
        with pytest.raises(WriterBusy):
            cache.incoming(digest, 3000)
        incoming.write(b"x" * 2000)
        incoming.finish()
    with pytest.raises(WriterBusy) as caught:
        cache.incoming(digest, 3000)
    assert caught.value.available == 3000
    assert os.listdir(directory + "/incoming") == []


def test_without_locks_every_process_writes_its_own_file(cache: ContentCache, directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    content = some_bytes(MIB)
    first, second = (cache.incoming(digest_of(content), MIB) for _ in range(2))
    assert first.path != second.path
    first.write(content)
    second.write(content[:1000])
    first.finish()
    second.close()
    assert cache.verified_path(first.digest, MIB)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda incoming, content: incoming.write(b"y" + content[1:]),
        lambda incoming, content: incoming.write(content[:-1]),
        lambda incoming, content: incoming.skip(len(content)),
    ],
)
def test_wrong_bytes_are_discarded_at_the_end(cache: ContentCache, directory: str, spoil: Callable[[IncomingContent, bytes], None]) -> None:
    content = some_bytes(6 * MIB)
    incoming = cache.incoming(digest_of(content), len(content))
    spoil(incoming, content)
    with pytest.raises(DigestMismatch):
        incoming.finish()
    assert incoming.state == ABANDONED and os.listdir(directory + "/incoming") == [] and cache.contents() == {}
    with pytest.raises(ValueError, match="abandoned"):
        incoming.write(b"x")


def test_more_bytes_than_announced_are_wrong_at_once(cache: ContentCache, directory: str) -> None:
    steps: list[Callable[[IncomingContent], None]] = [lambda incoming: incoming.write(b"x" * 7), lambda incoming: incoming.skip(7)]
    for exceed in steps:
        incoming = cache.incoming(digest_of(b"content"), 10)
        incoming.write(b"abcd")
        with pytest.raises(DigestMismatch, match="more than the 10 bytes"):
            exceed(incoming)
        assert os.listdir(directory + "/incoming") == []


def test_a_file_whose_length_changes_meanwhile_is_damaged(cache: ContentCache) -> None:
    content = some_bytes(6 * MIB)
    for length in (MIB, 7 * MIB):
        incoming = cache.incoming(digest_of(content), len(content))
        incoming.write(content)
        os.truncate(incoming.path, length)
        with pytest.raises(DigestMismatch):
            incoming.finish()


def test_zeros_take_no_space(cache: ContentCache) -> None:
    content = bytes(3 * MIB) + b"end" + bytes(5 * MIB - 3) + bytes(4 * MIB)
    with cache.incoming(digest_of(content), len(content)) as incoming:
        incoming.skip(MIB)
        assert os.stat(incoming.path).st_size == incoming.offset == MIB
        incoming.write(content[MIB : 8 * MIB])
        incoming.skip(4 * MIB)
        path = incoming.finish()
    assert Path(path).read_bytes() == content
    assert os.stat(path).st_blocks * 512 <= 2 * file_copy.HOLE_BYTES


def test_readers_follow_a_growing_content(cache: ContentCache) -> None:
    content = some_bytes(8 * MIB)
    incoming = cache.incoming(digest_of(content), len(content))
    assert incoming.wait(0, 0.0) == 0
    seen = bytearray()

    def follow() -> None:
        descriptor = incoming.open_to_read()
        assert descriptor is not None
        while len(seen) < len(content):
            available = incoming.wait(len(seen), PATIENCE_S)
            seen.extend(os.pread(descriptor, available - len(seen), len(seen)))
        os.close(descriptor)

    follower = threading.Thread(target=follow)
    follower.start()
    for start in range(0, len(content), MIB):
        incoming.write(content[start : start + MIB])
    incoming.finish()
    follower.join(PATIENCE_S)
    assert bytes(seen) == content
    assert incoming.open_to_read() is None and incoming.wait(len(content), PATIENCE_S) == len(content)


def test_a_reader_of_an_abandoned_content_is_woken(cache: ContentCache) -> None:
    incoming = cache.incoming(digest_of(b"content"), 7)
    ended = threading.Thread(target=incoming.close)
    ended.start()
    assert incoming.wait(0, PATIENCE_S) == 0 and incoming.state == ABANDONED
    ended.join()


# --- bit rot ----------------------------------------------------------------------------------------------------------------------


def test_a_byte_that_flipped_between_two_processes_is_never_served_and_the_content_is_fetched_again(
    cache: ContentCache, directory: str
) -> None:
    content = some_bytes(5 * MIB)
    digest = fill(cache, content)
    flip_a_byte(content_path(directory, digest))
    again = ContentCache(directory, 1 << 40)
    assert again.has(digest, len(content))
    assert again.verified_path(digest, len(content)) is None and again.damaged == 1
    assert not again.has(digest, len(content))
    fill(again, content)
    assert again.verified_path(digest, len(content)) and again.damaged == 1


def test_a_byte_that_flips_while_in_use_is_found_by_the_next_check(directory: str) -> None:
    clock = Clock()
    cache = ContentCache(directory, 1 << 40, clock=clock, verify_s=600.0)
    digest = fill(cache, b"some content")
    flip_a_byte(content_path(directory, digest))
    clock.now += 601.0
    assert cache.verified_path(digest, 12) is None and cache.damaged == 1
    fill(cache, b"some content")
    assert cache.verified_path(digest, 12)


def test_a_checked_content_is_not_read_again_before_it_is_due(cache: ContentCache, directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = fill(cache, b"some content")
    fresh = ContentCache(directory, 1 << 40)
    assert fresh.verified_path(digest, 12)
    monkeypatch.setattr(content_digest.StreamingDigest, "result", lambda *arguments: pytest.fail("it was read"))
    assert cache.verified_path(digest, 12) and fresh.verified_path(digest, 12)


def test_concurrent_requests_for_a_content_read_it_once(cache: ContentCache, directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = some_bytes(5 * MIB)
    digest = fill(cache, content)
    again = ContentCache(directory, 1 << 40)
    reads: list[int] = []
    taken: list[str | None] = []

    def count(descriptor: int) -> str:
        reads.append(descriptor)
        return content_digest.digest_of(descriptor)

    monkeypatch.setattr("pilotfish.portable.transfer.content_cache.digest_of", count)
    threads = [threading.Thread(target=lambda: taken.append(again.verified_path(digest, len(content)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken == [content_path(directory, digest)] * 8 and len(reads) == 1


def test_a_task_that_changes_the_file_through_its_link_harms_nobody_else(cache: ContentCache, directory: str, tmp_path: Path) -> None:
    digest = fill(cache, b"some content")
    os.link(content_path(directory, digest), tmp_path / "link")
    os.chmod(tmp_path / "link", 0o755)
    assert cache.verified_path(digest, 12)
    assert stat.S_IMODE(os.stat(tmp_path / "link").st_mode) == 0o444
    os.chmod(tmp_path / "link", 0o644)
    (tmp_path / "link").write_bytes(b"another one.")
    assert cache.verified_path(digest, 12) is None and cache.damaged == 1
    assert (tmp_path / "link").exists()


def test_a_content_that_cannot_be_read_is_not_served(cache: ContentCache, directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = fill(cache, b"some content")
    again = ContentCache(directory, 1 << 40)

    def fail(*arguments: Any) -> int:
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(os, "preadv", fail)
    assert again.verified_path(digest, 12) is None and again.damaged == 1


# --- files that are moved in ------------------------------------------------------------------------------------------------------


def test_a_finished_file_is_moved_in_without_a_copy(cache: ContentCache, tmp_path: Path) -> None:
    file = tmp_path / "output"
    file.write_bytes(b"result")
    file.chmod(0o600)
    inode = file.stat().st_ino
    assert cache.adopt(str(file)) == (digest_of(b"result"), 6)
    path = cache.verified_path(digest_of(b"result"), 6)
    assert path and os.stat(path).st_ino == inode and stat.S_IMODE(os.stat(path).st_mode) == 0o444
    assert not file.exists()


def test_a_file_with_an_open_writer_or_another_link_is_copied(cache: ContentCache, tmp_path: Path) -> None:
    file = tmp_path / "output"
    digest = digest_of(b"result")
    with file.open("wb") as writer:
        writer.write(b"result")
        writer.flush()
        assert cache.adopt(str(file)) == (digest, 6)
        writer.write(b" and more")
    path = cache.verified_path(digest, 6)
    assert path and Path(path).read_bytes() == b"result" and not file.exists()
    file.write_bytes(b"linked")
    os.link(file, tmp_path / "other")
    digest, _ = cache.adopt(str(file))
    (tmp_path / "other").write_bytes(b"danger")
    path = cache.verified_path(digest, 6)
    assert path and Path(path).read_bytes() == b"linked"


def test_a_file_that_changes_while_it_is_hashed_is_copied(cache: ContentCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "output"
    file.write_bytes(b"before")
    hashes = content_digest.digest_of

    def change_and_hash(descriptor: int) -> str:
        found = hashes(descriptor)
        Path(f"/proc/self/fd/{descriptor}").write_bytes(b"after!")
        return found

    monkeypatch.setattr("pilotfish.portable.transfer.content_cache.digest_of", change_and_hash)
    digest, size = cache.adopt(str(file))
    path = content_path(cache.directory, digest)
    assert digest_of(Path(path).read_bytes()) == digest == digest_of(b"after!") and size == 6


def test_only_regular_files_are_moved_in(cache: ContentCache, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder", "absent"):
        with pytest.raises((OSError, ValueError)):
            cache.adopt(str(tmp_path / name))
    assert cache.contents() == {} and (tmp_path / "folder").is_dir()


def test_a_file_of_another_file_system_is_copied(cache: ContentCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str, **options: Any) -> None:
        if source.endswith("output"):
            raise OSError(errno.EXDEV, "another file system")
        real(source, target, **options)

    real = os.rename
    monkeypatch.setattr(os, "rename", refuse)
    content = bytes(MIB) + b"x" + bytes(MIB)
    (tmp_path / "output").write_bytes(content)
    digest, size = cache.adopt(str(tmp_path / "output"))
    path = cache.verified_path(digest, size)
    assert path and Path(path).read_bytes() == content and os.stat(path).st_blocks * 512 <= 2 * file_copy.HOLE_BYTES
    assert not (tmp_path / "output").exists()


def test_a_users_file_is_copied_if_it_has_the_bytes(cache: ContentCache, tmp_path: Path) -> None:
    content = some_bytes(6 * MIB)
    (tmp_path / "own").write_bytes(content)
    (tmp_path / "link").symlink_to("own")
    digest = digest_of(content)
    assert not cache.adopt_copy(digest, len(content), str(tmp_path / "absent"))
    assert not cache.adopt_copy(digest, len(content), str(tmp_path))
    assert not cache.adopt_copy(digest, len(content) + 1, str(tmp_path / "own"))
    assert cache.adopt_copy(digest, len(content), str(tmp_path / "link"))
    path = cache.verified_path(digest, len(content))
    assert path and Path(path).read_bytes() == content and (tmp_path / "own").read_bytes() == content


def test_a_file_that_has_other_bytes_is_read_once(
    cache: ContentCache, directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").write_bytes(b"another one.")
    digest = digest_of(b"some content")
    assert not cache.adopt_copy(digest, 12, str(tmp_path / "own"))
    assert os.listdir(directory + "/incoming") == [] and cache.contents() == {}
    with monkeypatch.context() as patch:
        patch.setattr(content_digest.StreamingDigest, "result", lambda *arguments: pytest.fail("it was read"))
        assert not cache.adopt_copy(digest, 12, str(tmp_path / "own"))
    (tmp_path / "own").write_bytes(b"some content")
    assert cache.adopt_copy(digest, 12, str(tmp_path / "own"))


def test_an_open_writer_is_detected(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    assert file_locks.has_no_writer(descriptor)
    with (tmp_path / "file").open("ab"):
        assert not file_locks.has_no_writer(descriptor)
    os.close(descriptor)
