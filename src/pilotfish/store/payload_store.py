"""Decides where a payload lives: memory, segment file or shared file."""

from __future__ import annotations

import logging
from pathlib import Path

from pilotfish.errors import ConnectionFailed, JournalError, JournalFull
from pilotfish.model.task import SHARED_SEGMENT, Payload, StoredPayload
from pilotfish.portable.payload_format import is_reference
from pilotfish.store.payload_segments import PayloadSegments
from pilotfish.store.shared_payloads import SharedPayloads, shared_directory

log = logging.getLogger("pilotfish.payloads")

INLINE_BYTES = 32 * 1024
"""Maximum size of a payload that is kept in memory."""


class PayloadStore:
    def __init__(self, directory: Path) -> None:
        self._stored = PayloadSegments.open(directory)
        self._shared = SharedPayloads(shared_directory(directory))

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
            return self._shared.get(payload) if whole else self._shared.reference(payload)
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
