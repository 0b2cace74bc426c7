"""Checks every invariant of the state after each step. It reads everything."""

from __future__ import annotations

import hashlib

import msgspec

from pilotfish.core import state_snapshot
from pilotfish.core.state import SUPERSEDED, Run, State, Task, Worker
from pilotfish.core.tasks.fair_share import cores_of
from pilotfish.model.ids import task_id
from pilotfish.model.states import ASSIGNED, DONE, READY, RUNNING, TASK_STATES, WAITING
from pilotfish.model.task import CORES


class InvariantViolation(AssertionError):
    """The state breaks an invariant. This is a bug."""


def check(state: State) -> None:
    for run in state.runs.values():
        _check_run(state, run.id)
    for worker in state.workers.values():
        _check_worker(state, worker)
    for task in state.copies:
        _check_copy(state, task)
    for task in state.multi_node_workers:
        _check_multi_node(state, task)
    _check_queues(state)
    _check_contents(state)
    _check_shares(state)
    unfinished = sum(run.unfinished for run in state.runs.values())
    _demand(unfinished == state.unfinished, f"unfinished is {state.unfinished}, counted {unfinished}")


def _demand(condition: bool, text: str) -> None:
    if not condition:
        raise InvariantViolation(text)


def _check_run(state: State, number: int) -> None:
    run = state.runs[number]
    counts = [0] * len(TASK_STATES)
    for index, task in enumerate(run.tasks):
        counts[task.state] += 1
        if task.id != task_id(number, index):
            raise InvariantViolation(f"{task} is at place {index} of run {number}")
        _check_task(state, task)
    _demand(counts == run.counts, f"run {number}: counted {counts}, kept {run.counts}")
    ended = [index for index in run.ended if index != SUPERSEDED]
    _demand(run.superseded == len(run.ended) - len(ended), f"run {number}: {run.superseded} superseded ends are counted")
    _demand(len(set(ended)) == len(ended), f"run {number}: a task ended twice")
    _demand(all(run.tasks[index].state >= DONE for index in ended), f"run {number}: an ended task is not final")
    _demand(len(ended) == sum(counts[DONE:]), f"run {number}: {len(ended)} ended, {sum(counts[DONE:])} final")
    _demand(bool(run.ended_at) == run.finished, f"run {number}: its end is not noted")
    _check_limits(run)
    followers = {index: [child for child, parents in run.after_any.items() if index in parents] for index in run.followers}
    _demand(all(sorted(run.followers[index]) == sorted(children) for index, children in followers.items()), "wrong followers")
    _demand(all(run.tasks[index].state < DONE for index in run.followers), f"run {number}: a task waits for the end of an ended task")


def _check_limits(run: Run) -> None:
    """Check that each limit counts the tasks that may run, and that a task waits for a limit only if the limit is reached."""
    admitted: dict[str, int] = {}
    waiting: dict[str, list[int]] = {}
    for index, task in enumerate(run.tasks):
        name, most = run.specs[task.spec].concurrency_limit
        if name and READY <= task.state < DONE:
            admitted[name] = admitted.get(name, 0) + 1
        elif name and task.state == WAITING and not task.waits_for:
            waiting.setdefault(name, []).append(index)
    for name, limit in run.limits.items():
        _demand(limit.admitted == admitted.get(name, 0), f"limit {name!r} counts {limit.admitted} tasks, counted {admitted.get(name, 0)}")
        queued = sorted(index for _, index in limit.waiting if run.tasks[index].state == WAITING)
        _demand(queued == waiting.get(name, []), f"limit {name!r} keeps {queued} waiting, and {waiting.get(name)} wait")
        head = min(((key, index) for key, index in limit.waiting if index in queued), default=None)
        most = run.specs[run.tasks[head[1]].spec].concurrency_limit[1] if head else 0
        _demand(limit.admitted >= most, f"limit {name!r} keeps tasks waiting without need")
    _demand(admitted.keys() | waiting.keys() <= run.limits.keys(), "a limit is not counted")


def _check_task(state: State, task: Task) -> None:
    problem = _trouble_with(state, task)
    if problem:
        raise InvariantViolation(f"{task} {problem}")


