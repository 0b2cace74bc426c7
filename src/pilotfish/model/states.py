"""Lifecycles as tables. Nothing in the system changes a state but through ``step``, which refuses what is not listed here."""

from __future__ import annotations

from pilotfish.errors import IllegalTransition

WAITING, READY, ASSIGNED, RUNNING, DONE, FAILED, CANCELLED = range(7)
TASK_STATES = ("waiting", "ready", "assigned", "running", "done", "failed", "cancelled")
TASK_MEANING = {
    "waiting": "the task waits for other tasks",
    "ready": "the task can start when a worker has free resources",
    "assigned": "the task was sent to a worker, which has not reported yet that the task runs",
    "running": "the worker has reported that the task runs",
    "done": "the task succeeded, and its result is stored",
    "failed": "the task failed and has no retries left; the cause of the failure is stored",
    "cancelled": "a user or a rule cancelled the task",
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
    "joined": "the worker accepts tasks; it can be idle or busy",
    "draining": "the worker finishes its tasks and accepts no more tasks",
    "left": "the worker left the pool by itself or was released",
    "lost": "the worker died or became silent; its tasks run on other workers",
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
    "requested": "the pilot is recorded, but not yet submitted",
    "submitted": "the site has accepted the pilot",
    "active": "the agent of the pilot has joined the pool",
    "ending": "the pilot is being cancelled or released",
    "ended": "the pilot is no longer at the site",
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
