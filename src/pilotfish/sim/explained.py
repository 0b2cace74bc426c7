"""Whoever waits has a reason, and the reason is true."""

from __future__ import annotations

from pilotfish.core import explain
from pilotfish.core.machine import Machine
from pilotfish.core.state import Shape, Worker
from pilotfish.model.states import DONE, READY


class Unexplained(AssertionError):
    """A task waits and nobody can say why: a bug."""


def check_explanations(machine: Machine) -> None:
    for run in machine.state.runs.values():
        for task in run.tasks:
            if task.state < DONE:
                answer = explain.task(machine, task)
                if not answer["reasons"] or not all(reason["code"] and reason["text"] for reason in answer["reasons"]):
                    raise Unexplained(f"{task} waits without a reason: {answer}")
                if task.state == READY and answer["reasons"][0]["code"] == "busy":
                    _check_busy(machine, task.shape)


def _check_busy(machine: Machine, shape: Shape) -> None:
    """Said to be waiting for busy workers: are there any that could take it?"""
    if not any(worker.held for worker in machine.state.workers.values()) and not machine.state.suspects:
        raise Unexplained(f"{next(iter(shape.queue))} is said to wait for busy workers, but none is")


def check_idle_capacity(machine: Machine) -> None:
    """No worker that can be reached has room for a ready task, once the policy had its turn."""
    state = machine.state
    if machine.space_full or any(not task.shape.run.paused for task in state.suspects):
        return
    for worker in machine._outlook().workers:
        if any(task.suspect for task in worker.active):
            continue
        for shape in state.ready:
            if not shape.run.paused and worker.fits(shape.needs) and _suits(machine, worker, shape):
                takers = [task for task in shape.queue if task.troubles is None or task.troubles.avoid != worker.id]
                if takers:
                    raise Unexplained(f"{worker} has room for {takers[0]}, which stays in the queue")


def _suits(machine: Machine, worker: Worker, shape: Shape) -> bool:
    in_time = worker.ends_at is None or machine.now + shape.time_s <= worker.ends_at
    return in_time and all(worker.tags.get(name) == value for name, value in shape.tags)
