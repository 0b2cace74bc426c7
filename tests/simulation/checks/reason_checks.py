"""Checks that every waiting task has a true reason."""

from __future__ import annotations

from pilotfish.core.data.replicas import can_get_inputs
from pilotfish.core.explain import task_reasons
from pilotfish.core.machine import Machine
from pilotfish.core.state import Task, TaskShape, Worker
from pilotfish.model.states import DONE, DRAINING, READY
from pilotfish.policies.multi_node_placement import SOON_S


class Unexplained(AssertionError):
    """A task waits without a reason: a bug."""


def check_explanations(machine: Machine) -> None:
    for run in machine.state.runs.values():
        for task in run.tasks:
            if task.state < DONE:
                answer = task_reasons.explain_task(machine, task)
                if not answer["reasons"] or not all(reason["code"] and reason["text"] for reason in answer["reasons"]):
                    raise Unexplained(f"{task} waits without a reason: {answer}")
                if task.state == READY and answer["reasons"][0]["code"] == "busy" and task.shape.nodes == 1:
                    _check_busy(machine, task.shape)


def _check_busy(machine: Machine, shape: TaskShape) -> None:
    """Checks the reason "busy workers": at least one worker must be busy or leaving."""
    leaving = any(worker.state == DRAINING for worker in machine.state.workers.values())
    if not leaving and not any(worker.held for worker in machine.state.workers.values()) and not machine.state.suspects:
        raise Unexplained(f"{next(iter(shape.queue))} is said to wait for busy workers, but none is")


def check_idle_capacity(machine: Machine) -> None:
    """Checks that no connected worker has room for a waiting task after the policy has run.

    One worker may be reserved for suspects, one for each shape that fits nowhere at the moment, and some for multi-node tasks.
    """
    state = machine.state
    if machine.journal_full:
        return
    workers = [worker for worker in machine._policy_view().workers if not any(task.suspect for task in worker.active)]
    suspects = [task for task in state.suspects if not task.shape.run.paused]
    placeable = [task for task in suspects if any(could_take(machine, worker, task.shape) for worker in workers)]
    for worker in workers:
        if placeable and not worker.held and all(could_take(machine, worker, task.shape) for task in placeable):
            raise Unexplained(f"{worker} is empty, and {placeable[0]}, which must run alone, waits")
    idle = [worker for worker in workers if _leaves_room(machine, worker) and not _is_looked_at_soon(machine, worker)]
    kept = (1 if placeable else 0) + sum(shape.nodes for shape in state.ready if shape.nodes > 1 and not shape.run.paused)
    large = _large_shapes(machine, workers, kept)
    if len(idle) > kept + large:
        raise Unexplained(f"{idle} have room for tasks in the queue; {len(placeable)} suspects and {large} large shapes wait")


def _large_shapes(machine: Machine, workers: list[Worker], kept: int) -> int:
    """Returns the number of shapes for which a worker may be reserved, because they fit only where room is reserved for others."""
    count = 0
    shapes = [shape for shape in machine.state.ready if not shape.run.paused and shape.nodes == 1]
    for shape in sorted(shapes, key=lambda shape: (-shape.priority, next(iter(shape.queue)).id)):
        able = [worker for worker in workers if could_take(machine, worker, shape)]
        if able and sum(worker.fits(shape.needs) for worker in able) <= kept + count:
            count += 1
    return count


def _leaves_room(machine: Machine, worker: Worker) -> bool:
    """Returns whether a ready task fits this worker now, does not avoid it, and can get its contents here."""
    for shape in machine.state.ready:
        if not shape.run.paused and shape.nodes == 1 and worker.fits(shape.needs) and could_take(machine, worker, shape):
            if any(_may_go(machine, task, worker) for task in shape.queue):
                return True
    return False


def _is_looked_at_soon(machine: Machine, worker: Worker) -> bool:
    """Returns whether resources next to a multi-node task will be assigned in the next turn."""
    soon = machine.deadline is None or machine.deadline <= machine.now + SOON_S
    return soon and any(task.shape.nodes > 1 for task in worker.active)


def _may_go(machine: Machine, task: Task, worker: Worker) -> bool:
    shunned = task.failure_counts is not None and task.failure_counts.avoid == worker.id
    return not shunned and can_get_inputs(machine.state, task, worker.site)


def could_take(machine: Machine, worker: Worker, shape: TaskShape) -> bool:
    in_time = worker.has_time(shape, machine.now)
    return in_time and worker.could_fit(shape.needs) and all(worker.tags.get(name) == value for name, value in shape.tags)
