"""Sorts the ready tasks of a run by upward rank (HEFT), by cost, or in the order of submission.

The upward rank of a task is the expected time from its start to the end of the longest chain of dependent tasks that begins with this task.
The ready task with the highest upward rank starts first, so that the longest chain is not delayed.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from weakref import WeakKeyDictionary

from pilotfish.core.state import Run, State, Task, TaskShape
from pilotfish.model.ids import INDEX_MASK
from pilotfish.model.states import DONE, WAITING

MIN_INTERVAL_S, INTERVAL_PER_TASK_S = 30.0, 1e-3
"""Minimum seconds between two checks of whether the expected task times of a run have changed. The larger of two numbers counts: the first
value, or the number of tasks times the second value."""
MIN_CHANGE = 0.25
"""If an expected task time has changed by more than this fraction, the ranks are computed again."""
NEVER = -1e18
GROWTH = 8
"""The ranks of an open run are computed again each time its number of tasks has grown by one eighth (1/GROWTH), and when the run is
closed."""

Seconds = Callable[[Task], float]


class UpwardRanks:
    """Computes the upward ranks of the tasks of each run. Stores the ranks until the run grows or is closed, or until ``forget`` is
    called."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Run, tuple[array[float], int, bool]] = WeakKeyDictionary()

    def of(self, run: Run, seconds: Seconds) -> Sequence[float]:
        """Returns the rank of each task, by index. A task has rank 0 if it had already ended when the ranks were computed. If no task of
        the run is waiting, returns an empty sequence."""
        if not run.counts[WAITING]:
            self._kept.pop(run, None)
            return ()
        count = len(run.tasks)
        ranks, ranked, closed = self._kept.get(run, (array("d"), 0, False))
        if not ranked or bool(run.closed) != closed or count - ranked > ranked // GROWTH:
            ranks, ranked = _upward(run.tasks, seconds), count
        elif len(ranks) < count:
            ranks.extend(seconds(task) for task in run.tasks[len(ranks) : count])
        self._kept[run] = ranks, ranked, bool(run.closed)
        return ranks

    def forget(self, run: Run) -> None:
        """Deletes the ranks of a run. Call it when forecasts have changed."""
        self._kept.pop(run, None)


def _upward(tasks: Sequence[Task], seconds: Seconds) -> array[float]:
    """Computes ranks in one pass from the last task to the first. This works because a task depends only on earlier tasks."""
    ranks = array("d", bytes(8 * len(tasks)))
    for index in range(len(tasks) - 1, -1, -1):
        task = tasks[index]
        if task.state >= DONE:
            continue
        longest = max([ranks[child] for child in task.children]) if task.children else 0.0
        ranks[index] = seconds(task) + longest
    return ranks


TaskOrder = Callable[[State, TaskShape, float], Iterable[Task]]
"""A function that returns the ready tasks of a shape in the order in which they should start. Its result is valid until the next call."""


def submission_order(state: State, shape: TaskShape, now: float) -> Iterable[Task]:
    return shape.queue


class CriticalPathOrder:
    """Sorts the ready tasks of a shape. The first of these rules that applies is used:

    * If tasks of the run wait for other tasks: by upward rank.
    * If tasks have costs and no task of the shape has inputs of its own: the largest cost first, so that long tasks do not start last.
    * In all other cases: the order of submission. Tasks with inputs keep this order, because tasks that were submitted together often share
      inputs.
    """

    def __init__(self) -> None:
        self._ranks = UpwardRanks()
        self._units: WeakKeyDictionary[Run, tuple[float, dict[int, float]]] = WeakKeyDictionary()
        """For each run: the time of the last check of its ranks, and the expected time of each spec with which the ranks were computed."""
        self._queues: WeakKeyDictionary[TaskShape, _RankedQueue] = WeakKeyDictionary()

    def of(self, state: State, shape: TaskShape, now: float) -> Iterable[Task]:
        run = shape.run
        waiting = run.counts[WAITING]
        if not waiting and (shape.queue_by_content or not run.costs):
            return shape.queue
        ranks = self._ranks_of(state, run, now) if waiting else run.costs
        queue = self._queues.get(shape)
        if queue is None or queue.ranks is not ranks:
            queue = self._queues[shape] = _RankedQueue(ranks)
        return queue.in_order(shape.queue)

    def _ranks_of(self, state: State, run: Run, now: float) -> Sequence[float]:
        made_at, units = self._units.get(run, (NEVER, {}))
        if now > made_at + max(MIN_INTERVAL_S, INTERVAL_PER_TASK_S * len(run.tasks)):
            fresh = {spec: _unit(state, run, spec) for spec in units}
            if any(abs(fresh[spec] - unit) > MIN_CHANGE * unit for spec, unit in units.items()):
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
    """Returns the expected seconds of a task of cost 1 on a host of usual speed. Returns 1 if they are unknown."""
    known = state.forecasts.unit(run.class_of(spec)) or state.forecasts.guess()
    return known.value if known is not None else 1.0


class _RankedQueue:
    """Yields the ready tasks of a shape. The task with the highest rank comes first. The object keeps a heap of tasks between the calls. It
    drops tasks from the heap that are no longer in the queue of the shape.

    Tasks enter the queue only at its two ends. So to find the new tasks, each call searches from both ends, until it meets a task that was
    in the queue at the previous call.
    """

    def __init__(self, ranks: Sequence[float]) -> None:
        self.ranks = ranks
        self._heap: list[tuple[float, int, Task]] = []
        self._entered: dict[Task, int] = {}
        """For each task in the heap or in ``_offered``: the value of this task in the queue at the last call."""
        self._offered: list[tuple[float, int, Task]] = []

    def in_order(self, queue: OrderedDict[Task, int]) -> Iterator[Task]:
        for entry in self._offered:
            if entry[2] in queue:
                heappush(self._heap, entry)
            else:
                del self._entered[entry[2]]
        self._offered = []
        for end in (queue.items(), reversed(queue.items())):
            for task, entered in end:
                known = self._entered.get(task)
                if known == entered:
                    break
                self._entered[task] = entered
                if known is None:
                    index = task.id & INDEX_MASK
                    rank = self.ranks[index] if index < len(self.ranks) else 1.0
                    heappush(self._heap, (-rank, index, task))
        return self._offer(queue)

    def _offer(self, queue: OrderedDict[Task, int]) -> Iterator[Task]:
        while self._heap:
            entry = heappop(self._heap)
            if entry[2] in queue:
                self._offered.append(entry)
                yield entry[2]
            else:
                del self._entered[entry[2]]
