"""Chooses between serving workers as they come and following a plan, and chooses again as the run goes on.

A plan pays where files have to travel, for a time that matters beside what is left to compute, and where forecasts are good enough to build
on. Otherwise tasks go to whoever is free, those with inputs to where these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pilotfish.core.proposals import Outlook
from pilotfish.core.state import ContentRecord, Shape, Task, Worker
from pilotfish.policies.matching import Matching, Nearest
from pilotfish.policies.planning import Planner
from pilotfish.policies.transfers import bandwidth, is_at

LOOK_S = 10.0
"""So often the choice is thought over."""
MATTERS = 0.02
"""Files that would keep a link busy for such a part of the time that is left are worth a plan."""
MOST_ERROR = 0.75
"""A plan on forecasts that are mostly wrong by more than this is worth nothing."""
ENOUGH = 16
"""So many forecasts must have been judged before they can be called bad."""


class Chooser:
    keeps_back: ClassVar[bool] = True

    def __init__(self) -> None:
        self.planner = Planner("xsufferage")
        self.nearest = Nearest()
        self.planning = False
        self.reason = "there was nothing to choose yet"
        self._look_at = 0.0

    def match(self, outlook: Outlook, roomy: Sequence[Worker], shapes: Sequence[Shape]) -> Matching:
        with_inputs = any(shape.wanting or shape.run.spec_contents for shape in shapes)
        if not with_inputs:
            self.planning, self.reason, self._look_at = False, "no task has files as inputs", 0.0
        elif outlook.now >= self._look_at:
            self._look_at = outlook.now + LOOK_S
            self._choose(outlook, shapes)
        return (self.planner if self.planning else self.nearest).match(outlook, roomy, shapes)

    def next_look_at(self, outlook: Outlook) -> float | None:
        return self.planner.next_look_at(outlook) if self.planning else None

    def why(self, task: Task) -> str:
        said = (self.planner if self.planning else self.nearest).why(task)
        return f"{said}; it is planned because {self.reason}" if said else ""

    def mood(self) -> str:
        return f"{'plans' if self.planning else 'serves workers as they come'}, because {self.reason}"

    def _choose(self, outlook: Outlook, shapes: Sequence[Shape]) -> None:
        error = outlook.state.forecasts.quality()
        judged = sum(shape.samples for shape in shapes)
        if error is not None and judged >= ENOUGH and error > MOST_ERROR:
            self.planning, self.reason = False, f"forecasts are mostly wrong by {error:.0%}"
            return
        travel_s, left_s = self._travel_s(outlook, shapes), self._left_s(outlook, shapes)
        self.planning = travel_s > MATTERS * left_s
        self.reason = f"files would travel for {travel_s:.0f} s, and there is work for {left_s:.0f} s"

    def _travel_s(self, outlook: Outlook, shapes: Sequence[Shape]) -> float:
        """How long the link that has most to carry would be busy if all sites got all files."""
        wanted: dict[ContentRecord, None] = {}
        for shape in shapes:
            wanted.update(dict.fromkeys(shape.wanting))
            for records in shape.run.spec_contents.values():
                wanted.update(dict.fromkeys(records))
        sites = dict.fromkeys(worker.site for worker in outlook.workers)
        missing = {site: sum(record.size for record in wanted if not is_at(outlook, record, site)) for site in sites}
        return max((size / bandwidth(outlook, site) for site, size in missing.items()), default=0.0)

    def _left_s(self, outlook: Outlook, shapes: Sequence[Shape]) -> float:
        """How long all workers together have to compute."""
        slots = sum(worker.slots for worker in outlook.workers)
        work_s = 0.0
        for shape in shapes:
            task = next(iter(shape.queue))
            work_s += len(shape.queue) * self.planner.seconds(outlook, task)
        return work_s / max(1, slots)
