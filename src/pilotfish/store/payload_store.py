"""Decides where a payload lives: memory, segment file or shared file."""

from __future__ import annotations

import logging
import os
import re
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from pilotfish.errors import ConnectionFailed, JournalError, JournalFull
from pilotfish.model.task import SHARED_SEGMENT, Payload, StoredPayload
from pilotfish.portable.payload_format import is_reference, pack_reference, unpack_reference
from pilotfish.portable.payload_reference import shared_path
from pilotfish.store.disk import DISK
from pilotfish.store.payload_segments import PayloadSegments

log = logging.getLogger("pilotfish.payloads")

INLINE_BYTES = 32 * 1024
"""Maximum size of a payload that is kept in memory."""


ABANDONED_S = 3600.0
SYNCS_AT_ONCE = 4
_NAME = re.compile(r"[0-9a-f]{16}")


class PayloadStore:
    def __init__(self, directory: Path, shared: Path) -> None:
        self._stored = PayloadSegments.open(directory)
        self._shared = SharedPayloads(shared)

    def keep_all(self, parts: list[memoryview], *, allow_disk: bool = True) -> list[Payload]:
        """Keeps payloads from a peer; large ones go to disk unless ``allow_disk`` is False. If the disk is full, the peer must retry."""
        kept: list[Payload] = []
        try:
            for part in parts:
                kept.append(self._keep(part, allow_disk))
        except JournalFull as problem:
            for payload in kept:
                if isinstance(payload, StoredPayload):
                    self.release(payload, refused=True)
            raise ConnectionFailed(str(problem)) from problem
        return kept

    def _keep(self, part: memoryview, allow_disk: bool) -> Payload:
        if is_reference(part):
            return self._admit(part)
        if len(part) <= INLINE_BYTES or not allow_disk:
            return bytes(part)
        return self._stored.put([part])

    def _admit(self, reference: memoryview) -> Payload:
        """Admits a shared file. If it is gone, keeps the reference.

        Either the peer repeats a message and the payload is no longer needed, or the task fails with an error that names the file.
        """
        try:
            return self._shared.admit(reference)
        except JournalError as problem:
            log.warning("%s", problem)
            return bytes(reference)

    def load(self, payload: Payload, *, whole: bool) -> bytes:
        """Returns the bytes to send for a payload; for a shared one a reference, unless ``whole``.

        If the payload is lost, returns zeros, which are never valid in the payload format.
        """
        if isinstance(payload, bytes):
            return payload
        try:
            if payload.segment != SHARED_SEGMENT:
                return self._stored.get(payload)
            return self._shared.get(payload) if whole else pack_reference(payload.offset, payload.length)
        except JournalError as problem:
            log.error("%s", problem)
            return bytes(payload.length)

    def add_reference(self, stored: StoredPayload) -> None:
        """Adds a reference, from the replayed journal or for a task that is tried again."""
        try:
            (self._shared if stored.segment == SHARED_SEGMENT else self._stored).adopt(stored)
        except JournalError as problem:
            log.error("%s", problem)

    def release(self, stored: StoredPayload, *, refused: bool = False) -> None:
        try:
            if stored.segment == SHARED_SEGMENT:
                self._shared.release(stored, keep_file=refused)
            else:
                self._stored.release(stored)
        except JournalError as problem:
            log.error("%s", problem)

    def sync(self) -> None:
        self._shared.sync()
        self._stored.sync()

    def collect(self) -> None:
        self._stored.collect()
        self._shared.collect()

    def close(self) -> None:
        self._stored.close()


class SharedPayloads:
    """Payload files shared on this machine.

    A client or slot on this machine writes a large payload to a file and sends a reference (see portable/payload_reference.py). The
    master checks that the file exists, makes it durable before it acknowledges it, counts references and removes it when none is left.
    """

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
