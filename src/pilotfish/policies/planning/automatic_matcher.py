"""Chooses between a plan and data locality, and chooses again while the run continues.

A plan is useful in two cases. In the first case, transfers take long compared with the remaining work. In the second case, the run is near
its end and its tasks or hosts are uneven: a long task must not start late or at a slow host. Both cases need good forecasts. In all other
cases, tasks go to any free worker, by data locality.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from pilotfish.core.policy_interface import PolicyView
from pilotfish.core.state import ContentRecord, Task, TaskShape, Worker
from pilotfish.model.states import WAITING
from pilotfish.policies.matcher_interface import Matching
from pilotfish.policies.matchers import LocalityMatcher
from pilotfish.policies.planning.link_estimates import is_at
from pilotfish.policies.planning.planned_matcher import PlannedMatcher

INTERVAL_S, FIRST_INTERVAL_S = 10.0, 1.0
"""Seconds between two choices: usually, and while task times are unknown."""
MIN_TRANSFER_PART = 0.02
"""Transfers must take at least this part of the remaining time; otherwise they are no reason for a plan."""
GOOD_ERROR = 0.2
"""Up to this error of forecasts, the plan uses Max-min. With a larger error, it uses XSufferage."""
MAX_ERROR = 0.75
"""Error of forecasts above which a plan is useless."""
SAMPLE_SIZE = 5_000
"""Maximum contents that are used to estimate the transfer time."""
MIN_SAMPLES = 16
"""Minimum number of ended tasks before the error of forecasts is used."""
MIN_TASK_S = 2.0
"""Minimum mean seconds of a task for a plan."""
MAX_TASKS_PER_CORE, MAX_TASKS = 20, 2_000
"""The end of a run is planned only if there are at most this many tasks per core, and at most this many tasks in all."""
MIN_UNEVENNESS = 3.0
"""Minimum ratio of the fastest to the slowest host for a plan when tasks have no costs."""


class AutomaticMatcher:
    def __init__(self) -> None:
        self.planner = PlannedMatcher("max-min")
        self.nearest = LocalityMatcher()
        self.chosen: PlannedMatcher | LocalityMatcher = self.nearest
        self.reason = "there was nothing to choose yet"
        self._look_at = 0.0
        self._with_inputs = False

    def match(self, view: PolicyView, roomy: Sequence[Worker], shapes: Sequence[TaskShape], contested: bool) -> Matching:
        if contested:
            return self.nearest.match(view, roomy, shapes, contested)
        with_inputs = any(shape.queue_by_content or shape.run.spec_contents for shape in shapes)
        if view.now >= self._look_at or with_inputs != self._with_inputs:
            self._with_inputs = with_inputs
            self._choose(view, shapes)
        return self.chosen.match(view, roomy, shapes, contested)

    def next_look_at(self, view: PolicyView) -> float | None:
        return self.chosen.next_look_at(view)

    def why(self, task: Task) -> str:
        plan = self.chosen.why(task)
        return f"{plan}; it is planned because {self.reason}" if plan else ""

    def describe(self) -> str:
        return f"{'serves workers as they come' if self.chosen is self.nearest else 'plans'}, because {self.reason}"

    def _choose(self, view: PolicyView, shapes: Sequence[TaskShape]) -> None:
        self._look_at = view.now + INTERVAL_S
        why_not = _why_not_yet(view, shapes)
        if not why_not and not any(shape.run.costs for shape in shapes) and _unevenness(view) < MIN_UNEVENNESS:
            why_not = "hardly any file has to travel, and neither tasks nor hosts are known to be uneven"
        if why_not and not self._with_inputs:
            self.chosen, self.reason = self.nearest, why_not  # forecasts are not needed here, and computing them costs time
            return
        error, samples = view.state.forecasts.quality(), sum(shape.samples for shape in shapes)
        if error is None:
            self._look_at = view.now + FIRST_INTERVAL_S
        self.planner.heuristic = "max-min" if error is None or samples < MIN_SAMPLES or error < GOOD_ERROR else "xsufferage"
        transfer_s, left_s = self._transfer_s(view, shapes) if self._with_inputs else 0.0, self._left_s(view, shapes)
        if error is not None and samples >= MIN_SAMPLES and error > MAX_ERROR:
            why_not = f"forecasts are mostly wrong by {error:.0%}"
        elif transfer_s > MIN_TRANSFER_PART * left_s:
            self.chosen, self.reason = self.planner, f"files would travel for {transfer_s:.0f} s, and there is work for {left_s:.0f} s"
            return
        elif not why_not and left_s * _slots(view) < MIN_TASK_S * sum(len(shape.queue) for shape in shapes):
            why_not = "tasks are short"
        self.chosen = self.nearest if why_not else self.planner
        self.reason = why_not or "the run nears its end, and tasks or hosts are uneven"

    def _transfer_s(self, view: PolicyView, shapes: Sequence[TaskShape]) -> float:
        """Returns the seconds that the slowest link would need if every site got all files."""
        wanted: dict[ContentRecord, None] = {}
        for shape in shapes:
            wanted.update(dict.fromkeys(islice(shape.queue_by_content, SAMPLE_SIZE)))
            for records in islice(shape.run.spec_contents.values(), SAMPLE_SIZE):
                wanted.update(dict.fromkeys(records))
            if len(wanted) >= SAMPLE_SIZE:
                break
        sites = dict.fromkeys(worker.site for worker in view.workers)
        missing = {site: sum(record.size for record in wanted if not is_at(view, record, site)) for site in sites}
        return max((size / self.planner.links.bandwidth(view, site) for site, size in missing.items()), default=0.0)

    def _left_s(self, view: PolicyView, shapes: Sequence[TaskShape]) -> float:
        """Returns the seconds that all workers together need for the ready tasks."""
        work_s = sum(len(shape.queue) * self.planner.seconds(view, next(iter(shape.queue))) for shape in shapes)
        return work_s / max(1, _slots(view))


def _why_not_yet(view: PolicyView, shapes: Sequence[TaskShape]) -> str:
    """Returns why the run is not near its end yet; empty if its end can be planned."""
    if any(shape.run.counts[WAITING] for shape in shapes):
        return "tasks wait for others, and those go first for which most wait"
    count = sum(len(shape.queue) for shape in shapes)
    return "all workers have work for a while" if count > MAX_TASKS or count > MAX_TASKS_PER_CORE * _slots(view) else ""


def _slots(view: PolicyView) -> int:
    return sum(worker.slots for worker in view.workers)


def _unevenness(view: PolicyView) -> float:
    """Returns the ratio of the fastest to the slowest host, from the benchmarks that agents reported when they joined. Learned speeds would
    take more time to compute."""
    benchmarks = (worker.info.get("benchmark") for worker in view.workers)
    speeds = [speed for speed in benchmarks if isinstance(speed, int | float) and speed > 0]
    return max(speeds) / min(speeds) if speeds else 1.0
