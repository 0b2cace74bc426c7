"""A matcher that assigns tasks by a plan, and makes a new plan when the situation has changed.

The plan is a Gantt chart of workers and links. It is computed from the expected ends of running tasks and transfers, the contents at each
site, and the speeds of hosts and links. There are several reasons for a new plan: the last plan is old, tasks were added, workers have
joined or left, a link was measured, or a worker has room but no planned task. Between two plans, a worker gets only the tasks that are
planned for it, even if it is idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING

from pilotfish.core.data.replicas import can_get_inputs, needs
from pilotfish.core.policy_interface import PolicyView
from pilotfish.core.state import ContentRecord, Run, Task, TaskShape, Worker
from pilotfish.model.ids import INDEX_MASK
from pilotfish.model.states import READY, WAITING
from pilotfish.policies.matcher_interface import Matching
from pilotfish.policies.matchers import prefer
from pilotfish.policies.offered_tasks import fits
from pilotfish.policies.planning.link_estimates import LinkEstimates, probe_tasks

if TYPE_CHECKING:
    from pilotfish.policies.planning.heuristics import Heuristic

UNKNOWN_TASK_S = 1.0
"""Assumed seconds of a task of cost 1 while no task of its class has ended. If the first task of the class has already run for more than
half of this time, twice its elapsed time is assumed instead."""
MIN_INTERVAL_S, MAX_INTERVAL_S = 5.0, 120.0
"""A plan is old after half of the median time of its tasks, but not earlier or later than these limits in seconds."""
INTERVAL_PER_PLACEMENT_S, INTERVAL_PER_TASK_S = 0.001, 1e-4
"""For each placement and for each planned task, this many seconds are added to the minimum time between two plans. Computing the plan takes
much less time, so the master stays free for other work.
"""
IDLE_REPLAN_S = 1.0
"""Minimum seconds after a plan until an idle worker can be the reason for a new plan."""
OVERDUE_PART = 0.25
"""If a task runs longer than expected, its end is expected in this fraction of its expected time, counted from now."""
MAX_TASKS = 4_000
"""Maximum number of tasks in one plan, so that a plan never keeps the master busy for long."""


class PlannedMatcher:
    def __init__(self, heuristic: Heuristic, max_tasks: int = MAX_TASKS) -> None:
        self.heuristic: Heuristic = heuristic
        self._max_tasks = max_tasks
        self.plans = 0
        self.links = LinkEstimates()
        self.ends: dict[Task, float] = {}
        """Expected ends of assigned tasks."""
        self._queues: dict[str, deque[Task]] = {}
        """For each worker: its planned tasks, the next task first."""
        self._probes: list[Task] = []
        """Tasks with inputs that are small, but large enough to measure a link."""
        self._groups: dict[tuple[TaskShape, tuple[ContentRecord, ...]], list[Task]] = {}
        """Tasks that were ready at the last plan, grouped by shape and inputs."""
        self._first_given: dict[str, tuple[float, float]] = {}
        """For each task class: when the first task of the class was assigned, and the cost of this task."""
        self._not_before = 0.0
        """Earliest time of a new plan."""
        self._idle_replan_at = 0.0
        self._next_at = 0.0
        self._has_room = False
        """Whether at least one worker has room. If none has room, no task can be assigned before a running task ends."""
        self._partial = False
        """Whether some ready tasks are not in the plan, because there were too many."""
        self._has_idle_worker = False
        """Whether a worker has room for tasks that are not in the plan."""
        self._planned_for: tuple[int, int, int] = (0, 0, 0)
        self._waiting: dict[Run, int] = {}
        """For each run: how many tasks waited for other tasks when the last plan was made. If fewer tasks wait now, some tasks have become
        ready."""
        self._has_unplanned = False
        """Whether there is an idle worker, and some tasks have become ready since the last plan."""
        self._left = 0

    def match(self, view: PolicyView, roomy: Sequence[Worker], shapes: Sequence[TaskShape], contested: bool) -> Matching:
        if contested:
            return Matching(prefer(view, roomy, shapes))
        self._has_room = bool(roomy)
        if not roomy:
            return Matching({}, dict.fromkeys(shapes) if view.workers else {})
        idle = any(not self._queues.get(worker.id) for worker in roomy)
        self._has_unplanned = idle and any(shape.run.counts[WAITING] != self._waiting.get(shape.run) for shape in shapes)
        if self._is_stale(view, idle, shapes):
            self._plan(view, shapes)
        preferred = {worker.id: ready for worker in roomy if (ready := self._next_for(view, worker))}
        self._has_idle_worker = self._partial and any(worker.id not in preferred and not self._queues.get(worker.id) for worker in roomy)
        return Matching(preferred, dict.fromkeys(shapes))

    def next_look_at(self, view: PolicyView) -> float | None:
        if not self._has_room or not self._left or not view.state.ready:
            return None
        if self._has_unplanned:
            return self._not_before
        return min(self._next_at, self._idle_replan_at) if self._has_idle_worker and self._idle_replan_at > view.now else self._next_at

    def why(self, task: Task) -> str:
        for worker, queue in self._queues.items():
            if task in queue:
                before = queue.index(task)
                position = "as the next" if not before else f"after {before} other{'s' * (before > 1)}"
                return f"a plan ({self.heuristic}) has it for worker {worker}, {position}"
        no_place = f"a plan ({self.heuristic}) has no place for it yet: where there is room, it would end later than if it waits"
        return no_place if self.plans else ""

    def describe(self) -> str:
        return f"plans by {self.heuristic}: {self.plans} so far"

    def seconds(self, view: PolicyView, task: Task) -> float:
        """Returns the expected seconds of a task on a host of usual speed."""
        run = task.shape.run
        kind, cost = run.class_of(task.spec), run.cost(task.id & INDEX_MASK)
        known = view.state.forecasts.unit(kind)
        if known is not None:
            return cost * known.value
        given_at, first_cost = self._first_given.get(kind, (view.now, cost))
        return cost * max(UNKNOWN_TASK_S, 2 * (view.now - given_at) / first_cost)

    # --- when to plan, and what follows -----------------------------------------------------------------------------------------------

    def _is_stale(self, view: PolicyView, idle: bool, shapes: Sequence[TaskShape]) -> bool:
        """Returns True if a new plan is needed. ``idle``: whether a worker has room, but no planned task."""
        if view.now >= self._next_at:
            return True
        if view.now >= self._not_before and (self._has_unplanned or self._planned_for != self._fingerprint(view, shapes)):
            return True
        return bool(self._left) and idle and view.now >= self._idle_replan_at

    def _fingerprint(self, view: PolicyView, shapes: Sequence[TaskShape]) -> tuple[int, int, int]:
        """Returns a value that changes when tasks are added, workers join or leave, or a link is measured."""
        return sum(len(shape.run.tasks) for shape in shapes), hash(tuple(view.state.workers)), self.links.measured_probes(view)

    def _next_for(self, view: PolicyView, worker: Worker) -> list[Task]:
        """Returns the tasks that the worker can start now, in the order of the plan."""
        queue = self._queues.get(worker.id)
        ready: list[Task] = []
        probe = self._start_probe(view, worker)
        if probe is not None:
            self._note_given(view, probe, worker)
            return [probe]
        if not queue:
            return ready
        free, later = dict(worker.free), deque[Task]()
        while queue:
            task = queue.popleft()
            if task.state != READY or task.suspect:
                continue
            if not fits(free, task.shape.needs):
                queue.appendleft(task)
                break
            if self.links.must_wait(view, task, worker.site):
                later.append(task)
                continue
            for name, amount in task.shape.needs:
                free[name] -= amount
            ready.append(task)
            self._note_given(view, task, worker)
        if later and not ready and not worker.active and self._all_in_transfer(view, worker):
            first = later.popleft()
            ready.append(first)
            self._note_given(view, first, worker)
        queue.extendleft(reversed(later))
        return ready

    def _all_in_transfer(self, view: PolicyView, worker: Worker) -> bool:
        """Looks at all ready tasks of the plan that this worker can run. Returns True if all of them wait only for files that are in
        transfer to the worker's site. An idle worker then gets one of these tasks."""
        for group in self._groups.values():
            while group and group[-1].state != READY:
                group.pop()
            if group and worker.suits(group[-1].shape, view.now) and not self.links.all_in_transfer(view, group[-1], worker.site):
                return False
        return True

    def _start_probe(self, view: PolicyView, worker: Worker) -> Task | None:
        """Returns a task with small inputs, to measure the link of the worker's site. Returns None if the link needs no measurement."""
        found = self.links.start_probe(view, (task for task in self._probes if self._can_start(view, task, worker)), worker.site)
        if found is not None:
            for queue in self._queues.values():
                if found in queue:
                    queue.remove(found)
        return found

    def _can_start(self, view: PolicyView, task: Task, worker: Worker) -> bool:
        fits = task.state == READY and task not in self.ends and worker.fits(task.shape.needs)
        return fits and worker.suits(task.shape, view.now) and can_get_inputs(view.state, task, worker.site)

    def _note_given(self, view: PolicyView, task: Task, worker: Worker) -> None:
        run = task.shape.run
        self._first_given.setdefault(run.class_of(task.spec), (view.now, run.cost(task.id & INDEX_MASK)))
        self.links.note_started(view, task, worker.site)
        self.ends[task] = view.now + self.seconds(view, task) * view.state.forecasts.slowness(worker.id, worker.site)

    def _plan(self, view: PolicyView, shapes: Sequence[TaskShape]) -> None:
        from pilotfish.policies.planning.chart_from_state import ChartBuilder  # imported late, because it imports numpy

        self.plans += 1
        self.ends = {task: end for task, end in self.ends.items() if task.worker is not None}
        running = {task.shape.run.class_of(task.spec) for task in self.ends}
        self._first_given = {kind: given_at for kind, given_at in self._first_given.items() if kind in running}
        self.links.remove_ended(view)
        tasks = [task for shape in shapes for task in _representatives(shape, max(1, self._max_tasks // len(shapes)))]
        seconds = [self.seconds(view, task) for task in tasks]
        interval_s = min(MAX_INTERVAL_S, max(MIN_INTERVAL_S, median(seconds) / 2)) if seconds else MAX_INTERVAL_S
        assignments = ChartBuilder(view, self.links, self._expected_ends(view)).plan(self.heuristic, tasks, seconds, 2 * interval_s)
        self._queues = {}
        for worker, task in assignments:
            self._queues.setdefault(worker.id, deque()).append(task)
        self._probes = probe_tasks(tasks)
        self._groups = {}
        for task in tasks:
            self._groups.setdefault((task.shape, needs(task)), []).append(task)
        self._left = len(tasks)
        self._partial = sum(len(shape.queue) for shape in shapes) > len(tasks)
        min_interval_s = INTERVAL_PER_PLACEMENT_S * len(assignments) + INTERVAL_PER_TASK_S * len(tasks)
        self._not_before = view.now + min_interval_s
        self._idle_replan_at = view.now + max(IDLE_REPLAN_S, min_interval_s)
        self._next_at = view.now + max(interval_s, min_interval_s)
        self._planned_for = self._fingerprint(view, shapes)
        self._waiting = {shape.run: shape.run.counts[WAITING] for shape in shapes}
        self._has_unplanned = False

    def _expected_ends(self, view: PolicyView) -> dict[Task, float]:
        ends: dict[Task, float] = {}
        for worker in view.workers:
            for task in (*worker.active, *worker.ahead):
                end = self.ends.get(task, view.now)
                # An end in the past means that the task takes longer than expected, or that it was assigned without a plan.
                ends[task] = end if end > view.now else view.now + OVERDUE_PART * self.seconds(view, task)
        return ends


def _representatives(shape: TaskShape, max_tasks: int) -> Iterable[Task]:
    """Returns all ready tasks of the shape. If there are too many, returns only the first tasks, and some tasks for each needed file."""
    if len(shape.queue) <= max_tasks:
        return shape.queue
    if not shape.queue_by_content:
        return islice(shape.queue, max_tasks)
    chosen = dict.fromkeys(islice(shape.queue, max_tasks // 2))
    per_file = max(1, max_tasks // 2 // len(shape.queue_by_content))
    for tasks in islice(shape.queue_by_content.values(), max_tasks // 2):
        chosen.update(dict.fromkeys(islice(tasks, per_file)))
    return chosen


min_min = partial(PlannedMatcher, "min-min")
max_min = partial(PlannedMatcher, "max-min")
sufferage = partial(PlannedMatcher, "sufferage")
xsufferage = partial(PlannedMatcher, "xsufferage")
