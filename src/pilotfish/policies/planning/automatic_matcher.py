"""Chooses between planning and serving workers as they come, and chooses again while the run continues.

A plan pays when transfers take long compared with the remaining work; and near the end of a run whose tasks or hosts are uneven, when a
long task must not start late or at a slow host. Both need good forecasts. Otherwise tasks go to any free worker, by data locality.
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

LOOK_S, SOON_S = 10.0, 1.0
"""Seconds between two choices; and while task times are unknown."""
MATTERS = 0.02
"""Minimum part of the remaining time that transfers must take for a plan to pay."""
GOOD_ERROR = 0.2
"""Error of forecasts up to which Max-min is used; with a larger error, XSufferage."""
MOST_ERROR = 0.75
"""Error of forecasts above which a plan is useless."""
MOST_FILES = 5_000
"""Sample size. Enough to estimate the transfer time."""
ENOUGH = 16
"""Minimum number of ended tasks before the error of forecasts counts."""
LONG_S = 2.0
"""Minimum mean seconds of a task for which planning pays."""
MOST_EACH, MOST_TASKS = 20, 2_000
"""Maximum tasks per core, and in all, for which the end of a run is planned."""
UNEVEN = 3.0
"""Minimum ratio of the fastest to the slowest host for a plan when tasks have no costs."""


class AutomaticMatcher:
    def __init__(self) -> None:
        self.planner = PlannedMatcher("max-min")
        self.nearest = LocalityMatcher()
        self.chosen: PlannedMatcher | LocalityMatcher = self.nearest
        self.reason = "there was nothing to choose yet"
        self._look_at = 0.0
        self._with_inputs = False

    def match(self, outlook: PolicyView, roomy: Sequence[Worker], shapes: Sequence[TaskShape], contested: bool) -> Matching:
        if contested:
            return self.nearest.match(outlook, roomy, shapes, contested)
        with_inputs = any(shape.queue_by_content or shape.run.spec_contents for shape in shapes)
        if outlook.now >= self._look_at or with_inputs != self._with_inputs:
            self._with_inputs = with_inputs
            self._choose(outlook, shapes)
        return self.chosen.match(outlook, roomy, shapes, contested)

    def next_look_at(self, outlook: PolicyView) -> float | None:
        return self.chosen.next_look_at(outlook)

    def why(self, task: Task) -> str:
        said = self.chosen.why(task)
        return f"{said}; it is planned because {self.reason}" if said else ""

    def describe(self) -> str:
        return f"{'serves workers as they come' if self.chosen is self.nearest else 'plans'}, because {self.reason}"

    def _choose(self, outlook: PolicyView, shapes: Sequence[TaskShape]) -> None:
        self._look_at = outlook.now + LOOK_S
        plain = _why_not_yet(outlook, shapes)
        if not plain and not any(shape.run.costs for shape in shapes) and _unevenness(outlook) < UNEVEN:
            plain = "hardly any file has to travel, and neither tasks nor hosts are known to be uneven"
        if plain and not self._with_inputs:
            self.chosen, self.reason = self.nearest, plain  # forecasts are not needed here, and computing them costs time
            return
        error, judged = outlook.state.forecasts.quality(), sum(shape.samples for shape in shapes)
        if error is None:
            self._look_at = outlook.now + SOON_S
        self.planner.heuristic = "max-min" if error is None or judged < ENOUGH or error < GOOD_ERROR else "xsufferage"
        travel_s, left_s = self._travel_s(outlook, shapes) if self._with_inputs else 0.0, self._left_s(outlook, shapes)
        if error is not None and judged >= ENOUGH and error > MOST_ERROR:
            plain = f"forecasts are mostly wrong by {error:.0%}"
        elif travel_s > MATTERS * left_s:
            self.chosen, self.reason = self.planner, f"files would travel for {travel_s:.0f} s, and there is work for {left_s:.0f} s"
            return
        elif not plain and left_s * _slots(outlook) < LONG_S * sum(len(shape.queue) for shape in shapes):
            plain = "tasks are short"
        self.chosen, self.reason = self.nearest if plain else self.planner, plain or "the run nears its end, and tasks or hosts are uneven"

    def _travel_s(self, outlook: PolicyView, shapes: Sequence[TaskShape]) -> float:
        """Seconds that the busiest link would need if all sites got all files."""
        wanted: dict[ContentRecord, None] = {}
        for shape in shapes:
            wanted.update(dict.fromkeys(islice(shape.queue_by_content, MOST_FILES)))
            for records in islice(shape.run.spec_contents.values(), MOST_FILES):
                wanted.update(dict.fromkeys(records))
            if len(wanted) >= MOST_FILES:
                break
        sites = dict.fromkeys(worker.site for worker in outlook.workers)
        missing = {site: sum(record.size for record in wanted if not is_at(outlook, record, site)) for site in sites}
        return max((size / self.planner.transfers.bandwidth(outlook, site) for site, size in missing.items()), default=0.0)

    def _left_s(self, outlook: PolicyView, shapes: Sequence[TaskShape]) -> float:
        """Seconds that all workers together still have to compute."""
        slots = _slots(outlook)
        work_s = 0.0
        for shape in shapes:
            task = next(iter(shape.queue))
            work_s += len(shape.queue) * self.planner.seconds(outlook, task)
        return work_s / max(1, slots)


def _why_not_yet(outlook: PolicyView, shapes: Sequence[TaskShape]) -> str:
    """Why the end of the run is not planned now; empty if it may be."""
    if any(shape.run.counts[WAITING] for shape in shapes):
        return "tasks wait for others, and those go first for which most wait"
    count = sum(len(shape.queue) for shape in shapes)
    return "there is work for everybody for a while" if count > MOST_TASKS or count > MOST_EACH * _slots(outlook) else ""


def _slots(outlook: PolicyView) -> int:
    return sum(worker.slots for worker in outlook.workers)


def _unevenness(outlook: PolicyView) -> float:
    """Ratio of the fastest to the slowest host, by the benchmarks that they reported when they joined. Learnt speeds would cost more."""
    told = (worker.info.get("benchmark") for worker in outlook.workers)
    speeds = [speed for speed in told if isinstance(speed, int | float) and speed > 0]
    return max(speeds) / min(speeds) if speeds else 1.0
