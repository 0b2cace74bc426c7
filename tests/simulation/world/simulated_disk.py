"""Simulates a journal disk that forgets unsynced writes. They may be lost, kept or torn when the master dies."""

from __future__ import annotations

import random
from collections.abc import Callable

from pilotfish.core import state_snapshot
from pilotfish.core.apply import apply
from pilotfish.core.state import State
from pilotfish.model.facts import TurnRecord, decode_record, encode_record
from pilotfish.model.task import Payload, StoredPayload


class SimulatedJournal:
    """The records of one pool. ``shadow`` is the state replayed from the synced records, updated with each record."""

    def __init__(self, on_safe: Callable[[bytes, TurnRecord], None]) -> None:
        self.records: list[bytes] = []
        self.safe = 0
        self.full = False
        self.shadow = State()
        self._shadowed = 0
        self._on_safe = on_safe

    def append(self, record: bytes) -> None:
        self.records.append(record)

    def sync(self) -> None:
        self.safe = len(self.records)
        while self._shadowed < self.safe:
            record = self.records[self._shadowed]
            self._shadowed += 1
            self._on_safe(record, replay_record(self.shadow, record))

    def crash(self, dice: random.Random) -> tuple[int, bool]:
        """Simulates a power loss: a part of the unsynced tail survives, and the record after it may be torn, which a checksum detects.

        Returns how many records were lost, and whether the first of them was torn.
        """
        unsafe = len(self.records) - self.safe
        kept = dice.randint(0, unsafe)
        lost = unsafe - kept
        del self.records[self.safe + kept :]
        torn = lost > 0 and dice.random() < 0.5
        self.sync()
        return lost, torn

    def recover(self) -> State:
        """Recovers the state by replaying all records."""
        state = State()
        for record in self.records:
            replay_record(state, record)
        return state

    def compact(self) -> None:
        """Replaces the records by a snapshot, as a child process of the master would write it."""
        state = self.shadow
        self.records = [encode_record(TurnRecord(state.at, [fact])) for fact in state_snapshot.dump(state)]
        self.safe = self._shadowed = len(self.records)


def replay_record(state: State, record: bytes) -> TurnRecord:
    turn = decode_record(record)
    for fact in turn.facts:
        apply(state, fact, turn.at)
    return turn


class DanglingPayload(AssertionError):
    """A released payload is still referenced, or a missing one is released: a bug."""


class SimulatedPayloads:
    """Counts references to each stored payload. It is stricter than the real store, which counts by file."""

    def __init__(self) -> None:
        self._bytes: dict[int, bytes] = {}
        self._references: dict[int, int] = {}
        self._next = 0

    def put(self, content: bytes) -> StoredPayload:
        place = self._next
        self._next += max(1, len(content))
        self._bytes[place] = content
        self._references[place] = 1
        return StoredPayload(1, place, len(content))

    def get(self, payload: Payload) -> bytes:
        if isinstance(payload, bytes):
            return payload
        if payload.offset not in self._bytes:
            raise DanglingPayload(f"{payload} was given up and is still wanted")
        return self._bytes[payload.offset]

    def keep(self, stored: StoredPayload) -> None:
        if stored.offset not in self._bytes:
            raise DanglingPayload(f"{stored} was given up and is to be kept")
        self._references[stored.offset] += 1

    def release(self, stored: StoredPayload) -> None:
        count = self._references.get(stored.offset, 0) - 1
        if count < 0:
            raise DanglingPayload(f"{stored} was given up twice")
        self._references[stored.offset] = count
        if count == 0:
            del self._references[stored.offset], self._bytes[stored.offset]

    def adopt(self, state: State) -> None:
        """Keeps the payloads that the state references after a restart and removes all others."""
        wanted = count_references(state)
        for place in wanted:
            if place not in self._bytes:
                raise DanglingPayload(f"the journal speaks of a payload at {place}, which was given up")
        self._bytes = {place: self._bytes[place] for place in wanted}
        self._references = wanted

    def compare(self, state: State) -> None:
        """Checks that the stored payloads are exactly the referenced ones."""
        wanted = count_references(state)
        if wanted != self._references:
            surplus = {place: count for place, count in self._references.items() if wanted.get(place, 0) != count}
            shown = list(surplus.items())[:3]
            raise DanglingPayload(f"{len(self._references)} payloads kept, {len(wanted)} wanted; first differences: {shown}")


def count_references(state: State) -> dict[int, int]:
    counts: dict[int, int] = {}
    for run in state.runs.values():
        payloads: list[Payload] = [spec.code for spec in run.specs]
        for task in run.tasks:
            payloads += (task.payload, task.output)
        for payload in payloads:
            if isinstance(payload, StoredPayload):
                counts[payload.offset] = counts.get(payload.offset, 0) + 1
    return counts
