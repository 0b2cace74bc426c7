"""The calls to the operating system that the store makes.

They are in one class so that tests can lose, tear, reorder and refuse them. Each method is one call: what must happen in which order
to survive a crash is said by those who use it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

Buffer = bytes | bytearray | memoryview

PARTS_PER_CALL = 1024
"""Linux takes no more buffers than this in one pwritev."""

PAGE_BYTES = 4096
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the system says when there is no room: the disk, the quota, or the limit on the size of a file."""

_DIRECTORY_SYNC_UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP})


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Which file it is, whatever its name, and how long."""

    device: int
    inode: int
    size: int


class Disk:
    """The real disk."""

    def make_directory(self, directory: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)
            self.sync_directory(os.path.dirname(os.path.abspath(directory)))

    def names(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def create(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def write(self, descriptor: int, parts: Sequence[Buffer], offset: int) -> int:
        """Writes what it can, which may be less than all; at a place, so that nothing depends on where the last write stopped."""
        return os.pwritev(descriptor, parts, offset)

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        return os.pread(descriptor, length, offset)

    def begin_writing(self, descriptor: int, offset: int, length: int) -> None:
        """Lets the device begin now with what ``sync`` will wait for."""
        with suppress(OSError):
            os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)

    def sync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def rename(self, path: str, target: str) -> None:
        os.rename(path, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, directory: str) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _DIRECTORY_SYNC_UNSUPPORTED:
                raise
        finally:
            os.close(descriptor)

    def identify(self, path: str) -> FileIdentity:
        status = os.stat(path)
        return FileIdentity(status.st_dev, status.st_ino, status.st_size)

    def allocate(self, descriptor: int, offset: int, length: int) -> None:
        """Makes the file reach that far, with room on the disk for all of it; what was not written reads as zeros."""
        os.posix_fallocate(descriptor, offset, length)

    def forget_cached(self, descriptor: int) -> None:
        """Asks that the next read comes from the device and not from memory; a wish, not a promise."""
        with suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


DISK = Disk()


def write_all(disk: Disk, descriptor: int, parts: Sequence[Buffer], offset: int) -> int:
    """Writes all parts, in one call if the system takes them; returns the offset behind them. All parts are of single bytes."""
    rest = parts
    while rest:
        head = rest if len(rest) <= PARTS_PER_CALL else rest[:PARTS_PER_CALL]
        written = disk.write(descriptor, head, offset)
        offset += written
        rest = rest[len(head) :] if written == sum(map(len, head)) else _unwritten(rest, written)
    return offset


def _unwritten(parts: Sequence[Buffer], written: int) -> Sequence[Buffer]:
    for index, part in enumerate(parts):
        if written < len(part):
            return [memoryview(part)[written:], *parts[index + 1 :]]
        written -= len(part)
    return ()


def read_all(disk: Disk, descriptor: int, length: int, offset: int) -> bytes:
    """Reads ``length`` bytes, or fewer if the file ends before that."""
    first = disk.read(descriptor, length, offset)
    if len(first) == length:
        return first
    pieces, have = [first], len(first)
    while have < length and pieces[-1]:
        pieces.append(disk.read(descriptor, length - have, offset + have))
        have += len(pieces[-1])
    return b"".join(pieces)


def create_durably(disk: Disk, directory: str, name: str, content: bytes) -> int:
    """Makes a file that after a crash is either there with all of ``content`` or not there at all; returns it open."""
    path = os.path.join(directory, name)
    draft = path + ".tmp"
    with suppress(FileNotFoundError):
        disk.remove(draft)
    descriptor = disk.create(draft)
    try:
        write_all(disk, descriptor, [content], 0)
        disk.sync(descriptor)
        disk.rename(draft, path)
        disk.sync_directory(directory)
    except OSError:
        disk.close(descriptor)
        for leftover in (draft, path):
            with suppress(OSError):
                disk.remove(leftover)
        raise
    return descriptor
