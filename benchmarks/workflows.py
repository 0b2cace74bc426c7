"""Simulates nine families of scientific workflows: makespan divided by the larger of two bounds, the critical path and the area.

``list``: ready tasks in order of arrival. ``ranked``: by upward ranks, from forecasts learned during the run. ``second run``: the same with
the forecasts of the first run. ``hints``: the same with exact costs.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable

from benchmarks.harness import Options, layout, write_json
from pilotfish import plugins
from pilotfish.applications.wfcommons import Workflow
from pilotfish.core.learning.forecasts import Forecasts
from pilotfish.sim.light_world import LightWorld, TaskInterval
from pilotfish.sim.scenarios.workflow_families import FAMILIES, family
from pilotfish.sim.scenarios.workload_generator import work_of
from pilotfish.sim.workload import SimulatedSite, Workload

SIZES = ((100, 8), (1000, 32), (5000, 64))
SEEDS = 3
WAYS = ("list", "ranked", "second run", "hints")


def critical_path_s(workflow: Workflow) -> float:
    """Returns the duration of the longest chain of tasks: a lower bound of the makespan with any number of workers."""
    ends: list[float] = []
    for task in workflow.tasks:
        ends.append(task.seconds + max((ends[parent] for parent in task.parents), default=0.0))
    return max(ends, default=0.0)


def work_s(workflow: Workflow) -> float:
    """Returns the core-seconds of all tasks."""
    return math.fsum(task.seconds * task.cores for task in workflow.tasks)


def least_s(workflow: Workflow, cores: float) -> float:
    """Returns a lower bound of the makespan on this number of cores, without time for files."""
    return max(critical_path_s(workflow), work_s(workflow) / cores)


def order_violations(workflow: Workflow, intervals: Iterable[TaskInterval]) -> list[tuple[int, int]]:
    """Returns pairs of a task and its dependency where the task started before the dependency ended."""
    ran = {interval.task: interval for interval in intervals}
    return [
        (index, parent)
        for index, task in enumerate(workflow.tasks)
        for parent in task.parents
        if ran[index].started_at < ran[parent].ended_at
    ]


def play(workflow: Workflow, work: Workload, policy: str, cores: int, known: Forecasts | None = None) -> tuple[float, Forecasts]:
    world = LightWorld([SimulatedSite("here", cores)], work, plugins.load("policies", policy)(), record_intervals=True)
    if known is not None:
        world.machine.state.forecasts = known
    result = world.run()
    early = order_violations(workflow, result.intervals)
    assert not early, f"{workflow.name}: task {early[0][0]} began before task {early[0][1]} had ended"
    return result.makespan_s / least_s(workflow, cores), world.machine.state.forecasts


def ratios(name: str, size: int, cores: int, seed: int) -> dict[str, float]:
    workflow = family(name, size, seed)
    work = work_of(workflow)
    hinted = Workload(work.seconds, costs=list(work.seconds), cores=work.cores, after=work.after)
    listed, _ = play(workflow, work, "workqueue", cores)
    ranked, learnt = play(workflow, work, "near", cores)
    again, _ = play(workflow, work, "near", cores, learnt)
    told, _ = play(workflow, hinted, "near", cores)
    return dict(zip(WAYS, (listed, ranked, again, told), strict=True))


def main(options: Options) -> int:
    rows = [["family", "tasks", "cores", *WAYS]]
    results = []
    for size, cores in SIZES:
        for name in FAMILIES:
            each = [ratios(name, size, cores, seed) for seed in range(SEEDS)]
            mean = {way: sum(one[way] for one in each) / SEEDS for way in WAYS}
            results.append({"family": name, "tasks": size, "cores": cores, **mean})
            rows.append([name, f"{size:,}", f"{cores}", *(f"{mean[way]:.2f}" for way in WAYS)])
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(layout(rows))
    write_json(options.out, "workflows", {"results": results})
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    Options.add_to(parser)
    sys.exit(main(Options.from_namespace(parser.parse_args())))
