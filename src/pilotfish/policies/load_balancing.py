"""Computes chunk sizes so that all workers finish together (adaptive workload balancing, AWLB), and learns speeds from finished chunks.

Worker i does p_i units of work per second and receives n_i bytes per second; the application moves f_c bytes per unit. Then w units take
w (1/p_i + f_c/n_i), plus a fixed cost per chunk. With mu_i = p_i/n_i, the weight of a worker is p_i / (1 + f_c mu_i). A worker that costs
more than it contributes is left out. This finds the best subset: in the one optimum, all workers that take part finish together.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

UNLIMITED = math.inf
SMOOTHING = 0.5
"""Weight of the latest chunk against all before it."""
LEAST_UNIT_S = 1e-9
SMALL_BYTES = 64 * 1024
"""While all chunks move about the same number of bytes, transfer time counts as latency below this size, and as bandwidth above."""
SPREAD = 0.05
FORGIVING = 0.8
"""Factor on a worker's estimated slowness and latency after each iteration without it, so that it is tried again some time."""
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class WorkerCapacity:
    """What one worker, or one slot of it, can do. An unknown network counts as free."""

    name: str
    speed: float
    """p: units of work per second."""
    bandwidth: float = UNLIMITED
    """n: bytes per second."""
    latency_s: float = 0.0
    """Fixed cost of each chunk at this worker."""

    @property
    def usable(self) -> bool:
        """Whether the values can be used. NaN compares false with everything."""
        return 0 < self.speed < math.inf and self.bandwidth > 0 and 0 <= self.latency_s < math.inf


@dataclass(frozen=True, slots=True)
class LoadModel:
    ratio: float = 0.0
    """f_c: bytes per unit of work."""
    chunk_bytes: float = 0.0
    """Additional bytes of each chunk."""
    chunk_s: float = 0.0
    """Additional computing time of each chunk."""


@dataclass(frozen=True, slots=True)
class Uplink:
    """The master's link. In parallel, all workers are served at once and share ``bandwidth`` evenly; with one port, one after the other."""

    bandwidth: float = UNLIMITED
    one_port: bool = False


@dataclass(frozen=True, slots=True)
class LoadSplit:
    sizes: tuple[float, ...]
    """In the order of the workers; 0 for a worker that is left out."""
    time_s: float


PARALLEL = Uplink()
ONE_PORT = Uplink(one_port=True)


# --- the model ------------------------------------------------------------------------------------------------------------------------


def weight(worker: WorkerCapacity, ratio: float) -> float:
    """Units per second, including the time to transfer them."""
    return 1 / _unit_s(worker, ratio)


def _unit_s(worker: WorkerCapacity, ratio: float) -> float:
    return 1 / worker.speed + ratio / worker.bandwidth


def _fixed_s(worker: WorkerCapacity, application: LoadModel) -> float:
    return worker.latency_s + application.chunk_s + application.chunk_bytes / worker.bandwidth


def _at(link: Uplink, workers: Sequence[WorkerCapacity]) -> list[WorkerCapacity]:
    """The workers' capacities behind this link when all of them use it at once."""
    reached = [replace(worker, bandwidth=min(worker.bandwidth, link.bandwidth)) for worker in workers]
    wanted = sum(worker.bandwidth for worker in reached)
    if link.one_port or wanted <= link.bandwidth:
        return reached
    return [replace(worker, bandwidth=worker.bandwidth * link.bandwidth / wanted) for worker in reached]


def _nearest_first(workers: Sequence[WorkerCapacity]) -> list[int]:
    """With one port, workers with the fastest transfers are served first."""
    return sorted(range(len(workers)), key=lambda place: (-workers[place].bandwidth, workers[place].latency_s))


