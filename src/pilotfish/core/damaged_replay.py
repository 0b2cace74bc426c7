"""Replays a journal in which records are lost, and keeps what later records prove.

A fact after a lost record may need facts that were lost. These needed facts are applied before it. Parts of a fact that contradict the
state are left out. If the result of a task was kept, the task is done, even if other records about it were lost. If the description of a
task was lost, the task is listed as failed, so that the user learns of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from pilotfish.core.apply import apply
from pilotfish.core.state import State
from pilotfish.core.tasks.speculative_copies import attempts
from pilotfish.core.tasks.transitions import enqueue, move
from pilotfish.errors import IllegalTransition
from pilotfish.model import facts as f
from pilotfish.model.ids import INDEX_MASK, run_of
from pilotfish.model.states import DONE, READY, WAITING
from pilotfish.model.task import Failure, RunOptions, TaskSpec

LOST = Failure("damaged", "site", "its description was in a damaged part of the journal")
LOST_PAYLOAD = b"\xff\xff\xff\xfflost"
"""Placeholder for a lost payload of a task. No packed payload begins like this."""
_ABOUT_HOLDERS = (
    f.TasksAssigned,
    f.TasksDelegated,
    f.TasksClaimed,
    f.TasksDuplicated,
    f.TasksStarted,
    f.TasksReturned,
    f.TasksRecalled,
)
_COLUMNS = ("tasks", "wall_us", "cpu_us", "rss_kib", "outputs")


def apply_repaired(state: State, fact: f.AnyFact, at: float) -> bool:
    """Applies a fact after a lost record. Returns False if the fact could not be applied."""
    try:
        for part in _repair(state, fact):
            apply(state, part, at)
    except (LookupError, IllegalTransition):
        return False
    return True


def settle(state: State, at: float) -> None:
    """Requeues every task that is not in a final state. After such a replay, it is unknown which tasks the workers really hold."""
    for worker in list(state.workers.values()):
        held = [task.id for task in worker.tasks]
        if held:
            apply(state, f.TasksReturned(worker.id, held, "the journal was damaged"), at)
        apply(state, f.WorkerEnded(worker.id, True, "the journal was damaged"), at)
    for run in state.runs.values():
        lost = [task.id for task in run.tasks if task.payload == LOST_PAYLOAD and task.state < DONE]
        if lost:
            apply(state, f.TasksSkipped(lost, LOST), at)


def _repair(state: State, fact: Any) -> Iterator[f.Fact]:
    if isinstance(fact, _ABOUT_HOLDERS):
        return  # ``settle`` requeues these tasks at the end
    numbers = getattr(fact, "tasks", None) or ([fact.task] if isinstance(fact, f.AttemptFailed) else [])
    for run in dict.fromkeys([run_of(number) for number in numbers] + ([fact.run] if hasattr(fact, "run") else [])):
        if run not in state.runs and not isinstance(fact, f.RunOpened):
            yield f.RunOpened(run, f"damaged-{run}", RunOptions(name="damaged"))
    if isinstance(fact, f.SpecsAdded):
        yield from _placeholder_specs(state, fact.run, fact.first)
    elif isinstance(fact, f.TasksAdded):
        yield from _placeholder_specs(state, fact.run, max(fact.specs, default=0) + 1)
        yield from _placeholder_tasks(state, fact.run, fact.first)
    for number in numbers:
        yield from _placeholder_tasks(state, run_of(number), (number & INDEX_MASK) + 1)
    worker = getattr(fact, "worker", None)
    if worker is not None and worker not in state.workers and not isinstance(fact, f.WorkerJoined):
        yield f.WorkerJoined(worker, "", {"cores": 0.0}, {}, {}, None, 0.0)
    yield from _possible(state, fact)


def _placeholder_specs(state: State, run: int, wanted: int) -> Iterator[f.Fact]:
    known = len(state.runs[run].specs)
    if wanted > known:
        yield f.SpecsAdded(run, known, [TaskSpec("lost")] * (wanted - known))


def _placeholder_tasks(state: State, run: int, wanted: int) -> Iterator[f.Fact]:
    known = len(state.runs[run].tasks)
    if wanted > known:
        yield from _placeholder_specs(state, run, 1)
        missing = wanted - known
        yield f.TasksAdded(run, known, [0] * missing, [LOST_PAYLOAD] * missing, {})


def _possible(state: State, fact: Any) -> Iterator[f.Fact]:
    """Yields the part of a fact that is still possible. Leaves out tasks in a final state, and failures after which a task runs again."""
    if isinstance(fact, f.TasksDone):
        unfinished = [place for place, number in enumerate(fact.tasks) if state.task(number).state < DONE]
        columns = {name: [getattr(fact, name)[place] for place in unfinished] for name in _COLUMNS}
        fact = msgspec.structs.replace(fact, **columns)
        yield from _assign_to(state, fact.worker, fact.tasks)
    elif isinstance(fact, f.AttemptFailed):
        if not fact.final or state.task(fact.task).state >= DONE:
            return
        yield from _assign_to(state, fact.worker, [fact.task])
    elif isinstance(fact, f.WorkerEnded | f.WorkerJoined) and fact.worker in state.workers:
        worker = state.workers[fact.worker]
        held = [task.id for task in worker.tasks]
        if held:
            yield f.TasksReturned(fact.worker, held, "the journal was damaged")
    elif isinstance(fact, f.TasksSkipped | f.TasksCancelled):
        fact = msgspec.structs.replace(fact, tasks=[number for number in fact.tasks if state.task(number).state < DONE])
    yield fact


def _assign_to(state: State, worker: str, tasks: list[int]) -> Iterator[f.Fact]:
    """Yields facts that move these tasks to this worker, despite lost records."""
    ready = []
    for number in tasks:
        task = state.task(number)
        for holder in [holder.id for holder, _ in attempts(state, task) if holder.id != worker]:
            yield f.TasksReturned(holder, [number], "the journal was damaged")
        if task.state == WAITING:
            # The task ran, so its dependencies must have succeeded. The records of their success are lost.
            task.waits_for = 0
            move(task, READY)
            enqueue(state, task)
        if task.state == READY:
            ready.append(number)
    if ready:
        yield f.TasksAssigned(worker, ready, len(ready), {})
