"""Follows a plan and redraws it at scheduling events.

The plan is a Gantt chart of workers and links. It is redrawn when it is old, when work or workers came or went, or when a worker is idle:
from the expected ends of running tasks, transfers, replicas, and the speeds of hosts and links. In between, workers take what the plan has
for them. A task that the plan would not give to an idle worker waits for a better one.
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
from pilotfish.policies.planning.link_estimates import LinkEstimates, smallest_first

if TYPE_CHECKING:
    from pilotfish.policies.planning.heuristics import Heuristic

GUESS_S = 1.0
"""Assumed seconds of an unknown task of cost 1; or twice the time that others of its class have run so far, if that is more."""
SOONEST_S, LATEST_S = 5.0, 120.0
"""Minimum and maximum seconds between two plans."""
PLACEMENT_S, TASK_S = 0.001, 1e-4
"""Additional seconds for each placement and each planned task: several times what computing the plan takes."""
AGAIN_S = 1.0
"""Seconds after a plan from which an idle worker causes a new one."""
MOST_TASKS = 4_000
"""Maximum tasks planned at a time, so that the master never stops for long."""


class PlannedMatcher:
    def __init__(self, heuristic: Heuristic, most_tasks: int = MOST_TASKS) -> None:
        self.heuristic: Heuristic = heuristic
        self._most_tasks = most_tasks
        self.plans = 0
        self.transfers = LinkEstimates()
        self.ends: dict[Task, float] = {}
        """Expected ends of tasks that were given away."""
        self._queues: dict[str, deque[Task]] = {}
        """By worker: its next tasks."""
        self._trials: list[Task] = []
        """Tasks whose inputs are good first transfers over an unmeasured link."""
        self._alike: dict[tuple[TaskShape, tuple[ContentRecord, ...]], list[Task]] = {}
        """Tasks that were ready at the last plan, grouped by shape and inputs."""
        self._since: dict[str, tuple[float, float]] = {}
        """By class: when its first task was given away, and its cost."""
        self._fresh_until = 0.0
        """Earliest time of a new plan."""
        self._again_at = 0.0
        self._next_at = 0.0
        self._has_room = False
        """Whether a worker has room. Otherwise nothing changes before a task ends."""
        self._partial = False
        """Whether there were more tasks than were planned."""
        self._short = False
        """Whether a worker has room for these."""
        self._known: tuple[int, int, int] = (0, 0, 0)
        self._waiting: dict[Run, int] = {}
        """How many tasks waited for others at the last plan. With fewer now, some became ready that are in no plan."""
        self._unseen = False
        """Whether there are such tasks, and an idle worker."""
        self._left = 0

    def match(self, outlook: PolicyView, roomy: Sequence[Worker], shapes: Sequence[TaskShape], contested: bool) -> Matching:
        if contested:
            return Matching(prefer(outlook, roomy, shapes))
        self._has_room = bool(roomy)
        if not roomy:
            return Matching({}, dict.fromkeys(shapes) if outlook.workers else {})
        idle = any(not self._queues.get(worker.id) for worker in roomy)
        self._unseen = idle and any(shape.run.counts[WAITING] != self._waiting.get(shape.run) for shape in shapes)
        if self._is_stale(outlook, idle, shapes):
            self._plan(outlook, shapes)
        preferred = {worker.id: given for worker in roomy if (given := self._next_for(outlook, worker))}
        self._short = self._partial and any(worker.id not in preferred and not self._queues.get(worker.id) for worker in roomy)
        return Matching(preferred, dict.fromkeys(shapes))

    def next_look_at(self, outlook: PolicyView) -> float | None:
        if not self._has_room or not self._left or not outlook.state.ready:
            return None
        if self._unseen:
            return self._fresh_until
        return min(self._next_at, self._again_at) if self._short and self._again_at > outlook.now else self._next_at

    def why(self, task: Task) -> str:
        for worker, queue in self._queues.items():
            if task in queue:
                before = queue.index(task)
                turn = "as the next" if not before else f"after {before} other{'s' * (before > 1)}"
                return f"a plan ({self.heuristic}) has it for worker {worker}, {turn}"
        nowhere = f"a plan ({self.heuristic}) has no place for it yet: where there is room, it would end later than if it waits"
        return nowhere if self.plans else ""

    def describe(self) -> str:
        return f"plans by {self.heuristic}: {self.plans} so far"

    def seconds(self, outlook: PolicyView, task: Task) -> float:
        """Expected seconds of a task on a host of usual speed."""
        run = task.shape.run
        kind, cost = run.class_of(task.spec), run.cost(task.id & INDEX_MASK)
        known = outlook.state.forecasts.unit(kind)
        if known is not None:
            return cost * known.value
        since, usual = self._since.get(kind, (outlook.now, cost))
        return cost * max(GUESS_S, 2 * (outlook.now - since) / usual)

    # --- when to plan, and what follows -----------------------------------------------------------------------------------------------

    def _is_stale(self, outlook: PolicyView, idle: bool, shapes: Sequence[TaskShape]) -> bool:
        """``idle``: the plan has nothing for a worker that has room."""
        if outlook.now >= self._next_at:
            return True
        if outlook.now >= self._fresh_until and (self._unseen or self._known != self._all_known(outlook, shapes)):
            return True
        return bool(self._left) and idle and outlook.now >= self._again_at

    def _all_known(self, outlook: PolicyView, shapes: Sequence[TaskShape]) -> tuple[int, int, int]:
        """Changes when work or workers come, workers go, or a link was tried."""
        return sum(len(shape.run.tasks) for shape in shapes), hash(tuple(outlook.state.workers)), self.transfers.learnt(outlook)

    def _next_for(self, outlook: PolicyView, worker: Worker) -> list[Task]:
        """Tasks that the worker can start now, in the order of the plan."""
        queue = self._queues.get(worker.id)
        given: list[Task] = []
        trial = self._trial(outlook, worker)
        if trial is not None:
            self._give(outlook, trial, worker)
            return [trial]
        if not queue:
            return given
        free, later = dict(worker.free), deque[Task]()
        while queue:
            task = queue.popleft()
            if task.state != READY or task.suspect:
                continue
            if any(free.get(name, 0) < amount for name, amount in task.shape.needs):
                queue.appendleft(task)
                break
            if self.transfers.must_wait(outlook, task, worker.site):
                later.append(task)
                continue
            for name, amount in task.shape.needs:
                free[name] -= amount
            given.append(task)
            self._give(outlook, task, worker)
        if later and not given and not worker.active and self._all_wait(outlook, worker):
            first = later.popleft()
            given.append(first)
            self._give(outlook, first, worker)
        queue.extendleft(reversed(later))
        return given

    def _all_wait(self, outlook: PolicyView, worker: Worker) -> bool:
        """Whether all ready tasks for this worker wait for files in transfer. Then it may as well get one of them."""
        for alike in self._alike.values():
            while alike and alike[-1].state != READY:
                alike.pop()
            if alike and worker.suits(alike[-1].shape, outlook.now) and not self.transfers.comes(outlook, alike[-1], worker.site):
                return False
        return True

    def _trial(self, outlook: PolicyView, worker: Worker) -> Task | None:
        """A task with small inputs for an unmeasured link, independent of the plan."""
        found = self.transfers.trial(outlook, (task for task in self._trials if self._can_have(outlook, task, worker)), worker.site)
        if found is not None:
            for queue in self._queues.values():
                if found in queue:
                    queue.remove(found)
        return found

    def _can_have(self, outlook: PolicyView, task: Task, worker: Worker) -> bool:
        fits = task.state == READY and task not in self.ends and worker.fits(task.shape.needs)
        return fits and worker.suits(task.shape, outlook.now) and can_get_inputs(outlook.state, task, worker.site)

    def _give(self, outlook: PolicyView, task: Task, worker: Worker) -> None:
        run = task.shape.run
        self._since.setdefault(run.class_of(task.spec), (outlook.now, run.cost(task.id & INDEX_MASK)))
        self.transfers.begin(outlook, task, worker.site)
        self.ends[task] = outlook.now + self.seconds(outlook, task) * outlook.state.forecasts.slowness(worker.id, worker.site)

    def _plan(self, outlook: PolicyView, shapes: Sequence[TaskShape]) -> None:
        from pilotfish.policies.planning.chart_from_state import PlanInputs, draw  # imports numpy

        self.plans += 1
        self.ends = {task: end for task, end in self.ends.items() if task.worker is not None}
        running = {task.shape.run.class_of(task.spec) for task in self.ends}
        self._since = {kind: since for kind, since in self._since.items() if kind in running}
        self.transfers.look(outlook)
        tasks = [task for shape in shapes for task in _representatives(shape, max(1, self._most_tasks // len(shapes)))]
        seconds = [self.seconds(outlook, task) for task in tasks]
        lasts_s = min(LATEST_S, max(SOONEST_S, median(seconds) / 2)) if seconds else LATEST_S
        inputs = PlanInputs(self.heuristic, self.transfers, self.ends, partial(self.seconds, outlook))
        placed = draw(inputs, outlook, tasks, seconds, 2 * lasts_s)
        self._queues = {}
        for worker, task in placed:
            self._queues.setdefault(worker.id, deque()).append(task)
        self._trials = smallest_first(tasks)
        self._alike = {}
        for task in tasks:
            self._alike.setdefault((task.shape, needs(task)), []).append(task)
        self._left = len(tasks)
        self._partial = sum(len(shape.queue) for shape in shapes) > len(tasks)
        effort_s = PLACEMENT_S * len(placed) + TASK_S * len(tasks)
        self._fresh_until = outlook.now + effort_s
        self._again_at = outlook.now + max(AGAIN_S, effort_s)
        self._next_at = outlook.now + max(lasts_s, effort_s)
        self._known = self._all_known(outlook, shapes)
        self._waiting = {shape.run: shape.run.counts[WAITING] for shape in shapes}
        self._unseen = False


def _representatives(shape: TaskShape, most: int) -> Iterable[Task]:
    """All ready tasks; or, if there are too many, the first ones and some for each needed file."""
    if len(shape.queue) <= most:
        return shape.queue
    if not shape.queue_by_content:
        return islice(shape.queue, most)
    chosen = dict.fromkeys(islice(shape.queue, most // 2))
    each = max(1, most // 2 // len(shape.queue_by_content))
    for tasks in islice(shape.queue_by_content.values(), most // 2):
        chosen.update(dict.fromkeys(islice(tasks, each)))
    return chosen


def min_min() -> PlannedMatcher:
    return PlannedMatcher("min-min")


def max_min() -> PlannedMatcher:
    return PlannedMatcher("max-min")


def sufferage() -> PlannedMatcher:
    return PlannedMatcher("sufferage")


def xsufferage() -> PlannedMatcher:
    return PlannedMatcher("xsufferage")
