"""Keeps two attempts of one task. The first result counts.

The fields of the task describe the first attempt: its worker and its attempt number. The copy is a ``SpeculativeCopy`` in ``State.copies``,
with its own worker and attempt number. When one of the two attempts ends without a result, the fields of the task describe the remaining
attempt. The ``SpeculativeCopy`` stays until the task is queued again or ends. While it exists, the task gets no further copy. So no attempt
number is used twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from pilotfish.core.state import Needs, SpeculativeCopy, State, Task, Worker
from pilotfish.core.tasks.transitions import move, occupy, take_away
from pilotfish.model import facts as f
from pilotfish.model.states import ASSIGNED


def attempts(state: State, task: Task) -> Iterator[tuple[Worker, int]]:
    """Yields the workers that have an attempt of the task, each with the attempt number."""
    if task.worker is not None:
        yield task.worker, task.attempt
    copy = state.copies.get(task)
    if copy is not None and copy.worker is not None:
        yield copy.worker, copy.attempt


def attempt_at(state: State, worker: Worker, task: Task) -> int:
    """Returns the number of the attempt at this worker; 0 if there is none."""
    return next((number for holder, number in attempts(state, task) if holder is worker), 0)


def has_copy(state: State, task: Task) -> bool:
    copy = state.copies.get(task)
    return copy is not None and copy.worker is not None


def is_reported_running(worker: Worker, task: Task) -> bool:
    """Returns whether this worker reported that its attempt of the task runs. The state of the task shows this only for the first attempt,
    not for a copy."""
    return task in worker.started if task.worker is not worker else task.state > ASSIGNED


def needs_at(worker: Worker, task: Task) -> Needs:
    """Returns the room that the attempt at this worker occupies. A copy gets as much room as the first attempt."""
    return worker.active.get(task, task.shape.needs)


# --- how facts change it ----------------------------------------------------------------------------------------------------------


def duplicated(state: State, fact: f.TasksDuplicated, at: float) -> None:
    worker = state.workers[fact.worker]
    if not worker.held:
        worker.progress_at = at
    for number in fact.tasks:
        task = state.task(number)
        assert task.worker is not None and task.worker is not worker, task
        occupy(worker, task, needs_at(task.worker, task))
        state.copies[task] = SpeculativeCopy(worker, task.attempt + 1)
        task.shape.run.attempts += 1


def keep_winner(state: State, worker: Worker, task: Task, at: float) -> None:
    """Keeps the attempt at this worker, because this attempt has the result, and drops the other attempt."""
    for other, _ in list(attempts(state, task)):
        if other is not worker:
            _drop_attempt(state, other, task, at)
    state.copies.pop(task, None)


def end_attempt(state: State, worker: Worker, task: Task, at: float) -> bool:
    """Removes the attempt at this worker, which ended without a result. Returns whether a second attempt continues."""
    if has_copy(state, task):
        _drop_attempt(state, worker, task, at)
        return True
    copy = state.copies.pop(task, None)
    if copy is not None:
        task.attempt = max(task.attempt, copy.attempt)
    return False


def _drop_attempt(state: State, worker: Worker, task: Task, at: float) -> None:
    copy, first = state.copies[task], task.worker
    take_away(worker, task, at)
    if worker is first:
        assert copy.worker is not None, task
        task.worker = copy.worker
        task.attempt, copy.attempt = copy.attempt, task.attempt
        if task not in copy.worker.started:
            move(task, ASSIGNED)
    else:
        task.worker = first
    copy.worker = None
