"""Measures the planning time of each heuristic on one core, for four patterns of shared files."""

from __future__ import annotations

import argparse
import random
import sys
import time
from typing import Any

import numpy as np

from benchmarks.harness import Options, describe_machine, layout, write_json
from pilotfish.policies.planning.chart import GanttChart, TaskBatch, batches_of
from pilotfish.policies.planning.heuristics import HEURISTICS, Heuristic, plan

TASKS = (1_000, 10_000, 100_000)
HOSTS, SITES = 1_000, 10
GOAL_TASKS, GOAL_S = 10_000, 2.0
CASES = ("6 shared files", "200 shared files", "own and shared files", "no files")


def make_tasks(case: str, count: int, dice: random.Random) -> tuple[list[tuple[int, ...]], list[float], list[float]]:
    """Returns the files and seconds of every task, and file sizes: 1 to 100 MB if shared, 100 kB if not."""
    seconds = [dice.uniform(1.0, 20.0) for _ in range(count)]
    if case == "no files":
        return [()] * count, seconds, []
    shared = {"6 shared files": 6, "200 shared files": 200, "own and shared files": 20}[case]
    sizes = [10.0 ** dice.uniform(6.0, 8.0) for _ in range(shared)]
    if case == "own and shared files":
        return [(task % shared, shared + task) for task in range(count)], seconds, sizes + [1e5] * count
    return [(task % shared,) for task in range(count)], seconds, sizes


def make_chart(hosts: int, sizes: list[float], dice: random.Random) -> GanttChart:
    """Returns hosts of different speeds at ten sites whose bandwidths differ by up to a factor of 40; no file is at a site yet."""
    return GanttChart(
        lane_worker=np.arange(hosts),
        lane_free_s=np.zeros(hosts),
        worker_site=np.arange(hosts) % SITES,
        worker_slowness=np.array([dice.uniform(0.5, 4.0) for _ in range(hosts)]),
        site_link_free_s=np.zeros(SITES),
        site_bandwidth=np.array([1e8 * 40 ** -dice.random() for _ in range(SITES)]),
        site_latency_s=np.full(SITES, 0.05),
        site_launch_s=np.full(SITES, 0.1),
        file_bytes=np.array(sizes),
        arrival_s=np.full((len(sizes), SITES), np.inf),
    )


def measure(case: str, heuristic: Heuristic, tasks: int, hosts: int) -> dict[str, Any]:
    dice = random.Random(f"{case} {tasks} {hosts}")
    files, seconds, sizes = make_tasks(case, tasks, dice)
    chart = make_chart(hosts, sizes, dice)
    began = time.process_time()
    batches = batches_of(files, seconds)
    grouped = time.process_time()
    made = plan(chart, batches, heuristic, now=0.0)
    ended = time.process_time()
    if len(made) != tasks:
        raise RuntimeError(f"{len(made)} of {tasks} tasks were planned")
    return {
        "case": case,
        "heuristic": heuristic,
        "tasks": tasks,
        "hosts": hosts,
        "batches": len(batches),
        "grouping_s": grouped - began,
        "planning_s": ended - grouped,
        "us_per_placement": (ended - began) / tasks * 1e6,
        "total_s": ended - began,
        "makespan_s": max(placement.end_s for placement in made),
        "lower_bound_s": _lower_bound(chart, batches),
    }


def _lower_bound(chart: GanttChart, batches: list[TaskBatch]) -> float:
    """Returns the time of all work at the total speed of all hosts, without files."""
    return sum(float(np.sum(batch.seconds)) for batch in batches) / float(np.sum(1.0 / np.asarray(chart.worker_slowness)))


def run(tasks: tuple[int, ...], hosts: int, options: Options) -> int:
    results = []
    rows = [["case", "heuristic", "tasks", "batches", "core seconds", "µs per placement", "makespan / lower bound"]]
    for case in CASES:
        for heuristic in HEURISTICS:
            for count in tasks:
                rounds = options.rounds if count <= GOAL_TASKS else 1
                result = min((measure(case, heuristic, count, hosts) for _ in range(rounds)), key=lambda one: float(one["total_s"]))
                results.append(result)
                figures = (
                    f"{result['total_s']:.2f}",
                    f"{result['us_per_placement']:.0f}",
                    f"{result['makespan_s'] / result['lower_bound_s']:.2f}",
                )
                rows.append([case, heuristic, f"{count:,}", f"{result['batches']:,}", *figures])
    print(layout(rows))
    write_json(options.out, "planning", {"machine": describe_machine(), "results": results})
    goal_s = [float(result["total_s"]) for result in results if result["tasks"] == GOAL_TASKS and hosts == HOSTS]
    if not goal_s:
        return 0
    met = max(goal_s) <= GOAL_S
    print(
        f"goal: {GOAL_TASKS:,} tasks x {HOSTS:,} hosts within {GOAL_S:g} s of one core: {'met' if met else 'missed'} ({max(goal_s):.2f} s)"
    )
    return 1 if options.strict and not met else 0


def main(options: Options) -> int:
    return run(TASKS, HOSTS, options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    Options.add_to(parser)
    parser.add_argument("--tasks", type=int, nargs="+", default=list(TASKS))
    parser.add_argument("--hosts", type=int, default=HOSTS)
    chosen = parser.parse_args()
    sys.exit(run(tuple(chosen.tasks), chosen.hosts, Options.from_namespace(chosen)))