def time_of(sizes: Sequence[float], workers: Sequence[WorkerCapacity], application: LoadModel, link: Uplink = PARALLEL) -> float:
    """When the last worker ends, if each gets a chunk of its size; a chunk of 0 is not sent."""
    used = [place for place, size in enumerate(sizes) if size > 0]
    there = _at(link, [workers[place] for place in used])
    ends = [0.0]
    port_s = 0.0
    for place in _nearest_first(there):
        worker, size = there[place], sizes[used[place]]
        arrived = port_s + _fixed_s(worker, application) + size * application.ratio / worker.bandwidth
        ends.append(arrived + size / worker.speed)
        if link.one_port:
            port_s = arrived
    return max(ends)


def self_scheduled(workers: Sequence[WorkerCapacity], application: LoadModel, load: float, tasks: int, link: Uplink = PARALLEL) -> float:
    """When the last worker ends if the load is cut into equal tasks and each idle worker takes the next one."""
    there, size = _at(link, workers), load / tasks
    idle = [(0.0, place) for place in range(len(there))]
    port_s = end = 0.0
    for _ in range(tasks):
        now, place = heapq.heappop(idle)
        worker = there[place]
        arrived = max(now, port_s) + _fixed_s(worker, application) + size * application.ratio / worker.bandwidth
        port_s = arrived if link.one_port else 0.0
        end = max(end, arrived + size / worker.speed)
        heapq.heappush(idle, (arrived + size / worker.speed, place))
    return end


# --- plans ----------------------------------------------------------------------------------------------------------------------------


def plan(workers: Sequence[WorkerCapacity], application: LoadModel, load: float, link: Uplink = PARALLEL) -> LoadSplit:
    """Sizes that add up to the load, so that all workers that take part end at the same, earliest possible time."""
    places = [place for place, worker in enumerate(workers) if worker.usable]
    if not places:
        raise ValueError("of no worker is it known how fast it is")
    usable = [workers[place] for place in places]
    if load <= 0:
        found = LoadSplit((0.0,) * len(usable), 0.0)
    elif link.one_port:
        found = _one_by_one(_at(link, usable), application, load)
    elif sum(min(worker.bandwidth, link.bandwidth) for worker in usable) <= link.bandwidth:
        found = _all_at_once(_at(link, usable), application, load)
    else:
        found = _sharing(usable, application, load, link)
    sizes = dict(zip(places, found.sizes, strict=True))
    return LoadSplit(tuple(sizes.get(place, 0.0) for place in range(len(workers))), found.time_s)


def _all_at_once(workers: Sequence[WorkerCapacity], application: LoadModel, load: float) -> LoadSplit:
    """Add workers by fixed cost until the next one's cost exceeds the time that the others need without it."""
    unit_s = [_unit_s(worker, application.ratio) for worker in workers]
    fixed_s = [_fixed_s(worker, application) for worker in workers]
    rate = lost = 0.0
    time_s = math.inf
    for place in sorted(range(len(workers)), key=lambda place: fixed_s[place]):
        if fixed_s[place] >= time_s:
            break
        rate += 1 / unit_s[place]
        lost += fixed_s[place] / unit_s[place]
        time_s = (load + lost) / rate
    return LoadSplit(tuple(max(0.0, (time_s - fixed) / unit) for fixed, unit in zip(fixed_s, unit_s, strict=True)), time_s)


def _one_by_one(workers: Sequence[WorkerCapacity], application: LoadModel, load: float) -> LoadSplit:
    """Each worker waits until those before it were served. With T the common end, each size is a T + b, and so is their sum."""
    terms: dict[int, tuple[float, float]] = {}
    rate = lost = 0.0
    port_rate = port_s = 0.0
    time_s = math.inf
    for place in _nearest_first(workers):
        worker = workers[place]
        unit_s, sending_s = _unit_s(worker, application.ratio), application.ratio / worker.bandwidth
        fixed_s = _fixed_s(worker, application)
        a, b = (1 - port_rate) / unit_s, -(port_s + fixed_s) / unit_s
        if terms and a * time_s + b <= 0:
            continue
        terms[place] = a, b
        rate, lost = rate + a, lost - b
        time_s = (load + lost) / rate
        port_rate, port_s = port_rate + a * sending_s, port_s + fixed_s + b * sending_s
    sizes = {place: max(0.0, a * time_s + b) for place, (a, b) in terms.items()}
    return LoadSplit(tuple(sizes.get(place, 0.0) for place in range(len(workers))), time_s)


