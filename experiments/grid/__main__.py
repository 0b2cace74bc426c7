"""Compares factories on unreliable grids: ``python -m experiments.grid 200`` prints the figures of the documentation."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterable

from experiments.grid.grid_sites import GridSite, draw_grid, draw_uneven_grid
from experiments.grid.grid_world import TICK_S, GridFigures, GridWorld, TaskBag
from experiments.spreads import MeanAndDeviation
from pilotfish.core.pilots.factory_interface import Factory
from pilotfish.factories.heuristic import HeuristicFactory, HeuristicSettings, HybridFactory
from pilotfish.factories.on_demand import DemandFactory, DemandSettings
from pilotfish.factories.simple import RANDOM, ROUND_ROBIN, SimpleFactory
from pilotfish.factories.swift import BEST, SwiftFactory, SwiftSettings

WORKERS = 20
PATIENCE_S = 1800.0
Maker = Callable[[random.Random, list[GridSite]], Factory]
Draw = Callable[[int], list[GridSite]]


def _heuristic() -> HeuristicSettings:
    return HeuristicSettings(workers=WORKERS, window_s=7200.0, max_wait_s=PATIENCE_S, period_s=TICK_S)


def _swift(choice: str = "weighted", replicas: int = 2) -> SwiftSettings:
    return SwiftSettings(workers=WORKERS, choice=choice, period_s=TICK_S, replication_limit=replicas)


MAKERS: dict[str, Maker] = {
    "by turns": lambda rng, sites: SimpleFactory(WORKERS, rng, ROUND_ROBIN, TICK_S, PATIENCE_S),
    "at random": lambda rng, sites: SimpleFactory(WORKERS, rng, RANDOM, TICK_S, PATIENCE_S),
    "heuristic": lambda rng, sites: HeuristicFactory(_heuristic(), rng),
    "hybrid": lambda rng, sites: HybridFactory(_heuristic(), rng, {site.name: site.speed for site in sites}),
    "swift": lambda rng, sites: SwiftFactory(_swift(), rng),
    "swift, best score": lambda rng, sites: SwiftFactory(_swift(BEST), rng),
    "swift, no replicas": lambda rng, sites: SwiftFactory(_swift(replicas=0), rng),
    "demand": lambda rng, sites: DemandFactory(DemandSettings(workers=WORKERS)),
    "demand, no limit": lambda rng, sites: DemandFactory(),
}


def try_grid(seed: int, name: str, draw: Draw = draw_grid, bag: TaskBag | None = None) -> GridFigures:
    """Runs one factory. All factories get the same sites and tasks for one seed."""
    sites = draw(seed)
    return GridWorld(sites, MAKERS[name](random.Random(f"{name} {seed}"), sites), seed, bag).run()


def compare(seeds: Iterable[int], names: Iterable[str], draw: Draw = draw_grid, bag: TaskBag | None = None) -> dict[str, list[GridFigures]]:
    drawn = list(seeds)
    return {name: [try_grid(seed, name, draw, bag) for seed in drawn] for name in names}


FIGURES: dict[str, Callable[[GridFigures], float]] = {
    "makespan, min": lambda one: one.makespan_s / 60,
    "workers held": lambda one: one.pool,
    "first worker, s": lambda one: one.first_worker_s,
    "submissions": lambda one: float(one.submissions),
    "wasted": lambda one: float(one.wasted),
}


def gains(better: list[GridFigures], worse: list[GridFigures], figure: Callable[[GridFigures], float]) -> MeanAndDeviation:
    """Returns how much larger the figure is for the second than for the first, seed by seed."""
    return MeanAndDeviation.of(figure(two) - figure(one) for one, two in zip(better, worse, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.grid", description="Compare factories on hostile grids.")
    parser.add_argument("seeds", type=int, help="how many grids")
    parser.add_argument("names", nargs="*", default=list(MAKERS), help="which factories; all of them if none is named")
    parser.add_argument("--uneven", action="store_true", help="sites that are all good, but not equally fast")
    parser.add_argument("--tasks", type=int, default=TaskBag().tasks, help="in the bag")
    chosen = parser.parse_args()
    draw = draw_uneven_grid if chosen.uneven else draw_grid
    print("| factory | " + " | ".join(FIGURES) + " |")
    print("|---" * (len(FIGURES) + 1) + "|")
    for name, results in compare(range(chosen.seeds), chosen.names, draw, TaskBag(chosen.tasks)).items():
        spreads = [MeanAndDeviation.of(figure(one) for one in results) for figure in FIGURES.values()]
        print(f"| {name} | " + " | ".join(f"{spread.mean:.1f} ± {spread.deviation:.1f}" for spread in spreads) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
