"""Wraps the system calls of the store. Tests replace this wrapper to simulate failures: their wrapper loses, splits, reorders or refuses
calls.

The callers must make their calls in an order in which a crash loses no data.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

Buffer = bytes | bytearray | memoryview

PARTS_PER_CALL = 1024
"""Maximum number of buffers in one call of pwritev on Linux."""

PAGE_BYTES = 4096
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers for lack of space: disk full, over quota, or file too large."""

_DIRECTORY_SYNC_UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP})


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Identity and size of a file. A rename of the file changes neither of them."""

    device: int
    inode: int
    size: int


class Disk:
    """System calls on the real disk."""

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
        """Writes bytes at ``offset``. Returns the number of written bytes, which can be smaller than the number of given bytes."""
        return os.pwritev(descriptor, parts, offset)

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        return os.pread(descriptor, length, offset)

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
        """Reserves disk space for a range of a file and extends the file to the end of this range. The new bytes are zeros."""
        os.posix_fallocate(descriptor, offset, length)

    def drop_cached(self, descriptor: int, offset: int = 0, length: int = 0) -> None:
        """Starts writing a range of a file to the device and drops the cached pages of this range, if possible. With length 0, the range
        ends at the end of the file.

        If you call it before a ``sync``, the ``sync`` takes less time. If you call it after a ``sync``, the next reads come from the device
        and not from the page cache.
        """
        with suppress(OSError):
            os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)


class UnsyncedDisk(Disk):
    """The disk for a private pool. Nothing is synced: the kernel decides when it writes data to the device. If the process is killed, no
    data are lost, because the kernel has them. If the computer stops, data are lost. This does no harm, because the program that owns the
    private pool has ended too, and nobody reads the data (decision 0019)."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, directory: str) -> None:
        pass

    def drop_cached(self, descriptor: int, offset: int = 0, length: int = 0) -> None:
        pass


DISK = Disk()
UNSYNCED_DISK = UnsyncedDisk()


def write_all(disk: Disk, descriptor: int, parts: Sequence[Buffer], offset: int) -> int:
    """Writes all parts with as few calls as possible. Returns the offset after the last part. Each part must be a buffer of bytes."""
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
    """Reads ``length`` bytes, or fewer if the file ends earlier."""
    first = disk.read(descriptor, length, offset)
    if len(first) == length:
        return first
    pieces, have = [first], len(first)
    while have < length and pieces[-1]:
        pieces.append(disk.read(descriptor, length - have, offset + have))
        have += len(pieces[-1])
    return b"".join(pieces)


def create_durably(disk: Disk, directory: str, name: str, content: bytes) -> int:
    """Creates a file and returns its open descriptor. After a crash, the file either has all of ``content`` or does not exist."""
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
