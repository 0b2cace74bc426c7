"""A matcher that chooses between a plan and data locality, and repeats this choice during the run.

Tasks are planned in two cases:

* Transfers of missing files take more than the fraction ``MIN_TRANSFER_PART`` of the remaining time.
* The run is near its end, its tasks are not short, and its tasks or hosts are uneven. In this case, the plan avoids that a long task starts
  late or on a slow host.

In all other cases, tasks are assigned by data locality. Even in the two cases, there is no plan if the measured error of forecasts is above
``MAX_ERROR``. There is also no plan while several shares compete for room, or while a run is likely to miss its deadline.
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
"""Seconds between two choices. The second value is used while a choice needs the error of forecasts and this error is still unknown."""
MIN_TRANSFER_PART = 0.02
"""Transfers are a reason for a plan only if they take at least this fraction of the remaining time."""
GOOD_ERROR = 0.2
"""Up to this error of forecasts, plans are made with Max-min. With a larger error, they are made with XSufferage."""
MAX_ERROR = 0.75
"""No plan is made if the error of forecasts is larger than this."""
SAMPLE_SIZE = 5_000
"""Maximum number of contents from which the transfer time is estimated."""
MIN_SAMPLES = 16
"""The error of forecasts is used only after at least this many tasks have ended."""
MIN_TASK_S = 2.0
"""Uneven tasks or hosts are a reason for a plan only if the tasks take at least this many seconds on average."""
MAX_TASKS_PER_CORE, MAX_TASKS = 20, 2_000
"""The run counts as near its end if at most this many tasks per core (first value), and at most this many tasks in total (second value),
are ready."""
MIN_UNEVENNESS = 3.0
"""If tasks have no costs, hosts count as uneven if the highest speed divided by the lowest speed is at least this."""


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
            self.chosen, self.reason = self.nearest, why_not  # decided before any forecast is computed, to save time
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
        """Computes how many seconds each link would need to send its site all missing files. Returns the largest of these numbers."""
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
        """Returns how many seconds all workers together need for the ready tasks."""
        work_s = sum(len(shape.queue) * self.planner.seconds(view, next(iter(shape.queue))) for shape in shapes)
        return work_s / max(1, _slots(view))


def _why_not_yet(view: PolicyView, shapes: Sequence[TaskShape]) -> str:
    """Returns the reason why the end of the run cannot be planned yet. Returns an empty text if it can be planned."""
    if any(shape.run.counts[WAITING] for shape in shapes):
        return "tasks wait for others, and those go first for which most wait"
    count = sum(len(shape.queue) for shape in shapes)
    return "all workers have work for a while" if count > MAX_TASKS or count > MAX_TASKS_PER_CORE * _slots(view) else ""


def _slots(view: PolicyView) -> int:
    return sum(worker.slots for worker in view.workers)


def _unevenness(view: PolicyView) -> float:
    """Returns the ratio of the highest to the lowest speed of the hosts. The speeds are the benchmarks that agents reported when they
    joined. Learned speeds are not used, because they take longer to compute."""
    benchmarks = (worker.info.get("benchmark") for worker in view.workers)
    speeds = [speed for speed in benchmarks if isinstance(speed, int | float) and speed > 0]
    return max(speeds) / min(speeds) if speeds else 1.0
