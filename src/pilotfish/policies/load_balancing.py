"""Computes chunk sizes for workers, so that all used workers finish at the same time (adaptive workload balancing, AWLB). Learns the speeds
of the workers from finished chunks.

Worker i computes p_i units of work per second and receives n_i bytes per second. The application moves f_c bytes per unit. A chunk of w
units takes w (1/p_i + f_c/n_i) seconds, plus a fixed cost per chunk. With mu_i = p_i/n_i and without the fixed cost, worker i receives and
computes p_i / (1 + f_c mu_i) units per second. The total time is shortest if all used workers finish at the same time. A worker with a high
fixed cost is not used: its fixed cost alone would take at least as long as the used workers need to finish.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

UNLIMITED = math.inf
SMOOTHING = 0.5
"""Weight of the latest chunk. All earlier chunks together have the remaining weight."""
MIN_UNIT_S = 1e-9
SMALL_BYTES = 64 * 1024
"""If all chunks of a worker move about the same number of bytes, latency and bandwidth cannot be measured separately. In this case, the
whole transfer time counts either as latency or as time for the bytes. It counts as latency if the chunks move fewer bytes than this on
average."""
MIN_SPREAD = 0.05
UNUSED_FACTOR = 0.8
"""If an iteration does not use a worker, the estimated slowness and latency of the worker are multiplied by this factor. So a later
iteration tries the worker again."""
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class WorkerCapacity:
    """Speed and bandwidth of one worker or one slot. An unknown bandwidth counts as unlimited."""

    name: str
    speed: float
    """p: units of work per second."""
    bandwidth: float = UNLIMITED
    """n: bytes per second."""
    latency_s: float = 0.0
    """Fixed cost of each chunk at this worker."""

    @property
    def usable(self) -> bool:
        """Returns True if speed, bandwidth and latency are valid numbers. NaN is not valid."""
        return 0 < self.speed < math.inf and self.bandwidth > 0 and 0 <= self.latency_s < math.inf

    def unit_s(self, ratio: float) -> float:
        """Returns the seconds for computing one unit of work and transferring its data. ``ratio``: bytes per unit."""
        return 1 / self.speed + ratio / self.bandwidth

    def fixed_s(self, application: LoadModel) -> float:
        """Returns the fixed cost of a chunk: its seconds in addition to the seconds for its units."""
        return self.latency_s + application.chunk_s + application.chunk_bytes / self.bandwidth


@dataclass(frozen=True, slots=True)
class LoadModel:
    ratio: float = 0.0
    """f_c: bytes per unit of work."""
    chunk_bytes: float = 0.0
    """Bytes that each chunk moves in addition to the bytes of its units."""
    chunk_s: float = 0.0
    """Seconds that each chunk computes in addition to the time for its units."""


@dataclass(frozen=True, slots=True)
class LoadSplit:
    sizes: tuple[float, ...]
    """Units for each worker; 0 for a worker that is not used."""
    time_s: float


def time_of(sizes: Sequence[float], workers: Sequence[WorkerCapacity], application: LoadModel) -> float:
    """Returns the seconds until the last worker has finished. Worker i gets a chunk of ``sizes[i]`` units. A chunk of size 0 is not
    sent."""
    used = [(size, worker) for size, worker in zip(sizes, workers, strict=True) if size > 0]
    ends = (worker.fixed_s(application) + size * application.ratio / worker.bandwidth + size / worker.speed for size, worker in used)
    return max(ends, default=0.0)


# --- plans ----------------------------------------------------------------------------------------------------------------------------


def plan(workers: Sequence[WorkerCapacity], application: LoadModel, load: float) -> LoadSplit:
    """Divides the load so that all used workers finish at the same time, and as early as possible."""
    usable = {index: worker for index, worker in enumerate(workers) if worker.usable}
    if not usable:
        raise ValueError("of no worker is it known how fast it is")
    found = _split(list(usable.values()), application, load) if load > 0 else LoadSplit((0.0,) * len(usable), 0.0)
    sizes = dict(zip(usable, found.sizes, strict=True))
    return LoadSplit(tuple(sizes.get(index, 0.0) for index in range(len(workers))), found.time_s)


def _split(workers: Sequence[WorkerCapacity], application: LoadModel, load: float) -> LoadSplit:
    """Splits the load. Adds workers one by one, the smallest fixed cost first. Stops when the fixed cost of the next worker is longer than
    the time in which the added workers finish."""
    unit_s = [worker.unit_s(application.ratio) for worker in workers]
    fixed_s = [worker.fixed_s(application) for worker in workers]
    rate = lost = 0.0
    time_s = math.inf
    for index in sorted(range(len(workers)), key=lambda index: fixed_s[index]):
        if fixed_s[index] >= time_s:
            break
        rate += 1 / unit_s[index]
        lost += fixed_s[index] / unit_s[index]
        time_s = (load + lost) / rate
    return LoadSplit(tuple(max(0.0, (time_s - fixed) / unit) for fixed, unit in zip(fixed_s, unit_s, strict=True)), time_s)


def whole_units(found: LoadSplit, workers: Sequence[WorkerCapacity], application: LoadModel, load: int) -> list[int]:
    """Rounds the sizes of ``found`` down to whole units. Then gives each remaining unit to the worker that would finish it first."""
    sizes = [math.floor(size + 1e-9) for size in found.sizes]
    left = load - sum(sizes)
    if left < 0:
        # For very large loads, the floats in ``found`` have too few digits.
        sizes[sizes.index(max(sizes))] += left
    ends: list[tuple[float, int, float]] = []
    for index, worker in enumerate(workers):
        if left > 0 and worker.usable:
            unit_s, fixed_s = worker.unit_s(application.ratio), worker.fixed_s(application)
            heapq.heappush(ends, (fixed_s + (sizes[index] + 1) * unit_s, index, unit_s))
    for _ in range(left):
        end, index, unit_s = heapq.heappop(ends)
        sizes[index] += 1
        heapq.heappush(ends, (end + unit_s, index, unit_s))
    return sizes


def equal_parts(load: int, count: int) -> list[int]:
    """Divides the load into ``count`` parts that differ by at most one."""
    return [load * (index + 1) // count - load * index // count for index in range(count)]


# --- figures --------------------------------------------------------------------------------------------------------------------------


def compute_transfer_ratios(workers: Sequence[WorkerCapacity]) -> list[float]:
    """Returns mu_i = p_i / n_i for each worker. An unknown bandwidth is replaced by the median of all known bandwidths."""
    known = sorted(worker.bandwidth for worker in workers if worker.bandwidth < math.inf)
    median = known[len(known) // 2] if known else 1.0
    return [worker.speed / (worker.bandwidth if worker.bandwidth < math.inf else median) for worker in workers]


def heterogeneity(mu: Sequence[float]) -> float:
    """Returns Phi: the standard deviation of mu_i, divided by the mean of mu_i. (The published formula is a misprint: it adds the
    deviations without squaring them, and this sum is always 0.)"""
    if len(mu) < 2 or not sum(mu):
        return 0.0
    average = sum(mu) / len(mu)
    return math.sqrt(sum((1 - one / average) ** 2 for one in mu) / (len(mu) - 1))


# --- learning from finished chunks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChunkMeasurement:
    """Measured times of a finished chunk."""

    worker: str
    units: float
    compute_s: float
    transfer_s: float
    """Seconds from sending the chunk to receiving its result, less ``compute_s``."""
    moved_bytes: float

    @property
    def is_valid(self) -> bool:
        values = (self.units, self.compute_s, self.transfer_s, self.moved_bytes)
        return self.units > 0 and all(0 <= value < math.inf for value in values)


class LinearFit:
    """Fits y = intercept + slope x by least squares. Old values count less."""

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self._count = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, x: float, y: float) -> None:
        for name, value in (("_count", 1.0), ("_x", x), ("_y", y), ("_xx", x * x), ("_xy", x * y)):
            setattr(self, name, self._keep * getattr(self, name) + value)

    def fit(self, small: float) -> tuple[float, float]:
        """Returns intercept and slope, both at least 0. If all x are about equal, the data determine only one of the two. In this case, the
        slope is 0 if the mean of x is less than ``small``. If the mean is larger, the intercept is 0."""
        if not self._count:
            return 0.0, 0.0
        x, y = self._x / self._count, self._y / self._count
        variance = self._xx / self._count - x * x
        if variance > (MIN_SPREAD * x) ** 2:
            slope = (self._xy / self._count - x * y) / variance
            if slope <= 0:
                return y, 0.0
            return (y - slope * x, slope) if slope * x <= y else (0.0, y / x)
        return (y, 0.0) if x < small or not x else (0.0, y / x)

    def scale(self, factor: float) -> None:
        self._y *= factor
        self._xy *= factor


class CapacityEstimates:
    """Estimates speed, bandwidth and latency of each worker. If no chunk of a worker was measured, the speed of the worker is guessed:

    * If the worker has a benchmark, the guess is this benchmark times a factor. The factor is the median ratio of speed to benchmark of the
      measured workers. If no measured worker has a benchmark, the factor is 1.
    * If the worker has no benchmark, the guess is the median speed of the measured workers. If no worker was measured, it is the median of
      all benchmarks. If there are no benchmarks, it is 1.
    """

    def __init__(self, smoothing: float = SMOOTHING) -> None:
        self._smoothing = smoothing
        self._unit_s: dict[str, float] = {}
        self._transfers: dict[str, LinearFit] = {}
        self._benchmarks: dict[str, float] = {}
        self._bytes = LinearFit(1 - smoothing / 8)

    def set_benchmark(self, worker: str, benchmark: float) -> None:
        """Stores the benchmark of a worker for guesses of its speed. Ignores a benchmark that is not a valid number."""
        if 0 < benchmark < math.inf:
            self._benchmarks[worker] = benchmark

    def observe(self, chunks: Iterable[ChunkMeasurement]) -> None:
        """Learns from all chunks of one iteration. Ignores invalid measurements, and the start-up time of a new worker."""
        before = dict.fromkeys(self._unit_s)
        for chunk in chunks:
            if not chunk.is_valid:
                continue
            self._observe_speed(chunk.worker, chunk.compute_s / chunk.units)
            self._bytes.observe(chunk.units, chunk.moved_bytes)
            if chunk.worker in before or chunk.moved_bytes >= SMALL_BYTES:
                self._transfers.setdefault(chunk.worker, LinearFit(1 - self._smoothing)).observe(chunk.moved_bytes, chunk.transfer_s)

    def observe_unfinished(self, worker: str, units: float, seconds: float) -> None:
        """Learns from a chunk that was not finished after ``seconds`` and was given to other workers."""
        if units > 0 and seconds > 0:
            self._observe_speed(worker, max(seconds / units, self._unit_s.get(worker, 0.0)))

    def _observe_speed(self, worker: str, unit_s: float) -> None:
        unit_s = max(unit_s, MIN_UNIT_S)
        before = self._unit_s.get(worker, unit_s)
        self._unit_s[worker] = before + self._smoothing * (unit_s - before)

    def reduce_slowness(self, left_out: Iterable[str]) -> None:
        for worker in left_out:
            if worker in self._unit_s:
                self._unit_s[worker] = max(self._unit_s[worker] * UNUSED_FACTOR, MIN_UNIT_S)
            if worker in self._transfers:
                self._transfers[worker].scale(UNUSED_FACTOR)

    def knows(self, worker: str) -> bool:
        return worker in self._unit_s

    def capacity(self, worker: str) -> WorkerCapacity:
        speed = 1 / self._unit_s[worker] if worker in self._unit_s else self._guess(worker)
        fit = self._transfers.get(worker)
        latency_s, byte_s = fit.fit(SMALL_BYTES) if fit is not None else (0.0, 0.0)
        return WorkerCapacity(worker, speed, 1 / byte_s if byte_s > 0 else UNLIMITED, latency_s)

    def _guess(self, worker: str) -> float:
        benchmark = self._benchmarks.get(worker)
        if benchmark is None:
            known = [1 / unit_s for unit_s in self._unit_s.values()] or list(self._benchmarks.values())
            return statistics.median(known) if known else 1.0
        scales = [1 / (unit_s * self._benchmarks[name]) for name, unit_s in self._unit_s.items() if name in self._benchmarks]
        return benchmark * statistics.median(scales) if scales else benchmark

    def application(self) -> LoadModel:
        chunk_bytes, ratio = self._bytes.fit(0.0)
        return LoadModel(ratio, chunk_bytes)


class RatioSearch:
    """Searches for the number of bytes per unit (f_c) with the shortest run time, by golden-section search over log f_c. The caller repeats
    two steps until ``settled`` is true: it runs the application with f_c = ``ratio``, then passes the measured run time to ``report``."""

    def __init__(self, low: float, high: float, precision: float = 0.1) -> None:
        if not 0 < low < high < math.inf:
            raise ValueError(f"f_c is searched between two positive numbers, not {low!r} and {high!r}")
        self._low, self._high = math.log(low), math.log(high)
        self._precision = precision
        self._times: dict[float, float] = {}
        self._next = self._inner()[0]

    def _inner(self) -> tuple[float, float]:
        width = GOLDEN * (self._high - self._low)
        return self._high - width, self._low + width

    @property
    def settled(self) -> bool:
        return self._high - self._low <= self._precision

    @property
    def ratio(self) -> float:
        """Returns the next ratio to try, or the best ratio if the search is settled."""
        if self.settled and self._times:
            return math.exp(min(self._times, key=lambda point: self._times[point]))
        return math.exp(self._next)

    def report(self, time_s: float) -> None:
        """Records the run time that was measured with ``ratio``, and chooses the next ratio."""
        if self.settled:
            return
        self._times[self._next] = time_s if time_s == time_s else math.inf
        left, right = self._inner()
        while not self.settled and (one := self._known(left)) is not None and (other := self._known(right)) is not None:
            if one <= other:
                self._high = right
            else:
                self._low = left
            left, right = self._inner()
        self._next = left if self._known(left) is None else right

    def _known(self, point: float) -> float | None:
        """Returns the run time that was reported for ``point``, a value of log f_c. Returns None if none was reported. Rounding errors are
        ignored: a reported point that is almost equal to ``point`` counts as equal."""
        return next((time_s for other, time_s in self._times.items() if abs(other - point) < self._precision / 100), None)
