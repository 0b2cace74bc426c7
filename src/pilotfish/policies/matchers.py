"""How a policy that serves workers as they become free may be told which task had better go where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import ClassVar, NamedTuple, Protocol

from pilotfish.core.policy_interface import PolicyView
from pilotfish.core.state import Task, TaskShape, Worker
from pilotfish.portable.expressions.greedy_matching import greedy


class Matching(NamedTuple):
    """``preferred``: for workers, by id, tasks that they should have before others; one task is named for one worker.
    ``governed``: shapes of which nothing else is to be given away just now."""

    preferred: dict[str, list[Task]]
    governed: dict[TaskShape, None] = {}


class Matcher(Protocol):
    keeps_back: ClassVar[bool]
    """Whether it governs tasks, so that some wait although there is room."""

    def match(self, outlook: PolicyView, roomy: Sequence[Worker], shapes: Sequence[TaskShape]) -> Matching:
        """For workers that have room, of tasks of these shapes, which are all of the same priority."""

    def next_look_at(self, outlook: PolicyView) -> float | None:
        """When to ask again even if nothing happens."""

    def why(self, task: Task) -> str:
        """What it has in mind with a ready task, for people; empty: nothing in particular."""

    def mood(self) -> str:
        """How it decides just now, and why, for people; empty: as always."""


class FirstComeMatcher:
    """Whoever comes first gets what is first."""

    keeps_back: ClassVar[bool] = False

    def match(self, outlook: PolicyView, roomy: Sequence[Worker], shapes: Sequence[TaskShape]) -> Matching:
        return Matching({})

    def next_look_at(self, outlook: PolicyView) -> float | None:
        return None

    def why(self, task: Task) -> str:
        return ""

    def mood(self) -> str:
        return ""


class LocalityMatcher(FirstComeMatcher):
    """Tasks go to workers that have their inputs, or that they rank higher, if one of these is free."""

    def match(self, outlook: PolicyView, roomy: Sequence[Worker], shapes: Sequence[TaskShape]) -> Matching:
        return Matching(prefer(outlook, roomy, shapes))


# Which tasks had better go to which workers: those whose inputs are there, or that rank it higher by an expression of their own.
#
# All workers with room are looked at together, and the pair of the highest rank is taken first: served one by one, a worker would take what
# another holds. Tasks without inputs or ranks are no concern of this: they go in order.

MOST_HELD = 256
"""Of so many contents of a worker, the latest, it is looked which tasks need them."""
MOST_TASKS = 32
"""So many of the tasks that need the same content are looked at for one worker."""
MOST_PAIRS = 200_000

Ranks = dict[tuple[Task, Worker], float]


def prefer(outlook: PolicyView, workers: Iterable[Worker], shapes: Iterable[TaskShape]) -> dict[str, list[Task]]:
    """For workers, by id, tasks that they should take before others; one task is named for one worker."""
    preferred: dict[str, list[Task]] = {}
    particular = [shape for shape in shapes if shape.wanting or shape.rank is not None]
    room = {worker.id: dict(worker.free) for worker in workers} if particular else {}
    for shape in particular:
        slots = {worker: _slots(room[worker.id], shape) for worker in workers if worker.suits(shape, outlook.now)}
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
    pairs = ((rank, task.id, worker.id) for (task, worker), rank in ranks.items() if not _shunned(task, worker))
    matched = greedy(pairs, {worker.id: count for worker, count in slots.items()})
    return {tasks[task]: workers[worker] for task, worker in matched.items()}


def _shunned(task: Task, worker: Worker) -> bool:
    return task.troubles is not None and task.troubles.avoid == worker.id


def _ranks(shape: TaskShape, able: list[Worker], slots: dict[Worker, int]) -> Ranks:
    held = {(task, worker): amount for worker in able for task, amount in _held(shape, worker).items()}
    if shape.rank is None:
        return {pair: float(amount) for pair, amount in held.items()}
    most = min(sum(slots[worker] for worker in able), MOST_PAIRS // max(1, len(able)))
    candidates = list(islice(shape.queue, most))
    ranks: Ranks = {}
    for worker in able:
        plain = shape.rank.rank({**worker.properties, "held": 0, "wanted": 0})
        for task in candidates:
            wanted = sum(record.size for record in task.contents)
            here = held.get((task, worker), 0)
            ranks[task, worker] = shape.rank.rank({**worker.properties, "held": here, "wanted": wanted}) if wanted else plain
    return ranks


def _held(shape: TaskShape, worker: Worker) -> dict[Task, int]:
    """Bytes of their inputs that are at the worker, of some tasks for which there are any."""
    found: dict[Task, int] = {}
    if not shape.wanting:
        return found
    for record in islice(reversed(worker.holds), MOST_HELD):
        for task in islice(shape.wanting.get(record, ()), MOST_TASKS):
            found[task] = found.get(task, 0) + record.size
    return found
