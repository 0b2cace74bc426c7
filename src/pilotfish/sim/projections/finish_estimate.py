"""Estimates when a run finishes and how its time is spent, from many projections. The time is divided into parts, such as waiting, staging
and execution. The parts describe one chain of tasks: the chain that ends last in the median projection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import exp, inf, log
from statistics import fmean

from pilotfish.core.state import State, Task
from pilotfish.model.ids import run_of, task_id
from pilotfish.model.states import DONE
from pilotfish.model.task import CORES, UNIT
from pilotfish.sim.light_world import TaskInterval
from pilotfish.sim.process_map import in_parallel
from pilotfish.sim.projections.pool_snapshot import AS_IT_IS, PoolSnapshot, Variation
from pilotfish.sim.projections.prediction_record import COVERAGE
from pilotfish.sim.projections.projection import Projection


@dataclass(frozen=True, slots=True)
class TimeBreakdown:
    """The seconds until the finish, divided into parts along the chain of tasks that ends last. The sum of the first five parts is the
    total.

    * ``waiting_s``: waiting for a core.
    * ``behind_s``: waiting for tasks of other runs.
    * ``starting_s``: start-up of tasks.
    * ``staging_s``: staging.
    * ``execution_s``: execution.
    * ``tail_s``: time at the end in which at least one core is idle.
    """

    waiting_s: float = 0.0
    behind_s: float = 0.0
    starting_s: float = 0.0
    staging_s: float = 0.0
    execution_s: float = 0.0
    tail_s: float = 0.0


class _Cores:
    """The cores of one host. The simulation does not record which cores a task used. So this class assumes that each task uses the cores
    that have been free longest."""

    def __init__(self, count: int) -> None:
        self._free: list[tuple[float, int, TaskInterval | None]] = [(-inf, number, None) for number in range(count)]
        self._count = count

    def take(self, interval: TaskInterval, cores: int) -> TaskInterval | None:
        """Assigns cores to a task. Returns the previous task on these cores, or None. If the cores had different previous tasks, returns
        the one that ended last."""
        before: TaskInterval | None = None
        for _ in range(cores):
            if self._free and self._free[0][0] <= interval.started_at:
                _, _, before = heappop(self._free)
        for _ in range(cores):
            self._count += 1
            heappush(self._free, (interval.ended_at, self._count, interval))
        return before

    def idle_since(self, busy: int) -> float:
        """Returns since when at least one core is idle, or infinity if no core is idle. ``busy``: number of cores in use now."""
        ends = sorted(ended for ended, _, _ in self._free)
        return ends[busy] if busy < len(ends) else inf


def parents_of(state: State) -> dict[int, list[int]]:
    """Returns, for each task, the unfinished tasks that it needs."""
    found: dict[int, list[int]] = {}
    for run in state.runs.values():
        for task in run.tasks if run.unfinished else ():
            if task.state < DONE:
                for child in task.children or ():
                    found.setdefault(task_id(run.id, child), []).append(task.id)
        for index, children in run.followers.items():
            for child in children:
                found.setdefault(task_id(run.id, child), []).append(task_id(run.id, index))
    return found


def breakdown_of(world: Projection, own: frozenset[int], parents: dict[int, list[int]]) -> TimeBreakdown:
    """Returns the breakdown for the runs ``own``. Starts with the task of these runs that ends last, and follows the chain backwards. A
    task waits for two kinds of tasks: the previous tasks on its cores, and the tasks that it needs. The one of them that ended last comes
    before the task in the chain."""
    now, state = world.snapshot_at, world.machine.state
    last: TaskInterval | None = None
    by_task: dict[int, TaskInterval] = {}
    for entry in world.result.intervals:  # the intervals are in the order of their ends
        by_task[entry.task] = entry
        last = entry if run_of(entry.task) in own else last
    if last is None:
        return TimeBreakdown()
    cores, previous = _by_core(world)
    waiting = behind = starting = staging = execution = 0.0
    interval: TaskInterval | None = last
    while interval is not None:
        at_core = previous[id(interval)]
        started_at = max(now, interval.started_at)
        could_start_at = max(now, interval.assigned_at, at_core.ended_at if at_core is not None else now)
        if run_of(interval.task) in own:
            launch_s = min(started_at - could_start_at, world.sites[interval.site].launch_s)
            files_s = started_at - could_start_at - launch_s if has_files(state.task(interval.task)) else 0.0
            starting, staging, execution = starting + launch_s, staging + files_s, execution + interval.ended_at - started_at
            waiting += started_at - could_start_at - launch_s - files_s
        else:
            behind += interval.ended_at - could_start_at
        parent_intervals = [by_task[parent] for parent in parents.get(interval.task, ()) if parent in by_task]
        before = [entry for entry in (at_core, *parent_intervals) if entry is not None and now < entry.ended_at <= could_start_at]
        interval = max(before, key=lambda entry: entry.ended_at, default=None)
        waiting += could_start_at - (interval.ended_at if interval is not None else now)
    return TimeBreakdown(
        waiting, behind, starting, staging, execution, last.ended_at - max(now, min(last.ended_at, _first_idle(world, cores)))
    )


def _by_core(world: Projection) -> tuple[dict[int, _Cores], dict[int, TaskInterval | None]]:
    """Returns the cores of each host, and for each interval the previous interval on the same cores."""
    state, counts = world.machine.state, dict.fromkeys(world.hosts, 0)
    for worker in state.workers.values():
        connection = world.machine.connections.get(worker.id)
        if connection is not None and connection.link is not None:
            counts[connection.link] = worker.capacity.get(CORES, 0) // UNIT
    cores = {host: _Cores(count) for host, count in counts.items()}
    previous = {}
    for interval in sorted(world.result.intervals, key=lambda entry: entry.started_at):
        previous[id(interval)] = cores[interval.host].take(interval, _cores_of([state.task(interval.task)]))
    return cores, previous


def _first_idle(world: Projection, cores: dict[int, _Cores]) -> float:
    """Returns since when at least one core is idle. Ignores hosts that have left."""
    found = inf
    for worker in world.machine.state.workers.values():
        connection = world.machine.connections.get(worker.id)
        if connection is not None and connection.link in cores:
            found = min(found, max(worker.joined_at, cores[connection.link].idle_since(_cores_of(worker.active))))
    return found


def _cores_of(tasks: Iterable[Task]) -> int:
    return sum(max(1, round(dict(task.shape.needs).get(CORES, 0) / UNIT)) for task in tasks)


def has_files(task: Task) -> bool:
    return bool(task.contents or task.spec in task.shape.run.spec_contents)


MIN_SAMPLES, MAX_SAMPLES = 20, 60
COMPLETIONS = 20_000
"""The number of samples is chosen so that all samples together simulate about this many task ends. It stays between MIN_SAMPLES and
MAX_SAMPLES."""
MAX_TASKS_ALONE = 4_000
"""Up to this number of simulated tasks, one process does all the work, because starting more processes would take longer."""
MIN_S = 1e-3
MARGIN = 1.2
"""Intervals are widened by this factor, because the simulation does not model all effects."""

OnProgress = Callable[[int, int], None]
"""Progress callback: finished samples, all samples."""


@dataclass(frozen=True, slots=True)
class ProjectedFinish:
    """Result of one sample. ``stuck``: number of tasks that no worker can run. ``end_s``: seconds from now to the finish; infinite if tasks
    are stuck."""

    end_s: float
    parts: TimeBreakdown
    stuck: int
    guessed: dict[str, int]


@dataclass(slots=True)
class FinishEstimate:
    variation: Variation
    ends_s: list[float]
    """Seconds from now until the finish, one value per sample. The values are in the order of the seeds, so that the samples of two
    variations can be compared in pairs."""
    parts: TimeBreakdown
    stuck: int
    guessed: dict[str, int] = field(default_factory=dict)

    @property
    def median_s(self) -> float:
        return self.quantile(0.5)

    @property
    def merit_s(self) -> float:
        """Geometric mean of the finish times. Variations are sorted by this mean, because the median of a few samples would hide small
        differences. All variations use the same seeds, so a difference between two means is not due to chance."""
        return exp(fmean(log(max(end, MIN_S)) for end in self.ends_s)) if inf not in self.ends_s else inf

    def interval(self, factor: float = 1.0) -> tuple[float, float]:
        """Returns the 80 % interval. It is the interval of the samples, widened by MARGIN and by ``factor``, which is learned from past
        errors."""
        low, middle, high = self.quantile((1 - COVERAGE) / 2), self.median_s, self.quantile((1 + COVERAGE) / 2)
        return widened(low, middle, factor * MARGIN), widened(high, middle, factor * MARGIN)

    def quantile(self, q: float) -> float:
        ends = sorted(self.ends_s)
        place = q * (len(ends) - 1)
        below = int(place)
        above = min(below + 1, len(ends) - 1)
        # Equal ends are not subtracted, because infinity minus infinity is undefined.
        return ends[below] if place == below or ends[below] == ends[above] else ends[below] + (ends[above] - ends[below]) * (place - below)

    def chance_to_end_by(self, seconds: float) -> float:
        return sum(end <= seconds for end in self.ends_s) / len(self.ends_s)

    def chance_to_beat(self, other: FinishEstimate) -> float:
        pairs = list(zip(self.ends_s, other.ends_s, strict=True))
        return sum(1.0 if mine < theirs else 0.5 if mine == theirs else 0.0 for mine, theirs in pairs) / len(pairs)


def widened(edge: float, middle: float, factor: float) -> float:
    return edge if middle <= 0 or edge <= 0 or edge == float("inf") else float(middle * (edge / middle) ** factor)


def simulate_sample(snapshot: PoolSnapshot, variation: Variation, seed: int, run: int | None) -> ProjectedFinish:
    """Simulates one sample until ``run`` is finished. With None, simulates until every run is finished."""
    world = Projection(snapshot, variation, seed)
    state = world.machine.state
    parents = parents_of(state)
    world.start()
    world.run_to_end(run)
    runs = [state.runs[run]] if run is not None else list(state.runs.values())
    stuck = sum(one.unfinished for one in runs)
    own = frozenset(one.id for one in runs)
    end = max((interval.ended_at for interval in world.result.intervals if run_of(interval.task) in own), default=world.snapshot_at)
    return ProjectedFinish(float("inf") if stuck else end - world.snapshot_at, breakdown_of(world, own, parents), stuck, world.guessed)


def estimate_finish(
    snapshot: PoolSnapshot,
    run: int | None,
    variations: Sequence[Variation] = (AS_IT_IS,),
    samples: int = 0,
    on_progress: OnProgress | None = None,
    cores: int = 0,
) -> list[FinishEstimate]:
    """Estimates the finish time for each variation. All variations use the same seeds."""
    state = snapshot.restore()
    left = state.unfinished if run is None else state.runs[run].unfinished
    count = samples or max(MIN_SAMPLES, min(MAX_SAMPLES, COMPLETIONS // max(1, left * len(variations))))
    jobs = [(variation, seed) for seed in range(count) for variation in range(len(variations))]
    finishes: dict[Job, ProjectedFinish] = {}
    global _common
    _common = snapshot, variations, run
    for job, finish in in_parallel(_simulate_job, jobs, 1 if left * len(jobs) <= MAX_TASKS_ALONE else cores):
        finishes[job] = finish
        if on_progress is not None:
            on_progress(len(finishes), len(jobs))
    return [_combine(each, [finishes[place, seed] for seed in range(count)]) for place, each in enumerate(variations)]


def _combine(variation: Variation, finishes: list[ProjectedFinish]) -> FinishEstimate:
    middle = sorted(finishes, key=lambda finish: finish.end_s)[len(finishes) // 2]
    guessed = finishes[0].guessed
    return FinishEstimate(variation, [finish.end_s for finish in finishes], middle.parts, max(finish.stuck for finish in finishes), guessed)


Job = tuple[int, int]
_common: tuple[PoolSnapshot, Sequence[Variation], int | None]
"""Input that all samples have in common. The forked processes inherit this variable."""


def _simulate_job(job: Job) -> tuple[Job, ProjectedFinish]:
    snapshot, variations, run = _common
    return job, simulate_sample(snapshot, variations[job[0]], job[1], run)
