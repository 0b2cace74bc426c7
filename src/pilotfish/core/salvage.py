"""Replay of a journal that has holes. What a lost record said is gone; what later records say must still count.

``mend`` puts before a fact whatever the state needs to be able to take it, and leaves out of it what makes no sense any more. A task whose
description was lost is listed as failed, so that its person knows; a task whose assignment was lost but whose result was kept is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from pilotfish.core.apply import apply
from pilotfish.core.state import State
from pilotfish.errors import PilotfishError
from pilotfish.model import facts as f
from pilotfish.model.states import DONE, READY
from pilotfish.model.task import Failure, RunOptions, TaskSpec

LOST = Failure("damaged", "site", "its description was in a damaged part of the journal")


def apply_mended(state: State, fact: f.AnyFact, at: float) -> bool:
    """Apply a fact after a hole. False if nothing could be made of it."""
    try:
        for part in _mend(state, fact):
            apply(state, part, at)
    except (LookupError, PilotfishError, AssertionError):
        return False
    return True


def settle(state: State, at: float) -> None:
    """At the end of such a replay nobody can say what workers really hold: everything that is not final starts anew."""
    for worker in list(state.workers.values()):
        held = [task.id for task in (*worker.active, *worker.ahead)]
        if held:
            apply(state, f.TasksReturned(worker.id, held, "the journal was damaged"), at)
        apply(state, f.WorkerEnded(worker.id, True, "the journal was damaged"), at)


def _mend(state: State, fact: Any) -> Iterator[f.Fact]:
    run = getattr(fact, "run", None)
    if run is not None and run not in state.runs and not isinstance(fact, f.RunOpened):
        yield f.RunOpened(run, f"damaged-{run}", RunOptions(name="damaged"))
    if isinstance(fact, f.SpecsAdded):
        missing = fact.first - len(state.runs[fact.run].specs)
        if missing > 0:
            yield f.SpecsAdded(fact.run, fact.first - missing, [TaskSpec("lost")] * missing)
    elif isinstance(fact, f.TasksAdded):
        yield from _fill_tasks(state, fact)
    worker = getattr(fact, "worker", None)
    if worker is not None and worker not in state.workers and not isinstance(fact, f.WorkerJoined):
        yield f.WorkerJoined(worker, "", {"cores": 0.0}, {}, {}, None, 0.0)
    if isinstance(fact, f.TasksDone):
        yield from _done(state, fact)
    elif isinstance(fact, f.AttemptFailed):
        if fact.final:
            yield from _place(state, fact.worker, [fact.task])
            yield fact
    elif not isinstance(fact, f.TasksAssigned | f.TasksStarted | f.TasksReturned | f.TasksRecalled):
        yield fact


def _fill_tasks(state: State, fact: f.TasksAdded) -> Iterator[f.Fact]:
    run = state.runs[fact.run]
    missing = fact.first - len(run.tasks)
    most = max(fact.specs, default=0) + 1 - len(run.specs)
    if most > 0 or (missing > 0 and not run.specs):
        yield f.SpecsAdded(fact.run, len(run.specs), [TaskSpec("lost")] * max(most, 1))
    if missing > 0:
        first = len(run.tasks)
        yield f.TasksAdded(fact.run, first, [0] * missing, [b""] * missing, {})
        yield f.TasksSkipped([fact.run << 32 | index for index in range(first, first + missing)], LOST)


def _place(state: State, worker: str, tasks: list[int]) -> Iterator[f.Fact]:
    """Have these tasks at this worker, whatever was lost in between."""
    ready = []
    for number in tasks:
        task = state.task(number)
        if task.worker is not None and task.worker.id != worker:
            yield f.TasksReturned(task.worker.id, [number], "the journal was damaged")
        if state.task(number).state == READY:
            ready.append(number)
    if ready:
        yield f.TasksAssigned(worker, ready, len(ready), {})


def _done(state: State, fact: f.TasksDone) -> Iterator[f.Fact]:
    wanted = [place for place, number in enumerate(fact.tasks) if (task := state.find_task(number)) is not None and task.state < DONE]
    columns: tuple[list[Any], ...] = (fact.tasks, fact.wall_us, fact.cpu_us, fact.rss_kib, fact.outputs)
    kept = msgspec.structs.replace(fact, **{name: [column[place] for place in wanted] for name, column in zip(_COLUMNS, columns, strict=True)})
    yield from _place(state, fact.worker, kept.tasks)
    yield kept


_COLUMNS = ("tasks", "wall_us", "cpu_us", "rss_kib", "outputs")
