"""Chooses between a plan and data locality, and repeats the choice while the run continues.

Tasks are planned in two cases:

* Transfers of missing files take more than the fraction ``MIN_TRANSFER_PART`` of the remaining time.
* The run is near its end, its tasks are not short, and its tasks or hosts are uneven. The plan then avoids that a long task starts late or
  at a slow host.

In all other cases, tasks are assigned by data locality. Data locality is also used if the measured error of forecasts is above
``MAX_ERROR``, and while several shares compete for room or a run may miss its deadline.
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
"""Seconds between two choices. The second value is used if a choice needs the error of forecasts, and the error is not known yet."""
MIN_TRANSFER_PART = 0.02
"""If transfers take less than this part of the remaining time, they are no reason for a plan."""
GOOD_ERROR = 0.2
"""Up to this error of forecasts, the plan uses Max-min. With a larger error, it uses XSufferage."""
MAX_ERROR = 0.75
"""Error of forecasts above which a plan is useless."""
SAMPLE_SIZE = 5_000
"""Maximum contents that are used to estimate the transfer time."""
MIN_SAMPLES = 16
"""Minimum number of ended tasks before the error of forecasts is used."""
MIN_TASK_S = 2.0
"""If the tasks take less than this many seconds on average, uneven tasks or hosts are no reason for a plan."""
MAX_TASKS_PER_CORE, MAX_TASKS = 20, 2_000
"""Maximum number of tasks per core, and maximum number of tasks in all, for which the end of a run is planned."""
MIN_UNEVENNESS = 3.0
"""If tasks have no costs, hosts count as uneven from this ratio of the highest to the lowest speed."""


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
        """Returns the longest time in seconds that a link would need if every site got all files that it does not have yet."""
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
    """Returns the reason why the end of the run cannot be planned yet; empty if it can be planned."""
    if any(shape.run.counts[WAITING] for shape in shapes):
        return "tasks wait for others, and those go first for which most wait"
    count = sum(len(shape.queue) for shape in shapes)
    return "all workers have work for a while" if count > MAX_TASKS or count > MAX_TASKS_PER_CORE * _slots(view) else ""


def _slots(view: PolicyView) -> int:
    return sum(worker.slots for worker in view.workers)


def _unevenness(view: PolicyView) -> float:
    """Returns the ratio of the highest to the lowest speed of the hosts. The speeds are the benchmarks that agents reported when they
    joined; learned speeds would take more time to compute."""
    benchmarks = (worker.info.get("benchmark") for worker in view.workers)
    speeds = [speed for speed in benchmarks if isinstance(speed, int | float) and speed > 0]
    return max(speeds) / min(speeds) if speeds else 1.0
