"""Sorts the shapes of ready tasks. (``task_order`` sorts the tasks within a shape.) The sort keys are:

1. Priority: the highest priority first. 2. Deadline: runs that would miss their deadlines come first. Of these runs, the run with the
earliest deadline comes first. 3. Share: the share with the least usage first. 4. Age: the shape with the oldest task first.

Running tasks are not interrupted: a task with a high priority waits until a running task ends. During one call of ``propose``, the usage of
a share grows with each assigned task. Without this, the first share would get all free room.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from pilotfish.core.state import Needs, Run, State, Task, TaskShape, Worker
from pilotfish.core.tasks import run_deadlines
from pilotfish.core.tasks.fair_share import ShareAccount, cores_of, typical_s, weighted_usage
from pilotfish.model.task import CORES, UNIT
from pilotfish.policies.offered_tasks import OfferedTasks

Key = tuple[int, float, float]


class QueueOrder:
    """The queue during one call of ``propose``. Its order changes when tasks are assigned."""

    def __init__(self, state: State, now: float) -> None:
        shapes = self.shapes = [shape for shape in state.ready if not shape.run.paused]
        self.contested = False
        """Whether several shares compete for room, or a run is likely to miss its deadline. If this is False, the order of ``shapes`` is
        final."""
        self._typical: dict[ShareAccount, float] = {}
        self._standing: dict[ShareAccount, float] = {}
        self._needed: dict[Run, int] = {}
        """For each run with a deadline: how many more cores it needs than it has now, in units of 1/10000 core. With 0 or a negative
        number, the run gets no precedence: it is on time, or cannot meet its deadline."""
        self._given = 0
        if len(shapes) < 2:
            return
        shapes.sort(key=lambda shape: (-shape.priority, next(iter(shape.queue)).id))
        if len(state.shares) > 1:
            self._typical = typical_s(shapes)
            self._standing = {account: weighted_usage(account, seconds) for account, seconds in self._typical.items()}
        with_deadline = {shape.run: None for shape in shapes if shape.run.options.deadline > now}
        if with_deadline:
            pool = run_deadlines.pool_cores(state)
            self._needed = {run: run_deadlines.needed(run, now, pool) - run.occupied for run in with_deadline}
        self.contested = len(self._standing) > 1 or any(cores > 0 for cores in self._needed.values())
        if self.contested:
            shapes.sort(key=self._key)

    def _key(self, shape: TaskShape) -> Key:
        run = shape.run
        is_late = bool(self._needed) and self._needed.get(run, 0) > 0
        return -shape.priority, run.options.deadline if is_late else math.inf, self._standing.get(run.account, 0.0)

    @property
    def leading(self) -> list[TaskShape]:
        """Returns the first shape of the queue, and all shapes that are equally early."""
        if len(self.shapes) == 1:
            return self.shapes
        if not self.contested:
            return [shape for shape in self.shapes if shape.priority == self.shapes[0].priority]
        first = self._key(self.shapes[0])
        return [shape for shape in self.shapes if self._key(shape) == first]

    def limit_to_share(self, preferred: dict[str, list[Task]], workers: Iterable[Worker]) -> dict[str, list[Task]]:
        """Limits the preferred tasks to the first share's part of the free cores, and leaves out the preferred tasks beyond it. This part
        is the weight of the first share in the queue, divided by the sum of the weights of all shares in the queue."""
        weights = [account.weight for account in self._standing]
        part = self.shapes[0].run.account.weight / sum(weights) if weights else 1.0
        left = part * sum([worker.free.get(CORES, 0) for worker in workers])
        limited: dict[str, list[Task]] = {}
        for worker, tasks in preferred.items():
            for task in tasks:
                if left > 0:
                    left -= cores_of(task.shape.needs)
                    limited.setdefault(worker, []).append(task)
        return limited

    def in_order(self, offers: list[OfferedTasks]) -> Iterable[OfferedTasks]:
        """Yields the offers in queue order. If ``contested``, this order changes while the caller reads the offers: when a task of an offer
        was assigned (see ``note_given``), the same offer can come a second time."""
        return self._by_share(offers) if self.contested else offers

    def _by_share(self, offers: list[OfferedTasks]) -> Iterator[OfferedTasks]:
        queues: dict[tuple[int, ShareAccount, Run | None], deque[OfferedTasks]] = {}
        for offer in offers:
            if offer.left:
                run = offer.shape.run
                kind = offer.shape.priority, run.account, run if run in self._needed else None
                queues.setdefault(kind, deque()).append(offer)
        heads = [(self._key(queue[0].shape), number, queue) for number, queue in enumerate(queues.values())]
        heapify(heads)
        while heads:
            key, number, queue = heappop(heads)
            given = self._given
            is_next = self._key(queue[0].shape) <= key
            while is_next and queue:
                yield queue[0]
                if self._given != given:
                    break
                queue.popleft()
            if queue:  # the caller has possibly assigned a task of this share, so the share can have a new place
                heappush(heads, (self._key(queue[0].shape), number, queue))

    def note_given(self, shape: TaskShape, needs: Needs) -> None:
        """Records that a task of this shape was assigned with these needs."""
        if not self.contested:
            return
        self._given += 1
        cores, run = cores_of(needs), shape.run
        if run.account in self._standing:
            self._standing[run.account] += cores / UNIT * self._typical[run.account] / run.account.weight
        if run in self._needed:
            self._needed[run] -= cores

    def is_first(self, offer: OfferedTasks, offers: Iterable[OfferedTasks]) -> bool:
        """Returns True if no other offer that has tasks left is earlier in the queue."""
        if not self.contested:
            return offer.shape is self.shapes[0] or not any(other.left and other.shape.priority > offer.shape.priority for other in offers)
        key = self._key(offer.shape)
        return not any(other.left and self._key(other.shape) < key for other in offers)
