"""Matches tasks to workers by the highest rank first.

The sum of ranks is at least half of the optimum if no rank is negative, commonly far more, and the time is that of sorting the pairs. A
pair without a rank is not allowed. Of equal pairs that of the lower (older) task comes first, then that of the lower worker id, in whatever
order they were reported.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union

Ranks = Union[Iterable[Tuple[float, Any, Any]], Mapping[Any, Mapping[Any, float]]]
"""(rank, task, worker), or {task: {worker: rank}}."""
Pair = Tuple[float, Any, Any]


def greedy(ranks: Ranks, capacity: Optional[Mapping[Any, int]] = None) -> Dict[Any, Any]:
    """{task: worker} in the order matched. A worker takes ``capacity`` tasks, one if it is not listed there."""
    return _take(sorted(_pairs(ranks)), capacity or {})


def one_by_one(ranks: Ranks, capacity: Optional[Mapping[Any, int]] = None) -> Dict[Any, Any]:
    """The same for workers served one after the other, each with the best remaining tasks: what a queue does that sees one worker at a
    time."""
    return _take(sorted(_pairs(ranks), key=lambda pair: (pair[2], pair)), capacity or {})


def _pairs(ranks: Ranks) -> List[Pair]:
    """Pairs with the rank negated, for sorting. NaN is no rank."""
    if isinstance(ranks, Mapping):
        return [(-rank, task, worker) for task, row in ranks.items() for worker, rank in row.items() if rank == rank]
    return [(-rank, task, worker) for rank, task, worker in ranks if rank == rank]


def _take(pairs: Iterable[Pair], capacity: Mapping[Any, int]) -> Dict[Any, Any]:
    matched: Dict[Any, Any] = {}
    left = dict(capacity)
    for _, task, worker in pairs:
        if task not in matched and left.setdefault(worker, 1) > 0:
            matched[task] = worker
            left[worker] -= 1
    return matched
