"""Packs input files for sending.

A small file is part of the payload. A larger file is a content, named by its hash. A content is not sent to a worker that already has it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pilotfish.applications.safe_paths import check_name, write_below
from pilotfish.config import home
from pilotfish.errors import BadInput, TaskFailed
from pilotfish.model.contents import Content

INLINE_BYTES = 64 * 1024
INLINE_TOTAL_BYTES = 1024 * 1024
MODE_MASK = 0o755
MAX_ENTRIES = 100_000
DIRECTORY, LINK = "directory", "link"
"""Kinds of entries that are not files. A directory: [name, "directory"]. A link: [name, "link", target]."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A regular file with its permission bits. A ``StoredFile`` has the bytes of the file, or only the path of a copy, or only the hash.

    A ``StoredFile`` can be an input of a task, even if the bytes of the file are not on this machine.
    """

    data: bytes | None = None
    mode: int = 0o644
    digest: str = ""
    size: int = -1
    path: Path | None = None
    """Path of the pool's copy. Do not write to this path."""
    name: str = ""
    """Name that the file has in the task that produced it."""

    @property
    def content(self) -> bytes:
        if self.data is not None:
            return self.data
        try:
            assert self.path is not None
            content = self.path.read_bytes()
        except (OSError, AssertionError):
            raise self.missing_error() from None
        self._check_digest(hashlib.sha256(content).hexdigest())
        return content

    def _check_digest(self, digest: str) -> None:
        """Raises TaskFailed if ``digest``, the hash of the file on disk, is not the hash that the task reported."""
        if self.digest and digest != self.digest:
            raise TaskFailed(f"the file {self.path} is damaged: it has other bytes than the task left", "run the task again that made it")

    def missing_error(self) -> TaskFailed:
        return TaskFailed(
            f"the content {self.digest[:12]}… is not on this machine",
            "it was kept where it was made: name it in outputs to have it brought",
        )

    def checked(self) -> bytes | Path:
        """Returns the bytes of the file, or the path of the pool's copy. Raises TaskFailed if that copy is missing or damaged."""
        if self.data is not None:
            return self.data
        if self.path is None or not self.path.exists():
            raise self.missing_error()
        with self.path.open("rb") as file:
            self._check_digest(hashlib.file_digest(file, "sha256").hexdigest())
        return self.path

    def save_below(self, directory: str | os.PathLike[str], name: str) -> Path:
        return write_below(directory, name, self.checked(), self.mode & MODE_MASK)


Source = str | os.PathLike[str] | bytes | StoredFile


class PackedFiles:
    """Inputs of a spec or task, ready to be sent. ``parts``: the bytes of small files. ``contents``: the larger files."""

    def __init__(self, inputs: Mapping[str, Source]) -> None:
        self.entries: list[list[Any]] = []
        self.parts: list[bytes] = []
        self._sources: dict[str, str | None] = {}
        self._contents: dict[str, Content] = {}
        self._room = INLINE_TOTAL_BYTES
        for position, (name, source) in enumerate(inputs.items()):
            self._refuse_too_many(name, len(inputs) - position)
            self._add(name, source)

    @property
    def contents(self) -> tuple[Content, ...]:
        return tuple(self._contents.values())

    @property
    def sources(self) -> dict[str, str | None]:
        """Maps the name of each input to the path from which it was read. The value is None if the input was not read from a file of the
        user. A rerun reads the files at these paths again. If any path is not UTF-8, the whole dict is empty, because messages are
        UTF-8."""
        try:
            "".join(path for path in self._sources.values() if path is not None).encode()
        except UnicodeEncodeError:
            return {}
        return self._sources

    def _add(self, name: str, source: Source) -> None:
        if isinstance(source, bytes):
            source = StoredFile(source)
        self._sources[name] = None if isinstance(source, StoredFile) else os.path.abspath(os.fspath(source))
        if isinstance(source, StoredFile):
            if source.data is None:
                self._refer(name, source.mode, Content(source.digest, source.size))
            else:
                self._inline(name, source.mode, source.data)
            return
        try:
            if os.path.isdir(source):
                for inner, path in walk_files(name, os.fspath(source)):
                    self._add_entry(inner, path)
            else:
                self._add_path(name, os.fspath(source))
        except OSError as error:
            path = error.filename or os.fspath(source)
            raise BadInput(f"inputs: {path!r} cannot be read: {(error.strerror or '').lower()}", f"look at it: ls -ld {path}") from error

    def _refuse_too_many(self, name: str, more: int) -> None:
        """Raises BadInput if ``more`` further entries are too many. ``name``: the next entry, for the error."""
        if len(self.entries) + more > MAX_ENTRIES:
            text = f"inputs: with {name.split('/', maxsplit=1)[0]!r} there are more than {MAX_ENTRIES:,} files"
            raise BadInput(text, "pack them into an archive")

    def _inline(self, name: str, mode: int, data: bytes) -> None:
        self._room -= len(data)
        self.entries.append([name, mode])
        self.parts.append(data)

    def _refer(self, name: str, mode: int, content: Content) -> None:
        self.entries.append([name, mode, content.digest, content.size])
        self._contents[content.digest] = content

    def _add_entry(self, name: str, path: str) -> None:
        self._refuse_too_many(name, 1)
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
            digest = digests().digest(full, descriptor)
            self._refer(name, mode, Content(digest, status.st_size, full, status.st_mtime_ns, status.st_ino))
        finally:
            os.close(descriptor)


