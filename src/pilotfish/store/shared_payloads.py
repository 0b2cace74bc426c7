"""Payloads that never pass through the master: whoever makes a large one on this machine writes it to a file here and sends a reference.

A reference is 24 bytes: a mark that no parcel begins with, the number of the file and its length. The master checks that the file is
there, makes it durable before it writes down that it has it, counts references and removes it when nobody refers to it any more.
"""

from __future__ import annotations

import mmap
import os
import re
import secrets
import stat
import struct
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from pilotfish.errors import JournalError, JournalFull
from pilotfish.model.quantities import show_bytes
from pilotfish.model.task import REFERENCE_BYTES, SHARED_SEGMENT, StoredPayload
from pilotfish.store.disk import DISK, FULL, write_all

MARK = b"\xff\xff\xff\xfePFS1"
_REFERENCE = struct.Struct("!8sQQ")
assert _REFERENCE.size == REFERENCE_BYTES
SHARE_BYTES = 128 * 1024
"""Larger payloads are worth a file."""
ABANDONED_S = 3600.0
SYNCS_AT_ONCE = 4
_NAME = re.compile(r"[0-9a-f]{16}")


def shared_directory(payloads: Path) -> Path:
    return payloads / "shared"


def write_shared(directory: Path, parts: Sequence[bytes | bytearray | memoryview]) -> bytes:
    """Put a payload in a file of its own and return the reference to it."""
    number = secrets.randbits(63)
    path = directory / f"{number:016x}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        length = sum(map(len, views))
        write_all(DISK, descriptor, views, 0)
    except OSError as error:
        path.unlink()
        if error.errno in FULL:
            text = f"no room for a payload of {show_bytes(length)} in {directory}: {error.strerror}"
            raise JournalFull(text, "Free some space (or quota) and submit it again.") from error
        raise
    finally:
        os.close(descriptor)
    return _REFERENCE.pack(MARK, number, length)


def is_reference(payload: bytes | memoryview) -> bool:
    return len(payload) == REFERENCE_BYTES and payload[:8] == MARK


def read_shared(directory: Path, reference: bytes | memoryview) -> memoryview:
    """The payload behind a reference, mapped, not copied; it may be written to, and nobody else sees it."""
    _, number, length = _REFERENCE.unpack(reference)
    descriptor = os.open(directory / f"{number:016x}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return memoryview(mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY)) if length else memoryview(b"")
    finally:
        os.close(descriptor)


def resolve(directory: Path, payload: memoryview) -> memoryview:
    """The payload itself, whether it came whole or as a reference; the reference, which nobody takes for a parcel, if its file is gone."""
    if not is_reference(payload):
        return payload
    try:
        return read_shared(directory, payload)
    except OSError:
        return payload


class SharedPayloads:
    """The master's side: admits references, counts them, removes what is no longer wanted."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, exist_ok=True)
        self._references: dict[int, int] = {}
        self._unsynced: list[int] = []
        self._helpers = ThreadPoolExecutor(SYNCS_AT_ONCE, "payloads")

    def admit(self, reference: bytes | memoryview) -> StoredPayload:
        """Believe a reference that a peer sent, if the file is there as it says."""
        _, number, length = _REFERENCE.unpack(reference)
        stored = StoredPayload(SHARED_SEGMENT, number, length)
        self.adopt(stored)
        self._unsynced.append(number)
        return stored

    def sync(self) -> None:
        """Make durable what was admitted: several at once, which costs little more than one."""
        unsynced, self._unsynced = self._unsynced, []
        if len(unsynced) == 1:
            self._sync_one(unsynced[0])
        elif unsynced:
            list(self._helpers.map(self._sync_one, unsynced))
        if unsynced:
            DISK.sync_directory(str(self._directory))

    def _sync_one(self, number: int) -> None:
        try:
            descriptor = os.open(self._path(number), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # nobody refers to it any more
        except OSError as error:
            raise JournalError(f"shared payload {number:016x} cannot be opened: {error.strerror}") from error
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise JournalError(f"shared payload {number:016x} cannot be made durable: {error.strerror}", "Check the disk.") from error
        finally:
            os.close(descriptor)

    def adopt(self, stored: StoredPayload) -> None:
        try:
            found = os.stat(self._path(stored.offset), follow_symlinks=False)
        except OSError as error:
            raise JournalError(f"shared payload {stored.offset:016x} is not there: {error.strerror}") from error
        if not stat.S_ISREG(found.st_mode) or found.st_size != stored.length or found.st_uid != os.geteuid():
            raise JournalError(f"shared payload {stored.offset:016x} is not what its reference says")
        self._references[stored.offset] = self._references.get(stored.offset, 0) + 1

    def reference(self, stored: StoredPayload) -> bytes:
        return _REFERENCE.pack(MARK, stored.offset, stored.length)

    def get(self, stored: StoredPayload) -> bytes:
        try:
            content = self._path(stored.offset).read_bytes()
        except OSError as error:
            raise JournalError(f"shared payload {stored.offset:016x} cannot be read: {error.strerror}") from error
        if len(content) != stored.length:
            raise JournalError(f"shared payload {stored.offset:016x} is damaged")
        return content

    def release(self, stored: StoredPayload, *, keep_file: bool = False) -> None:
        """One reference less. With ``keep_file`` the file stays for a while: its writer may speak of it again."""
        left = self._references.get(stored.offset, 0) - 1
        if left > 0:
            self._references[stored.offset] = left
            return
        self._references.pop(stored.offset, None)
        if not keep_file:
            self._path(stored.offset).unlink(missing_ok=True)

    def collect(self) -> None:
        """Remove files that were written long ago and never spoken of: their writer died in between."""
        now = time.time()
        for path in self._directory.iterdir():
            if _NAME.fullmatch(path.name) and int(path.name, 16) not in self._references:
                with suppress(FileNotFoundError):
                    if now - path.stat().st_mtime > ABANDONED_S:
                        path.unlink()

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:016x}"
