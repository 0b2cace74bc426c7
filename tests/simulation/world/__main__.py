"""Replays a seed by hand: ``python -m tests.simulation.world 17``, or ``... 0 500`` for a range; ``--trace`` prints the events of one
seed. ``--fresh 500`` tries 500 seeds that were drawn at random, to find faults that no fixed seed covers."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterable

from tests.simulation.world.seed_run import SeedOutcome, try_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.world", description="Simulate seeded worlds full of faults.")
    parser.add_argument("first", type=int, nargs="?", default=0, help="the seed, or the first of a range")
    parser.add_argument("last", type=int, nargs="?", help="the last seed of the range")
    parser.add_argument("--fresh", type=int, metavar="COUNT", help="try so many seeds drawn at random instead")
    parser.add_argument("--trace", type=int, nargs="?", const=100, default=0, metavar="LINES", help="show the last lines of what happened")
    chosen = parser.parse_args()
    bad = 0
    seeds: Iterable[int] = range(chosen.first, (chosen.last if chosen.last is not None else chosen.first) + 1)
    if chosen.fresh:
        dice = random.SystemRandom()
        seeds = (dice.randrange(1 << 32) for _ in range(chosen.fresh))
    for seed in seeds:
        outcome = try_seed(seed, traced=bool(chosen.trace))
        bad += bool(outcome.failure)
        _show(outcome, chosen.trace)
    return 1 if bad else 0


def _show(outcome: SeedOutcome, lines: int) -> None:
    for line in outcome.story[-lines:] if lines else ():
        print(line)
    report = outcome.report
    verdict = outcome.failure or f"good, story {report.digest:08x} {report.digest_without_texts:08x}"
    print(f"seed {outcome.seed}: {sum(report.faults.values())} faults, {report.counts['tasks']} tasks, {report.virtual_s:.0f} s: {verdict}")


if __name__ == "__main__":
    sys.exit(main())
