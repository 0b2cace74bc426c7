"""Which task goes to which worker, when all ranks are known: the pair of the highest rank first, and so on.

It is not the best sum that there is, but at least half of it if no rank is negative, commonly far more, and takes no longer than
sorting the pairs. A pair that is not named is not allowed. Tasks and workers are told apart and put in order by their ids: of equal pairs
that of the lower (older) task is taken first, then that of the lower worker, whatever the order in which they were reported.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union

Ranks = Union[Iterable[Tuple[float, Any, Any]], Mapping[Any, Mapping[Any, float]]]
"""(rank, task, worker), or {task: {worker: rank}}."""
Pair = Tuple[float, Any, Any]


def greedy(ranks: Ranks, capacity: Optional[Mapping[Any, int]] = None) -> Dict[Any, Any]:
    """{task: worker}, in the order in which they were matched; a worker takes ``capacity`` tasks, or one if it is not named there."""
    return _take(sorted(_pairs(ranks)), capacity or {})


def one_by_one(ranks: Ranks, capacity: Optional[Mapping[Any, int]] = None) -> Dict[Any, Any]:
    """The same for workers that are served in turn, each with the best that is left: what a queue can do that sees one worker at a time."""
    return _take(sorted(_pairs(ranks), key=lambda pair: (pair[2], pair)), capacity or {})


def _pairs(ranks: Ranks) -> List[Pair]:
    """With the rank negated, so that the natural order is the one wanted. What is not a number is no rank."""
    if isinstance(ranks, Mapping):
        return [(-rank, task, worker) for task, row in ranks.items() for worker, rank in row.items() if rank == rank]
    return [(-rank, task, worker) for rank, task, worker in ranks if rank == rank]


def _take(pairs: Iterable[Pair], capacity: Mapping[Any, int]) -> Dict[Any, Any]:
    matched: Dict[Any, Any] = {}
    room = dict(capacity)
    for _, task, worker in pairs:
        if task not in matched and room.setdefault(worker, 1) > 0:
            matched[task] = worker
            room[worker] -= 1
    return matched
