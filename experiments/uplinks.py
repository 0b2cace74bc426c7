"""Models the master's uplink for divisible loads: shared by all workers, or one worker served after the other.

``pilotfish.policies.load_balancing`` splits loads as if each worker had a link of its own; the experiments compare the three cases.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pilotfish.policies import load_balancing
from pilotfish.policies.load_balancing import UNLIMITED, LoadModel, LoadSplit, RatioSearch, WorkerCapacity


@dataclass(frozen=True, slots=True)
class Uplink:
    """The master's link. In parallel, all workers are served at once and share ``bandwidth`` evenly; with one port, one after the other."""

    bandwidth: float = UNLIMITED
    one_port: bool = False


PARALLEL = Uplink()
ONE_PORT = Uplink(one_port=True)


def weight(worker: WorkerCapacity, ratio: float) -> float:
    """Units per second, including the time to transfer them."""
    return 1 / worker.unit_s(ratio)


def _behind(link: Uplink, workers: Sequence[WorkerCapacity]) -> list[WorkerCapacity]:
    """The workers' capacities behind this link when all of them use it at once."""
    reached = [replace(worker, bandwidth=min(worker.bandwidth, link.bandwidth)) for worker in workers]
    wanted = sum(worker.bandwidth for worker in reached)
    if link.one_port or wanted <= link.bandwidth:
        return reached
    return [replace(worker, bandwidth=worker.bandwidth * link.bandwidth / wanted) for worker in reached]


def _nearest_first(workers: Sequence[WorkerCapacity]) -> list[int]:
    """With one port, workers with the fastest transfers are served first."""
    return sorted(range(len(workers)), key=lambda index: (-workers[index].bandwidth, workers[index].latency_s))


def time_of(sizes: Sequence[float], workers: Sequence[WorkerCapacity], application: LoadModel, link: Uplink = PARALLEL) -> float:
    """When the last worker ends, if each gets a chunk of its size; a chunk of 0 is not sent."""
    used = [index for index, size in enumerate(sizes) if size > 0]
    there = _behind(link, [workers[index] for index in used])
    ends = [0.0]
    port_s = 0.0
    for index in _nearest_first(there):
        worker, size = there[index], sizes[used[index]]
        arrived = port_s + worker.fixed_s(application) + size * application.ratio / worker.bandwidth
        ends.append(arrived + size / worker.speed)
        if link.one_port:
            port_s = arrived
    return max(ends)


def self_scheduled(workers: Sequence[WorkerCapacity], application: LoadModel, load: float, tasks: int, link: Uplink = PARALLEL) -> float:
    """When the last worker ends if the load is cut into equal tasks and each idle worker takes the next one."""
    there, size = _behind(link, workers), load / tasks
    idle = [(0.0, index) for index in range(len(there))]
    port_s = end = 0.0
    for _ in range(tasks):
        now, index = heapq.heappop(idle)
        worker = there[index]
        arrived = max(now, port_s) + worker.fixed_s(application) + size * application.ratio / worker.bandwidth
        port_s = arrived if link.one_port else 0.0
        end = max(end, arrived + size / worker.speed)
        heapq.heappush(idle, (arrived + size / worker.speed, index))
    return end


def plan(workers: Sequence[WorkerCapacity], application: LoadModel, load: float, link: Uplink = PARALLEL) -> LoadSplit:
    """Sizes that add up to the load, so that all workers that take part end at the same, earliest possible time."""
    if link.one_port:
        return _one_by_one(_behind(link, workers), application, load)
    if sum(min(worker.bandwidth, link.bandwidth) for worker in workers) <= link.bandwidth:
        return load_balancing.plan(_behind(link, workers), application, load)
    return _sharing(workers, application, load, link)


def _one_by_one(workers: Sequence[WorkerCapacity], application: LoadModel, load: float) -> LoadSplit:
    """Each worker waits until those before it were served. With T the common end, each size is a T + b, and so is their sum."""
    terms: dict[int, tuple[float, float]] = {}
    rate = lost = 0.0
    port_rate = port_s = 0.0
    time_s = math.inf
    for index in _nearest_first(workers):
        worker = workers[index]
        unit_s, sending_s = worker.unit_s(application.ratio), application.ratio / worker.bandwidth
        fixed_s = worker.fixed_s(application)
        a, b = (1 - port_rate) / unit_s, -(port_s + fixed_s) / unit_s
        if terms and a * time_s + b <= 0:
            continue
        terms[index] = a, b
        rate, lost = rate + a, lost - b
        time_s = (load + lost) / rate
        port_rate, port_s = port_rate + a * sending_s, port_s + fixed_s + b * sending_s
    sizes = {index: max(0.0, a * time_s + b) for index, (a, b) in terms.items()}
    return LoadSplit(tuple(sizes.get(index, 0.0) for index in range(len(workers))), time_s)


def _sharing(workers: Sequence[WorkerCapacity], application: LoadModel, load: float, link: Uplink) -> LoadSplit:
    """Each worker that takes part reduces the bandwidth of the others: the best come first, and each only if it helps."""
    order = sorted(range(len(workers)), key=lambda index: (-weight(workers[index], application.ratio), workers[index].latency_s))
    chosen: list[int] = []
    best = LoadSplit((), math.inf)
    for index in order:
        with_it = [*chosen, index]
        found = load_balancing.plan(_behind(link, [workers[one] for one in with_it]), application, load)
        if found.time_s < best.time_s and all(found.sizes):
            chosen, best = with_it, found
    sizes = dict(zip(chosen, best.sizes, strict=True))
    return LoadSplit(tuple(sizes.get(index, 0.0) for index in range(len(workers))), best.time_s)


def best_ratio(run_time: Callable[[float], float], low: float, high: float, precision: float = 0.01) -> float:
    """f_c* of a model that says how long a run takes for each f_c."""
    search = RatioSearch(low, high, precision)
    while not search.settled:
        search.report(run_time(search.ratio))
    return search.ratio
