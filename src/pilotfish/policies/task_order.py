"""Upward ranks, as of HEFT: how long it takes from the beginning of a task to the end of the longest chain that begins with it.

Whoever starts ready tasks in the order of falling ranks keeps the critical path moving.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Protocol
from weakref import WeakKeyDictionary

from pilotfish.core.state import Run, State, Task, TaskShape
from pilotfish.model.ids import INDEX_MASK
from pilotfish.model.states import DONE, WAITING

FRESH_S, TASK_S = 30.0, 1e-3
"""Ranks are not made anew before so long, and so much for each task of the run."""
CHANGED = 0.25
"""And only if what is expected of some task has changed by so much."""
NEVER = -1e18
GROWTH = 8
"""Ranks are made anew when a run that is still being filled has grown by one part in so many; at the latest when it is closed."""

Seconds = Callable[[Task], float]
Transfer = Callable[[Task, Task], float]


def no_transfer(parent: Task, child: Task) -> float:
    return 0.0


class UpwardRanks:
    """Ranks of the tasks of runs, kept until a run has grown or somebody says that forecasts have changed."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Run, tuple[array[float], int, bool]] = WeakKeyDictionary()

    def of(self, run: Run, seconds: Seconds, transfer: Transfer = no_transfer) -> Sequence[float]:
        """A rank for each task, by index; nothing for a run of which no task waits for another: there, any order is as good.

        Tasks that have ended have rank 0. ``transfer``: seconds to bring what a parent made to a child.
        """
        if not run.counts[WAITING]:
            self._kept.pop(run, None)
            return ()
        count = len(run.tasks)
        ranks, ranked, closed = self._kept.get(run, (array("d"), 0, False))
        if not ranked or bool(run.closed) != closed or count - ranked > ranked // GROWTH:
            ranks, ranked = _upward(run.tasks, seconds, transfer), count
        elif len(ranks) < count:
            ranks.extend(seconds(task) for task in run.tasks[len(ranks) : count])
        self._kept[run] = ranks, ranked, bool(run.closed)
        return ranks

    def forget(self, run: Run | None = None) -> None:
        """Forecasts have changed much: ranks are made anew when they are asked for; without a run, those of all runs."""
        if run is None:
            self._kept.clear()
        else:
            self._kept.pop(run, None)


def _upward(tasks: Sequence[Task], seconds: Seconds, transfer: Transfer) -> array[float]:
    """One pass from the last task to the first: a task can only wait for earlier ones."""
    ranks = array("d", bytes(8 * len(tasks)))
    moving = transfer is not no_transfer
    for index in range(len(tasks) - 1, -1, -1):
        task = tasks[index]
        if task.state >= DONE:
            continue
        longest = 0.0
        for child in task.children or ():
            beyond = ranks[child] + (transfer(task, tasks[child]) if moving else 0.0)
            if beyond > longest:
                longest = beyond
        ranks[index] = seconds(task) + longest
    return ranks


class TaskOrder(Protocol):
    def of(self, state: State, shape: TaskShape, now: float) -> Iterable[Task]:
        """The ready tasks of a shape, in the order in which they should begin. Taken from the queue or not, before it is asked again."""


class SubmissionOrder:
    def of(self, state: State, shape: TaskShape, now: float) -> Iterable[Task]:
        return shape.queue


class CriticalPathOrder:
    """Of a run in which tasks wait for others, the highest rank first; of another whose tasks have costs, the highest cost: what takes
    longest had better not begin last. Not of tasks with inputs: those that came together often share them."""

    def __init__(self) -> None:
        self._ranks = UpwardRanks()
        self._units: WeakKeyDictionary[Run, tuple[float, dict[int, float]]] = WeakKeyDictionary()
        """When the ranks of a run were made, and from which expectations, by spec."""
        self._lines: WeakKeyDictionary[TaskShape, _Line] = WeakKeyDictionary()

    def of(self, state: State, shape: TaskShape, now: float) -> Iterable[Task]:
        run = shape.run
        waiting = run.counts[WAITING]
        if not waiting and (shape.wanting or not run.costs):
            return shape.queue
        ranks = self._ranks_of(state, run, now) if waiting else run.costs
        line = self._lines.get(shape)
        if line is None or line.ranks is not ranks:
            line = self._lines[shape] = _Line(ranks)
        return line.first_to_last(shape.queue)

    def _ranks_of(self, state: State, run: Run, now: float) -> Sequence[float]:
        made_at, units = self._units.get(run, (NEVER, {}))
        if now > made_at + max(FRESH_S, TASK_S * len(run.tasks)):
            fresh = {spec: _unit(state, run, spec) for spec in units}
            if any(abs(fresh[spec] - unit) > CHANGED * unit for spec, unit in units.items()):
                self._ranks.forget(run)
                units = {}
            made_at = now
        if made_at == NEVER:
            made_at = now

        def seconds(task: Task) -> float:
            unit = units.get(task.spec)
            if unit is None:
                unit = units[task.spec] = _unit(state, run, task.spec)
            return unit * run.cost(task.id & INDEX_MASK)

        ranks = self._ranks.of(run, seconds)
        self._units[run] = made_at, units
        return ranks


def _unit(state: State, run: Run, spec: int) -> float:
    """Seconds for cost 1 on a host as quick as most; 1 if nothing is known of any task: then the longest chain of tasks counts."""
    known = state.forecasts.unit(run.class_of(spec)) or state.forecasts.guess(1.0)
    return known.value if known is not None else 1.0


class _Line:
    """Ready tasks by rank. What has left the queue is left out when its turn comes; what has come since is at either end of the queue."""

    def __init__(self, ranks: Sequence[float]) -> None:
        self.ranks = ranks
        self._heap: list[tuple[float, int, Task]] = []
        self._here: dict[Task, None] = {}
        self._offered: list[tuple[float, int, Task]] = []

    def first_to_last(self, queue: OrderedDict[Task, None]) -> Iterator[Task]:
        for entry in self._offered:
            if entry[2] in queue:
                heappush(self._heap, entry)
            else:  # it may come back, to any place
                del self._here[entry[2]]
        self._offered = []
        for end in (queue, reversed(queue)):
            for task in end:
                if task in self._here:
                    break
                self._here[task] = None
                index = task.id & INDEX_MASK
                rank = self.ranks[index] if index < len(self.ranks) else 1.0
                heappush(self._heap, (-rank, index, task))
        return self._offer(queue)

    def _offer(self, queue: OrderedDict[Task, None]) -> Iterator[Task]:
        while self._heap:
            entry = heappop(self._heap)
            if entry[2] in queue:
                self._offered.append(entry)
                yield entry[2]
            else:
                del self._here[entry[2]]
