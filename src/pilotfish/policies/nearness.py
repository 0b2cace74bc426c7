"""Which tasks had better go to which workers: those whose inputs are there, or that rank it higher by an expression of their own.

All workers with room are looked at together, and the pair of the highest rank is taken first: served one by one, a worker would take what
another holds. Tasks without inputs or ranks are no concern of this: they go in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from pilotfish.agent.overlay.matching import greedy
from pilotfish.core.proposals import Outlook
from pilotfish.core.state import Shape, Task, Worker

MOST_HELD = 256
"""Of so many contents of a worker, the latest, it is looked which tasks need them."""
MOST_TASKS = 32
"""So many of the tasks that need the same content are looked at for one worker."""
MOST_PAIRS = 200_000

Ranks = dict[tuple[Task, Worker], float]


def prefer(outlook: Outlook, workers: Iterable[Worker], shapes: Iterable[Shape]) -> dict[str, list[Task]]:
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


def _slots(free: dict[str, int], shape: Shape) -> int:
    return min((free.get(name, 0) // amount for name, amount in shape.needs), default=1)


def _match(shape: Shape, able: list[Worker], slots: dict[Worker, int]) -> dict[Task, Worker]:
    ranks = _ranks(shape, able, slots)
    tasks = {task.id: task for task, _ in ranks}
    workers = {worker.id: worker for worker in able}
    pairs = ((rank, task.id, worker.id) for (task, worker), rank in ranks.items() if not _shunned(task, worker))
    matched = greedy(pairs, {worker.id: count for worker, count in slots.items()})
    return {tasks[task]: workers[worker] for task, worker in matched.items()}


def _shunned(task: Task, worker: Worker) -> bool:
    return task.troubles is not None and task.troubles.avoid == worker.id


def _ranks(shape: Shape, able: list[Worker], slots: dict[Worker, int]) -> Ranks:
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


def _held(shape: Shape, worker: Worker) -> dict[Task, int]:
    """Bytes of their inputs that are at the worker, of some tasks for which there are any."""
    found: dict[Task, int] = {}
    if not shape.wanting:
        return found
    for record in islice(reversed(worker.holds), MOST_HELD):
        for task in islice(shape.wanting.get(record, ()), MOST_TASKS):
            found[task] = found.get(task, 0) + record.size
    return found
