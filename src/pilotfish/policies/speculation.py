"""Starts a second attempt (a copy) of a slow task at an idle worker. The result that comes first counts.

If a task is copied, its effects outside the sandbox happen twice. So a run gets copies only if the user allows them: with ``speculate`` =
True, or with the policy ``stealing`` and without ``speculate`` = False. A task is copied only after it has run for ``MIN_RUN_S`` seconds. A
worker gets a copy only if there is no ready task that it can run.

* Policies other than ``stealing`` copy a task that has run 1.5 times as long as the tasks of its shape take on average. If the tasks have
  costs, the forecast for the task replaces the average. Copies use at most a tenth of the slots, but one copy is always allowed.
* The policy ``stealing`` copies a task if the expected remaining time of the first attempt is at least ``MIN_GAIN`` times the time of the
  copy. Without a forecast, it uses the rule of the other policies. Copies can use all slots.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from pilotfish.core.data.replicas import can_get_inputs
from pilotfish.core.policy_interface import AssignmentProposal, CopyProposal, DelegationProposal, PolicyView, RecallProposal
from pilotfish.core.state import Needs, Run, State, Task, TaskShape, Worker
from pilotfish.core.tasks.speculative_copies import needs_at
from pilotfish.model.ids import INDEX_MASK
from pilotfish.model.states import ASSIGNED, RUNNING
from pilotfish.policies.offered_tasks import fits

ExpectedSeconds = Callable[[State, Task, Worker], float | None]
"""A function that returns the expected seconds of a whole attempt of a task at a worker, or None if they are unknown."""

LATE_FACTOR = 1.5
"""A task is late if it has run longer than this factor times the mean of its shape."""
MIN_RUN_S = 5.0
"""Minimum seconds for which a task must have run before it is copied. One reason is that the start of a task is reported up to one
heartbeat late. The other reason is that many tasks end soon.
"""
MIN_SAMPLES = 3
MIN_GAIN = 1.2
"""The expected remaining time of the first attempt must be at least this factor times the expected time of a copy."""
MAX_COPY_SHARE = 0.1
MAX_WORKERS, MAX_COMPARED = 200, 8
"""Maximum number of idle workers that are checked, and maximum number of workers that are compared for one copy. The limits save time near
the end of a large run, when thousands of workers can be idle."""
INTERVAL_S = 1.0


@dataclass(slots=True)
class _LateTask:
    task: Task
    left_s: float
    """Expected seconds until the first attempt ends."""
    needs_s: float
    """Expected seconds of the copy at a worker of usual speed."""
    needs: Needs


class Speculation:
    """Proposes copies. ``stealing``: whether to use the rules of the policy ``stealing`` (see the text of this module).
    ``expected_seconds``: returns the forecast for a whole attempt."""

    def __init__(self, stealing: bool = False, expected_seconds: ExpectedSeconds | None = None) -> None:
        self._stealing = stealing
        self._expected_s: ExpectedSeconds = expected_seconds or (lambda state, task, worker: None)
        self._look_at = 0.0
        self._runs: list[Run] = []
        """Runs that allow copies. The list is computed again when a run is added. In most pools, it is empty, and ``propose`` has nothing
        to do."""
        self._run_count = 0

    def propose(
        self, view: PolicyView, others: Sequence[AssignmentProposal | DelegationProposal | RecallProposal] = ()
    ) -> list[CopyProposal]:
        """Returns proposals for copies. ``others``: the other proposals of the dispatcher. The workers in these proposals get no copies."""
        due = view.now >= self._look_at
        if due or view.state.next_run != self._run_count:
            self._run_count = view.state.next_run
            self._runs = [run for run in view.state.runs.values() if self._allows_copies(run) and not run.finished]
        if not due:
            return []
        self._look_at = view.now + INTERVAL_S
        if not self._watches(view):
            return []
        late = sorted(self._late(view), key=lambda late: -late.left_s)
        idle = list(idle_workers(view, {other.worker.id for other in others})) if late else []
        if not idle:
            return []
        return self._place(view, late, idle)

    def next_look_at(self, view: PolicyView) -> float | None:
        return self._look_at if self._watches(view) else None

    def _watches(self, view: PolicyView) -> bool:
        """Returns True if a worker has room and some task can need a copy. Assigned tasks count, because possibly they already run."""
        live = any(run.counts[RUNNING] + run.counts[ASSIGNED] and not run.paused for run in self._runs)
        return live and bool(view.state.roomy)

    def _allows_copies(self, run: Run) -> bool:
        option = run.options.speculate
        return self._stealing if option is None else option

    def _copies_left(self, state: State) -> int:
        slots = sum(worker.slots for worker in state.workers.values())
        if self._stealing:
            return slots
        copies = sum(1 for copy in state.copies.values() if copy.worker is not None)
        return max(1, int(MAX_COPY_SHARE * slots)) - copies

    def _late(self, view: PolicyView) -> Iterator[_LateTask]:
        state = view.state
        for worker in state.workers.values():
            for task, since in worker.started.items():
                run = task.shape.run
                if task.state != RUNNING or task.shape.nodes > 1 or task in state.copies:
                    continue
                if self._allows_copies(run) and not run.paused and not (task.failure_counts and task.failure_counts.deaths):
                    late = self._how_late(state, task, worker, view.now - since)
                    if late is not None:
                        yield late

    def _how_late(self, state: State, task: Task, worker: Worker, ran_s: float) -> _LateTask | None:
        expected_s = self._expected_s(state, task, worker)
        if expected_s is None:
            forecast_s = forecast(state, task, worker) if task.shape.run.costs else None
            mean_s = forecast_s or task.shape.mean_us / 1e6
            is_late = task.shape.samples >= MIN_SAMPLES and ran_s >= max(LATE_FACTOR * mean_s, MIN_RUN_S)
            return _LateTask(task, ran_s, mean_s, needs_at(worker, task)) if is_late else None
        # If a task is x seconds late, it is expected to need x more seconds.
        left_s = abs(expected_s - ran_s)
        return _LateTask(task, left_s, expected_s, needs_at(worker, task)) if ran_s >= MIN_RUN_S else None

    def _place(self, view: PolicyView, late: list[_LateTask], idle: list[Worker]) -> list[CopyProposal]:
        free = {worker.id: dict(worker.free) for worker in idle}
        workers_for: dict[tuple[TaskShape, Needs], list[Worker]] = {}
        copies: dict[str, CopyProposal] = {}
        allowed = self._copies_left(view.state)
        for slow in late:
            if allowed <= 0:
                break
            key = slow.task.shape, slow.needs
            if key not in workers_for:
                able = [worker for worker in idle if not worker.streak and worker.suits(slow.task.shape, view.now)]
                workers_for[key] = sorted(able, key=lambda worker: self._expected_s(view.state, slow.task, worker) or 0.0)
            worthwhile = islice(self._worthwhile(view, slow, workers_for[key], free), MAX_COMPARED)
            worker = min(worthwhile, key=lambda worker: self._preference(view.state, slow.task, worker), default=None)
            if worker is None:
                continue
            for name, amount in slow.needs:
                free[worker.id][name] -= amount
            if not fits(free[worker.id], slow.needs):
                workers_for[key].remove(worker)
            copies.setdefault(worker.id, CopyProposal(worker, [])).tasks.append(slow.task)
            allowed -= 1
        return list(copies.values())

    def _worthwhile(self, view: PolicyView, late: _LateTask, workers: list[Worker], free: dict[str, dict[str, int]]) -> Iterator[Worker]:
        """Yields the workers where a copy would end before the first attempt. The fastest worker comes first."""
        state, task = view.state, late.task
        for worker in workers:
            needs_s = self._expected_s(state, task, worker) or late.needs_s
            if MIN_GAIN * needs_s > late.left_s:
                return
            if worker is task.worker or (worker.ends_at is not None and view.now + needs_s > worker.ends_at):
                continue
            if fits(free[worker.id], late.needs) and can_get_inputs(state, task, worker.site):
                yield worker

    def _preference(self, state: State, task: Task, worker: Worker) -> tuple[float, bool, bool]:
        """Returns a sort key. The fastest worker comes first. Equally fast workers are sorted by their distance from the first attempt:
        first workers at a different site, then on a different machine of the same site, then on the same machine."""
        first = task.worker
        assert first is not None
        return (
            self._expected_s(state, task, worker) or 0.0,
            worker.site == first.site,
            worker.info.get("hostname") == first.info.get("hostname"),
        )


def forecast(state: State, task: Task, worker: Worker) -> float | None:
    """Returns the expected seconds of a task at a worker, calculated from the task class and the slowness of the worker. Returns None if
    too few tasks were measured."""
    run = task.shape.run
    estimate = state.forecasts.task(run.class_of(task.spec), run.cost(task.id & INDEX_MASK), worker.id, worker.site)
    return estimate.value if estimate is not None and estimate.samples >= MIN_SAMPLES else None


def idle_workers(view: PolicyView, given: Collection[str]) -> Iterator[Worker]:
    """Yields the workers that have room, but can run none of the ready tasks. ``given``: ids of workers that are left out."""
    state = view.state
    waiting = {shape: None for shape in state.ready if not shape.run.paused} | {task.shape: None for task in state.suspects}
    able = (worker for worker in view.roomy if worker.id not in given and not worker.runs_suspect)
    return islice((worker for worker in able if not any(worker.suits(shape, view.now) for shape in waiting)), MAX_WORKERS)
