"""Rebuilds the state from the journal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from pilotfish.core import damaged_replay
from pilotfish.core.apply import apply
from pilotfish.core.state import State
from pilotfish.errors import JournalError
from pilotfish.model.facts import AnyFact, Restored, TurnRecord, decode_record
from pilotfish.model.task import StoredPayload
from pilotfish.store.journal.journal_reader import JournalReader

log = logging.getLogger("pilotfish.journal")


OnFact = Callable[[State, AnyFact, float], None]


def replay(recovery: JournalReader, on_fact: OnFact | None = None) -> State:
    """Applies every record and returns the state. ``on_fact`` is called after each fact.

    After damage, replay continues with the facts that can still be applied, and logs how many could not.
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
        if isinstance(fact, Restored):  # rows of a snapshot have no field names, so another version may have other fields
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
