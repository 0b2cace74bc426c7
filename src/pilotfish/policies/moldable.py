"""Chooses how many cores a moldable task gets: the number with which all waiting tasks finish soonest.

Amdahl's curve t(n) = s + p/n is fitted to the measured times: a serial part and a parallel part. With n cores each, the free cores give a
number of places, the waiting tasks take a number of rounds on them, and each round takes t(n). The n with the least total is granted. When
more tasks wait than there are cores, that is the n that costs the fewest core-seconds; in the tail, it is as many as shorten the end. The
first tasks of an unknown class try different numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pilotfish.core.learning.speedups import Speedup
from pilotfish.core.state import UNIT, Needs, State, Task, TaskShape, Worker
from pilotfish.core.tasks.fair_share import cores_of
from pilotfish.model.task import CORES

MIN_GAIN = 0.98
"""Factor on the time that more cores must reach; otherwise fewer are as good."""
MIN_WAITING = 4
"""Minimum waiting tasks for which trying an unknown number of cores pays."""
LAST_ROUNDS = 2
"""In the last rounds, a round takes its full time however few tasks are in it; before that, the last one counts as half full."""
MAX_CHOICES = 64


@dataclass(slots=True, frozen=True)
class AmdahlCurve:
    """Amdahl's curve: n cores take ``fixed_s`` + ``shared_s`` / n seconds."""

    fixed_s: float
    shared_s: float

    def seconds(self, cores: float) -> float:
        return self.fixed_s + self.shared_s / cores


UNKNOWN = AmdahlCurve(0.0, 1.0)
"""Assumed curve of an unknown class: twice the cores, half the time."""


def fit(known: Speedup) -> AmdahlCurve:
    """The least-squares curve without negative parts. With times for one number of cores only, all work counts as parallel."""
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
    if mean_t - slope * mean_x < 0:  # the parallel part would exceed the whole, or is undefined
        return AmdahlCurve(0.0, sum(count * x * t for x, t, count in points) / sum(count * x * x for x, t, count in points))
    return AmdahlCurve(mean_t - slope * mean_x, slope)


def choices(least: int, most: int) -> list[int]:
    """Numbers of cores that may be granted: the least, and whole cores beyond it; a selection if there are very many."""
    whole_cores = range(least // UNIT + 1, most // UNIT + 1)
    step = max(1, math.ceil(len(whole_cores) / MAX_CHOICES))
    return [least, *(cores * UNIT for cores in whole_cores[::step])]


def best(curve: AmdahlCurve, allowed: Iterable[int], waiting: int, free_counts: Mapping[int, int]) -> int:
    """The number of cores with which all waiting tasks finish soonest, the smallest of these. ``free_counts``: workers by free cores."""
    chosen, best_s = 0, math.inf
    for cores in allowed:
        places = sum(count * (free // cores) for free, count in free_counts.items())
        if places or not chosen:
            rounds = max(1, waiting) / max(1, places)
            seconds = (rounds + 0.5 if rounds > LAST_ROUNDS else math.ceil(rounds)) * curve.seconds(cores / UNIT)
            if seconds < MIN_GAIN * best_s:
                chosen, best_s = cores, seconds
    return chosen


class MoldableCores:
    def __init__(self) -> None:
        self._tried: dict[str, dict[int, None]] = {}
        """By class: numbers of cores that were granted as a trial."""
        self._workers: Sequence[Worker] = ()
        self._chosen: dict[tuple[TaskShape, str], int] = {}

    def begin(self, workers: Sequence[Worker]) -> None:
        """Start a round of proposals in which these workers have room."""
        self._chosen = {}
        self._workers = workers

    def grant(self, state: State, task: Task, waiting: int, free: int) -> Needs:
        """The needs that a moldable task is granted at a worker with these free cores. ``waiting``: tasks like it, itself included."""
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
                # While times are unknown, no task waits because another got more than its minimum.
                crowded = not known and waiting > sum(count * (room // least) for room, count in free_counts.items())
                allowed = [least] if crowded else choices(least, shape.cores_max)
                chosen = self._chosen[shape, kind] = best(fit(known), allowed, waiting, free_counts)
            cores = max(least, min(chosen, most))
        return tuple((name, cores if name == CORES else amount) for name, amount in shape.needs)

    def _to_try(self, kind: str, known: Speedup, least: int, most: int, here: int) -> int:
        """A number of cores that is unknown and not being tried; 0 if none fits here."""
        tried = self._tried.setdefault(kind, {})
        middle = round(math.sqrt(max(1, least) * most) / UNIT) * UNIT
        for cores in (least, most, middle):
            if least <= cores <= here and cores not in known and cores not in tried:
                tried[cores] = None
                return cores
        return 0
