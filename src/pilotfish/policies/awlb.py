"""Adaptive workload balancing (AWLB): how much of a divisible load each worker gets, so that all of them end at the same time.

Worker i does p_i units of work in a second, and n_i bytes in a second reach it; the application moves f_c bytes for each unit. Then w units
take w (1/p_i + f_c/n_i) and what each chunk costs whatever its size. With mu_i = p_i/n_i, a worker's weight is p_i / (1 + f_c mu_i). Who
costs more than he brings is left out, which is how the best subset is found: in the one optimum everybody who takes part ends together.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

UNLIMITED = math.inf


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one worker, or one slot of it, can do. What is not known of a network is taken to cost nothing."""

    name: str
    speed: float
    """p: units of work per second."""
    bandwidth: float = UNLIMITED
    """n: bytes per second."""
    latency_s: float = 0.0
    """What each chunk costs here, whatever its size."""

    @property
    def usable(self) -> bool:
        """Whether these are numbers to reckon with: NaN compares false with everything."""
        return 0 < self.speed < math.inf and self.bandwidth > 0 and 0 <= self.latency_s < math.inf


@dataclass(frozen=True, slots=True)
class Application:
    ratio: float = 0.0
    """f_c: bytes per unit of work."""
    chunk_bytes: float = 0.0
    """What each chunk moves besides."""
    chunk_s: float = 0.0
    """What each chunk computes besides."""


@dataclass(frozen=True, slots=True)
class Link:
    """The master's end. In parallel, all are served at once and share ``bandwidth`` evenly; by one port, one after the other."""

    bandwidth: float = UNLIMITED
    one_port: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    sizes: tuple[float, ...]
    """In the order of the workers; 0 for those who are left out."""
    time_s: float


PARALLEL = Link()
ONE_PORT = Link(one_port=True)


# --- the model ------------------------------------------------------------------------------------------------------------------------


def weight(worker: Capacity, ratio: float) -> float:
    """Units per second, the time to bring them included."""
    return 1 / _unit_s(worker, ratio)


def _unit_s(worker: Capacity, ratio: float) -> float:
    return 1 / worker.speed + ratio / worker.bandwidth


def _fixed_s(worker: Capacity, application: Application) -> float:
    return worker.latency_s + application.chunk_s + application.chunk_bytes / worker.bandwidth


def _at(link: Link, workers: Sequence[Capacity]) -> list[Capacity]:
    """The workers as they are behind this link when all of these use it at once."""
    reached = [replace(worker, bandwidth=min(worker.bandwidth, link.bandwidth)) for worker in workers]
    wanted = sum(worker.bandwidth for worker in reached)
    if link.one_port or wanted <= link.bandwidth:
        return reached
    return [replace(worker, bandwidth=worker.bandwidth * link.bandwidth / wanted) for worker in reached]


def _nearest_first(workers: Sequence[Capacity]) -> list[int]:
    """By one port, those who are quickly served go first."""
    return sorted(range(len(workers)), key=lambda place: (-workers[place].bandwidth, workers[place].latency_s))


def time_of(sizes: Sequence[float], workers: Sequence[Capacity], application: Application, link: Link = PARALLEL) -> float:
    """When the last one ends, if each gets a chunk of this size; a chunk of 0 is not sent."""
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


def self_scheduled(workers: Sequence[Capacity], application: Application, load: float, tasks: int, link: Link = PARALLEL) -> float:
    """When the last one ends if the load is cut into equal tasks, and each worker takes the next as soon as it is idle."""
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


def plan(workers: Sequence[Capacity], application: Application, load: float, link: Link = PARALLEL) -> Plan:
    """Sizes that add up to the load, such that all who get something end at the same time and nobody could do so sooner."""
    places = [place for place, worker in enumerate(workers) if worker.usable]
    if not places:
        raise ValueError("of no worker is it known how fast it is")
    usable = [workers[place] for place in places]
    if load <= 0:
        found = Plan((0.0,) * len(usable), 0.0)
    elif link.one_port:
        found = _one_by_one(_at(link, usable), application, load)
    elif sum(min(worker.bandwidth, link.bandwidth) for worker in usable) <= link.bandwidth:
        found = _all_at_once(_at(link, usable), application, load)
    else:
        found = _sharing(usable, application, load, link)
    sizes = dict(zip(places, found.sizes, strict=True))
    return Plan(tuple(sizes.get(place, 0.0) for place in range(len(workers))), found.time_s)


def _all_at_once(workers: Sequence[Capacity], application: Application, load: float) -> Plan:
    """Those with the least fixed cost first, until the next one's is more than the time that the others need without him."""
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
    return Plan(tuple(max(0.0, (time_s - fixed) / unit) for fixed, unit in zip(fixed_s, unit_s, strict=True)), time_s)


def _one_by_one(workers: Sequence[Capacity], application: Application, load: float) -> Plan:
    """Each waits until those before him were served. With T the common end, each size is a T + b, and so is their sum."""
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
    return Plan(tuple(sizes.get(place, 0.0) for place in range(len(workers))), time_s)


def _sharing(workers: Sequence[Capacity], application: Application, load: float, link: Link) -> Plan:
    """Everybody who takes part makes the link narrower for the others: the best first, and each only if it helps."""
    order = sorted(range(len(workers)), key=lambda place: (-weight(workers[place], application.ratio), workers[place].latency_s))
    chosen: list[int] = []
    best = Plan((), math.inf)
    for place in order:
        with_it = [*chosen, place]
        found = _all_at_once(_at(link, [workers[one] for one in with_it]), application, load)
        if found.time_s < best.time_s and all(found.sizes):
            chosen, best = with_it, found
    sizes = dict(zip(chosen, best.sizes, strict=True))
    return Plan(tuple(sizes.get(place, 0.0) for place in range(len(workers))), best.time_s)


def whole(found: Plan, workers: Sequence[Capacity], application: Application, load: int) -> list[int]:
    """The plan in whole units: rounded down, and each unit that is left to whoever ends first with it."""
    sizes = [math.floor(size + 1e-9) for size in found.sizes]
    left = load - sum(sizes)
    if left < 0:
        # Of very many units, a float does not know the last ones.
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
    """The load in so many parts that differ by one at most."""
    return [load * (place + 1) // count - load * place // count for place in range(count)]


# --- figures --------------------------------------------------------------------------------------------------------------------------


def capacities(workers: Sequence[Capacity]) -> list[float]:
    """mu_i = p_i / n_i. Where bandwidths are not known they are taken to be alike, and only speeds differ."""
    known = sorted(worker.bandwidth for worker in workers if worker.bandwidth < math.inf)
    ordinary = known[len(known) // 2] if known else 1.0
    return [worker.speed / (worker.bandwidth if worker.bandwidth < math.inf else ordinary) for worker in workers]


def heterogeneity(mu: Sequence[float]) -> float:
    """Phi: the standard deviation of mu_i / mu_avg. The formula in print has lost its square: without it the sum is always 0."""
    if len(mu) < 2 or not sum(mu):
        return 0.0
    average = sum(mu) / len(mu)
    return math.sqrt(sum((1 - one / average) ** 2 for one in mu) / (len(mu) - 1))
