"""Computes the cores that a run needs to meet its deadline, and how late it will be."""

from __future__ import annotations

from pilotfish.core.state import Run, State
from pilotfish.core.tasks.fair_share import cores_of
from pilotfish.model.task import CORES

MARGIN = 1.1
"""Factor on the estimated remaining work."""
MAX_POOL_FACTOR = 2.0
"""Maximum cores for a deadline, as a multiple of the whole pool. A run that needs more cannot meet its deadline and is not preferred."""


def pool_cores(state: State) -> int:
    """Returns all cores of the pool, in units of 1/10000."""
    return sum([worker.capacity.get(CORES, 0) for worker in state.workers.values()])


def needed(run: Run, now: float, pool: int) -> int:
    """Returns the cores that the run must occupy from now on to meet its deadline, in units of 1/10000.

    Returns 0 if the run is too late, or if one task at a time is fast enough. While task times are unknown, returns the cores of one task.
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
    """Returns the seconds of a task of the run (0 if unknown), and its cores in units of 1/10000."""
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
    """Returns the seconds from the deadline to the actual or estimated end of the run; negative if the run ends before the deadline."""
    if not run.options.deadline:
        return None
    if run.finished:
        return run.ended_at - run.options.deadline
    if eta_s is not None:
        return now + eta_s - run.options.deadline
    return now - run.options.deadline if now > run.options.deadline else None
