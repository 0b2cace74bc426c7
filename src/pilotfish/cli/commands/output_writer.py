"""Writes the output of tasks to a stream of this command.

Files and pipes get the bytes unchanged. For a terminal, control characters are escaped, so that no task can control the terminal. With
``--raw``, even a terminal gets the bytes unchanged.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any

from pilotfish.cli.terminal.screen import clean

STREAMS = {"stdout": 1, "stderr": 2}
"""The streams of a task: their names, and their numbers in requests."""


class OutputWriter:
    """Writes one output piece by piece. A piece can end inside a character that has several bytes."""

    def __init__(self, stream: Any, raw: bool = False) -> None:
        self.last = b""
        """The last byte that was written. Empty if nothing was written."""
        self._stream = stream
        self._escaped = not raw and stream.isatty()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, piece: bytes) -> None:
        if not piece:
            return
        self._stream.flush()
        if self._escaped:
            lines = self._decoder.decode(piece).split("\n")
            self._stream.write("\n".join(clean(line.replace("\t", "    ")) for line in lines))
        else:
            self._stream.buffer.write(piece)
        self._stream.flush()
        self.last = piece[-1:]

    def write_all(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self.write(piece)

    def close(self) -> None:
        """Writes the bytes of an incomplete character at the end of the output."""
        if self._escaped and (rest := self._decoder.decode(b"", final=True)):
            self._stream.write(rest)
            self._stream.flush()


def write_pieces(pieces: Iterable[bytes], stream: Any, raw: bool) -> bytes:
    """Writes a whole output and returns its last byte. Returns no bytes if there is no output."""
    writer = OutputWriter(stream, raw)
    writer.write_all(pieces)
    writer.close()
    return writer.last
