"""What the master does with payloads: small ones stay in memory, larger ones go to disk, shared ones are only referred to."""

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
"""Larger payloads are kept on disk, not in memory."""


class PayloadStore:
    def __init__(self, directory: Path) -> None:
        self._stored = PayloadSegments.open(directory)
        self._shared = SharedPayloads(shared_directory(directory))

    def keep_all(self, parts: list[memoryview], *, spill: bool = True) -> list[Payload]:
        """Take payloads from a peer; large ones go to disk unless ``spill`` is False. A peer that is turned away calls again."""
        kept: list[Payload] = []
        try:
            for part in parts:
                kept.append(self._keep(part, spill))
        except JournalFull as problem:
            for payload in kept:
                if isinstance(payload, StoredPayload):
                    self.release(payload, refused=True)
            raise ConnectionFailed(str(problem)) from problem
        return kept

    def _keep(self, part: memoryview, spill: bool) -> Payload:
        if is_reference(part):
            return self._admit(part)
        if len(part) <= INLINE_BYTES or not spill:
            return bytes(part)
        return self._stored.put([part])

    def _admit(self, reference: memoryview) -> Payload:
        """A reference whose file is gone is kept as it is: said for the second time, nobody needs it; else the task fails and says so."""
        try:
            return self._shared.admit(reference)
        except JournalError as problem:
            log.warning("%s", problem)
            return bytes(reference)

    def load(self, payload: Payload, *, whole: bool) -> bytes:
        """What to send for a payload. Shared ones as a reference, unless they are wanted ``whole``.

        Zeros, which are no packed payload, if the disk no longer has it.
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

    def refer(self, stored: StoredPayload) -> None:
        """One more reference: from the replayed journal, or of a task that is tried again."""
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
