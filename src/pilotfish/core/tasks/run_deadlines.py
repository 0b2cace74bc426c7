"""When a run must end, what that takes, and whether it looks as if it would."""

from __future__ import annotations

from pilotfish.core.state import Run, State
from pilotfish.core.tasks.fair_share import cores_of
from pilotfish.model.task import CORES

MARGIN = 1.1
"""So many times the work that is left, as far as is known, is planned for."""
HOPELESS = 2.0
"""A run that would need so many times the whole pool is not helped any more: others would wait for nothing."""


def pool_cores(state: State) -> int:
    """All there are, in ten-thousandths."""
    return sum([worker.capacity.get(CORES, 0) for worker in state.workers.values()])


def needed(run: Run, now: float, pool: int) -> int:
    """So much of the pool it must occupy from now on to end in time, in ten-thousandths of cores; 0: there is no danger, or no help.

    As long as nothing is known of its tasks, one of them shall run. Later, none has to as long as one at a time would be more than enough.
    """
    deadline = run.options.deadline
    if deadline <= now or not run.unfinished:
        return 0
    seconds, cores = _typical_task(run)
    if not seconds:
        return cores
    left_s = deadline - now - seconds  # the last ones begin so long before
    if left_s <= 0:
        return 0
    wanted = MARGIN * run.unfinished * cores * seconds / left_s
    if wanted > HOPELESS * pool:
        return 0
    return int(wanted // cores) * cores


def _typical_task(run: Run) -> tuple[float, int]:
    """How long a task of it takes, 0 if nobody knows, and with how many ten-thousandths of cores."""
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
    """How much later than its deadline it ended or will end, as far as is known; negative: earlier."""
    if not run.options.deadline:
        return None
    if run.finished:
        return run.ended_at - run.options.deadline
    if eta_s is not None:
        return now + eta_s - run.options.deadline
    return now - run.options.deadline if now > run.options.deadline else None
