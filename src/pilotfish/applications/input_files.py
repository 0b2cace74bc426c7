"""Packs input files inline or as contents.

Small files are part of the task's payload. Larger ones are contents, named by their hash; a worker that has a content does not receive
it again.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pilotfish.applications.file_digests import DigestCache
from pilotfish.applications.safe_paths import check_name, copy_below, write_below
from pilotfish.config import home
from pilotfish.errors import BadInput, TaskFailed
from pilotfish.model.contents import Content

INLINE_BYTES = 64 * 1024
INLINE_TOTAL_BYTES = 1024 * 1024
MODE_MASK = 0o755
MOST_ENTRIES = 100_000
DIRECTORY, LINK = "directory", "link"
"""Entries other than files: [name, "directory"] and [name, "link", target]."""


@dataclass(frozen=True, slots=True)
class TravelFile:
    """A regular file with its permission bits and its bytes, or the place of its bytes.

    As an input of another task it is the same file, wherever it is stored.
    """

    data: bytes | None = None
    mode: int = 0o644
    digest: str = ""
    size: int = -1
    path: Path | None = None
    """Path of the pool's copy; do not write to it."""
    name: str = ""
    """Name that the producing task gave it."""

    @property
    def content(self) -> bytes:
        if self.data is not None:
            return self.data
        try:
            assert self.path is not None
            found = self.path.read_bytes()
        except (OSError, AssertionError):
            raise self.not_here() from None
        self._insist_on(hashlib.sha256(found).hexdigest())
        return found

    def _insist_on(self, found: str) -> None:
        """Raises an error if the stored file was damaged on disk."""
        if self.digest and found != self.digest:
            raise TaskFailed(f"the file {self.path} is damaged: it has other bytes than the task left", "run the task again that made it")

    def not_here(self) -> TaskFailed:
        return TaskFailed(
            f"the content {self.digest[:12]}… is not on this machine",
            "it was kept where it was made: name it in outputs to have it brought",
        )

    def save_below(self, directory: str | os.PathLike[str], name: str) -> Path:
        if self.data is not None:
            return write_below(directory, name, self.data, self.mode & MODE_MASK)
        if self.path is None or not self.path.exists():
            raise self.not_here()
        with self.path.open("rb") as file:
            self._insist_on(hashlib.file_digest(file, "sha256").hexdigest())
        return copy_below(directory, name, self.path, self.mode & MODE_MASK)


Source = str | os.PathLike[str] | bytes | TravelFile


class PackedFiles(NamedTuple):
    """Inputs ready to be sent: entries, the bytes of small files, and the contents of the others."""

    entries: list[list[Any]]
    parts: list[bytes]
    contents: tuple[Content, ...]


class FilePacker:
    """Collects the inputs of a spec or task into a PackedFiles."""

    def __init__(self) -> None:
        self.entries: list[list[Any]] = []
        self.parts: list[bytes] = []
        self.contents: dict[str, Content] = {}
        self._room = INLINE_TOTAL_BYTES

    def add(self, name: str, source: Source) -> None:
        if isinstance(source, bytes):
            source = TravelFile(source)
        if isinstance(source, TravelFile):
            self._add_file(name, source)
            return
        try:
            if os.path.isdir(source):
                for inner, path in _walk(name, os.fspath(source)):
                    self._add_entry(inner, path)
            else:
                self._add_path(name, os.fspath(source))
        except OSError as error:
            path = error.filename or os.fspath(source)
            raise BadInput(f"inputs: {path!r} cannot be read: {(error.strerror or '').lower()}", f"look at it: ls -ld {path}") from error

    def _add_file(self, name: str, file: TravelFile) -> None:
        if file.data is None:
            self._refer(name, file.mode, Content(file.digest, file.size))
        else:
            self._inline(name, file.mode, file.data)

    def _inline(self, name: str, mode: int, data: bytes) -> None:
        self._room -= len(data)
        self.entries.append([name, mode])
        self.parts.append(data)

    def _refer(self, name: str, mode: int, content: Content) -> None:
        self.entries.append([name, mode, content.digest, content.size])
        self.contents[content.digest] = content

    def _add_entry(self, name: str, path: str) -> None:
        if len(self.entries) >= MOST_ENTRIES:
            raise BadInput(f"inputs: {name.split('/', maxsplit=1)[0]!r} has more than {MOST_ENTRIES} files", "pack them into an archive")
        check_name(name, "inputs")
        if os.path.islink(path):
            self.entries.append([name, LINK, os.readlink(path)])
        elif os.path.isdir(path):
            self.entries.append([name, DIRECTORY])
        else:
            self._add_path(name, path)

    def _add_path(self, name: str, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise BadInput(f"inputs: {path!r} is not a regular file", "only regular files travel")
            mode = status.st_mode & MODE_MASK | 0o400
            if status.st_size <= min(INLINE_BYTES, self._room):
                with open(descriptor, "rb", closefd=False) as stream:
                    self._inline(name, mode, stream.read())
                return
            full = os.path.abspath(path)
            digest = digests().of(full, descriptor)
            self._refer(name, mode, Content(digest, status.st_size, full, status.st_mtime_ns, status.st_ino))
        finally:
            os.close(descriptor)


def pack_files(inputs: Mapping[str, Source]) -> PackedFiles:
    packing = FilePacker()
    for name, source in inputs.items():
        packing.add(name, source)
    return PackedFiles(packing.entries, packing.parts, tuple(packing.contents.values()))


def _walk(name: str, directory: str) -> Iterator[tuple[str, str]]:
    """Yields (name in the sandbox, local path) of all files and empty directories below a directory. Links inside it stay links."""
    with os.scandir(directory) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    if not entries:
        yield name, directory
    for entry in entries:
        inner, path = f"{name}/{entry.name}", os.path.join(directory, entry.name)
        if not entry.is_symlink():
            if entry.is_dir():
                yield from _walk(inner, path)
            else:
                yield inner, path
        elif _stays_inside(f"{name}/{entry.name}", os.readlink(path)):
            yield inner, path
        elif os.path.isfile(path):
            yield inner, os.path.realpath(path)
        else:
            raise BadInput(
                f"inputs: the link {path!r} leads out of the directory, to {os.readlink(path)!r}",
                "replace it by what it leads to, or leave it out",
            )


def _stays_inside(name: str, target: str) -> bool:
    """Tests whether a link of this name leads to a place below the first component of the name."""
    if os.path.isabs(target):
        return False
    reached = os.path.normpath(os.path.join(os.path.dirname(name), target))
    return reached == name.split("/", maxsplit=1)[0] or reached.startswith(name.split("/", maxsplit=1)[0] + "/")


_digests: list[DigestCache] = []


def digests(reading: Callable[[str, int, int], None] | None = None) -> DigestCache:
    """Returns the digest cache of this program; ``reading`` receives the progress of long readings from now on."""
    if reading is not None or not _digests:
        _digests[:] = [DigestCache(home() / "digests", reading)]
    return _digests[0]
