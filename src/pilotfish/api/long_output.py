"""Keeps the long outputs of tasks, so that a future has the whole output of its task."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path
from typing import IO

from pilotfish.applications.input_files import StoredFile
from pilotfish.applications.output_streams import replace_place
from pilotfish.portable.output_marks import LOST

WHOLE_OUTPUT = "{} of its future"
"""Text for the line that replaces the missing part of a long output. With ``stdout``, for example, the line says that the whole output is
``stdout`` of the future."""


class LongOutput:
    """A long output of a task. ``text``: beginning and end of the output. ``source``: the file with the whole output, as a path or as an
    open file. ``offset``: position in this file at which the output begins."""

    def __init__(self, text: bytes, source: Path | IO[bytes], offset: int, size: int, lock: threading.Lock) -> None:
        self.text = text
        self._source = source
        self._offset = offset
        self._size = size
        self._lock = lock

    def read(self) -> bytes:
        """Returns the whole output. If the file with the whole output is gone, returns only the beginning and the end."""
        try:
            if isinstance(self._source, Path):
                return self._source.read_bytes()
            with self._lock:
                self._source.seek(self._offset)
                return self._source.read(self._size)
        except OSError:
            return replace_place(self.text, LOST)


class OutputKeeper:
    """Makes the LongOutput objects of one run. ``owned``: whether the pool deletes the files of the run. In this case, the outputs are
    copied to an unnamed file, in the directory of the pool. The disk space of this file is free again when no future of the run exists any
    more."""

    def __init__(self, directory: Path, owned: bool) -> None:
        self._directory = directory
        self._owned = owned
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None

    def keep(self, name: str, text: bytes, file: StoredFile | None) -> bytes | LongOutput:
        """Returns the output of a stream. ``text``: the output; if it is long, only its beginning and end. ``file``: None, or the file with
        the whole long output. If this file must be copied and the copy fails, returns ``text`` with a line that says so."""
        if file is None or file.path is None:
            return text
        if not self._owned:
            return LongOutput(text, file.path, 0, file.size, self._lock)
        try:
            with self._lock, file.path.open("rb") as source:
                if self._file is None:
                    self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115  futures use it later
                self._file.seek(0, 2)
                offset = self._file.tell()
                shutil.copyfileobj(source, self._file, 1 << 20)
                self._file.flush()
            return LongOutput(replace_place(text, WHOLE_OUTPUT.format(name)), self._file, offset, file.size, self._lock)
        except OSError:
            return replace_place(text, LOST)


def whole(output: bytes | LongOutput) -> bytes:
    return output if isinstance(output, bytes) else output.read()


def excerpt(output: bytes | LongOutput) -> bytes:
    """Returns an output for display. If the output is long, returns only its beginning and end."""
    return output if isinstance(output, bytes) else output.text
