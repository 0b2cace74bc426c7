"""Hands out the ready tasks of one shape during one round of proposals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pilotfish.core.data.replicas import can_get_inputs
from pilotfish.core.policy_interface import PolicyView
from pilotfish.core.state import Task, TaskShape, Worker
from pilotfish.core.tasks import multi_node


class OfferedTasks:
    """The ready tasks of one shape; ``left`` are not yet given away."""

    __slots__ = ("_avoiding", "_beyond", "_passed_over", "left", "shape", "spoken_for", "tasks")

    def __init__(self, shape: TaskShape, tasks: Iterable[Task]) -> None:
        self.shape = shape
        self.tasks: Iterator[Task] = iter(tasks)
        self.left = len(shape.queue)
        self.spoken_for: dict[Task, None] = {}
        """Tasks that are kept for a certain worker."""
        self._avoiding: list[Task] = []
        """Tasks that were not given to the worker where they failed."""
        self._passed_over: list[Task] = []
        """Tasks whose inputs some site cannot get."""
        self._beyond: dict[str, int] = {}
        """By site: how many of the first in ``_passed_over`` have inputs that this site cannot get. They are not checked again."""

    def take(self, view: PolicyView, worker: Worker) -> Task | None:
        """The next task for this worker; None if no task that is left may run there."""
        found = self._again(view, worker) if self._avoiding or self._passed_over else None
        found = found or self._next(view, worker)
        self.left -= found is not None
        return found

    def _again(self, view: PolicyView, worker: Worker) -> Task | None:
        for place, task in enumerate(self._avoiding):
            if not _avoids(view, task, worker) and _in_reach(view, task, worker):
                return self._avoiding.pop(place)
        for place in range(self._beyond.get(worker.site, 0), len(self._passed_over)):
            if _in_reach(view, self._passed_over[place], worker):
                self._beyond = {site: count - (count > place) for site, count in self._beyond.items()}
                self._beyond[worker.site] = place
                return self._passed_over.pop(place)
        return None

    def _next(self, view: PolicyView, worker: Worker) -> Task | None:
        found = None
        shared = self.shape.run.spec_contents
        for task in self.tasks:
            if task in self.spoken_for:
                continue
            if task.failure_counts is not None and _avoids(view, task, worker):
                self._avoiding.append(task)
            elif (shared or task.contents) and not _in_reach(view, task, worker):
                self._passed_over.append(task)
            else:
                found = task
                break
        if self._passed_over:
            self._beyond[worker.site] = len(self._passed_over)
        return found


def _avoids(view: PolicyView, task: Task, worker: Worker) -> bool:
    """Whether the task failed at this worker and could run at another one."""
    if task.failure_counts is None or task.failure_counts.avoid != worker.id:
        return False
    others = (other for other in view.workers if other is not worker and other.suits(task.shape, view.now))
    return any(_in_reach(view, task, other) for other in others)


def _in_reach(view: PolicyView, task: Task, worker: Worker) -> bool:
    reach = can_get_inputs if task.shape.nodes == 1 else multi_node.can_get_inputs
    return reach(view.state, task, worker.site)
