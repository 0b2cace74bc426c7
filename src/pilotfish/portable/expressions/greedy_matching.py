"""Matches tasks to workers. The pair of task and worker with the highest rank is matched first.

If no rank is negative, the sum of the ranks of all matched pairs is at least half of the largest possible sum, and usually much more. If
ranks are equal, the pair with the lower (older) task comes first, then the pair with the lower worker id. The order of the input does not
matter.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, Optional, Tuple


def greedy(ranks: Iterable[Tuple[float, Any, Any]], capacity: Optional[Mapping[Any, int]] = None) -> Dict[Any, Any]:
    """Returns the worker of each matched task. ``ranks``: rank, task and worker of each allowed pair. ``capacity``: maximum number of tasks
    of a worker; 1 if the worker is not in ``capacity``."""
    matched: Dict[Any, Any] = {}
    left = dict(capacity or {})
    for _, task, worker in sorted((-rank, task, worker) for rank, task, worker in ranks if rank == rank):  # NaN is no rank
        if task not in matched and left.setdefault(worker, 1) > 0:
            matched[task] = worker
            left[worker] -= 1
    return matched
