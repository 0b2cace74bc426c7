"""Reads the standard output and standard error of a task from its result. If a stream is long, the result has only its head and tail, and
the whole stream is in a file of the pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pilotfish.applications.input_files import StoredFile
from pilotfish.model.contents import DIGEST
from pilotfish.portable.output_marks import CAP, LOST, LOST_TEXT, MARK_START, WHOLE_AT, mark, mark_of_file, show_size
from pilotfish.portable.payload_format import Buffer

PIECE_BYTES = 1 << 20


class OutputStream(NamedTuple):
    """The standard output or standard error of a task. ``text``: the stream. If the stream is long, a line replaces its middle in ``text``.
    This line says how many bytes are missing.

    ``file``: the file with the whole stream, or None. ``dropped``: number of bytes that are stored nowhere.
    """

    text: bytes = b""
    file: StoredFile | None = None
    dropped: int = 0

    def pieces(self) -> Iterator[bytes]:
        """Yields the stream piece by piece, so that a long stream is never in memory as a whole."""
        if self.file is None:
            yield self.text
            return
        assert self.file.path is not None
        with self.file.path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    def pieces_from(self, offset: int) -> Iterator[bytes]:
        """Yields the stream piece by piece, without the first ``offset`` bytes that the program wrote."""
        if self.file is None and self.dropped:
            yield self._after_gap(offset)
            return
        for piece in self.pieces():
            yield piece[offset:]
            offset = max(0, offset - len(piece))

    def _after_gap(self, offset: int) -> bytes:
        """Returns the part of ``text`` that begins at position ``offset`` of a stream with missing bytes. In ``text``, a line replaces the
        missing bytes. If ``offset`` is the position of a missing byte, the result begins with this line."""
        text, middle = self.text, len(self.text) // 2
        end = text.find(b"]\n", middle) + 2
        begin = text.rfind(MARK_START, 0, end)
        if offset <= begin:
            return text[offset:]
        return text[begin:] if offset <= begin + self.dropped else text[end + offset - begin - self.dropped :]

    def tail(self, length: int) -> bytes:
        """Returns at most the last ``length`` bytes of the stream."""
        if self.file is None:
            return self.text[-length:] if length else b""
        assert self.file.path is not None
        with self.file.path.open("rb") as file:
            file.seek(max(0, self.file.size - length))
            return file.read(length)

    def as_file(self) -> StoredFile:
        return self.file or StoredFile(self.text)


def replace_place(text: bytes, place: str) -> bytes:
    """Returns ``text`` of a long output with a different line in its middle. The new line says that the whole output is at ``place``. If
    ``place`` is LOST, the new line says that the whole output is gone."""
    new = LOST_TEXT if place == LOST else WHOLE_AT + place
    half = text.rfind(MARK_START, 0, len(text) // 2 + 1)
    start, end = text.find(WHOLE_AT.encode(), half), text.find(b"]\n", half)
    return text[:start] + new.encode() + text[end:] if 0 <= half < start < end else text


def describe_dropped(streams: Mapping[str, OutputStream]) -> str:
    """Returns a sentence about the bytes that are stored nowhere. Returns an empty text if there are no such bytes."""
    parts = [f"{show_size(stream.dropped)} of {name}" for name, stream in streams.items() if stream.dropped]
    return f"{' and '.join(parts)} left out; a line in the output says where and why" if parts else ""


def read_stream(name: str, data: Buffer, report: Mapping[str, Any], kept: Path | None) -> OutputStream:
    """Reads a stream of a result. ``report``: the description of the result. ``kept``: directory where the pool keeps large outputs."""
    dropped = int(report.get(f"{name}_dropped", 0))
    omitted = int(report.get(f"{name}_omitted", dropped))
    if not omitted:
        return OutputStream(bytes(data))
    digest, size = next(((str(row[1]), int(row[2])) for row in report.get("streams", ()) if row[0] == name), ("", 0))
    path = kept / digest[:2] / digest if kept is not None and DIGEST.match(digest) else None
    half = len(data) // 2
    if path is not None and path.is_file():
        line, file = mark_of_file(omitted, str(path)), StoredFile(digest=digest, size=size, path=path, name=name)
    else:
        reason = LOST if digest else str(report.get(f"{name}_reason") or CAP)
        line, file, dropped = mark(omitted, omitted + len(data), reason), None, omitted
    return OutputStream(b"".join((data[:half], line, data[half:])), file, dropped)
