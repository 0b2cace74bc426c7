"""Gives out the ready tasks of one shape, one by one, during one call of ``propose``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pilotfish.core.data.replicas import can_get_inputs
from pilotfish.core.policy_interface import PolicyView
from pilotfish.core.state import Needs, Task, TaskShape, Worker
from pilotfish.core.tasks import multi_node


class OfferedTasks:
    """The ready tasks of one shape. ``left``: number of tasks that ``take`` has not returned yet."""

    __slots__ = ("_avoiding", "_skipped", "_unreachable_from", "left", "shape", "taken", "tasks")

    def __init__(self, shape: TaskShape, tasks: Iterable[Task]) -> None:
        self.shape = shape
        self.tasks: Iterator[Task] = iter(tasks)
        self.left = len(shape.queue)
        self.taken: dict[Task, None] = {}
        """Tasks that ``take`` skips, because they were delegated, or because the matcher named them for a worker."""
        self._avoiding: list[Task] = []
        """Tasks that ``take`` did not give to a worker because they had failed at this worker."""
        self._skipped: list[Task] = []
        """Tasks that ``take`` did not give to a worker because the site of the worker cannot get their inputs."""
        self._unreachable_from: dict[str, int] = {}
        """For each site, a number n: the site cannot get the inputs of the first n tasks in ``_skipped``. These tasks are not checked
        again."""

    def take(self, view: PolicyView, worker: Worker) -> Task | None:
        """Returns the next task for this worker. Returns None if the worker can run none of the remaining tasks."""
        found = self._next_skipped(view, worker) if self._avoiding or self._skipped else None
        found = found or self._next(view, worker)
        self.left -= found is not None
        return found

    def _next_skipped(self, view: PolicyView, worker: Worker) -> Task | None:
        for index, task in enumerate(self._avoiding):
            if not _avoids(view, task, worker) and _can_get_inputs(view, task, worker):
                return self._avoiding.pop(index)
        for index in range(self._unreachable_from.get(worker.site, 0), len(self._skipped)):
            if _can_get_inputs(view, self._skipped[index], worker):
                self._unreachable_from = {site: count - (count > index) for site, count in self._unreachable_from.items()}
                self._unreachable_from[worker.site] = index
                return self._skipped.pop(index)
        return None

    def _next(self, view: PolicyView, worker: Worker) -> Task | None:
        found = None
        shared = self.shape.run.spec_contents
        for task in self.tasks:
            if task in self.taken:
                continue
            if task.failure_counts is not None and _avoids(view, task, worker):
                self._avoiding.append(task)
            elif (shared or task.contents) and not _can_get_inputs(view, task, worker):
                self._skipped.append(task)
            else:
                found = task
                break
        if self._skipped:
            self._unreachable_from[worker.site] = len(self._skipped)
        return found


def _avoids(view: PolicyView, task: Task, worker: Worker) -> bool:
    """Returns True if the task failed at this worker and a different worker can run it."""
    if task.failure_counts is None or task.failure_counts.avoid != worker.id:
        return False
    others = (other for other in view.workers if other is not worker and other.suits(task.shape, view.now))
    return any(_can_get_inputs(view, task, other) for other in others)


def _can_get_inputs(view: PolicyView, task: Task, worker: Worker) -> bool:
    can_get = can_get_inputs if task.shape.nodes == 1 else multi_node.can_get_inputs
    return can_get(view.state, task, worker.site)


def fits(free: dict[str, int], needs: Needs) -> bool:
    for name, amount in needs:  # noqa: SIM110 - a generator would cost more than the loop
        if free.get(name, 0) < amount:
            return False
    return True