def _sharing(workers: Sequence[WorkerCapacity], application: LoadModel, load: float, link: Uplink) -> LoadSplit:
    """Each worker that takes part reduces the bandwidth of the others: the best come first, and each only if it helps."""
    order = sorted(range(len(workers)), key=lambda place: (-weight(workers[place], application.ratio), workers[place].latency_s))
    chosen: list[int] = []
    best = LoadSplit((), math.inf)
    for place in order:
        with_it = [*chosen, place]
        found = _all_at_once(_at(link, [workers[one] for one in with_it]), application, load)
        if found.time_s < best.time_s and all(found.sizes):
            chosen, best = with_it, found
    sizes = dict(zip(chosen, best.sizes, strict=True))
    return LoadSplit(tuple(sizes.get(place, 0.0) for place in range(len(workers))), best.time_s)


def whole(found: LoadSplit, workers: Sequence[WorkerCapacity], application: LoadModel, load: int) -> list[int]:
    """The sizes in whole units: rounded down, and each remaining unit goes to the worker that ends first with it."""
    sizes = [math.floor(size + 1e-9) for size in found.sizes]
    left = load - sum(sizes)
    if left < 0:
        # A float does not hold the last digits of very many units.
        sizes[sizes.index(max(sizes))] += left
    ends: list[tuple[float, int, float]] = []
    for place, worker in enumerate(workers):
        if left > 0 and worker.usable:
            unit_s, fixed_s = _unit_s(worker, application.ratio), _fixed_s(worker, application)
            heapq.heappush(ends, (fixed_s + (sizes[place] + 1) * unit_s, place, unit_s))
    for _ in range(left):
        end, place, unit_s = heapq.heappop(ends)
        sizes[place] += 1
        heapq.heappush(ends, (end + unit_s, place, unit_s))
    return sizes


