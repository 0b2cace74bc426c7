"""Moves a task between states and queues, and takes or frees room at a worker."""

from __future__ import annotations

from collections import OrderedDict

from pilotfish.core.data import intermediate_files, passed_results
from pilotfish.core.state import Needs, Run, State, Task, Worker
from pilotfish.core.tasks import concurrency_limits
from pilotfish.core.tasks.fair_share import add_occupied, cores_of
from pilotfish.model.ids import INDEX_MASK
from pilotfish.model.states import DONE, READY, TASK_STATES, TASK_STEPS, WAITING, step


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
    task.shape.enqueued += 1
    queue[task] = task.shape.enqueued
    for record in task.contents:
        task.shape.queue_by_content.setdefault(record, OrderedDict())[task] = None
    if front:
        queue.move_to_end(task, last=False)


def dequeue(state: State, task: Task) -> None:
    if task.suspect:
        state.suspects.pop(task, None)
        return
    shape = task.shape
    shape.queue.pop(task, None)
    for record in task.contents:
        queue_by_content = shape.queue_by_content.get(record)
        if queue_by_content is not None and queue_by_content.pop(task, task) is None and not queue_by_content:
            del shape.queue_by_content[record]
    if not shape.queue:
        state.ready.pop(shape, None)


def release(worker: Worker, task: Task) -> None:
    """Removes a task from a worker, and gives its room to prefetched tasks that wait at this worker."""
    worker.recalled.pop(task, None)
    worker.delegated.pop(task, None)
    if worker.started:
        worker.started.pop(task, None)
    task.worker = None
    needs = worker.active.pop(task, None)
    if needs is None:
        worker.ahead.pop(task, None)
        return
    ahead = worker.ahead
    if ahead:
        first = next(iter(ahead))
        if ahead[first] is needs:
            # Usually the next task has equal needs. It then gets the room directly, without counting.
            del ahead[first]
            worker.active[first] = needs
            return
    add_occupied(task.shape.run, -cores_of(needs))
    free = worker.free
    for name, amount in needs:
        free[name] += amount
    while ahead:
        first = next(iter(ahead))
        if not worker.fits(ahead[first]):
            break
        occupy(worker, first, ahead.pop(first))
    worker.count_room()


def end(state: State, task: Task, new: int, at: float) -> None:
    """Moves a task to a final state."""
    old, run = task.state, task.shape.run
    if old == READY:
        dequeue(state, task)
    move(task, new)
    index = task.id & INDEX_MASK
    run.ended.append(index)
    run.end_times[index] = at
    state.unfinished -= 1
    if new == DONE and task.children:
        for child in task.children:
            _dependency_done(state, run.tasks[child])
        task.children = None
    for follower in run.followers.pop(index, ()) if run.followers else ():
        _dependency_done(state, run.tasks[follower])
    if run.awaited_results:
        passed_results.task_ended(state, run, index)
    if run.limits and old != WAITING:
        for other in concurrency_limits.leave(run, task):
            make_ready(state, other)
    if len(run.ended) == len(run.tasks) + run.superseded:
        mark_if_ended(run, at)


def mark_if_ended(run: Run, at: float) -> None:
    if run.finished and not run.ended_at:
        # If a client was killed, the master closes its run some time after the last task ended.
        run.ended_at = run.end_times[run.ended[-1]] if run.incomplete and run.ended else at


def _dependency_done(state: State, task: Task) -> None:
    task.waits_for -= 1
    if task.waits_for == 0 and task.state == WAITING and concurrency_limits.admit(task.shape.run, task):
        make_ready(state, task)


def make_ready(state: State, task: Task) -> None:
    if task.shape.run.expected_files:
        intermediate_files.receive(state, task)
    move(task, READY)
    enqueue(state, task)


def take_away(worker: Worker, task: Task, at: float) -> None:
    """Takes an unfinished task from a worker. If the worker has no other tasks, its idle time begins."""
    release(worker, task)
    if not worker.held:
        worker.progress_at = at


def put_back(state: State, task: Task) -> None:
    """Returns a task to the front of its queue."""
    move(task, READY)
    enqueue(state, task, front=True)


def occupy(worker: Worker, task: Task, needs: Needs) -> None:
    worker.active[task] = needs
    add_occupied(task.shape.run, cores_of(needs))
    free = worker.free
    for name, amount in needs:
        free[name] -= amount
    worker.count_room()
