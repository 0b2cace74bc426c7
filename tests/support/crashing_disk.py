"""Simulates a disk in memory that can lose power at any moment.

For each file and for the directory it keeps the durable content and the writes since. ``moment`` captures both; ``images`` lists every
state in which the disk may be found after a power cut.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pilotfish.store.disk import Buffer, Disk, FileIdentity

PIECES = 8
Image = tuple[tuple[str, bytes], ...]
"""Names and contents of all files, sorted: a disk as it is found."""


@dataclass(frozen=True, slots=True)
class Write:
    offset: int
    data: bytes

    def to(self, content: bytearray) -> None:
        if len(content) < self.offset:
            content.extend(bytes(self.offset - len(content)))
        content[self.offset : self.offset + len(self.data)] = self.data


@dataclass(frozen=True, slots=True)
class Truncation:
    size: int

    def to(self, content: bytearray) -> None:
        content.extend(bytes(max(0, self.size - len(content))))
        del content[self.size :]


Change = Write | Truncation


@dataclass(slots=True)
class File:
    inode: int
    durable: bytes = b""
    pending: list[Change] = field(default_factory=list)
    content: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class Entry:
    """A change of the directory: ``name`` now refers to this file, or to none; a rename also removes ``old``."""

    name: str
    inode: int | None
    old: str = ""

    def to(self, entries: dict[str, int]) -> None:
        entries.pop(self.old, None)
        entries.pop(self.name, None)
        if self.inode is not None:
            entries[self.name] = self.inode


@dataclass(frozen=True, slots=True)
class Moment:
    """The disk between two calls: durable contents and pending changes."""

    files: dict[int, tuple[bytes, tuple[Change, ...]]]
    entries: dict[str, int]
    pending: tuple[Entry, ...]

    def images(self) -> Iterator[tuple[str, Image]]:
        """(mode, image) for each possible state after a power cut now."""
        for label, contents in self._contents():
            for entries in self._entries(label):
                yield label, tuple(sorted((name, contents[inode]) for name, inode in entries.items()))

    def _entries(self, mode: str) -> Iterator[dict[str, int]]:
        choices = [(), self.pending]
        if mode == "reordered":
            choices += [(one,) for one in self.pending] + [self.pending[:at] + self.pending[at + 1 :] for at in range(len(self.pending))]
        for chosen in dict.fromkeys(choices):
            entries = dict(self.entries)
            for change in chosen:
                change.to(entries)
            yield entries

    def _contents(self) -> Iterator[tuple[str, dict[int, bytes]]]:
        for mode, how in (("lost", lost), ("torn", torn), ("reordered", reordered), ("zero-filled", zero_filled)):
            busy = [inode for inode, (_, pending) in self.files.items() if pending]
            settled = {inode: durable for inode, (durable, _) in self.files.items()}
            if not busy:
                yield mode, settled
            for inode in busy:
                # Files with pending writes are varied one at a time; the others are as without the cut.
                others = {other: applied(*self.files[other]) for other in busy if other != inode}
                for content in how(*self.files[inode]):
                    yield mode, {**settled, **others, inode: content}


def applied(durable: bytes, pending: Sequence[Change]) -> bytes:
    content = bytearray(durable)
    for change in pending:
        change.to(content)
    return bytes(content)


def lost(durable: bytes, pending: Sequence[Change]) -> Iterator[bytes]:
    yield durable


def torn(durable: bytes, pending: Sequence[Change]) -> Iterator[bytes]:
    """All writes but the last arrived; of the last, the first n eighths."""
    *before, last = pending
    if isinstance(last, Truncation):
        yield applied(durable, before)
    else:
        for eighths in range(PIECES):
            yield applied(durable, [*before, Write(last.offset, last.data[: len(last.data) * eighths // PIECES])])
    yield applied(durable, pending)


def reordered(durable: bytes, pending: Sequence[Change]) -> Iterator[bytes]:
    """One write is missing while later ones are there; one is there alone; and the same for eighths of the last write."""
    for at, change in enumerate(pending):
        yield applied(durable, [*pending[:at], *pending[at + 1 :]])
        yield applied(durable, [change])
    last = pending[-1]
    if isinstance(last, Write):
        cuts = [len(last.data) * eighths // PIECES for eighths in range(PIECES + 1)]
        pieces = [Write(last.offset + start, last.data[start:end]) for start, end in pairwise(cuts)]
        for at in range(PIECES):
            yield applied(durable, [*pending[:-1], *pieces[:at], *pieces[at + 1 :]])
            yield applied(durable, [*pending[:-1], *pieces[at:]])


def zero_filled(durable: bytes, pending: Sequence[Change]) -> Iterator[bytes]:
    """The file has its new length but not its new content: of all writes, or of the last."""

    def blank(change: Change) -> Change:
        return Write(change.offset, bytes(len(change.data))) if isinstance(change, Write) else change

    yield applied(durable, [blank(change) for change in pending])
    yield applied(durable, [*pending[:-1], blank(pending[-1])])


class PowerCut(BaseException):
    """The machine stops here. Production code must not catch it."""


Before = Callable[[str], None]


class MemoryDisk(Disk):
    """One directory in memory. ``before`` is called with the name of each call that changes the disk, and may raise."""

    def __init__(self, image: Image = (), before: Before | None = None, capacity: int | None = None) -> None:
        self.before = before
        self.before_read: Callable[[File, int, int], None] | None = None
        """Called with the file, the length and the offset of each read; may raise."""
        self.capacity = capacity
        self.files: dict[int, File] = {}
        self.entries: dict[str, int] = {}
        self.durable_entries: dict[str, int] = {}
        self.pending_entries: list[Entry] = []
        self.descriptors: dict[int, File] = {}
        self._next = 1
        for name, content in image:
            self.entries[name] = self._new_file(content).inode
        self.durable_entries = dict(self.entries)

    def _new_file(self, content: bytes = b"") -> File:
        file = File(self._next, content, [], bytearray(content))
        self.files[file.inode] = file
        self._next += 1
        return file

    def moment(self) -> Moment:
        files = {inode: (file.durable, tuple(file.pending)) for inode, file in self.files.items()}
        return Moment(files, dict(self.durable_entries), tuple(self.pending_entries))

    def image(self) -> Image:
        """The disk as another process sees it: nothing is lost if only the writer dies."""
        return tuple(sorted((name, bytes(self.files[inode].content)) for name, inode in self.entries.items()))

    def used(self) -> int:
        return sum(len(self.files[inode].content) for inode in self.entries.values())

    def _tell(self, call: str) -> None:
        if self.before:
            self.before(call)

    def _room(self, wanted: int) -> int:
        if self.capacity is None:
            return wanted
        room = min(wanted, self.capacity - self.used())
        if room <= 0 < wanted:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return room

    def make_directory(self, directory: str) -> None:
        return

    def names(self, directory: str) -> list[str]:
        return sorted(self.entries)

    def create(self, path: str) -> int:
        self._tell("create")
        name = os.path.basename(path)
        if name in self.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        file = self._new_file()
        self._change_entry(Entry(name, file.inode))
        return self._open(file)

    def open(self, path: str) -> int:
        return self._open(self._find(path))

    def _open(self, file: File) -> int:
        descriptor = self._next
        self._next += 1
        self.descriptors[descriptor] = file
        return descriptor

    def _find(self, path: str) -> File:
        name = os.path.basename(path)
        if name not in self.entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self.files[self.entries[name]]

    def close(self, descriptor: int) -> None:
        del self.descriptors[descriptor]

    def write(self, descriptor: int, parts: Sequence[Buffer], offset: int) -> int:
        data = b"".join(parts)
        self._tell("write")
        file = self.descriptors[descriptor]
        inside = max(0, len(file.content) - offset)
        data = data[: inside + self._room(max(0, len(data) - inside))]
        self._change(file, Write(offset, data))
        return len(data)

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        file = self.descriptors[descriptor]
        if self.before_read:
            self.before_read(file, length, offset)
        return bytes(file.content[offset : offset + length])

    def sync(self, descriptor: int) -> None:
        self._tell("sync")
        file = self.descriptors[descriptor]
        file.durable = bytes(file.content)
        file.pending.clear()

    def truncate(self, descriptor: int, size: int) -> None:
        self._tell("truncate")
        self._change(self.descriptors[descriptor], Truncation(size))

    def rename(self, path: str, target: str) -> None:
        self._tell("rename")
        self._change_entry(Entry(os.path.basename(target), self._find(path).inode, os.path.basename(path)))

    def remove(self, path: str) -> None:
        file = self._find(path)
        self._tell("remove")
        if file:
            self._change_entry(Entry(os.path.basename(path), None))

    def sync_directory(self, directory: str) -> None:
        self._tell("sync_directory")
        self.durable_entries = dict(self.entries)
        self.pending_entries.clear()

    def identify(self, path: str) -> FileIdentity:
        file = self._find(path)
        return FileIdentity(1, file.inode, len(file.content))

    def allocate(self, descriptor: int, offset: int, length: int) -> None:
        self._tell("allocate")
        file = self.descriptors[descriptor]
        growth = offset + length - len(file.content)
        if self._room(growth) < growth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._change(file, Truncation(offset + length))

    def drop_cached(self, descriptor: int, offset: int = 0, length: int = 0) -> None:
        return

    def _change(self, file: File, change: Change) -> None:
        change.to(file.content)
        file.pending.append(change)

    def _change_entry(self, entry: Entry) -> None:
        entry.to(self.entries)
        self.pending_entries.append(entry)


class FailingCall:
    """A ``before`` that counts the calls that change the disk and fails the n-th."""

    def __init__(self, at: int, error: int) -> None:
        self.at = at
        self.error = error
        self.calls = 0
        self.failed = ""

    def __call__(self, call: str) -> None:
        self.calls += 1
        if self.calls == self.at:
            self.failed = call
            raise OSError(self.error, os.strerror(self.error))


def flipped(image: Image, name: str, at: int, bit: int) -> Image:
    """The image with one bit changed."""
    return tuple((other, _flip(content, at, bit) if other == name else content) for other, content in image)


def _flip(content: bytes, at: int, bit: int) -> bytes:
    return content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :]
