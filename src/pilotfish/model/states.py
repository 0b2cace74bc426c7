"""Defines lifecycles as tables. Every change of a state goes through ``step``, which refuses changes that are not in the tables."""

from __future__ import annotations

from pilotfish.errors import IllegalTransition

WAITING, READY, ASSIGNED, RUNNING, DONE, FAILED, CANCELLED = range(7)
TASK_STATES = ("waiting", "ready", "assigned", "running", "done", "failed", "cancelled")
TASK_STEPS: dict[int, tuple[int, ...]] = {
    WAITING: (READY, DONE, FAILED, CANCELLED),
    READY: (ASSIGNED, DONE, CANCELLED, FAILED),
    ASSIGNED: (RUNNING, READY, DONE, FAILED, CANCELLED),
    RUNNING: (ASSIGNED, READY, DONE, FAILED, CANCELLED),
    DONE: (),
    FAILED: (WAITING, READY),
    CANCELLED: (WAITING, READY),
}

JOINED, DRAINING, LEFT, LOST = range(4)
WORKER_STATES = ("joined", "draining", "left", "lost")
WORKER_STEPS: dict[int, tuple[int, ...]] = {JOINED: (DRAINING, LEFT, LOST), DRAINING: (LEFT, LOST), LEFT: (), LOST: ()}

REQUESTED, SUBMITTED, ACTIVE, ENDING, ENDED = range(5)
PILOT_STATES = ("requested", "submitted", "active", "ending", "ended")
PILOT_STEPS: dict[int, tuple[int, ...]] = {
    REQUESTED: (SUBMITTED, ACTIVE, ENDING, ENDED),
    SUBMITTED: (ACTIVE, ENDING, ENDED),
    ACTIVE: (ENDING, ENDED),
    ENDING: (ENDED,),
    ENDED: (),
}


def step(table: dict[int, tuple[int, ...]], names: tuple[str, ...], old: int, new: int, item: object) -> int:
    """Returns the new state. Raises IllegalTransition if the table does not allow the change."""
    if new not in table[old]:
        raise IllegalTransition(f"{item}: {names[old]} -> {names[new]} is not a legal step")
    return new
