"""Measures the speed of the simulator: completions per second on one core, with the real machine and policy, up to a million tasks."""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time

from benchmarks.harness import Options
from pilotfish import plugins
from pilotfish.sim.light_world import LightWorld
from pilotfish.sim.workload import SimulatedSite, Workload

CASES = ((20_000, 200), (100_000, 1_000), (1_000_000, 10_000))
TURN_S = 0.05
"""Simulated seconds that are handled in one turn. Tasks take minutes, so this is accurate enough."""


def main(options: Options) -> int:
    print(f"{'tasks':>10} {'workers':>8} {'simulated':>12} {'processor':>10} {'per second':>11} {'memory':>9}")
    for tasks, workers in CASES:
        rng = random.Random(1)
        work = Workload([rng.uniform(50.0, 150.0) for _ in range(tasks)])
        world = LightWorld(
            [SimulatedSite("here", workers // 2), SimulatedSite("there", workers // 2)],
            work,
            plugins.load("policies", "auto")(),
        )
        world.turn_s = TURN_S
        began = time.process_time()
        result = world.run()
        took = time.process_time() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"{tasks:>10,} {workers:>8,} {result.makespan_s:>10,.0f} s {took:>8.1f} s {tasks / took:>11,.0f} {peak:>5,} MiB", flush=True)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    Options.add_to(parser)
    sys.exit(main(Options.from_namespace(parser.parse_args())))
