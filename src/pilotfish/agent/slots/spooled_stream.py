"""Keeps one output stream of a task: a short stream in memory, a long stream in a file.

While a stream arrives, its head and its tail are kept in memory. A long stream is also written to a file, until the file has its maximum
size or the disk is full. At the end of the stream, the tail is appended to the file. If bytes before the tail are missing in the file, a
line in the file says how many.
"""

from __future__ import annotations

from errno import ENOSPC
from os import (
    O_CLOEXEC,
    O_CREAT,
    O_NOFOLLOW,
    O_RDWR,
    close,
    fstat,
    fstatvfs,
    ftruncate,
    pread,
    pwrite,
    rename,
    unlink,
    urandom,
)
from os import open as open_file
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ...portable.output_marks import CAP, FULL_DISK, mark
from .output_capture import OUTPUT_CAP, HeadAndTail
from .shared_page import move_high

MAX_OUTPUT = 1 << 30
"""Maximum bytes that are kept of each stream of a task, if the task sets no other value."""
EXCERPT_BYTES = 1 << 20
"""If a stream is in a file, the result has this number of bytes of the stream: half from its beginning and half from its end."""
SPARED_BYTES = 256 << 20
"""Free space of the disk that no stream is allowed to use, because agent, master and tasks can need the same disk."""
CHECK_BYTES = 16 << 20
"""The free space is checked whenever a stream has grown by this number of bytes."""
MARK_BYTES = 4096
"""Room for the line that says how much is missing."""


class KeptStream(NamedTuple):
    """The part of a stream that is in the result of a task. ``data``: the stream, or its head and tail. ``omitted``: number of bytes
    between head and tail. ``dropped``: number of omitted bytes that are stored nowhere. ``reason``: why they are stored nowhere. ``file``:
    [size, path] of the file with the stream, or None."""

    data: bytes
    omitted: int
    dropped: int
    reason: str
    file: Optional[List[Any]]


def check_space(descriptor: int) -> None:
    """Raises OSError if the disk of a file is nearly full."""
    status = fstatvfs(descriptor)
    if status.f_bavail * status.f_frsize < SPARED_BYTES + CHECK_BYTES:
        raise OSError(ENOSPC, "the disk is nearly full")


NOTHING = KeptStream(b"", 0, 0, "", None)


