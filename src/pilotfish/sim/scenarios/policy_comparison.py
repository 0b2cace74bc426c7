"""Runs each policy with each seed, on several cores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from pilotfish import plugins
from pilotfish.errors import BadInput
from pilotfish.model.ids import INDEX_MASK
from pilotfish.sim.light_world import LightWorld, WorldResult
from pilotfish.sim.process_map import in_parallel
from pilotfish.sim.scenarios.scenario_file import Scenario
from pilotfish.sim.shared_link import SharedLink, SiteDisk, Then
from pilotfish.sim.simulated_host import SimulatedHost
from pilotfish.sim.workload import Workload

BEAT_S = 1.0
"""Seconds between reports of started tasks, for the stealing policy."""


@dataclass(slots=True, frozen=True)
class SimulatedTransfer:
    """The transfer of one file to one site."""

    digest: str
    place: str
    asked: float
    came: float


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

    outcome: SimulationResult
    work: Workload
    played: WorldResult
    transfers: list[SimulatedTransfer] = field(default_factory=list)


class TracedWorld(LightWorld):
    """A simulation that records busy core time and transfers."""

    def __init__(self, scenario: Scenario, policy: str, seed: int, keep: bool = False) -> None:
        super().__init__(scenario.places, scenario.work.work(seed), plugins.load("policies", policy)(), seed, keep=keep)
        self.busy_s = 0.0
        self.transfers: list[SimulatedTransfer] = []
        for name, place in self.places.items():
            self.disks[name] = _WatchedDisk(self, name, self.links[name], place.files)
        if policy == "stealing":
            self.beat_s = BEAT_S

    def ended(self, host: SimulatedHost, task: int, given: float, began: float) -> None:
        super().ended(host, task, given, began)
        cores = self.work.cores
        self.busy_s += (self.now - began) * (cores[task & INDEX_MASK] if cores else 1)


class _WatchedDisk(SiteDisk):
    def __init__(self, world: TracedWorld, place: str, link: SharedLink, files: tuple[str, ...]) -> None:
        super().__init__(link, files)
        self._world = world
        self._place = place
        self._asked: dict[str, float] = {}

    def fetch(self, digest: str, size: int, then: Then) -> bool:
        self._asked.setdefault(digest, self._world.now)
        return super().fetch(digest, size, then)

    def _arrived(self, digest: str) -> None:
        self._world.transfers.append(SimulatedTransfer(digest, self._place, self._asked[digest], self._world.now))
        super()._arrived(digest)


def play(scenario: Scenario, turn: tuple[str, int]) -> SimulationResult:
    return _play(scenario, turn, False).outcome


def tell(scenario: Scenario, policy: str, seed: int = 0) -> SimulationTrace:
    """Runs one simulation and records all events."""
    return _play(scenario, (policy, seed), True)


def _play(scenario: Scenario, turn: tuple[str, int], keep: bool) -> SimulationTrace:
    policy, seed = turn
    world = TracedWorld(scenario, policy, seed, keep)
    try:
        played = world.run()
    except RuntimeError as problem:
        raise BadInput(
            f"policy {policy}, seed {seed}: {problem}", "hosts leave when their walltime is over: give a longer one, or more hosts"
        ) from None
    work = world.work
    area_s = sum(map(float.__mul__, work.seconds, map(float, work.cores))) if work.cores else sum(work.seconds)
    speeds = [host.speed for host in world.hosts.values()]
    speed = sum(host.speed * host.place.cores for host in world.hosts.values())
    cores = sum(place.hosts * place.cores for place in scenario.places)
    used = world.busy_s / (cores * played.makespan_s) if played.makespan_s else 0.0
    outcome = SimulationResult(policy, seed, played.makespan_s, played.sent, used, area_s / speed, longest_chain_s(work) / max(speeds))
    return SimulationTrace(outcome, work, played, world.transfers)


def longest_chain_s(work: Workload) -> float:
    """Returns the length of the longest dependency chain at speed 1."""
    if not work.after:
        return max(work.seconds)
    ends: list[float] = []
    for seconds, before in zip(work.seconds, work.after, strict=True):
        ends.append(seconds + max((ends[parent] for parent in before), default=0.0))
    return max(ends)


def play_all(scenario: Scenario, cores: int = 0) -> Iterator[SimulationResult]:
    """Yields a result per policy and seed as they finish. ``cores``: processes to use; 0: all cores."""
    return in_parallel(partial(play, scenario), [(policy, seed) for seed in range(scenario.seeds) for policy in scenario.policies], cores)
