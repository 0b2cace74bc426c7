"""Rebuilds the state from the journal, and writes the state to the journal as a snapshot."""

from __future__ import annotations

import logging
import os
import stat
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from pilotfish.core import damaged_replay, state_snapshot
from pilotfish.core.apply import apply
from pilotfish.core.state import State
from pilotfish.errors import JournalError
from pilotfish.model.facts import AnyFact, Restored, TurnRecord, decode_record, encode_record
from pilotfish.model.task import StoredPayload
from pilotfish.store.journal.journal_reader import JournalReader
from pilotfish.store.journal.journal_writer import Journal

log = logging.getLogger("pilotfish.journal")

OnFact = Callable[[State, AnyFact, float], None]
MIN_BYTES = 64 * 1024 * 1024
GROWTH = 3
"""Ratio of journal size to snapshot size above which the journal is compacted."""


def replay(recovery: JournalReader, on_fact: OnFact | None = None) -> State:
    """Applies all records of a journal and returns the state. ``on_fact`` is called after each fact.

    If the journal is damaged, applies the facts that can still be applied, and logs the number of the other facts.
    """
    state = State()
    damage = recovery.damage_report
    unusable = 0
    damaged = False
    for record in recovery:
        turn = _decode(record)
        damaged = damaged or bool(damage.gaps or damage.damages)
        for fact in turn.facts:
            if not damaged:
                _apply(state, fact, turn.at)
            elif not damaged_replay.apply_repaired(state, fact, turn.at):
                unusable += 1
                continue
            if on_fact is not None:
                on_fact(state, fact, turn.at)
    if damaged or damage.gaps or damage.damages:
        damaged_replay.settle(state, state.at)
        log.error("the journal is damaged: %s %s; %d facts after that could not be used", damage.damages, damage.gaps, unusable)
    if damage.cut is not None:
        log.warning("an unfinished write at the end of the journal was cut off: %s", damage.cut)
    return state


def _decode(record: bytes) -> TurnRecord:
    try:
        return decode_record(record)
    except msgspec.ValidationError as problem:
        raise _of_another_version(problem) from problem


def _apply(state: State, fact: AnyFact, at: float) -> None:
    try:
        apply(state, fact, at)
    except (ValueError, TypeError) as problem:
        if isinstance(fact, Restored):  # Rows of a snapshot have no field names. Another version may have other fields.
            raise _of_another_version(problem) from problem
        raise


def _of_another_version(problem: Exception) -> JournalError:
    text = f"the pool's journal was written by another version of Pilotfish ({problem})"
    return JournalError(text, "Go on with that version, or begin a new pool: pilotfish run --pool NEW ...")


def stored_payloads(state: State) -> list[StoredPayload]:
    """Returns every reference to the payload store in the state."""
    found: list[Any] = []
    for run in state.runs.values():
        found.extend(spec.code for spec in run.specs)
        for task in run.tasks:
            if type(task.payload) is not bytes or type(task.output) is not bytes:
                found.extend((task.payload, task.output))
    return [payload for payload in found if isinstance(payload, StoredPayload)]


class Compaction:
    """Writes a snapshot from a forked child, so that the journal does not grow without limit.

    The child has the state as it was at the fork. The master continues without locks or pauses.
    """

    def __init__(self, journal: Journal, state: State) -> None:
        self.overdue = False
        """Whether to write a snapshot at once, because the journal is damaged and only a snapshot repairs it."""
        self._journal = journal
        self._state = state
        self._child = 0
        self._writer: Any = None

    def compact_if_due(self, now: float) -> None:
        if self._child:
            self._collect(os.WNOHANG)
        elif self.overdue or self._journal.size_bytes > max(MIN_BYTES, GROWTH * self._journal.snapshot_bytes):
            self._begin(now)

    def _begin(self, now: float) -> None:
        self._writer = self._journal.begin_snapshot()
        self._child = os.fork()
        if self._child == 0:
            status = 1
            try:
                _close_sockets()
                for fact in state_snapshot.dump(self._state):
                    self._writer.write([encode_record(TurnRecord(now, [fact]))])
                self._writer.commit()
                status = 0
            except BaseException:  # noqa: BLE001 - the child must end here after any error
                traceback.print_exc()
            finally:
                os._exit(status)

    def _collect(self, options: int) -> None:
        pid, status = os.waitpid(self._child, options)
        if not pid:
            return
        self._child = 0
        if status == 0:
            self._journal.finish_snapshot(self._writer)
            self.overdue = False
        else:
            self._journal.abandon_snapshot(self._writer)

    def end(self) -> None:
        if self._child:
            self._collect(0)


def _close_sockets() -> None:
    """Closes inherited sockets. If the master died before its child, clients would wait at a port that nobody serves."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.close(int(name))
