"""Applies concurrency limits. A limit has a maximum: of all tasks of a run that have this limit, at most this number is ready or running at
the same time.

A task with a limit stays in the state *waiting* until the limit admits it. From then on, the task counts for the limit until it ends, even
while it waits for a retry. Policies see only admitted tasks, so they need no rule about limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from pilotfish.core.state import ConcurrencyLimit, Run, Task
from pilotfish.model.ids import INDEX_MASK
from pilotfish.model.states import DONE, READY, WAITING


def admit(run: Run, task: Task) -> bool:
    """Applies the limit of a task whose dependencies are done. If the maximum is not reached, counts the task and returns True. Otherwise,
    queues the task at the limit and returns False. Always returns True for a task without a limit."""
    name, most = run.specs[task.spec].concurrency_limit
    if not name:
        return True
    limit = run.limits.setdefault(name, ConcurrencyLimit())
    if limit.admitted >= most:
        _enqueue(run, task)
        return False
    limit.admitted += 1
    return True


def admit_anyway(run: Run, task: Task) -> None:
    """Counts a task even if its limit is reached, because the task was admitted earlier."""
    name, _ = run.specs[task.spec].concurrency_limit
    if name:
        run.limits.setdefault(name, ConcurrencyLimit()).admitted += 1


def leave(run: Run, task: Task) -> Iterator[Task]:
    """Stops counting a task that has ended. Yields the waiting tasks that the limit can now admit, tasks with a larger priority first."""
    limit = run.limits.get(run.specs[task.spec].concurrency_limit[0])
    if limit is None:
        return
    limit.admitted -= 1
    while limit.waiting:
        other = run.tasks[limit.waiting[0][1]]
        if other.state == WAITING and limit.admitted >= run.specs[other.spec].concurrency_limit[1]:
            return
        heappop(limit.waiting)
        if other.state == WAITING:  # a task in another state was cancelled or skipped
            limit.admitted += 1
            yield other


def forget_ended(run: Run) -> None:
    """Removes tasks that were cancelled or skipped while they waited for a limit. A rerun can queue these tasks again."""
    for limit in run.limits.values():
        limit.waiting = [entry for entry in limit.waiting if run.tasks[entry[1]].state == WAITING]
        heapify(limit.waiting)


def restore(run: Run, task: Task) -> None:
    """Counts or queues a task of a snapshot, because a snapshot contains neither the counts nor the queues."""
    if READY <= task.state < DONE:
        admit_anyway(run, task)
    elif task.state == WAITING and not task.waits_for:
        _enqueue(run, task)


def _enqueue(run: Run, task: Task) -> None:
    spec = run.specs[task.spec]
    limit = run.limits.setdefault(spec.concurrency_limit[0], ConcurrencyLimit())
    heappush(limit.waiting, (-spec.priority, task.id & INDEX_MASK))
