"""Simulates a scenario with each policy and each seed, on several cores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from pilotfish import plugins
from pilotfish.errors import BadInput
from pilotfish.sim.light_world import LightWorld, WorldResult
from pilotfish.sim.process_map import in_parallel
from pilotfish.sim.scenarios.scenario_file import Scenario
from pilotfish.sim.workload import Workload

HEARTBEAT_S = 1.0
"""Seconds between heartbeats. Only the policy stealing needs heartbeats, because they report the starts of tasks."""


@dataclass(slots=True)
class SimulationResult:
    """Result of one policy with one seed. The makespan cannot be less than ``area_s`` or ``path_s``. ``area_s``: the makespan if all cores
    were always busy. ``path_s``: the time of the longest chain of tasks on the fastest host."""

    policy: str
    seed: int
    makespan_s: float
    sent: dict[str, float]
    used: float
    """Utilisation: fraction of core time spent on tasks."""
    area_s: float
    path_s: float


@dataclass(slots=True)
class SimulationTrace:
    """A simulation and its result, for a chart."""

    result: SimulationResult
    work: Workload
    world_result: WorldResult


def simulate(scenario: Scenario, case: tuple[str, int]) -> SimulationResult:
    policy, seed = case
    return record_trace(scenario, policy, seed, record_intervals=False).result


def record_trace(scenario: Scenario, policy: str, seed: int = 0, record_intervals: bool = True) -> SimulationTrace:
    """Runs one simulation and returns its trace. With ``record_intervals``, the trace contains the times of all tasks."""
    work = scenario.work.work(seed)
    world = LightWorld(scenario.sites, work, plugins.load("policies", policy)(), seed, record_intervals=record_intervals)
    if policy == "stealing":
        world.heartbeat_s = HEARTBEAT_S
    try:
        world_result = world.run()
    except RuntimeError as problem:
        raise BadInput(
            f"policy {policy}, seed {seed}: {problem}", "hosts leave when their walltime is over: give a longer one, or more hosts"
        ) from None
    area_s = sum(map(float.__mul__, work.seconds, map(float, work.cores))) if work.cores else sum(work.seconds)
    speeds = [host.speed for host in world.hosts.values()]
    speed = sum(host.speed * host.site.cores for host in world.hosts.values())
    cores = sum(site.hosts * site.cores for site in scenario.sites)
    used = world_result.busy_s / (cores * world_result.makespan_s) if world_result.makespan_s else 0.0
    result = SimulationResult(
        policy, seed, world_result.makespan_s, world_result.sent, used, area_s / speed, longest_chain_s(work) / max(speeds)
    )
    return SimulationTrace(result, work, world_result)


def longest_chain_s(work: Workload) -> float:
    """Returns the seconds of the longest chain of dependent tasks on hosts of speed 1."""
    if not work.after:
        return max(work.seconds)
    ends: list[float] = []
    for seconds, before in zip(work.seconds, work.after, strict=True):
        ends.append(seconds + max((ends[parent] for parent in before), default=0.0))
    return max(ends)


def simulate_all(scenario: Scenario, cores: int = 0) -> Iterator[SimulationResult]:
    """Simulates each policy with each seed, and yields each result as soon as it is ready. ``cores``: number of processes; 0 means one per
    core."""
    return in_parallel(
        partial(simulate, scenario), [(policy, seed) for seed in range(scenario.seeds) for policy in scenario.policies], cores
    )


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean and the standard deviation of a sample."""
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1))
