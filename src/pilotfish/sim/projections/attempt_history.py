"""Collects from facts when attempts started and how long they took. Predictions use this; the state does not keep it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pilotfish.core.data.replicas import needs
from pilotfish.core.state import Run, State, Task, Worker
from pilotfish.model import facts as f
from pilotfish.model.ids import INDEX_MASK
from pilotfish.model.states import CANCELLED

KEPT = 1_000
"""Maximum recent tasks kept per class."""
KEPT_LAUNCHES = 100

Taken = deque[tuple[str, str, int, float]]


@dataclass(slots=True)
class AttemptHistory:
    given: dict[tuple[str, int], float] = field(default_factory=dict)
    """Time of assignment of an attempt with free cores, by worker and task. Prefetched attempts are missing: when they get cores is
    unknown."""
    taken: dict[str, Taken] = field(default_factory=dict)
    """For each class: worker, site, run, and measured seconds per unit of cost."""
    launches: dict[str, deque[float]] = field(default_factory=dict)
    """For each site: seconds between assignment and result, without the execution time."""

    ended: dict[str, float] = field(default_factory=dict)
    """End times of runs by uid, including forgotten runs."""

    def hear(self, state: State, fact: f.Fact, at: float) -> None:
        """Handles a fact after it was applied to the state."""
        kind = type(fact)
        if kind is f.TasksDone:
            self._done(state, fact, at)  # type: ignore[arg-type]
        elif kind is f.TasksAssigned or kind is f.TasksDuplicated or kind is f.TasksClaimed:
            worker = fact.worker  # type: ignore[attr-defined]
            ahead = fact.ahead if type(fact) is f.TasksAssigned else 0
            for task in fact.tasks[: len(fact.tasks) - ahead]:  # type: ignore[attr-defined]
                self.given[worker, task] = at
        elif kind is f.TasksReturned:
            for task in fact.tasks:  # type: ignore[attr-defined]
                self.given.pop((fact.worker, task), None)  # type: ignore[attr-defined]
        elif kind is f.AttemptFailed:
            self.given.pop((fact.worker, fact.task), None)  # type: ignore[attr-defined]
        elif kind is f.RunClosed:
            self._note_end(state.runs.get(fact.run))  # type: ignore[attr-defined]

    def _note_end(self, run: Run | None) -> None:
        if run is not None and run.ended_at and not run.counts[CANCELLED]:
            self.ended[run.uid] = run.ended_at

    def began(self, worker: Worker, task: Task, beat_s: float) -> float | None:
        """Returns the best estimate of when a task started at a worker; None if it has not started or this is unknown."""
        given, seen = self.given.get((worker.id, task.id)), worker.started.get(task)
        if seen is not None:
            # The start is reported with the next heartbeat.
            return max(given if given is not None else seen - beat_s / 2, seen - beat_s)
        return given if task in worker.active and all(worker.id in file.holders for file in needs(task)) else None

    def _done(self, state: State, fact: f.TasksDone, at: float) -> None:
        worker = state.workers.get(fact.worker) or state.ended_workers.get(fact.worker)
        if worker is None:
            return
        for number, wall_us in zip(fact.tasks, fact.wall_us, strict=True):
            task = state.task(number)
            run = task.shape.run
            name = run.class_of(task.spec)
            cost = run.cost(number & INDEX_MASK)
            taken = self.taken.get(name)
            if taken is None:
                taken = self.taken[name] = deque(maxlen=KEPT)
            taken.append((worker.id, worker.site, run.id, wall_us / 1e6 / (cost if cost > 0 else 1.0)))
            given = self.given.pop((worker.id, number), None)
            if given is not None and not task.contents and task.spec not in run.spec_contents:
                launches = self.launches.setdefault(worker.site, deque(maxlen=KEPT_LAUNCHES))
                launches.append(max(0.0, at - given - wall_us / 1e6))
            if run.ended_at:
                self._note_end(run)
