"""From the journal to the state: recovery is replay."""

from __future__ import annotations

import logging
from typing import Any

from pilotfish.core import salvage
from pilotfish.core.apply import apply
from pilotfish.core.state import State
from pilotfish.model.facts import decode_record
from pilotfish.model.task import Stored
from pilotfish.store.recovery import Recovery

log = logging.getLogger("pilotfish.journal")


def replay(recovery: Recovery) -> State:
    """Apply every record. After a hole, go on with what can still be believed, and say so."""
    state = State()
    troubles = recovery.salvage
    unusable = 0
    holes = False
    for record in recovery:
        turn = decode_record(record)
        holes = holes or bool(troubles.gaps or troubles.damages)
        for fact in turn.facts:
            if not holes:
                apply(state, fact, turn.at)
            elif not salvage.apply_mended(state, fact, turn.at):
                unusable += 1
    if holes or troubles.gaps or troubles.damages:
        salvage.settle(state, state.at)
        log.error("the journal is damaged: %s %s; %d facts after that could not be used", troubles.damages, troubles.gaps, unusable)
    if troubles.cut is not None:
        log.warning("an unfinished write at the end of the journal was cut off: %s", troubles.cut)
    return state


def stored_payloads(state: State) -> list[Stored]:
    """Every reference to the payload store in the state."""
    found: list[Any] = []
    for run in state.runs.values():
        found.extend(spec.code for spec in run.specs)
        for task in run.tasks:
            if type(task.payload) is not bytes or type(task.output) is not bytes:
                found.extend((task.payload, task.output))
    return [payload for payload in found if isinstance(payload, Stored)]