def _trouble_with(state: State, task: Task) -> str:
    """Describe what is wrong with a task; empty if nothing. Texts are made only when needed: tests check every task after each step."""
    worker, failure_counts = task.worker, task.failure_counts
    if (worker is not None) != (task.state in (ASSIGNED, RUNNING)):
        return f"is at worker {worker}"
    if worker is not None:
        if state.workers.get(worker.id) is not worker:
            return f"is at {worker}, which ended"
        if (task in worker.active) + (task in worker.ahead) + (task in worker.delegated) != 1:
            return f"is not held once by {worker}"
        if task.shape.nodes > 1 and task in worker.active and task not in state.multi_node_workers:
            return f"has only {worker}"
    if (task in task.shape.queue) + (task in state.suspects) != (task.state == READY):
        return "is in no queue, or in one too many"
    is_limited = bool(state.spec_of(task).concurrency_limit[0])
    if (task.waits_for > 0) != (task.state == WAITING) and task.state < DONE and not (is_limited and task.state == WAITING):
        return f"waits for {task.waits_for}"
    if failure_counts is not None:
        spec = state.spec_of(task)
        if failure_counts.failures > spec.retries + 1:
            return f"failed {failure_counts.failures} times, {spec.retries} retries"
        if failure_counts.losses + failure_counts.deaths > spec.losses + 1:
            return f"was lost {failure_counts.losses + failure_counts.deaths} times"
    return ""


def _check_copy(state: State, task: Task) -> None:
    copy = state.copies[task]
    _demand(task.worker is not None and state.find_task(task.id) is task, f"{task} runs nowhere, and has a record of two attempts")
    _demand(task.attempt != copy.attempt, f"{task}: two attempts with the number {copy.attempt}")
    if copy.worker is not None:
        _demand(copy.worker is not task.worker, f"{task} is twice at {copy.worker}")
        _demand(task.state == RUNNING and not task.suspect, f"{task} has two attempts")
        _demand(task.attempt < copy.attempt, f"{task}: its copy is older than itself")
        _demand(state.workers.get(copy.worker.id) is copy.worker, f"the copy of {task} is at {copy.worker}, which ended")
        _demand(task in copy.worker.active, f"{copy.worker} does not have its copy of {task}")


def _check_multi_node(state: State, task: Task) -> None:
    workers = state.multi_node_workers[task]
    _demand(task.worker is workers[0] and state.find_task(task.id) is task, f"{task} is at {task.worker}, and was sent to {workers[0]}")
    _demand(len(set(workers)) == len(workers) == task.shape.nodes, f"{task} has {workers}, and wants {task.shape.nodes}")
    _demand(len({worker.pilot for worker in workers}) == 1, f"{task} has workers of several pilots")
    _demand(task not in state.copies and not task.suspect, f"{task} has several workers, and a copy or a bad name")
    for worker in workers:
        _demand(state.workers.get(worker.id) is worker and task in worker.active, f"{worker} has no room for {task}")


def _check_worker(state: State, worker: Worker) -> None:
    used: dict[str, int] = {}
    for needs in worker.active.values():
        for name, amount in needs:
            used[name] = used.get(name, 0) + amount
    for name, capacity in worker.capacity.items():
        free = worker.free[name]
        _demand(0 <= free <= capacity, f"{worker}: {free} of {capacity} {name} free")
        _demand(capacity - free == used.get(name, 0), f"{worker}: {name} does not add up")
    _demand((worker in worker.roomy) == (worker.free.get(CORES, 0) > 0), f"{worker} is not counted among those with room as it should be")
    for task in worker.tasks:
        copy = state.copies.get(task)
        is_here = task.worker is worker or (copy is not None and copy.worker is worker) or worker in state.multi_node_workers.get(task, ())
        _demand(is_here, f"{worker} holds {task}, which is at {task.worker}")
    _demand(all(worker.has(task) for task in worker.started), f"{worker} has started what it does not hold")
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


def _check_shares(state: State) -> None:
    runs = dict.fromkeys(state.runs.values(), 0)
    for worker in state.workers.values():
        for task, needs in worker.active.items():
            runs[task.shape.run] += cores_of(needs)
    shares = {name: [0, 0] for name in state.shares}
    for run, occupied in runs.items():
        _demand(run.occupied == occupied, f"run {run.id} occupies {occupied}, kept {run.occupied}")
        _demand(state.shares.get(run.options.share) is run.account, f"run {run.id} is not charged to its share")
        shares[run.account.name][0] += 1
        shares[run.account.name][1] += occupied
    for name, account in state.shares.items():
        _demand([account.runs, account.occupied] == shares[name], f"share {name!r} does not add up")


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
    _demand(held == holders, f"holders of contents differ: {held ^ holders}")


def fingerprint(state: State) -> str:
    """Hash of the state. Replaying the journal must give the hash of the live state.

    Forecasts are left out: how they condense their history depends on when they were queried.
    """
    digest = hashlib.sha256()
    encode = msgspec.msgpack.Encoder(order="deterministic").encode
    for fact in state_snapshot.dump(state):
        if fact.kind != "forecast":
            digest.update(encode(fact))
    return digest.hexdigest()
