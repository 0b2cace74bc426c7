"""What adaptive workload balancing learns from chunks that were done: speeds, bandwidths, latencies and the application's f_c."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pilotfish.policies.awlb import UNLIMITED, Application, Capacity

SMOOTHING = 0.5
"""How much the latest chunk counts, next to all before it."""
LEAST_UNIT_S = 1e-9
SMALL_BYTES = 64 * 1024
"""As long as all chunks move about the same, what moving takes is put down to latency if they move less than this, else to bandwidth."""
SPREAD = 0.05
FORGIVING = 0.8
"""So much of a worker's slowness and latency is still believed after each iteration without it: it must be tried again some time."""
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class Measured:
    """One chunk, done."""

    worker: str
    units: float
    compute_s: float
    transfer_s: float
    """All that it took besides, from being sent to being back."""
    moved_bytes: float

    @property
    def sound(self) -> bool:
        values = (self.units, self.compute_s, self.transfer_s, self.moved_bytes)
        return self.units > 0 and all(0 <= value < math.inf for value in values)


class Line:
    """y = intercept + slope x, by least squares; what came long ago counts little."""

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


class Estimates:
    """Of all workers seen. A worker that was never measured counts by its benchmark, next to those that were, or as an ordinary one."""

    def __init__(self, smoothing: float = SMOOTHING) -> None:
        self._new = smoothing
        self._unit_s: dict[str, float] = {}
        self._transfers: dict[str, Line] = {}
        self._benchmarks: dict[str, float] = {}
        self._bytes = Line(1 - smoothing / 8)

    def expect(self, worker: str, benchmark: float) -> None:
        """What a worker said of itself: worth a first guess, if it is a number at all."""
        if 0 < benchmark < math.inf:
            self._benchmarks[worker] = benchmark

    def observe(self, chunks: Iterable[Measured]) -> None:
        """All chunks of one iteration. What is no number is not learnt from, nor how long a new worker took to get ready."""
        before = dict.fromkeys(self._unit_s)
        for chunk in chunks:
            if not chunk.sound:
                continue
            self._took(chunk.worker, chunk.compute_s / chunk.units)
            self._bytes.observe(chunk.units, chunk.moved_bytes)
            if chunk.worker in before or chunk.moved_bytes >= SMALL_BYTES:
                self._transfers.setdefault(chunk.worker, Line(1 - self._new)).observe(chunk.moved_bytes, chunk.transfer_s)

    def held_up(self, worker: str, units: float, seconds: float) -> None:
        """A chunk took longer than this, and was done by others instead."""
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

    def capacity(self, worker: str) -> Capacity:
        speed = 1 / self._unit_s[worker] if worker in self._unit_s else self._guess(worker)
        line = self._transfers.get(worker)
        latency_s, byte_s = line.fit(SMALL_BYTES) if line is not None else (0.0, 0.0)
        return Capacity(worker, speed, 1 / byte_s if byte_s > 0 else UNLIMITED, latency_s)

    def _guess(self, worker: str) -> float:
        benchmark = self._benchmarks.get(worker)
        if benchmark is None:
            known = [1 / unit_s for unit_s in self._unit_s.values()] or list(self._benchmarks.values())
            return statistics.median(known) if known else 1.0
        scales = [1 / (unit_s * self._benchmarks[name]) for name, unit_s in self._unit_s.items() if name in self._benchmarks]
        return benchmark * statistics.median(scales) if scales else benchmark

    def application(self) -> Application:
        chunk_bytes, ratio = self._bytes.fit(0.0)
        return Application(ratio, chunk_bytes)


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
        """The next to try; when settled, the best."""
        if self.settled and self._times:
            return math.exp(min(self._times, key=lambda point: self._times[point]))
        return math.exp(self._next)

    def tell(self, time_s: float) -> None:
        """How long it took with ``ratio``."""
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
        """A point of the last step is one of this, but for rounding."""
        return next((time_s for other, time_s in self._times.items() if abs(other - point) < self._precision / 100), None)


def best_ratio(run_time: Callable[[float], float], low: float, high: float, precision: float = 0.01) -> float:
    """f_c*, where a model says how long a run takes for each f_c."""
    search = RatioSearch(low, high, precision)
    while not search.settled:
        search.tell(run_time(search.ratio))
    return search.ratio
