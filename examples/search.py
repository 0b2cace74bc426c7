"""An application that makes tasks while it runs: ``pilotfish run examples/search.py``

It looks for the minimum of a function: five points of an interval, then five of the smaller interval round the best, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence

from pilotfish import ApplicationManager, ApplicationWorker
from pilotfish.applications.manager import TaskDone
from pilotfish.applications.tasklist import TaskList

POINTS = 5
NARROW_ENOUGH = 0.05


class Evaluate(ApplicationWorker):
    """One of these lives in each slot."""

    def do_work(self, parameters: float) -> tuple[float, float]:
        return parameters, (parameters - 2.5) ** 2 + 1.0


class Search(ApplicationManager):
    """Narrows the interval from round to round."""

    worker = Evaluate

    def __init__(self) -> None:
        self.low, self.high = 0.0, 8.0
        self.found: list[tuple[float, float]] = []

    def initialize(self, tasks: TaskList) -> None:
        self._ask(tasks)

    def tasks_done(self, done: Sequence[TaskDone], tasks: TaskList) -> None:
        self.found += [task.value for task in done]
        if len(self.found) == POINTS and self.high - self.low > NARROW_ENOUGH:
            best = min(self.found, key=lambda pair: pair[1])[0]
            quarter = (self.high - self.low) / 4
            self.low, self.high = best - quarter, best + quarter
            self._ask(tasks)

    def _ask(self, tasks: TaskList) -> None:
        self.found = []
        for number in range(POINTS):
            tasks.work(self.low + (self.high - self.low) * number / (POINTS - 1))


manager = Search()
