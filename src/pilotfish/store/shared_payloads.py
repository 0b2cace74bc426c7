"""Admits, counts and removes payload files shared on this machine.

A client or slot on this machine writes a large payload to a file and sends a reference (see portable/payload_reference.py). The master
checks that the file exists, makes it durable before it acknowledges it, counts references and removes it when none is left.
"""

from __future__ import annotations

import os
import re
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from pilotfish.errors import JournalError
from pilotfish.model.task import SHARED_SEGMENT, StoredPayload
from pilotfish.portable.payload_format import pack_reference, unpack_reference
from pilotfish.portable.payload_reference import shared_path
from pilotfish.store.disk import DISK

ABANDONED_S = 3600.0
SYNCS_AT_ONCE = 4
_NAME = re.compile(r"[0-9a-f]{16}")


def shared_directory(payloads: Path) -> Path:
    return payloads / "shared"


class SharedPayloads:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, exist_ok=True)
        self._references: dict[int, int] = {}
        self._unsynced: list[int] = []
        self._helpers = ThreadPoolExecutor(SYNCS_AT_ONCE, "payloads")

    def admit(self, reference: bytes | memoryview) -> StoredPayload:
        """Accepts a reference from a peer if the file exists with the right size."""
        number, length = unpack_reference(reference)
        stored = StoredPayload(SHARED_SEGMENT, number, length)
        self.adopt(stored)
        self._unsynced.append(number)
        return stored

    def sync(self) -> None:
        """Makes admitted files durable, several at once, which costs little more than one."""
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
            return  # no longer referred to
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
        return pack_reference(stored.offset, stored.length)

    def get(self, stored: StoredPayload) -> bytes:
        try:
            content = self._path(stored.offset).read_bytes()
        except OSError as error:
            raise JournalError(f"shared payload {stored.offset:016x} cannot be read: {error.strerror}") from error
        if len(content) != stored.length:
            raise JournalError(f"shared payload {stored.offset:016x} is damaged")
        return content

    def release(self, stored: StoredPayload, *, keep_file: bool = False) -> None:
        """Removes one reference. With ``keep_file`` the file stays for a while, because its writer may send the reference again."""
        left = self._references.get(stored.offset, 0) - 1
        if left > 0:
            self._references[stored.offset] = left
            return
        self._references.pop(stored.offset, None)
        if not keep_file:
            self._path(stored.offset).unlink(missing_ok=True)

    def collect(self) -> None:
        """Removes old files without references: their writers died before they sent one."""
        now = time.time()
        for path in self._directory.iterdir():
            if _NAME.fullmatch(path.name) and int(path.name, 16) not in self._references:
                with suppress(FileNotFoundError):
                    if now - path.stat().st_mtime > ABANDONED_S:
                        path.unlink()

    def _path(self, number: int) -> Path:
        return Path(shared_path(self._directory, number))
