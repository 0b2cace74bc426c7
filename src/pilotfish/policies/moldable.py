"""Chooses how many cores a moldable task gets, so that all waiting tasks of its shape finish as soon as possible.

Amdahl's curve t(n) = s + p/n is fitted to the measured times. t(n) is the time of a task with n cores. s is the time of its serial part,
and p the time of its parallel part on one core. If each task gets n cores, only some tasks fit into the free cores at the same time. So the
waiting tasks run in several waves, and each wave takes t(n). The task gets the n for which all waves together take the least time. If many
tasks wait, this n costs about the fewest core-seconds. At the end of a run, n is about the largest number that still shortens the run.

To measure the curve, single tasks of a class are started with the smallest, the largest and a middle number of cores. This happens only if
enough tasks wait.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pilotfish.core.learning.speedups import Speedup
from pilotfish.core.state import Needs, State, Task, TaskShape, Worker
from pilotfish.core.tasks.fair_share import cores_of
from pilotfish.model.task import CORES, UNIT

MIN_GAIN = 0.98
"""A larger number of cores is chosen only if it reduces the time to less than this fraction."""
MIN_WAITING = 4
"""A number of cores without measurements is tried only if at least this many tasks wait."""
LAST_WAVES = 2
"""Up to this number of waves, the number of waves is rounded up: a last wave with few tasks takes as long as a full wave. If there are more
waves, half a wave is added instead."""
MAX_CHOICES = 64


@dataclass(slots=True, frozen=True)
class AmdahlCurve:
    """Amdahl's curve: with n cores, a task takes ``fixed_s`` + ``shared_s`` / n seconds."""

    fixed_s: float
    shared_s: float

    def seconds(self, cores: float) -> float:
        return self.fixed_s + self.shared_s / cores


UNKNOWN = AmdahlCurve(0.0, 1.0)
"""Assumed curve of a class without measurements: with twice the cores, a task takes half the time."""


def fit(known: Speedup) -> AmdahlCurve:
    """Fits Amdahl's curve to the measured mean times by least squares. Neither the serial nor the parallel part becomes negative. If only
    one number of cores was measured, the whole time counts as parallel. If nothing was measured, returns ``UNKNOWN``."""
    points = [(UNIT / cores, mean_s, min(samples, 20)) for cores, (samples, mean_s) in known.items() if cores > 0]
    weight = float(sum(count for _, _, count in points))
    if not weight:
        return UNKNOWN
    mean_x = sum(x * count for x, _, count in points) / weight
    mean_t = sum(t * count for _, t, count in points) / weight
    spread = sum(count * (x - mean_x) ** 2 for x, _, count in points)
    slope = sum(count * (x - mean_x) * (t - mean_t) for x, t, count in points) / spread if spread > 1e-12 else math.inf
    if slope <= 0:
        return AmdahlCurve(mean_t, 0.0)
    if mean_t - slope * mean_x < 0:  # the serial part would be negative, or the slope is infinite
        return AmdahlCurve(0.0, sum(count * x * t for x, t, count in points) / sum(count * x * x for x, t, count in points))
    return AmdahlCurve(mean_t - slope * mean_x, slope)


def choices(least: int, most: int) -> list[int]:
    """Returns the numbers of cores that a task can get, in units of 1/10000 core: ``least``, and all whole numbers of cores between
    ``least`` and ``most``. If there are more than ``MAX_CHOICES`` whole numbers, returns only every second (third, …) of them."""
    whole_cores = range(least // UNIT + 1, most // UNIT + 1)
    step = max(1, math.ceil(len(whole_cores) / MAX_CHOICES))
    return [least, *(cores * UNIT for cores in whole_cores[::step])]


def best(curve: AmdahlCurve, allowed: Iterable[int], waiting: int, free_counts: Mapping[int, int]) -> int:
    """Returns the number of cores per task with which all waiting tasks finish soonest. ``allowed``: the possible numbers of cores per
    task, in increasing order. A larger number is chosen only if it makes the time at least 2 % shorter. ``waiting``: number of waiting
    tasks. ``free_counts`` maps a number of free cores to the number of workers that have it: ``{40000: 3}`` means that 3 workers have 4
    free cores each."""
    chosen, best_s = 0, math.inf
    for cores in allowed:
        places = sum(count * (free // cores) for free, count in free_counts.items())
        if places or not chosen:
            waves = max(1, waiting) / max(1, places)
            seconds = (waves + 0.5 if waves > LAST_WAVES else math.ceil(waves)) * curve.seconds(cores / UNIT)
            if seconds < MIN_GAIN * best_s:
                chosen, best_s = cores, seconds
    return chosen


class MoldableCores:
    def __init__(self) -> None:
        self._tried: dict[str, dict[int, None]] = {}
        """For each class: the numbers of cores that were tried."""
        self._workers: Sequence[Worker] = ()
        self._chosen: dict[tuple[TaskShape, str], int] = {}

    def begin(self, workers: Sequence[Worker]) -> None:
        """Prepares for one call of ``propose``. ``workers``: the workers that have room."""
        self._chosen = {}
        self._workers = workers

    def grant(self, state: State, task: Task, waiting: int, free: int) -> Needs:
        """Chooses how many cores a moldable task gets. Returns the needs of the task with this number of cores. ``free``: free cores of the
        worker. ``waiting``: number of waiting tasks of this shape, including this task."""
        shape, run = task.shape, task.shape.run
        kind = run.class_of(task.spec)
        known = state.speedups.get(kind, {})
        least = cores_of(shape.needs)
        if not least:
            return shape.needs
        most = min(shape.cores_max, free)
        cores = self._to_try(kind, known, least, shape.cores_max, most) if waiting >= MIN_WAITING else 0
        if not cores:
            chosen = self._chosen.get((shape, kind))
            if chosen is None:
                free_counts = Counter(worker.free.get(CORES, 0) for worker in self._workers)
                # While no times are known, more cores for one task must not make other tasks wait. So if not all waiting tasks fit, each
                # gets its minimum.
                crowded = not known and waiting > sum(count * (room // least) for room, count in free_counts.items())
                allowed = [least] if crowded else choices(least, shape.cores_max)
                chosen = self._chosen[shape, kind] = best(fit(known), allowed, waiting, free_counts)
            cores = max(least, min(chosen, most))
        return tuple((name, cores if name == CORES else amount) for name, amount in shape.needs)

    def _to_try(self, kind: str, known: Speedup, least: int, most: int, here: int) -> int:
        """Returns a number of cores that was neither measured nor tried before, or 0 if there is none. ``here``: the maximum number at the
        worker."""
        tried = self._tried.setdefault(kind, {})
        middle = round(math.sqrt(max(1, least) * most) / UNIT) * UNIT
        for cores in (least, most, middle):
            if least <= cores <= here and cores not in known and cores not in tried:
                tried[cores] = None
                return cores
        return 0
