"""Lifecycles as tables. Nothing in the system changes a state but through ``step``, which refuses what is not listed here."""

from __future__ import annotations

from pilotfish.errors import IllegalTransition

WAITING, READY, ASSIGNED, RUNNING, DONE, FAILED, CANCELLED = range(7)
TASK_STATES = ("waiting", "ready", "assigned", "running", "done", "failed", "cancelled")
TASK_MEANING = {
    "waiting": "waits for other tasks",
    "ready": "can start when a worker has free resources",
    "assigned": "sent to a worker, not yet reported as running",
    "running": "reported as running by its worker",
    "done": "succeeded; its result is stored",
    "failed": "failed, with no retries left; its cause is stored",
    "cancelled": "cancelled by a user or a rule",
}
TASK_STEPS: dict[int, tuple[int, ...]] = {
    WAITING: (READY, FAILED, CANCELLED),
    READY: (ASSIGNED, CANCELLED, FAILED),
    ASSIGNED: (RUNNING, READY, DONE, FAILED, CANCELLED),
    RUNNING: (ASSIGNED, READY, DONE, FAILED, CANCELLED),
    DONE: (),
    FAILED: (),
    CANCELLED: (),
}

JOINED, DRAINING, LEFT, LOST = range(4)
WORKER_STATES = ("joined", "draining", "left", "lost")
WORKER_MEANING = {
    "joined": "accepts tasks (idle or busy)",
    "draining": "finishes its tasks and accepts no more",
    "left": "left or was released",
    "lost": "died or became silent; its tasks run elsewhere",
}
WORKER_STEPS: dict[int, tuple[int, ...]] = {
    JOINED: (DRAINING, LEFT, LOST),
    DRAINING: (LEFT, LOST),
    LEFT: (),
    LOST: (),
}

REQUESTED, SUBMITTED, ACTIVE, ENDING, ENDED = range(5)
PILOT_STATES = ("requested", "submitted", "active", "ending", "ended")
PILOT_MEANING = {
    "requested": "recorded, not yet submitted",
    "submitted": "accepted by the site",
    "active": "its agent joined",
    "ending": "being cancelled or released",
    "ended": "no longer at the site",
}
PILOT_STEPS: dict[int, tuple[int, ...]] = {
    REQUESTED: (SUBMITTED, ACTIVE, ENDING, ENDED),
    SUBMITTED: (ACTIVE, ENDING, ENDED),
    ACTIVE: (ENDING, ENDED),
    ENDING: (ENDED,),
    ENDED: (),
}


def step(table: dict[int, tuple[int, ...]], names: tuple[str, ...], old: int, new: int, item: object) -> int:
    """The new state, if the table allows the step."""
    if new not in table[old]:
        raise IllegalTransition(f"{item}: {names[old]} -> {names[new]} is not a legal step")
    return new
