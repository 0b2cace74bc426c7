"""Breaks the time to the finish into waiting, staging and execution. It follows the chain of tasks that ends last, in one sample."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from pilotfish.core.state import UNIT, State, Task
from pilotfish.model.ids import run_of, task_id
from pilotfish.model.states import DONE
from pilotfish.model.task import CORES
from pilotfish.sim.light_world import TaskInterval
from pilotfish.sim.projections.projection import Projection


@dataclass(frozen=True, slots=True)
class TimeBreakdown:
    """Seconds to the finish along the chain: waiting for a core, behind tasks of other runs, start-up, staging, execution.

    These add up to the total. The tail is a part of it: from the time when the first core is idle.
    """

    waiting_s: float = 0.0
    behind_s: float = 0.0
    starting_s: float = 0.0
    staging_s: float = 0.0
    execution_s: float = 0.0
    tail_s: float = 0.0


class _Cores:
    """The cores of one host. Their assignment to tasks is not recorded: a task takes the cores that were free for longest."""

    def __init__(self, count: int) -> None:
        self._free: list[tuple[float, int, TaskInterval | None]] = [(-inf, number, None) for number in range(count)]
        self._count = count

    def take(self, stint: TaskInterval, cores: int) -> TaskInterval | None:
        """Takes cores and returns the previous task of the last one, if any."""
        before: TaskInterval | None = None
        for _ in range(cores):
            if self._free and self._free[0][0] <= stint.began:
                _, _, before = heappop(self._free)
        for _ in range(cores):
            self._count += 1
            heappush(self._free, (stint.ended, self._count, stint))
        return before

    def idle_since(self, busy: int) -> float:
        """Returns when the first core became idle, while ``busy`` cores are in use."""
        ends = sorted(ended for ended, _, _ in self._free)
        return ends[busy] if busy < len(ends) else inf


def parents_of(state: State) -> dict[int, list[int]]:
    """Returns the unfinished dependencies of each task."""
    found: dict[int, list[int]] = {}
    for run in state.runs.values():
        for task in run.tasks if run.unfinished else ():
            if task.state < DONE:
                for child in task.children or ():
                    found.setdefault(task_id(run.id, child), []).append(task.id)
    return found


def parts_of(world: Projection, own: frozenset[int], parents: dict[int, list[int]]) -> TimeBreakdown:
    """Walks back along the chain. ``own``: the runs in question. A task waited for the last to end of two: the previous task at its
    cores, and its dependencies."""
    now, state = world.forked_at, world.machine.state
    last: TaskInterval | None = None
    by_task: dict[int, TaskInterval] = {}
    for one in world.played.stints:  # in the order of ending
        by_task[one.task] = one
        last = one if run_of(one.task) in own else last
    if last is None:
        return TimeBreakdown()
    cores, previous = _by_core(world)
    waiting = behind = starting = staging = execution = 0.0
    stint: TaskInterval | None = last
    while stint is not None:
        at_core = previous[id(stint)]
        began, turn = max(now, stint.began), max(now, stint.given, at_core.ended if at_core is not None else now)
        if run_of(stint.task) in own:
            launch_s = min(began - turn, world.places[stint.place].launch_s)
            files_s = began - turn - launch_s if has_files(state.task(stint.task)) else 0.0
            starting, staging, execution = starting + launch_s, staging + files_s, execution + stint.ended - began
            waiting += began - turn - launch_s - files_s
        else:
            behind += stint.ended - turn
        needed = [by_task[parent] for parent in parents.get(stint.task, ()) if parent in by_task]
        before = [one for one in (at_core, *needed) if one is not None and now < one.ended <= turn]
        stint = max(before, key=lambda one: one.ended, default=None)
        waiting += turn - (stint.ended if stint is not None else now)
    return TimeBreakdown(waiting, behind, starting, staging, execution, last.ended - max(now, min(last.ended, _first_idle(world, cores))))


def _by_core(world: Projection) -> tuple[dict[int, _Cores], dict[int, TaskInterval | None]]:
    """Returns the cores of each host, and for each interval the previous one at its cores."""
    state, counts = world.machine.state, dict.fromkeys(world.hosts, 0)
    for worker in state.workers.values():
        connection = world.machine.connections.get(worker.id)
        if connection is not None and connection.link is not None:
            counts[connection.link] = worker.capacity.get(CORES, 0) // UNIT
    cores = {host: _Cores(count) for host, count in counts.items()}
    previous = {}
    for stint in sorted(world.played.stints, key=lambda one: one.began):
        previous[id(stint)] = cores[stint.host].take(stint, _cores_of([state.task(stint.task)]))
    return cores, previous


def _first_idle(world: Projection, cores: dict[int, _Cores]) -> float:
    """Returns when the first core became idle, at hosts that are still present."""
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