class RenewedFiles(NamedTuple):
    """Inputs that were read again. ``changed``: the paths of files and directories that have changed since they were packed."""

    packed: PackedFiles
    changed: tuple[str, ...]


def renew_files(entries: Sequence[Sequence[Any]], parts: Sequence[bytes | memoryview], sources: Mapping[str, str | None]) -> RenewedFiles:
    """Packs inputs again, with the current versions of their files. ``entries``, ``parts`` and ``sources``: the attributes of the earlier
    ``PackedFiles``. Raises BadInput if a file no longer exists."""
    before = _by_input(entries, parts, sources)
    inputs: dict[str, Source] = {}
    for name, path in sources.items():
        if path is None:
            inputs[name] = _as_stored(*before[name][0])
        elif os.path.exists(path):
            inputs[name] = path
        else:
            raise BadInput(f"the input file {path} no longer exists", "put it back, or start the run again without it")
    packed = PackedFiles(inputs)
    after = _by_input(packed.entries, packed.parts, sources)
    return RenewedFiles(packed, tuple(path for name, path in sources.items() if path is not None and before[name] != after[name]))


Packed = tuple[list[Any], bytes]


def _by_input(
    entries: Sequence[Sequence[Any]], parts: Sequence[bytes | memoryview], sources: Mapping[str, str | None]
) -> dict[str, list[Packed]]:
    """Returns the entries of each input. If the input is a directory, it can have many entries. The bytes of a small file come with its
    entry."""
    found: dict[str, list[Packed]] = {name: [] for name in sources}
    remaining = iter(parts)
    for entry in entries:
        data = bytes(next(remaining)) if len(entry) == 2 and entry[1] != DIRECTORY else b""
        name = str(entry[0])
        while name not in found and "/" in name:
            name = name.rpartition("/")[0]
        found[name].append((list(entry), data))
    return found


def _as_stored(entry: Sequence[Any], data: bytes) -> StoredFile:
    if len(entry) == 2:
        return StoredFile(data, entry[1])
    return StoredFile(mode=entry[1], digest=entry[2], size=entry[3])


def walk_files(name: str, directory: str) -> Iterator[tuple[str, str]]:
    """Yields two texts for each file, each empty directory and each link below a directory: its sandbox name and its path. ``name``: the
    sandbox name of the directory.

    The input directory is the directory that the user named. A link to a path inside of the input directory stays a link. A link to a file
    outside of the input directory is replaced by this file. Any other link to the outside raises BadInput.
    """
    with os.scandir(directory) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    if not entries:
        yield name, directory
    for entry in entries:
        inner, path = f"{name}/{entry.name}", os.path.join(directory, entry.name)
        if not entry.is_symlink():
            if entry.is_dir():
                yield from walk_files(inner, path)
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
    """Tests whether a link stays inside of its top directory. ``name``: sandbox name of the link. The first part of ``name`` is the top
    directory."""
    if os.path.isabs(target):
        return False
    reached = os.path.normpath(os.path.join(os.path.dirname(name), target))
    return reached == name.split("/", maxsplit=1)[0] or reached.startswith(name.split("/", maxsplit=1)[0] + "/")


