"""How tasks are lent to a site's master, and become those of a worker of its site."""

from __future__ import annotations

from pilotfish.core.moves import dequeue, move, occupy
from pilotfish.core.state import State
from pilotfish.model import facts as f
from pilotfish.model.states import ASSIGNED, RUNNING


def lent(state: State, fact: f.TasksLent, at: float) -> None:
    lender = state.workers[fact.worker]
    for number in fact.tasks:
        task = state.task(number)
        dequeue(state, task)
        move(task, ASSIGNED)
        task.attempt += 1
        task.worker = lender
        lender.lent[task] = None
        run = task.shape.run
        run.attempts += 1
        if not run.first_started_at:
            run.first_started_at = at


def claimed(state: State, fact: f.TasksClaimed, at: float) -> None:
    worker = state.workers[fact.worker]
    if not worker.held:
        worker.progress_at = at
    for number in fact.tasks:
        task = state.task(number)
        assert task.worker is not None and task in task.worker.lent, task
        del task.worker.lent[task]
        task.worker = worker
        needs = task.shape.needs
        if worker.fits(needs):
            occupy(worker, task, needs)
            move(task, RUNNING)  # as far as anybody will tell
        else:
            worker.ahead[task] = needs
