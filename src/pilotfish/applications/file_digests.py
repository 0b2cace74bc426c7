"""Remembers file hashes by path, size, times and inode, so that a large input is not read again for every run.

The file has one line of JSON per hash, appended; the last line for a file counts. A lost file or line costs one more reading,
nothing else.
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
"""Minimum age in seconds of a file whose hash is remembered. A younger file may change again without a change of its timestamp."""
MOST_LINES = 20_000

Key = tuple[str, int, int, int, int]
"""path, size, mtime_ns, ctime_ns (which users cannot set back), inode"""


class DigestCache:
    def __init__(self, path: Path, reading: Callable[[str, int, int], None] | None = None) -> None:
        self._path = path
        self._known: dict[Key, str] | None = None
        self._reading = reading
        """Progress callback: path, bytes read, total bytes."""

    def of(self, path: str, descriptor: int) -> str:
        """Returns the SHA-256 of an open file in hexadecimal."""
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
                    continue  # an incomplete line
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
            return  # only a cache: the hash is computed again
        try:
            os.write(descriptor, _line(key, digest).encode())
        except OSError:
            pass
        finally:
            os.close(descriptor)


def _line(key: Key, digest: str) -> str:
    return json.dumps([*key, digest]) + "\n"
