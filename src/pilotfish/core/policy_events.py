"""Defines the events that a listening policy receives, and derives them from facts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pilotfish.model import facts as f
from pilotfish.model.ids import INDEX_BITS

WORKER_JOINED, WORKER_DRAINING, WORKER_LEFT, WORKER_LOST = "worker-joined", "worker-draining", "worker-left", "worker-lost"
WORKER_QUARANTINED, WORKER_RELEASED = "worker-quarantined", "worker-released"
TASK_ADDED, TASK_ASSIGNED, TASK_STARTED, TASK_RETURNED = "task-added", "task-assigned", "task-started", "task-returned"
ATTEMPT_FAILED, TASK_DONE, TASK_FAILED, TASK_CANCELLED = "attempt-failed", "task-done", "task-failed", "task-cancelled"
RUN_CANCELLED = "run-cancelled"
EVENT_KINDS = (
    *(WORKER_JOINED, WORKER_DRAINING, WORKER_QUARANTINED, WORKER_RELEASED, WORKER_LEFT, WORKER_LOST),
    *(TASK_ADDED, TASK_ASSIGNED, TASK_STARTED, TASK_RETURNED, ATTEMPT_FAILED, TASK_DONE, TASK_FAILED, TASK_CANCELLED, RUN_CANCELLED),
)


class PolicyEvent(NamedTuple):
    """One event of a worker, a task or a run. ``kind`` says what happened. These kinds need an explanation:

    * ``task-added``: a client added the task, or a user reruns it.
    * ``task-returned``: the task is ready again, and no failure is counted.
    * ``attempt-failed``: an attempt failed, and the task continues with another attempt.
    * ``task-failed``: the task has failed for good, or cannot run because a task that it needs has failed.
    * ``run-cancelled``: all unfinished tasks of the run are cancelled. The single tasks have no events of their own.
    """

    kind: str
    worker: str = ""
    task: int = 0
    """Task id, as in ``Task.id``."""
    run: int = 0
    reason: str = ""
    cause: str = ""
    """Cause of a failure, in one word."""


_TASK_EVENTS: dict[type[f.Fact], str] = {
    f.TasksAssigned: TASK_ASSIGNED,
    f.TasksDelegated: TASK_ASSIGNED,
    f.TasksStarted: TASK_STARTED,
    f.TasksDone: TASK_DONE,
    f.TasksReused: TASK_DONE,
    f.TasksReturned: TASK_RETURNED,
    f.TasksCancelled: TASK_CANCELLED,
    f.TasksSkipped: TASK_FAILED,
    f.TasksRerun: TASK_ADDED,
}


def events_of(facts: Iterable[f.Fact]) -> list[PolicyEvent]:
    """Returns the events of these facts, in the same order. Facts about sites, pilots and files have no events."""
    events: list[PolicyEvent] = []
    for fact in facts:
        kind = _TASK_EVENTS.get(type(fact))
        if kind is not None:
            worker, reason = getattr(fact, "worker", ""), getattr(fact, "reason", "")
            cause = fact.failure.cause if isinstance(fact, f.TasksSkipped) else ""
            tasks: list[int] = getattr(fact, "tasks", [])
            events += [PolicyEvent(kind, worker, task, task >> INDEX_BITS, reason, cause) for task in tasks]
        elif isinstance(fact, f.TasksAdded):
            first = (fact.run << INDEX_BITS) + fact.first
            events += [PolicyEvent(TASK_ADDED, task=first + place, run=fact.run) for place in range(len(fact.specs))]
        elif isinstance(fact, f.AttemptFailed):
            failure = fact.failure
            kind = TASK_FAILED if fact.final else ATTEMPT_FAILED
            events.append(PolicyEvent(kind, fact.worker, fact.task, fact.task >> INDEX_BITS, failure.message, failure.cause))
        elif isinstance(fact, f.RunCancelled):
            events.append(PolicyEvent(RUN_CANCELLED, run=fact.run, reason=fact.reason))
        elif isinstance(fact, f.WorkerJoined):
            events.append(PolicyEvent(WORKER_JOINED, fact.worker))
        elif isinstance(fact, f.WorkerDraining):
            events.append(PolicyEvent(WORKER_DRAINING, fact.worker, reason=fact.reason))
        elif isinstance(fact, f.WorkerQuarantined):
            events.append(PolicyEvent(WORKER_QUARANTINED if fact.until else WORKER_RELEASED, fact.worker, reason=fact.reason))
        elif isinstance(fact, f.WorkerEnded):
            events.append(PolicyEvent(WORKER_LOST if fact.lost else WORKER_LEFT, fact.worker, reason=fact.reason))
    return events
