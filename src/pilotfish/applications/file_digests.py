"""What files hash to, remembered by path, size, times of change and inode, so that a large input is read once and not for every run.

One line of JSON per file, appended; the last line about a file counts. Losing the file, or a line, costs a reading and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

BLOCK_BYTES = 1 << 20
RACY_S = 2.0
"""A file changed so lately may change again without its time of change telling: its hash is not remembered."""
MOST_LINES = 20_000

Key = tuple[str, int, int, int, int]
"""path, size, mtime_ns, ctime_ns (which nobody can set back), inode"""


class DigestCache:
    def __init__(self, path: Path, reading: Callable[[str, int, int], None] | None = None) -> None:
        self._path = path
        self._known: dict[Key, str] | None = None
        self._reading = reading
        """Told of what is being read: path, bytes so far, bytes in all."""

    def of(self, path: str, descriptor: int) -> str:
        """The SHA-256 of an open file, in hexadecimal digits."""
        status = os.fstat(descriptor)
        key = (path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        known = self._load()
        if key in known:
            return known[key]
        digest = self._read(path, descriptor, status.st_size)
        after = os.fstat(descriptor)
        settled = (after.st_size, after.st_mtime_ns, after.st_ctime_ns) == key[1:4]
        if settled and time.time() - max(status.st_mtime, status.st_ctime) > RACY_S:
            known[key] = digest
            self._append(key, digest)
        return digest

    def _read(self, path: str, descriptor: int, size: int) -> str:
        digest = hashlib.sha256()
        buffer = memoryview(bytearray(BLOCK_BYTES))
        done = 0
        while count := os.preadv(descriptor, [buffer], done):
            digest.update(buffer[:count])
            done += count
            if self._reading is not None:
                self._reading(path, done, size)
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
                    continue  # a line that was cut off
            if len(lines) > MOST_LINES:
                self._shorten()
        return self._known

    def _shorten(self) -> None:
        assert self._known is not None
        kept = list(self._known.items())[-MOST_LINES // 2 :]
        scratch = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            scratch.write_text("".join(_line(key, digest) for key, digest in kept))
            scratch.chmod(0o600)
            scratch.replace(self._path)
        except OSError:
            scratch.unlink(missing_ok=True)

    def _append(self, key: Key, digest: str) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return  # it is only a memory
        try:
            os.write(descriptor, _line(key, digest).encode())
        except OSError:
            pass
        finally:
            os.close(descriptor)


def _line(key: Key, digest: str) -> str:
    return json.dumps([*key, digest]) + "\n"
