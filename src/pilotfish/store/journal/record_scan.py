"""Scans the records of one file and skips damage.

A fast loop reads intact, consecutive records. When it meets damage, a slower function continues. If the head of the damaged record is
valid, this function skips only the damaged record. If the head is not valid, it searches for the next valid head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from zlib import crc32

from pilotfish.store.journal.record_format import FIELDS, FIELDS_AT, HEAD_BYTES, MARKER, MAX_BODY, PREFIX, RECORD_HEAD, proven_durable

CHUNK_BYTES = 1 << 20

Read = Callable[[int, int], bytes]
"""A function (length, offset) that reads bytes of the file. It returns fewer than ``length`` bytes only at the end of the file."""


@dataclass(slots=True)
class RecordScan:
    """One scan of a file. Iterate over ``batches`` to the end. Only then are ``records``, ``damages`` and ``gaps`` complete."""

    read: Read
    start: int
    size: int
    seed: int
    expected: int
    """Sequence number of the next record."""
    good_end: int = 0
    """Offset at which the last intact record ends. After the scan, only bytes that are no records follow."""
    records: int = 0
    proven: int = 0
    """Highest sequence number that was certainly on disk. Each record says this about the records before it."""
    damages: list[tuple[int, int]] = field(default_factory=list)
    """(start, end) offsets of bytes that are not records."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """(first, last) sequence numbers of missing records."""
    _buffer: bytes = b""
    _base: int = 0
    _position: int = 0

    def batches(self) -> Iterator[list[bytes]]:
        self._base = self.good_end = self.start
        while self._base + self._position < self.size:
            batch = self._intact_records()
            if batch:
                self.records += len(batch)
                self.good_end = self._base + self._position
                yield batch
            self._skip_or_read()
        if self.damages and self.damages[-1][1] >= self.size and self._is_blank(*self.damages[-1]):
            del self.damages[-1]

    def _intact_records(self) -> list[bytes]:
        """Returns the intact, consecutive records from the current position to the end of the buffer."""
        buffer, position, expected, seed = self._buffer, self._position, self.expected, self.seed
        limit = len(buffer)
        last_head = -1
        unpack, view = RECORD_HEAD.unpack_from, memoryview(buffer)
        batch: list[bytes] = []
        keep = batch.append
        while position + HEAD_BYTES <= limit:
            marker, check, crc, length, sequence = unpack(buffer, position)
            body = position + HEAD_BYTES
            end = body + length
            if marker != MARKER or sequence != expected or end > limit or crc32(view[position + FIELDS_AT : end], check ^ seed) != crc:
                break
            keep(buffer[body:end])
            last_head = position
            expected += 1
            position = end
        if last_head >= 0:
            self.proven = proven_durable(buffer[last_head : last_head + HEAD_BYTES])
        self._position, self.expected = position, expected
        return batch

    def _skip_or_read(self) -> None:
        """Continues when the next bytes are not the next intact record: reads more bytes, or skips damaged or missing records."""
        position, buffer = self._position, self._buffer
        offset = self._base + position
        if offset >= self.size:
            return
        if offset + HEAD_BYTES > self.size:
            self._skip_to(self.size - self._base)
        elif position + HEAD_BYTES > len(buffer):
            self._fill(HEAD_BYTES)
        elif not self._trusted(position):
            self._search(position + 1)
        else:
            _, check, crc, length, sequence = RECORD_HEAD.unpack_from(buffer, position)
            end = position + HEAD_BYTES + length
            if self._base + end > self.size:
                self._skip_to(self.size - self._base)
            elif end > len(buffer):
                self._fill(HEAD_BYTES + length)
            elif sequence < self.expected or crc32(memoryview(buffer)[position + FIELDS_AT : end], check ^ self.seed) != crc:
                self._skip_to(end)
            else:
                self.gaps.append((self.expected, sequence - 1))
                self.expected = sequence

    def _trusted(self, position: int) -> bool:
        marker, check, _ = PREFIX.unpack_from(self._buffer, position)
        fields = self._buffer[position + FIELDS_AT : position + HEAD_BYTES]
        length: int = FIELDS.unpack(fields)[0]
        return bool(marker == MARKER and crc32(fields, self.seed) == check) and length <= MAX_BODY

    def _search(self, position: int) -> None:
        """Skips bytes up to the next valid head, or up to the end of the buffer."""
        buffer = self._buffer
        while True:
            position = buffer.find(MARKER, position)
            if position < 0:
                at_end = self._base + len(buffer) >= self.size
                self._skip_to(len(buffer) if at_end else len(buffer) - len(MARKER) + 1)
                return
            if position + HEAD_BYTES > len(buffer) or self._trusted(position):
                self._skip_to(position)
                return
            position += 1

    def _is_blank(self, start: int, end: int) -> bool:
        """Returns True if a range contains only zeros. Such a range is reserved space, or its data never reached the disk."""
        return not any(self.read(min(CHUNK_BYTES, end - at), at).strip(b"\0") for at in range(start, end, CHUNK_BYTES))

    def _skip_to(self, position: int) -> None:
        start, end = self._base + self._position, self._base + position
        if self.damages and self.damages[-1][1] == start:
            self.damages[-1] = (self.damages[-1][0], end)
        else:
            self.damages.append((start, end))
        self._position = position

    def _fill(self, needed: int) -> None:
        """Drops processed bytes from the buffer and reads more, until at least ``needed`` bytes are in the buffer."""
        left = self._buffer[self._position :]
        self._base += self._position
        self._position = 0
        wanted = min(max(CHUNK_BYTES, needed - len(left)), self.size - self._base - len(left))
        more = self.read(wanted, self._base + len(left))
        if len(more) < wanted:
            self.size = self._base + len(left) + len(more)
        self._buffer = left + more
