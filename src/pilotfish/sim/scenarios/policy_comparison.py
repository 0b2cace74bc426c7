"""Runs each policy with each seed, on several cores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from pilotfish import plugins
from pilotfish.errors import BadInput
from pilotfish.model.ids import INDEX_MASK
from pilotfish.sim.light_world import LightWorld, WorldResult
from pilotfish.sim.process_map import in_parallel
from pilotfish.sim.scenarios.scenario_file import Scenario
from pilotfish.sim.shared_link import Callback, SharedLink, SiteDisk
from pilotfish.sim.simulated_host import SimulatedHost
from pilotfish.sim.workload import Workload


@dataclass(slots=True, frozen=True)
class MeanAndDeviation:
    mean: float
    deviation: float
    count: int

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.deviation / math.sqrt(self.count)

    @staticmethod
    def of(values: Iterable[float]) -> MeanAndDeviation:
        known = list(values)
        mean = sum(known) / len(known)
        return MeanAndDeviation(mean, math.sqrt(sum((value - mean) ** 2 for value in known) / max(1, len(known) - 1)), len(known))


HEARTBEAT_S = 1.0
"""Seconds between reports of started tasks, for the stealing policy."""


@dataclass(slots=True, frozen=True)
class SimulatedTransfer:
    """The transfer of one file to one site."""

    digest: str
    site: str
    requested_at: float
    arrived_at: float


@dataclass(slots=True)
class SimulationResult:
    """Result of one policy with one seed.

    ``area_s`` and ``path_s``: lower bounds of the makespan if all files were at all sites and all hosts were present from the start.
    """

    policy: str
    seed: int
    makespan_s: float
    sent: dict[str, float]
    used: float
    """Utilisation: fraction of core time spent on tasks whose results counted."""
    area_s: float
    path_s: float


@dataclass(slots=True)
class SimulationTrace:
    """All events of a simulation, for a chart."""

    result: SimulationResult
    work: Workload
    world_result: WorldResult
    transfers: list[SimulatedTransfer] = field(default_factory=list)


class TracedWorld(LightWorld):
    """A simulation that records busy core time and transfers."""

    def __init__(self, scenario: Scenario, policy: str, seed: int, record_intervals: bool = False) -> None:
        super().__init__(
            scenario.sites, scenario.work.work(seed), plugins.load("policies", policy)(), seed, record_intervals=record_intervals
        )
        self.busy_s = 0.0
        self.transfers: list[SimulatedTransfer] = []
        for name, site in self.sites.items():
            self.disks[name] = _WatchedDisk(self, name, self.links[name], site.files)
        if policy == "stealing":
            self.heartbeat_s = HEARTBEAT_S

    def note_ended(self, host: SimulatedHost, task: int, assigned_at: float, started_at: float) -> None:
        super().note_ended(host, task, assigned_at, started_at)
        cores = self.work.cores
        self.busy_s += (self.now - started_at) * (cores[task & INDEX_MASK] if cores else 1)


class _WatchedDisk(SiteDisk):
    def __init__(self, world: TracedWorld, site: str, link: SharedLink, files: tuple[str, ...]) -> None:
        super().__init__(link, files)
        self._world = world
        self._site = site
        self._requested_at: dict[str, float] = {}

    def fetch(self, digest: str, size: int, callback: Callback) -> bool:
        self._requested_at.setdefault(digest, self._world.now)
        return super().fetch(digest, size, callback)

    def _arrived(self, digest: str) -> None:
        self._world.transfers.append(SimulatedTransfer(digest, self._site, self._requested_at[digest], self._world.now))
        super()._arrived(digest)


def simulate(scenario: Scenario, case: tuple[str, int]) -> SimulationResult:
    return _simulate(scenario, case, False).result


def record_trace(scenario: Scenario, policy: str, seed: int = 0) -> SimulationTrace:
    """Runs one simulation and records all events."""
    return _simulate(scenario, (policy, seed), True)


def _simulate(scenario: Scenario, case: tuple[str, int], record_intervals: bool) -> SimulationTrace:
    policy, seed = case
    world = TracedWorld(scenario, policy, seed, record_intervals)
    try:
        world_result = world.run()
    except RuntimeError as problem:
        raise BadInput(
            f"policy {policy}, seed {seed}: {problem}", "hosts leave when their walltime is over: give a longer one, or more hosts"
        ) from None
    work = world.work
    area_s = sum(map(float.__mul__, work.seconds, map(float, work.cores))) if work.cores else sum(work.seconds)
    speeds = [host.speed for host in world.hosts.values()]
    speed = sum(host.speed * host.site.cores for host in world.hosts.values())
    cores = sum(site.hosts * site.cores for site in scenario.sites)
    used = world.busy_s / (cores * world_result.makespan_s) if world_result.makespan_s else 0.0
    result = SimulationResult(
        policy, seed, world_result.makespan_s, world_result.sent, used, area_s / speed, longest_chain_s(work) / max(speeds)
    )
    return SimulationTrace(result, work, world_result, world.transfers)


def longest_chain_s(work: Workload) -> float:
    """Returns the length of the longest dependency chain at speed 1."""
    if not work.after:
        return max(work.seconds)
    ends: list[float] = []
    for seconds, before in zip(work.seconds, work.after, strict=True):
        ends.append(seconds + max((ends[parent] for parent in before), default=0.0))
    return max(ends)


def simulate_all(scenario: Scenario, cores: int = 0) -> Iterator[SimulationResult]:
    """Yields a result per policy and seed as they finish. ``cores``: processes to use; 0: all cores."""
    return in_parallel(
        partial(simulate, scenario), [(policy, seed) for seed in range(scenario.seeds) for policy in scenario.policies], cores
    )
