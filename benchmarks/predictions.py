"""Compares predictions with simulated worlds: intervals and medians of ``predict``, and the order of options in ``whatif``.

A predictor that knows all distributions of a world, but not its random numbers, shows the best accuracy that is possible.
"""

from __future__ import annotations

import argparse
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from statistics import geometric_mean, median
from typing import Any

from benchmarks.harness import Options, describe_machine, layout, write_json
from benchmarks.worlds import Fate, Sage, World, draw_options
from pilotfish.sim.projections.finish_estimate import estimate_finish
from pilotfish.sim.projections.pool_snapshot import AS_IT_IS

WORKLOADS = 200
MOMENTS = (0.1, 0.5, 0.9)
"""Fractions of finished tasks at which predictions are made."""
HALF = 0.5
SAMPLES = 24
DIFFERENT = 0.05
"""Minimum relative difference of two options that are ranked."""


def predict_all(seed: int) -> list[dict[str, Any]]:
    world = World(seed)
    world.start()
    total = len(world.work)
    rows = []
    asked = []
    for part in MOMENTS:
        world.advance(left=max(1, round(total * (1 - part))))
        snapshot = world.snapshot()
        foresight = estimate_finish(snapshot, None, samples=SAMPLES, cores=1)[0]
        wise = [Sage(world, snapshot, AS_IT_IS, luck).end_s() for luck in range(SAMPLES)] if part == HALF else [0.0]
        asked.append((part, world.now, foresight, median(wise)))
    world.advance()
    for part, at, foresight, wise_s in asked:
        low, high = foresight.interval()
        rows.append(
            {
                "seed": seed,
                "part": part,
                "true_s": world.now - at,
                "whole_s": world.now,
                "median_s": foresight.median_s,
                "sage_s": wise_s,
                "low_s": low,
                "high_s": high,
                "traits": world.traits,
                "policy": world.policy_name,
                "stuck": foresight.stuck,
            }
        )
    return rows


def rank_two(seed: int) -> dict[str, Any]:
    world = World(seed)
    world.start()
    world.advance(left=round(len(world.work) * (1 - HALF)))
    snapshot = world.snapshot()
    options = draw_options(random.Random(f"options {seed}"), world)
    told = estimate_finish(snapshot, None, options, samples=SAMPLES, cores=1)
    return {
        "seed": seed,
        "options": [option.text for option in options],
        "true_s": [geometric_mean(Sage(world, snapshot, option, luck).end_s() for luck in range(SAMPLES)) for option in options],
        "once_s": [Fate(world, snapshot, option, seed).end_s() for option in options],
        "merit_s": [each.merit_s for each in told],
        "traits": world.traits,
    }


def ranked(rows: list[dict[str, Any]], truth: str, teller: str) -> tuple[int, int]:
    """Returns the number of correctly ranked pairs, and of pairs whose options differ enough."""
    told = [row for row in rows if max(row[truth]) > (1 + DIFFERENT) * min(row[truth])]
    return sum((row[truth][0] < row[truth][1]) == (row[teller][0] < row[teller][1]) for row in told), len(told)


def figures(rows: list[dict[str, Any]], part: float) -> dict[str, float]:
    here = [row for row in rows if row["part"] == part]
    inside = sum(row["low_s"] <= row["true_s"] <= row["high_s"] for row in here)
    wrong = sorted(abs(row["median_s"] - row["true_s"]) / row["true_s"] for row in here)
    biases = sorted(row["median_s"] / row["true_s"] for row in here)
    widths = sorted(row["high_s"] / max(row["low_s"], 1e-9) for row in here)
    middle = len(here) // 2
    return {
        "count": len(here),
        "inside": inside / len(here),
        "error": wrong[middle],
        "of_whole": sorted(abs(row["median_s"] - row["true_s"]) / row["whole_s"] for row in here)[middle],
        "bias": biases[middle],
        "width": widths[middle],
        "below": sum(row["true_s"] < row["low_s"] for row in here) / len(here),
    }


def run(workloads: int, options: Options, first: int = 0) -> int:
    seeds = range(first, first + workloads)
    with ProcessPoolExecutor() as pool:
        rows = [row for some in pool.map(predict_all, seeds, chunksize=2) for row in some]
        pairs = list(pool.map(rank_two, seeds, chunksize=2))
    lines = [["tasks ended", "predictions", "inside 80 % interval", "below", "error / time left", "error / makespan", "bias", "high / low"]]
    for part in MOMENTS:
        told = figures(rows, part)
        lines.append(
            [
                f"{part:.0%}",
                str(told["count"]),
                f"{told['inside']:.0%}",
                f"{told['below']:.0%}",
                f"{told['error']:.1%}",
                f"{told['of_whole']:.1%}",
                f"{told['bias']:.3f}",
                f"{told['width']:.2f}",
            ]
        )
    print(layout(lines))
    half = [row for row in rows if row["part"] == HALF]
    wise = median(abs(row["sage_s"] - row["true_s"]) / row["true_s"] for row in half)
    print(f"at half-way, a predictor that knows all distributions has a median error of {wise:.1%} of the time left")
    right, count = ranked(pairs, "true_s", "merit_s")
    print(
        f"whatif, {len(pairs)} pairs of options: of {count} that differ by more than {DIFFERENT:.0%} on average, {right} are ranked right"
    )
    for name, predicted in (("whatif", "merit_s"), ("a predictor that knows all distributions", "true_s")):
        once = ranked(pairs, "once_s", predicted)
        print(f"for single random outcomes, {name} ranks {once[0]} of {once[1]} pairs correctly")
    write_json(options.out, "predictions", {"machine": describe_machine(), "predictions": rows, "pairs": pairs})
    inside = sum(row["low_s"] <= row["true_s"] <= row["high_s"] for row in rows) / len(rows)
    met = inside >= 0.75 and figures(rows, HALF)["error"] <= 0.15 and right >= 0.9 * count
    goals = (
        f"75 % in the interval ({inside:.0%}), median error at half-way at most 15 %, 90 % ranked correctly ({right / max(1, count):.0%})"
    )
    print(f"goal: {goals}: {'met' if met else 'missed'}")
    return 1 if options.strict and not met else 0


def main(options: Options) -> int:
    return run(WORKLOADS, options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    Options.add_to(parser)
    parser.add_argument("--workloads", type=int, default=WORKLOADS)
    parser.add_argument("--first", type=int, default=0, help="seed of the first workload")
    chosen = parser.parse_args()
    sys.exit(run(chosen.workloads, Options.from_namespace(chosen), chosen.first))