def equal(load: int, count: int) -> list[int]:
    """The load in ``count`` parts that differ by at most one."""
    return [load * (place + 1) // count - load * place // count for place in range(count)]


# --- figures --------------------------------------------------------------------------------------------------------------------------


def capacities(workers: Sequence[WorkerCapacity]) -> list[float]:
    """mu_i = p_i / n_i. Unknown bandwidths count as equal, so that only speeds differ."""
    known = sorted(worker.bandwidth for worker in workers if worker.bandwidth < math.inf)
    ordinary = known[len(known) // 2] if known else 1.0
    return [worker.speed / (worker.bandwidth if worker.bandwidth < math.inf else ordinary) for worker in workers]


def heterogeneity(mu: Sequence[float]) -> float:
    """Phi: the standard deviation of mu_i / mu_avg. The printed formula lacks the square, without which the sum is always 0."""
    if len(mu) < 2 or not sum(mu):
        return 0.0
    average = sum(mu) / len(mu)
    return math.sqrt(sum((1 - one / average) ** 2 for one in mu) / (len(mu) - 1))


# --- learning from finished chunks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChunkMeasurement:
    """A finished chunk."""

    worker: str
    units: float
    compute_s: float
    transfer_s: float
    """All other time, from sending it to having it back."""
    moved_bytes: float

    @property
    def sound(self) -> bool:
        values = (self.units, self.compute_s, self.transfer_s, self.moved_bytes)
        return self.units > 0 and all(0 <= value < math.inf for value in values)


class LinearFit:
    """y = intercept + slope x, by least squares; old values count little."""

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self._count = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, x: float, y: float) -> None:
        for name, value in (("_count", 1.0), ("_x", x), ("_y", y), ("_xx", x * x), ("_xy", x * y)):
            setattr(self, name, self._keep * getattr(self, name) + value)

    def fit(self, small: float) -> tuple[float, float]:
        """(intercept, slope), neither below 0. Where x is always about the same: all intercept below ``small``, all slope above."""
        if not self._count:
            return 0.0, 0.0
        x, y = self._x / self._count, self._y / self._count
        variance = self._xx / self._count - x * x
        if variance > (SPREAD * x) ** 2:
            slope = (self._xy / self._count - x * y) / variance
            if slope <= 0:
                return y, 0.0
            return (y - slope * x, slope) if slope * x <= y else (0.0, y / x)
        return (y, 0.0) if x < small or not x else (0.0, y / x)

    def ease(self, factor: float) -> None:
        self._y *= factor
        self._xy *= factor


class CapacityEstimates:
    """Estimates for all workers seen. An unmeasured worker counts by its benchmark compared with measured ones, or as an average one."""

    def __init__(self, smoothing: float = SMOOTHING) -> None:
        self._new = smoothing
        self._unit_s: dict[str, float] = {}
        self._transfers: dict[str, LinearFit] = {}
        self._benchmarks: dict[str, float] = {}
        self._bytes = LinearFit(1 - smoothing / 8)

    def expect(self, worker: str, benchmark: float) -> None:
        """Take a worker's own benchmark as a first estimate, if it is a valid number."""
        if 0 < benchmark < math.inf:
            self._benchmarks[worker] = benchmark

    def observe(self, chunks: Iterable[ChunkMeasurement]) -> None:
        """Learn from all chunks of one iteration. Invalid numbers are ignored, and so is the start-up time of a new worker."""
        before = dict.fromkeys(self._unit_s)
        for chunk in chunks:
            if not chunk.sound:
                continue
            self._took(chunk.worker, chunk.compute_s / chunk.units)
            self._bytes.observe(chunk.units, chunk.moved_bytes)
            if chunk.worker in before or chunk.moved_bytes >= SMALL_BYTES:
                self._transfers.setdefault(chunk.worker, LinearFit(1 - self._new)).observe(chunk.moved_bytes, chunk.transfer_s)

    def held_up(self, worker: str, units: float, seconds: float) -> None:
        """Learn that a chunk took longer than this and was done by other workers."""
        if units > 0 and seconds > 0:
            self._took(worker, max(seconds / units, self._unit_s.get(worker, 0.0)))

    def _took(self, worker: str, unit_s: float) -> None:
        unit_s = max(unit_s, LEAST_UNIT_S)
        before = self._unit_s.get(worker, unit_s)
        self._unit_s[worker] = before + self._new * (unit_s - before)

    def forgive(self, left_out: Iterable[str]) -> None:
        for worker in left_out:
            if worker in self._unit_s:
                self._unit_s[worker] = max(self._unit_s[worker] * FORGIVING, LEAST_UNIT_S)
            if worker in self._transfers:
                self._transfers[worker].ease(FORGIVING)

    def knows(self, worker: str) -> bool:
        return worker in self._unit_s

    def capacity(self, worker: str) -> WorkerCapacity:
        speed = 1 / self._unit_s[worker] if worker in self._unit_s else self._guess(worker)
        line = self._transfers.get(worker)
        latency_s, byte_s = line.fit(SMALL_BYTES) if line is not None else (0.0, 0.0)
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
    """The f_c* of least run time, by golden section over its logarithm: try ``ratio``, ``tell`` the time, until it is ``settled``."""

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
        """The next ratio to try; when settled, the best one."""
        if self.settled and self._times:
            return math.exp(min(self._times, key=lambda point: self._times[point]))
        return math.exp(self._next)

    def tell(self, time_s: float) -> None:
        """Report the run time with ``ratio``."""
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
        """The time of a point that an earlier step measured, up to rounding."""
        return next((time_s for other, time_s in self._times.items() if abs(other - point) < self._precision / 100), None)


def best_ratio(run_time: Callable[[float], float], low: float, high: float, precision: float = 0.01) -> float:
    """f_c*, where a model says how long a run takes for each f_c."""
    search = RatioSearch(low, high, precision)
    while not search.settled:
        search.tell(run_time(search.ratio))
    return search.ratio
