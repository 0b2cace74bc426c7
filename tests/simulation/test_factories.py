"""Tests factories on unreliable grids: learning pays, limits hold, and no run is stuck."""

from __future__ import annotations

import functools
import itertools
import os
import random
import subprocess
import sys
from collections.abc import Sequence

import pytest

from experiments.grid.__main__ import FIGURES, MAKERS, compare, gains
from experiments.grid.grid_sites import BAD, DEAD, GOOD, draw_grid, draw_site, draw_uneven_grid
from experiments.grid.grid_world import LATEST_S, GridWorld
from experiments.spreads import MeanAndDeviation
from pilotfish.core.pilots.factory_interface import Factory, FactoryView, PilotProposal, SiteEvent, SiteView, WithdrawalProposal
from pilotfish.factories.site_limits import is_queued

SEEDS = range(200)
NAIVE, LEARNING = ("by turns", "at random"), ("heuristic", "swift")


AHEAD = {"makespan, min": -4.0, "workers held": 0.4, "wasted": -3.0}
"""Minimum mean gains: less time, more workers, fewer wasted pilots. About half of the measured gains."""
LATER_AT_MOST_S = 40.0
"""Maximum delay of the first worker. Learning cannot help there yet, and the heuristic factory submits fewer pilots at first."""


@pytest.mark.campaign
def test_who_learns_is_ahead_of_who_does_not() -> None:
    results = compare(SEEDS, (*NAIVE, *LEARNING))
    behind = []
    for learning, naive in itertools.product(LEARNING, NAIVE):
        for figure, least in AHEAD.items():
            gain = gains(results[naive], results[learning], FIGURES[figure])
            if gain.mean / least < 1 or abs(gain.mean) < 2.5 * gain.error:
                behind.append(f"{learning} against {naive}, {figure}: {gain.mean:.2f}, with an error of {gain.error:.2f}")
        late = gains(results[naive], results[learning], FIGURES["first worker, s"])
        if late.mean > LATER_AT_MOST_S:
            behind.append(f"{learning} has its first worker {late.mean:.0f} s later than {naive}")
    assert not behind, "\n".join(behind)
    assert not [name for name, measured in results.items() if any(one.makespan_s >= LATEST_S for one in measured)], "somebody was stuck"


def test_the_same_seed_gives_the_same_figures() -> None:
    one, two = (compare(range(3), MAKERS) for _ in range(2))
    assert one == two


class Watched:
    """Checks each proposal of a factory against the view that it got."""

    def __init__(self, inner: Factory) -> None:
        self.inner = inner
        self.proposals = 0

    def on_event(self, event: SiteEvent) -> None:
        self.inner.on_event(event)

    def standing(self, view: SiteView, now: float) -> dict[str, object]:
        return self.inner.standing(view, now)

    def next_look_at(self, view: FactoryView) -> float | None:
        at = self.inner.next_look_at(view)
        assert at is None or at > view.now
        return at

    def propose(self, view: FactoryView) -> Sequence[PilotProposal | WithdrawalProposal]:
        proposals = self.inner.propose(view)
        requests = [one for one in proposals if isinstance(one, PilotProposal)]
        assert sum(1 for request in requests if not request.replaces) <= len(view.demand.sizes)
        for site_view in view.sites:
            there = sum(1 for request in requests if request.site == site_view.name)
            assert not there or len(site_view.pilots) + there <= site_view.site.max_pilots
            assert not there or sum(1 for pilot in site_view.pilots if is_queued(pilot)) + there <= site_view.site.max_queued
        withdrawn = [one.pilot for one in proposals if isinstance(one, WithdrawalProposal)]
        assert len(withdrawn) == len({*withdrawn}) and all(pilot in view.state.pilots for pilot in withdrawn)
        assert all(one.reason for one in proposals)
        self.proposals += len(proposals)
        return proposals


@pytest.mark.parametrize("name", MAKERS)
def test_no_factory_ever_breaks_a_limit(name: str) -> None:
    for seed in range(12):
        sites = draw_grid(seed)
        watched = Watched(MAKERS[name](random.Random(seed), sites))
        assert GridWorld(sites, watched, seed).run().makespan_s < LATEST_S
        assert watched.proposals


@pytest.mark.parametrize("name", MAKERS)
def test_a_master_that_dies_every_few_minutes_costs_little(name: str) -> None:
    """A new factory receives the latest events again and continues."""
    steady, shaken = [], []
    for seed in range(12):
        sites = draw_grid(seed)
        make = functools.partial(MAKERS[name], random.Random(seed), sites)
        steady.append(GridWorld(sites, make(), seed).run())
        grid = GridWorld(sites, make(), seed)
        for number in range(1, 100):
            grid.after(number * 500.0, grid.restart, make)
        shaken.append(grid.run())
    assert all(one.makespan_s < LATEST_S for one in shaken)
    assert MeanAndDeviation.of(one.makespan_s for one in shaken).mean < 1.3 * MeanAndDeviation.of(one.makespan_s for one in steady).mean
    assert MeanAndDeviation.of(one.wasted for one in shaken).mean < 1.6 * MeanAndDeviation.of(one.wasted for one in steady).mean + 5


@pytest.mark.parametrize("name", MAKERS)
def test_one_good_site_among_dead_ones_is_found(name: str) -> None:
    for seed in range(5):
        rng = random.Random(f"dead {seed}")
        sites = [draw_site(f"site{number}", GOOD if number == 5 else DEAD, rng) for number in range(8)]
        assert GridWorld(sites, MAKERS[name](random.Random(seed), sites), seed).run().makespan_s < LATEST_S


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("kind", BAD)
def test_where_all_sites_are_bad_nobody_is_flooded(name: str, kind: str) -> None:
    """Simulates three hours of work without a usable site. The limits of these sites alone would allow about ten thousand pilots."""
    rng = random.Random(f"all {kind}")
    sites = [draw_site(f"site{number}", kind, rng) for number in range(6)]
    grid = GridWorld(sites, MAKERS[name](random.Random(1), sites), 1)
    grid.after(3 * 3600.0, grid.stop)
    assert grid.run().submissions < 600


def test_the_hybrid_prefers_fast_sites() -> None:
    """If all sites work, they differ only in speed."""
    measured = compare(range(60), ("heuristic", "hybrid"), draw_uneven_grid)
    gain = gains(measured["hybrid"], measured["heuristic"], FIGURES["makespan, min"])
    assert gain.mean > 0, gain


def test_the_order_of_sets_and_hashes_plays_no_part() -> None:
    said = set()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "experiments.grid", "2"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        said.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(said) == 1, said
