"""Every invariant of the state, in one place. Tests run it after each step; it reads everything, so that the live master does not."""

from __future__ import annotations

import hashlib

import msgspec

from pilotfish.core import snapshot
from pilotfish.core.state import State, Task, Worker
from pilotfish.model.ids import task_id
from pilotfish.model.states import ASSIGNED, DONE, READY, RUNNING, TASK_STATES, WAITING


class Violation(AssertionError):
    """The state is not what it must be: a bug."""


def check(state: State) -> None:
    for run in state.runs.values():
        _check_run(state, run.id)
    for worker in state.workers.values():
        _check_worker(worker)
    _check_queues(state)
    _check_contents(state)
    unfinished = sum(run.unfinished for run in state.runs.values())
    _demand(unfinished == state.unfinished, f"unfinished is {state.unfinished}, counted {unfinished}")


def _demand(condition: bool, text: str) -> None:
    if not condition:
        raise Violation(text)


def _check_run(state: State, number: int) -> None:
    run = state.runs[number]
    counts = [0] * len(TASK_STATES)
    for index, task in enumerate(run.tasks):
        counts[task.state] += 1
        if task.id != task_id(number, index):
            raise Violation(f"{task} is at place {index} of run {number}")
        _check_task(state, task)
    _demand(counts == run.counts, f"run {number}: counted {counts}, kept {run.counts}")
    ended = list(run.ended)
    _demand(len(set(ended)) == len(ended), f"run {number}: a task ended twice")
    _demand(all(run.tasks[index].state >= DONE for index in ended), f"run {number}: an ended task is not final")
    _demand(len(ended) == sum(counts[DONE:]), f"run {number}: {len(ended)} ended, {sum(counts[DONE:])} final")
    _demand(bool(run.ended_at) == run.finished, f"run {number}: its end is not noted")


def _check_task(state: State, task: Task) -> None:
    problem = _trouble_with(state, task)
    if problem:
        raise Violation(f"{task} {problem}")


def _trouble_with(state: State, task: Task) -> str:
    """What is wrong with a task; empty if nothing. Texts are made only when needed, as this runs for every task at every step of a test."""
    worker, troubles = task.worker, task.troubles
    if (worker is not None) != (task.state in (ASSIGNED, RUNNING)):
        return f"is at worker {worker}"
    if worker is not None:
        if state.workers.get(worker.id) is not worker:
            return f"is at {worker}, which is gone"
        if (task in worker.active) + (task in worker.ahead) + (task in worker.lent) != 1:
            return f"is not held once by {worker}"
    if (task in task.shape.queue) + (task in state.suspects) != (task.state == READY):
        return "is in no queue, or in one too many"
    if (task.waits_for > 0) != (task.state == WAITING) and task.state < DONE:
        return f"waits for {task.waits_for}"
    if troubles is not None:
        spec = state.spec_of(task)
        if troubles.failures > spec.retries + 1:
            return f"failed {troubles.failures} times, {spec.retries} retries"
        if troubles.losses + troubles.deaths > spec.losses + 1:
            return f"was lost {troubles.losses + troubles.deaths} times"
    return ""


def _check_worker(worker: Worker) -> None:
    used: dict[str, int] = {}
    for needs in worker.active.values():
        for name, amount in needs:
            used[name] = used.get(name, 0) + amount
    for name, capacity in worker.capacity.items():
        free = worker.free[name]
        _demand(0 <= free <= capacity, f"{worker}: {free} of {capacity} {name} free")
        _demand(capacity - free == used.get(name, 0), f"{worker}: {name} does not add up")
    for task in worker.tasks:
        _demand(task.worker is worker, f"{worker} holds {task}, which is at {task.worker}")
    suspects = [task for task in worker.active if task.suspect]
    _demand(not suspects or worker.held == 1, f"{worker} runs suspect {suspects[:1]} beside others")
    _demand(all(task in worker.ahead or task in worker.active for task in worker.recalled), f"{worker} recalled what it does not hold")


def _check_queues(state: State) -> None:
    for shape in state.ready:
        _demand(bool(shape.queue), "an empty queue is listed as ready")
        _demand(all(task.state == READY and not task.suspect for task in shape.queue), "a queued task is not ready")
    for run in state.runs.values():
        for shape in run.shapes.values():
            _demand(bool(shape.queue) == (shape in state.ready), f"run {run.id}: a queue is not listed as ready")
    _demand(all(task.state == READY and task.suspect for task in state.suspects), "a suspect is not ready")


def _check_contents(state: State) -> None:
    runs: dict[str, int] = {}
    for run in state.runs.values():
        for digest in run.contents:
            runs[digest] = runs.get(digest, 0) + 1
    _demand(
        {digest: record.runs for digest, record in state.contents.items()} == runs, "contents are known that no run needs, or not known"
    )
    held = {(worker.id, record.digest) for worker in state.workers.values() for record in worker.holds}
    holders = {(worker, record.digest) for record in state.contents.values() for worker in record.holders}
    _demand(held == holders, f"who holds what does not agree: {held ^ holders}")


def fingerprint(state: State) -> str:
    """Equal for equal states: replaying the journal must give the fingerprint of the live state."""
    digest = hashlib.sha256()
    encode = msgspec.msgpack.Encoder(order="deterministic").encode
    for fact in snapshot.dump(state):
        digest.update(encode(fact))
    return digest.hexdigest()
