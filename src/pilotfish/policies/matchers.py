"""Defines the two simple matchers: first come, and data locality.

The matcher for data locality gives a rank to each pair of task and worker. If the task has a rank expression, the rank is the value of this
expression for the worker. If not, the rank is the number of bytes of the task's inputs that the worker already has. If all these ranks of a
task are 0, the task is assigned in queue order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from pilotfish.core.policy_interface import PolicyView
from pilotfish.core.state import Task, TaskShape, Worker
from pilotfish.policies.matcher_interface import Matching
from pilotfish.portable.expressions.greedy_matching import greedy

MAX_HELD = 256
"""Maximum number of contents per worker for which tasks are looked up. The latest contents are used."""
MAX_TASKS = 32
"""Maximum number of tasks with the same content that are ranked for one worker."""
MAX_PAIRS = 200_000
"""Maximum number of pairs of task and worker for which rank expressions are evaluated."""

Ranks = dict[tuple[Task, Worker], float]


class FirstComeMatcher:
    """Names no tasks, so the dispatcher gives the first task to the first free worker."""

    def match(self, view: PolicyView, roomy: Sequence[Worker], shapes: Sequence[TaskShape], contested: bool) -> Matching:
        return Matching({})

    def next_look_at(self, view: PolicyView) -> float | None:
        return None

    def why(self, task: Task) -> str:
        return ""

    def describe(self) -> str:
        return ""


class LocalityMatcher(FirstComeMatcher):
    """Prefers pairs of task and worker with a high rank (see the text of this module)."""

    def match(self, view: PolicyView, roomy: Sequence[Worker], shapes: Sequence[TaskShape], contested: bool) -> Matching:
        return Matching(prefer(view, roomy, shapes))


def prefer(view: PolicyView, workers: Iterable[Worker], shapes: Iterable[TaskShape]) -> dict[str, list[Task]]:
    """Returns, for each worker id, the tasks that this worker should get first. Each task is named for at most one worker.

    The shapes are matched one after the other. Within a shape, the pair of task and worker with the highest rank comes first. To go through
    the workers one by one would be worse: the first worker could take a task whose inputs the second worker has.
    """
    preferred: dict[str, list[Task]] = {}
    ranked = [shape for shape in shapes if shape.queue_by_content or shape.rank is not None]
    room = {worker.id: dict(worker.free) for worker in workers} if ranked else {}
    for shape in ranked:
        slots = {worker: _slots(room[worker.id], shape) for worker in workers if worker.suits(shape, view.now)}
        able = [worker for worker, count in slots.items() if count]
        for task, worker in _match(shape, able, slots).items():
            preferred.setdefault(worker.id, []).append(task)
            for name, amount in shape.needs:
                room[worker.id][name] -= amount
    return preferred


def _slots(free: dict[str, int], shape: TaskShape) -> int:
    return min((free.get(name, 0) // amount for name, amount in shape.needs), default=1)


def _match(shape: TaskShape, able: list[Worker], slots: dict[Worker, int]) -> dict[Task, Worker]:
    ranks = _ranks(shape, able, slots)
    tasks = {task.id: task for task, _ in ranks}
    workers = {worker.id: worker for worker in able}
    pairs = ((rank, task.id, worker.id) for (task, worker), rank in ranks.items() if not _is_avoided(task, worker))
    matched = greedy(pairs, {worker.id: count for worker, count in slots.items()})
    return {tasks[task]: workers[worker] for task, worker in matched.items()}


def _is_avoided(task: Task, worker: Worker) -> bool:
    return task.failure_counts is not None and task.failure_counts.avoid == worker.id


def _ranks(shape: TaskShape, able: list[Worker], slots: dict[Worker, int]) -> Ranks:
    held = {(task, worker): amount for worker in able for task, amount in _held(shape, worker).items()}
    if shape.rank is None:
        return {pair: float(amount) for pair, amount in held.items()}
    max_tasks = min(sum(slots[worker] for worker in able), MAX_PAIRS // max(1, len(able)))
    candidates = list(islice(shape.queue, max_tasks))
    ranks: Ranks = {}
    for worker in able:
        without_inputs = shape.rank.rank({**worker.properties, "held": 0, "wanted": 0})
        for task in candidates:
            wanted = sum(record.size for record in task.contents)
            held_bytes = held.get((task, worker), 0)
            ranks[task, worker] = shape.rank.rank({**worker.properties, "held": held_bytes, "wanted": wanted}) if wanted else without_inputs
    return ranks


def _held(shape: TaskShape, worker: Worker) -> dict[Task, int]:
    """Returns, for tasks of the shape, how many bytes of the task's inputs the worker already has. Tasks without an input at the worker are
    left out. Looks only at the latest ``MAX_HELD`` contents of the worker, and at up to ``MAX_TASKS`` tasks per content."""
    found: dict[Task, int] = {}
    if not shape.queue_by_content:
        return found
    for record in islice(reversed(worker.holds), MAX_HELD):
        for task in islice(shape.queue_by_content.get(record, ()), MAX_TASKS):
            found[task] = found.get(task, 0) + record.size
    return found
