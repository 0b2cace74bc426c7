"""The small steps that ``apply`` is made of: a task changes state, enters or leaves a queue, takes or frees room at a worker."""

from __future__ import annotations

from collections import OrderedDict

from pilotfish.core.state import Needs, Shape, State, Task, Worker
from pilotfish.model.states import TASK_STATES, TASK_STEPS, step


def move(task: Task, new: int) -> None:
    old = task.state
    task.state = step(TASK_STEPS, TASK_STATES, old, new, task)
    counts = task.shape.run.counts
    counts[old] -= 1
    counts[new] += 1


def enqueue(state: State, task: Task, front: bool = False) -> None:
    if task.suspect:
        state.suspects[task] = None
        return
    queue = task.shape.queue
    if not queue:
        state.ready[task.shape] = None
    queue[task] = None
    if task.contents:
        for record in task.contents:
            task.shape.wanting.setdefault(record, OrderedDict())[task] = None
    if front:
        queue.move_to_end(task, last=False)


def dequeue(state: State, task: Task) -> None:
    if task.suspect:
        state.suspects.pop(task, None)
        return
    shape = task.shape
    shape.queue.pop(task, None)
    if task.contents:
        _no_longer_wanting(shape, task)
    if not shape.queue:
        state.ready.pop(shape, None)


def _no_longer_wanting(shape: Shape, task: Task) -> None:
    for record in task.contents:
        wanting = shape.wanting.get(record)
        if wanting is not None and wanting.pop(task, task) is None and not wanting:
            del shape.wanting[record]


def release(worker: Worker, task: Task) -> None:
    """The worker no longer holds the task: give its room to what waits there."""
    worker.recalled.pop(task, None)
    worker.lent.pop(task, None)
    task.worker = None
    needs = worker.active.pop(task, None)
    if needs is None:
        worker.ahead.pop(task, None)
        return
    ahead = worker.ahead
    if ahead:
        first = next(iter(ahead))
        if ahead[first] is needs:
            # The usual case, like after like: the room goes from hand to hand without being counted.
            del ahead[first]
            worker.active[first] = needs
            return
    free = worker.free
    for name, amount in needs:
        free[name] += amount
    while ahead:
        first = next(iter(ahead))
        if not worker.fits(ahead[first]):
            break
        occupy(worker, first, ahead.pop(first))


def occupy(worker: Worker, task: Task, needs: Needs) -> None:
    worker.active[task] = needs
    free = worker.free
    for name, amount in needs:
        free[name] -= amount
