"""Integrates a function with tasks that create tasks: an interval is halved where the function is difficult.

    pilotfish run examples/adaptive.py

The number of tasks is not known in advance. Each task estimates one interval; where two estimates differ too much, the manager adds two
tasks for its halves. Handled results are recorded together with the tasks created from them, so the manager can be killed at any moment
and continues where it stopped.
"""

import math
from collections.abc import Sequence
from typing import Any

from pilotfish import ApplicationManager, ApplicationWorker
from pilotfish.applications.application_manager import TaskDone
from pilotfish.applications.task_list import TaskList

Interval = tuple[float, float]
START: Interval = (0.001, 1.0)
TOLERANCE = 1e-7


def wild(x: float) -> float:
    return math.sin(1.0 / x)


class Estimate(ApplicationWorker):
    """Runs in a slot: one object for many tasks."""

    def initialize(self) -> None:
        self.points = 64  # a real worker would load its model here, once per slot

    def do_work(self, parameters: Any) -> tuple[Interval, float, float]:
        left, right = parameters
        return (left, right), self.simpson(left, right, self.points), self.simpson(left, right, 2 * self.points)

    def simpson(self, left: float, right: float, points: int) -> float:
        step = (right - left) / points
        inner = sum(wild(left + i * step) * (4 if i % 2 else 2) for i in range(1, points))
        return (wild(left) + inner + wild(right)) * step / 3


class Integral(ApplicationManager):
    """Runs beside the master and creates the next tasks."""

    worker = Estimate

    def __init__(self) -> None:
        self.total = 0.0
        self.intervals = 0

    def initialize(self, tasks: TaskList) -> None:
        tasks.work(START)

    def resume(self, done: Sequence[TaskDone]) -> None:
        for task in done:
            self.account(task)

    def tasks_done(self, done: Sequence[TaskDone], tasks: TaskList) -> None:
        for task in done:
            if not self.account(task):
                (left, right), _, _ = task.value
                middle = (left + right) / 2
                tasks.work((left, middle))
                tasks.work((middle, right))

    def account(self, task: TaskDone) -> bool:
        """Adds the estimate to the total if it is accurate enough; returns whether it is."""
        if task.error is not None:
            raise task.error
        (left, right), coarse, fine = task.value
        good: bool = abs(fine - coarse) < TOLERANCE * (right - left)
        if good:
            self.total += fine
            self.intervals += 1
        return good

    def finalize(self) -> None:
        with open("integral.txt", "w", encoding="utf-8") as result:
            result.write(f"{self.total:.9f} from {self.intervals} intervals\n")


manager = Integral()
