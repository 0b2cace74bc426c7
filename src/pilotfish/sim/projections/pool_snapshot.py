"""Captures the state of a pool and the history of its attempts. Defines variations of the pool for predictions.

The state is stored as bytes, so that many projections in several processes can start from one snapshot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from pilotfish.core import state_snapshot
from pilotfish.core.apply import apply
from pilotfish.core.data.replicas import needs
from pilotfish.core.learning.predictors import quantile
from pilotfish.core.state import Run, State, Task, Worker
from pilotfish.model import facts as f
from pilotfish.model.ids import INDEX_MASK
from pilotfish.model.settings import PoolSettings
from pilotfish.model.states import CANCELLED

KEPT = 1_000
"""Maximum number of recent tasks that are kept per task class."""
KEPT_LAUNCHES = 100

Durations = deque[tuple[str, str, int, float]]


@dataclass(slots=True)
class AttemptHistory:
    assigned_at: dict[tuple[str, int], float] = field(default_factory=dict)
    """For each worker and task: the time of assignment. Prefetched tasks are left out, because it is not known when they get cores."""
    durations: dict[str, Durations] = field(default_factory=dict)
    """For each task class, one entry per ended task: worker, site, run, and measured seconds per unit of cost."""
    launches: dict[str, deque[float]] = field(default_factory=dict)
    """For each site: seconds from the assignment to the result of tasks without input files, less the execution time."""

    run_ends: dict[str, float] = field(default_factory=dict)
    """End times of runs without cancelled tasks, by uid. Deleted runs are included."""

    def observe(self, state: State, fact: f.Fact, at: float) -> None:
        """Updates the history with a fact. Call it after the fact was applied to the state."""
        if isinstance(fact, f.TasksDone):
            self._done(state, fact, at)
        elif isinstance(fact, f.TasksAssigned | f.TasksDuplicated | f.TasksClaimed):
            ahead = fact.ahead if isinstance(fact, f.TasksAssigned) else 0
            for task in fact.tasks[: len(fact.tasks) - ahead]:
                self.assigned_at[fact.worker, task] = at
        elif isinstance(fact, f.TasksReturned):
            for task in fact.tasks:
                self.assigned_at.pop((fact.worker, task), None)
        elif isinstance(fact, f.AttemptFailed):
            self.assigned_at.pop((fact.worker, fact.task), None)
        elif isinstance(fact, f.RunClosed):
            self._note_end(state.runs.get(fact.run))

    def _note_end(self, run: Run | None) -> None:
        if run is not None and run.ended_at and not run.counts[CANCELLED]:
            self.run_ends[run.uid] = run.ended_at

    def started_at(self, worker: Worker, task: Task, beat_s: float) -> float | None:
        """Estimates when a task started at a worker. Returns None if the task has not started, or if its start time is unknown. ``beat_s``:
        seconds between two heartbeats."""
        assigned_at, seen = self.assigned_at.get((worker.id, task.id)), worker.started.get(task)
        if seen is not None:
            # The report of a start comes with the next heartbeat, so the start was up to ``beat_s`` seconds before it.
            return max(assigned_at if assigned_at is not None else seen - beat_s / 2, seen - beat_s)
        return assigned_at if task in worker.active and all(worker.id in file.holders for file in needs(task)) else None

    def _done(self, state: State, fact: f.TasksDone, at: float) -> None:
        worker = state.workers.get(fact.worker) or state.ended_workers.get(fact.worker)
        if worker is None:
            return
        for number, wall_us in zip(fact.tasks, fact.wall_us, strict=True):
            task = state.task(number)
            run = task.shape.run
            name = run.class_of(task.spec)
            cost = run.cost(number & INDEX_MASK)
            durations = self.durations.get(name)
            if durations is None:
                durations = self.durations[name] = deque(maxlen=KEPT)
            durations.append((worker.id, worker.site, run.id, wall_us / 1e6 / (cost if cost > 0 else 1.0)))
            assigned_at = self.assigned_at.pop((worker.id, number), None)
            if assigned_at is not None and not task.contents and task.spec not in run.spec_contents:
                launches = self.launches.setdefault(worker.site, deque(maxlen=KEPT_LAUNCHES))
                launches.append(max(0.0, at - assigned_at - wall_us / 1e6))
            if run.ended_at:
                self._note_end(run)


MIN_LAUNCHES = 5
"""Minimum number of observed starts at a site. With fewer starts, the start-up time is not used, because the first starts take longer."""
CLOSED = "as far as is known"
"""Reason with which a snapshot closes an open run. A prediction needs a closed run, because it cannot know which tasks the client will
submit later."""


@dataclass(frozen=True, slots=True)
class Variation:
    """A change to the pool for `whatif`. ``more``: for each site, the number of additional pilots, or of additional cores for ``local``. A
    negative number removes pilots or cores."""

    text: str = "as it is"
    policy: str = ""
    more: tuple[tuple[str, int], ...] = ()
    with_sites: tuple[str, ...] = ()
    without_sites: tuple[str, ...] = ()
    speeds: dict[str, float] = field(default_factory=dict)
    cores: float | None = None


AS_IT_IS = Variation()


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    now: float
    facts: bytes
    started_at: dict[tuple[str, int], float]
    """Start times of running attempts, by worker and task."""
    assigned_at: dict[tuple[str, int], float]
    """Assignment times of attempts that have not started."""
    durations: dict[str, list[tuple[str, str, int, float]]]
    launches: dict[str, float]
    settings: PoolSettings

    @classmethod
    def of(cls, state: State, past: AttemptHistory, settings: PoolSettings, now: float) -> PoolSnapshot:
        started_at = {
            (worker.id, task.id): at
            for worker in state.workers.values()
            for task in worker.active
            if (at := past.started_at(worker, task, settings.beat_s)) is not None
        }
        held = ((worker.id, task.id) for worker in state.workers.values() for task in (*worker.active, *worker.ahead))
        assigned_at = {key: past.assigned_at[key] for key in held if key in past.assigned_at and key not in started_at}
        launches = {site: quantile(sorted(values), 0.5) for site, values in past.launches.items() if len(values) >= MIN_LAUNCHES}
        durations = {name: list(values) for name, values in past.durations.items()}
        return cls(
            max(now, state.at),
            f.encode_record(f.TurnRecord(state.at, list(_rows(state)))),
            started_at,
            assigned_at,
            durations,
            launches,
            settings,
        )

    def restore(self) -> State:
        state = State()
        record = f.decode_record(self.facts)
        for fact in record.facts:
            apply(state, fact, record.at)
        for run in state.runs.values():
            if not run.closed:
                apply(state, f.RunClosed(run.id, CLOSED), record.at)
        return state


def _rows(state: State) -> Iterator[f.AnyFact]:
    """Yields the state as facts. Leaves out data that only workers read, and finished runs without files."""
    over = {run.id: None for run in state.runs.values() if run.finished and not run.contents}
    shares = {run.account.name: None for run in state.runs.values() if run.id not in over}
    for fact in state_snapshot.dump(state, without=over):
        row = fact.row
        if fact.kind == "shares":
            fact = f.Restored("shares", [row[0], [account for account in row[1] if account[0] in shares]])
        if fact.kind == "tasks":
            for task in row[2]:
                task[3] = task[4] = b""
        yield fact