# --- hashes of files ------------------------------------------------------------------------------------------------------------------

HASH_BLOCK_BYTES = 1 << 20
RACY_S = 2.0
"""The hash of a file is remembered only if the last change of the file is more than this many seconds ago. A younger file can change again
without a change of its timestamp."""
MAX_LINES = 20_000


def is_settled(*times_ns: int) -> bool:
    """Returns whether each of these times of a file is at least ``RACY_S`` away from now, so that a later change of the file certainly
    changes the times. Times in the future count, too: without this, a file with a wrong time would be read again for each task."""
    now = time.time_ns()
    return all(abs(now - changed_ns) > RACY_S * 1e9 for changed_ns in times_ns)


Key = tuple[str, int, int, int, int]
"""The path, size, mtime_ns, ctime_ns and inode of a file. Users can change mtime_ns, but not ctime_ns."""


class DigestCache:
    """Stores the hashes of files by path, size, times and inode, so that a large input is not read again for every run.

    The cache is a file with one line of JSON per hash. New lines are appended. If a path has several lines, the last line counts. If a line
    is lost, its input is only read once more.
    """

    def __init__(self, path: Path, progress: Callable[[str, int, int], None] | None = None) -> None:
        self._path = path
        self._known: dict[Key, str] | None = None
        self._progress = progress
        """Function that is called while a file is read. It gets the path, the number of bytes read and the total number of bytes."""

    def digest(self, path: str, descriptor: int) -> str:
        """Returns the SHA-256 of an open file in hexadecimal."""
        status = os.fstat(descriptor)
        key = (path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        known = self._load()
        if key in known:
            return known[key]
        digest = self._read(path, descriptor, status.st_size)
        after = os.fstat(descriptor)
        settled = (after.st_size, after.st_mtime_ns, after.st_ctime_ns) == key[1:4]
        if settled and is_settled(status.st_mtime_ns, status.st_ctime_ns):
            known[key] = digest
            self._append(key, digest)
        return digest

    def _read(self, path: str, descriptor: int, size: int) -> str:
        digest = hashlib.sha256()
        buffer = memoryview(bytearray(HASH_BLOCK_BYTES))
        done = 0
        while count := os.preadv(descriptor, [buffer], done):
            digest.update(buffer[:count])
            done += count
            if self._progress is not None:
                self._progress(path, done, size)
        return digest.hexdigest()

    def _load(self) -> dict[Key, str]:
        if self._known is None:
            self._known = {}
            try:
                lines = self._path.read_text(errors="replace").splitlines()
            except OSError:
                lines = []
            for line in lines:
                try:
                    path, size, mtime_ns, ctime_ns, inode, digest = json.loads(line)
                    self._known[path, size, mtime_ns, ctime_ns, inode] = digest
                except (ValueError, TypeError):
                    continue  # an incomplete line
            if len(lines) > MAX_LINES:
                self._shorten()
        return self._known

    def _shorten(self) -> None:
        assert self._known is not None
        kept = list(self._known.items())[-MAX_LINES // 2 :]
        scratch = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            scratch.write_text("".join(_line(key, digest) for key, digest in kept))
            scratch.chmod(0o600)
            scratch.replace(self._path)
        except OSError:
            scratch.unlink(missing_ok=True)

    def _append(self, key: Key, digest: str) -> None:
        with suppress(OSError):  # without the line, the hash is computed again
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(self._path, flags, 0o600), "ab", buffering=0) as file:
                file.write(_line(key, digest).encode())


def _line(key: Key, digest: str) -> str:
    return json.dumps([*key, digest]) + "\n"


_digests: list[DigestCache] = []


def digests(progress: Callable[[str, int, int], None] | None = None) -> DigestCache:
    """Returns the digest cache of this program. ``progress``: a function that the cache calls from now on while it reads a file."""
    if progress is not None or not _digests:
        _digests[:] = [DigestCache(home() / "digests", progress)]
    return _digests[0]
