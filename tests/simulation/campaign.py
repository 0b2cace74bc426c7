"""Runs many seeds on all cores and sums up the results."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from tests.simulation.world.seed_run import SeedOutcome, try_seed

SEEDS_PER_PARCEL = 8


@dataclass
class Campaign:
    seeds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    coverage: Counter[tuple[str, str]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[SeedOutcome] = field(default_factory=list)

    @property
    def fault_count(self) -> int:
        return sum(self.faults.values())

    def add(self, outcome: SeedOutcome) -> None:
        self.seeds += 1
        self.faults.update(outcome.report.faults)
        self.coverage.update(outcome.report.coverage)
        self.counts.update(outcome.report.counts)
        if outcome.failure:
            self.failures.append(outcome)

    def complaint(self) -> str:
        """Lists failed seeds, their failures, and how to replay them."""
        lines = [f"{len(self.failures)} of {self.seeds} seeds failed."]
        for outcome in self.failures[:10]:
            lines.append(f"seed {outcome.seed}: {outcome.failure}")
            lines.append(f"    see it again: python -m tests.simulation.world {outcome.seed} --trace")
        if self.failures:
            lines.append(self.failures[0].details)
        return "\n".join(lines)


def run_parcel(seeds: list[int]) -> list[SeedOutcome]:
    return [try_seed(seed) for seed in seeds]


def run_campaign(seeds: Iterable[int], enough_faults: int) -> Campaign:
    """Runs seeds until enough faults were injected, or until a seed fails."""
    campaign = Campaign()
    parcels = _parcels(seeds)
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        running: set[Future[list[SeedOutcome]]] = set()
        while campaign.fault_count < enough_faults and not campaign.failures:
            while len(running) < 2 * cores and (parcel := next(parcels, None)) is not None:
                running.add(pool.submit(run_parcel, parcel))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                for outcome in future.result():
                    campaign.add(outcome)
        for future in running:
            future.cancel()
    return campaign


def _parcels(seeds: Iterable[int]) -> Iterator[list[int]]:
    parcel: list[int] = []
    for seed in seeds:
        parcel.append(seed)
        if len(parcel) == SEEDS_PER_PARCEL:
            yield parcel
            parcel = []
    if parcel:
        yield parcel
