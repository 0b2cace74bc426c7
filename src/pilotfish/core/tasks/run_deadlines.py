"""Computes the cores that a run needs to meet its deadline, and how late it will be."""

from __future__ import annotations

from pilotfish.core.state import Run, State
from pilotfish.core.tasks.fair_share import cores_of
from pilotfish.model.task import CORES

MARGIN = 1.1
"""The estimated remaining work is multiplied by this factor."""
MAX_POOL_FACTOR = 2.0
"""Maximum cores for a deadline, as a multiple of the whole pool. If a run needs more cores, it cannot meet its deadline and is not
preferred."""


def pool_cores(state: State) -> int:
    """Returns the number of cores of all workers, in units of 1/10000."""
    return sum([worker.capacity.get(CORES, 0) for worker in state.workers.values()])


def needed(run: Run, now: float, pool: int) -> int:
    """Returns how many cores the run must occupy from now on to meet its deadline, in units of 1/10000 core.

    Returns 0 in three cases: the run has no deadline, it cannot meet the deadline, or one task at a time is fast enough. If no task has
    ended and no task has a time limit, returns the cores of one task.
    """
    deadline = run.options.deadline
    if deadline <= now or not run.unfinished:
        return 0
    seconds, cores = _typical_task(run)
    if not seconds:
        return cores
    left_s = deadline - now - seconds  # the last tasks must start ``seconds`` before the deadline
    if left_s <= 0:
        return 0
    wanted = MARGIN * run.unfinished * cores * seconds / left_s
    if wanted > MAX_POOL_FACTOR * pool:
        return 0
    return int(wanted // cores) * cores


def _typical_task(run: Run) -> tuple[float, int]:
    """Returns the mean seconds of the run's tasks, and their mean cores in units of 1/10000 core. Before the first task has ended, returns
    the largest time limit of a task (0 if there is none), and the largest number of cores of a task."""
    total = work = samples = 0.0
    for shape in run.shapes.values():
        if shape.samples:
            samples += shape.samples
            total += shape.samples * shape.mean_us
            work += shape.samples * shape.mean_us * cores_of(shape.needs)
    if total:
        return total / samples / 1e6, max(1, round(work / total))
    shapes = list(run.shapes.values())
    limit = max((shape.time_s for shape in shapes), default=0.0)
    return limit, max((cores_of(shape.needs) for shape in shapes), default=0) or 1


def late_s(run: Run, eta_s: float | None, now: float) -> float | None:
    """Returns the seconds from the deadline to the end of the run; negative if the run ends before the deadline. The end is the actual or
    the estimated end. If neither is known and the deadline has passed, ``now`` counts as the end. If neither is known and the deadline has
    not passed, returns None. Also returns None for a run without a deadline."""
    if not run.options.deadline:
        return None
    if run.finished:
        return run.ended_at - run.options.deadline
    if eta_s is not None:
        return now + eta_s - run.options.deadline
    return now - run.options.deadline if now > run.options.deadline else None