class StreamFile:
    """The file of one stream. If the file already exists, its bytes are kept, and the next bytes of the stream are appended. ``cap``:
    maximum number of bytes of the stream in the file."""

    def __init__(self, path: str, cap: int) -> None:
        self.path = path
        self._descriptor = move_high(open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0o600))
        self.written = fstat(self._descriptor).st_size
        self._limit = cap - OUTPUT_CAP // 2
        """Maximum bytes of the beginning of the stream. The end of the stream must fit into the file as well."""
        self._check_at = self.written

    def add(self, data: bytes) -> bool:
        """Appends a piece of the stream. If not all of it fits under the limit, appends its beginning and returns False."""
        if self.written >= self._check_at:
            check_space(self._descriptor)
            self._check_at = self.written + CHECK_BYTES
        room = max(0, self._limit - self.written)
        self._append(data[:room])
        return len(data) <= room

    @property
    def is_full(self) -> bool:
        return self.written >= self._limit

    def put(self, data: bytes, offset: int) -> None:
        """Writes to a part of the file that was skipped."""
        view = memoryview(data)
        while view:
            count = pwrite(self._descriptor, view, offset)
            offset += count
            view = view[count:]

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            count = pwrite(self._descriptor, view, self.written)
            self.written += count
            view = view[count:]

    def read(self, offset: int, length: int) -> bytes:
        return pread(self._descriptor, length, offset)

    def finish(self, data: bytes, total: int, reason: str) -> Tuple[int, str]:
        """Appends the end of a stream to the file. If bytes before the tail of the stream are missing in the file, first appends a line
        that says how many.

        ``data``: head and tail of the stream. ``total``: number of bytes of the stream. ``reason``: the reason to report if bytes are
        missing. Returns the number of missing bytes, and the reason. Raises OSError if the disk is so full that the file would have less
        than ``data``.
        """
        tail = data[len(data) // 2 :]
        missing = total - self.written
        start = self.written
        try:
            if missing <= len(tail):
                self._append(tail[len(tail) - missing :])
                return 0, ""
            self._refuse_less_than(data)
            self._append(mark(missing - len(tail), total, reason) + tail)
            return missing - len(tail), reason
        except OSError:
            # The disk is full. The end of a stream says more than its middle, so the end replaces the last bytes of the file.
            self.written = max(0, start - len(tail) - MARK_BYTES)
            self._refuse_less_than(data)
            ftruncate(self._descriptor, self.written)
            dropped = total - self.written - len(tail)
            self._append(mark(dropped, total, FULL_DISK) + tail)
            return dropped, FULL_DISK

    def _refuse_less_than(self, data: bytes) -> None:
        if self.written < len(data) // 2:
            raise OSError(ENOSPC, "the disk is full")

    def move(self, outbox: str) -> List[Any]:
        """Moves the file to the outbox. Returns its size and its new path."""
        target = outbox + "/output-" + urandom(16).hex()
        rename(self.path, target)
        return [self.written, target]

    def discard(self) -> None:
        """Closes the file, and deletes it if it was not moved away."""
        close(self._descriptor)
        try:
            unlink(self.path)
        except OSError:
            pass  # the file was moved, or the task deleted it


def spool_path(scratch: str, stream: int) -> str:
    """Returns the path of the file for a stream of a call. ``scratch``: the directory of its slot."""
    return "%s/.output-%d" % (scratch, stream)


def excerpt(data: bytes, total: int, dropped: int, reason: str, file: List[Any]) -> KeptStream:
    """Returns a shorter head and tail of a stream that is in a file. The result of the task gets only this part. ``data``: head and tail of
    the stream. ``total``: number of bytes of the stream."""
    half = EXCERPT_BYTES // 2
    data = data[:half] + data[-half:]
    return KeptStream(data, total - len(data), dropped, reason, file)


class SpooledStream:
    """One stream of an executable. ``cap``: maximum number of its bytes that are kept. ``directory``: where its file is created if the
    stream has more than ``OUTPUT_CAP`` bytes."""

    __slots__ = ("_cap", "_directory", "_file", "_memory", "_reason", "_spools")

    def __init__(self, cap: int, directory: str) -> None:
        self._memory: Optional[HeadAndTail] = None
        """None until the task writes something, because many tasks write nothing."""
        self._cap = cap
        self._directory = directory
        self._file: Optional[StreamFile] = None
        self._reason = CAP
        self._spools = cap > OUTPUT_CAP

    def add(self, data: bytes) -> None:
        memory = self._memory
        if memory is None:
            memory = self._memory = HeadAndTail(min(self._cap, OUTPUT_CAP))
        if self._spools and memory.total + len(data) > OUTPUT_CAP:
            self._spool(memory, data)
        memory.add(data)

    def _spool(self, memory: HeadAndTail, data: bytes) -> None:
        try:
            if self._file is None:
                self._file = StreamFile(self._directory + "/.output-" + urandom(8).hex(), self._cap)
                self._spools = self._file.add(memory.result()[0])
            self._spools = self._spools and self._file.add(data)
        except OSError:
            self._reason = FULL_DISK
            self._spools = False

    def since(self, offset: int, limit: int) -> Tuple[int, bytes]:
        """Returns (start, bytes): at most ``limit`` bytes of the stream from position ``start`` on. ``start`` is ``offset``; it is larger
        if the bytes at ``offset`` were dropped.

        A negative ``offset`` counts from the end of the stream.
        """
        memory, file = self._memory, self._file
        if memory is None:
            return max(0, offset), b""
        if offset < 0:
            offset = max(0, memory.total + offset)
        if file is not None and offset < file.written:
            return offset, file.read(offset, min(limit, file.written - offset))
        return memory.since(offset, limit)

    def finish(self, outbox: str) -> KeptStream:
        """Ends the stream. Moves its file to the outbox. Without a file, the result has head and tail of the stream."""
        memory, file = self._memory, self._file
        if memory is None:
            return NOTHING
        data, omitted = memory.result()
        if file is None:
            return KeptStream(data, omitted, omitted, self._reason if omitted else "", None)
        try:
            dropped, reason = file.finish(data, memory.total, self._reason)
            return excerpt(data, memory.total, dropped, reason, file.move(outbox))
        except OSError:
            return KeptStream(data, omitted, omitted, FULL_DISK, None)
        finally:
            self.discard()

    def discard(self) -> None:
        """Deletes the file of a stream that is not wanted."""
        if self._file is not None:
            self._file.discard()
            self._file, self._spools = None, False


def describe(kept: Dict[str, KeptStream]) -> Dict[str, Any]:
    """Returns entries for the summary of a result. They describe the streams that are not complete in the result."""
    entries: Dict[str, Any] = {}
    for name, stream in kept.items():
        if stream.omitted:
            entries[name + "_dropped"] = stream.dropped
            entries[name + "_omitted"] = stream.omitted
            entries[name + "_reason"] = stream.reason
    streams = [[name, *stream.file] for name, stream in kept.items() if stream.file is not None]
    return {**entries, "streams": streams} if streams else entries
