"""Matches tasks to workers by the highest rank first.

The sum of ranks is at least half of the optimum if no rank is negative, commonly far more, and the time is that of sorting the pairs. A
pair without a rank is not allowed. Of equal pairs that of the lower (older) task comes first, then that of the lower worker id, in whatever
order they were reported.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, Optional, Tuple


def greedy(ranks: Iterable[Tuple[float, Any, Any]], capacity: Optional[Mapping[Any, int]] = None) -> Dict[Any, Any]:
    """{task: worker} in the order matched, of (rank, task, worker). A worker takes ``capacity`` tasks, one if it is not listed there."""
    matched: Dict[Any, Any] = {}
    left = dict(capacity or {})
    for _, task, worker in sorted((-rank, task, worker) for rank, task, worker in ranks if rank == rank):  # NaN is no rank
        if task not in matched and left.setdefault(worker, 1) > 0:
            matched[task] = worker
            left[worker] -= 1
    return matched
