"""Lifecycles as tables. Nothing in the system changes a state but through ``step``, which refuses what is not listed here."""

from __future__ import annotations

from pilotfish.errors import IllegalTransition

WAITING, READY, ASSIGNED, RUNNING, DONE, FAILED, CANCELLED = range(7)
TASK_STATES = ("waiting", "ready", "assigned", "running", "done", "failed", "cancelled")
TASK_MEANING = {
    "waiting": "other tasks must end first",
    "ready": "may start as soon as a worker has room",
    "assigned": "sent to a worker, not seen running yet",
    "running": "a worker says that it runs",
    "done": "ended well; its result is kept",
    "failed": "ended badly, its retries used up; its cause is kept",
    "cancelled": "ended because somebody asked",
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
    "joined": "takes tasks (idle or busy)",
    "draining": "finishes what it has and takes no more",
    "left": "said goodbye or was retired",
    "lost": "died or fell silent; its tasks run elsewhere",
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
    "requested": "decided and written down; not yet handed to the site",
    "submitted": "the site accepted it",
    "active": "its agent joined",
    "ending": "asked to stop",
    "ended": "gone from the site",
}
PILOT_STEPS: dict[int, tuple[int, ...]] = {
    REQUESTED: (SUBMITTED, ACTIVE, ENDING, ENDED),
    SUBMITTED: (ACTIVE, ENDING, ENDED),
    ACTIVE: (ENDING, ENDED),
    ENDING: (ENDED,),
    ENDED: (),
}


def step(table: dict[int, tuple[int, ...]], names: tuple[str, ...], old: int, new: int, who: object) -> int:
    """The new state, if the table allows the step."""
    if new not in table[old]:
        raise IllegalTransition(f"{who}: {names[old]} -> {names[new]} is not a legal step")
    return new
