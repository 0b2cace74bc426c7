"""The heuristic factory: fitness, the draw, what is forgotten, and how many may wait; and the hybrid one."""

from __future__ import annotations

import random

import pytest

from pilotfish.core.pilots.factory_interface import EXPIRED, FAILED, JOINED, OUTRUN, OVERDUE, SUCCEEDED, UNNEEDED, WITHDRAWN, SiteView
from pilotfish.factories.heuristic import HeuristicFactory, HeuristicSettings, HybridFactory
from pilotfish.factories.site_history import read_record
from tests.support.factory_stage import NOW, count_by_site, event, factory_view, pilot, queued, requests, site_view, withdrawals

CHI_SQUARE_999 = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52}
"""By degrees of freedom: chance alone goes beyond it once in a thousand times."""


def fitness_of(site: SiteView, window_s: float = 10_000.0) -> float:
    return HeuristicFactory(HeuristicSettings(), random.Random(1)).fitness(site, read_record(site, NOW, window_s))


def past(site: str, well: int, bad: int, ago_s: float = 100.0) -> SiteView:
    return site_view(
        site, history=[*(event(site, SUCCEEDED, ago_s=ago_s) for _ in range(well)), *(event(site, FAILED) for _ in range(bad))]
    )


def test_fitness_is_the_share_of_running_and_well_ended_ones() -> None:
    site = site_view("a", [pilot("a"), pilot("a"), queued("a")], [event("a", SUCCEEDED), event("a", FAILED)])
    assert fitness_of(site) == pytest.approx(3 / 5)


def test_all_running_or_ended_well_is_a_fitness_of_one() -> None:
    assert fitness_of(site_view("a", [pilot("a")], [event("a", SUCCEEDED)])) == 1


def test_a_site_where_all_wait_or_fail_has_none() -> None:
    assert fitness_of(site_view("a", [queued("a")])) == 0
    assert fitness_of(past("a", 0, 3)) == 0
    assert fitness_of(site_view("a")) == 0


def test_a_pilot_whose_time_was_over_ended_well_if_it_ever_joined() -> None:
    joined = [event("a", JOINED, "p", 200), event("a", EXPIRED, "p")]
    assert fitness_of(site_view("a", history=joined)) == 1
    assert fitness_of(site_view("a", history=joined[1:])) == 0


def test_who_was_given_up_or_outrun_counts_against_its_site_but_not_who_was_unneeded() -> None:
    for cause, expected in ((OUTRUN, 0.5), (OVERDUE, 0.5), (UNNEEDED, 1.0), ("", 1.0)):
        assert fitness_of(site_view("a", history=[event("a", SUCCEEDED), event("a", WITHDRAWN, cause=cause)])) == expected


def test_old_data_is_forgotten() -> None:
    site = site_view("a", history=[event("a", SUCCEEDED, ago_s=5000), event("a", FAILED, ago_s=50)])
    assert fitness_of(site, 10_000) == 0.5
    assert fitness_of(site, 1000) == 0


def draw(factory: HeuristicFactory, sites: list[SiteView]) -> dict[str, int]:
    """How often each site's own slot was drawn, and the generic one."""
    counts = {site.name: 0 for site in sites} | {"generic": 0}
    for request in requests(factory.propose(factory_view(sites, 5000))):
        counts["generic" if "drawn to find out" in request.reason else request.site] += 1
    return counts


def chi_square(counts: dict[str, int], shares: dict[str, float]) -> float:
    total = sum(counts.values())
    return sum((counts[name] - total * share) ** 2 / (total * share) for name, share in shares.items() if share)


def test_sites_are_drawn_in_proportion_to_fitness_and_the_generic_slot_has_one() -> None:
    settings = HeuristicSettings(workers=4000, max_pending=4000)
    sites = [past("a", 4, 0), past("b", 2, 2), past("c", 1, 3), past("d", 0, 4)]
    sites = [site_view(site.name, history=site.history, max_pilots=9999, max_queued=9999) for site in sites]
    counts = draw(HeuristicFactory(settings, random.Random(7)), sites)
    total = 1 + 1.0 + 0.5 + 0.25
    shares = {"a": 1 / total, "b": 0.5 / total, "c": 0.25 / total, "generic": 1 / total}
    assert sum(counts.values()) == 4000 and counts["d"] == 0
    assert chi_square(counts, shares) < CHI_SQUARE_999[3]


def test_the_test_of_the_draw_would_notice_another_one() -> None:
    settings = HeuristicSettings(workers=4000, max_pending=4000)
    sites = [
        site_view("a", history=past("a", 4, 0).history, max_queued=9999, max_pilots=9999),
        site_view("b", max_queued=9999, max_pilots=9999),
    ]
    counts = draw(HeuristicFactory(settings, random.Random(7)), sites)
    assert chi_square(counts, {"a": 0.45, "generic": 0.55}) > CHI_SQUARE_999[1] > chi_square(counts, {"a": 0.5, "generic": 0.5})


def test_the_generic_slot_stands_for_any_site_alike() -> None:
    settings = HeuristicSettings(workers=3000, max_pending=3000)
    sites = [site_view(name, max_pilots=9999, max_queued=9999) for name in "abc"]
    counts = count_by_site(HeuristicFactory(settings, random.Random(3)).propose(factory_view(sites, 3000)))
    assert chi_square(counts, dict.fromkeys("abc", 1 / 3)) < CHI_SQUARE_999[2]


def test_no_more_pilots_wait_than_max_pending_at_all_sites_together() -> None:
    factory = HeuristicFactory(HeuristicSettings(workers=50, max_pending=6), random.Random(1))
    assert (
        len(requests(factory.propose(factory_view([site_view("a", [queued("a"), queued("a")]), site_view("b", [queued("b")])], 90)))) == 3
    )


def test_those_that_wait_do_not_count_as_workers() -> None:
    """Or a dead site would hold the pool below its number."""
    factory = HeuristicFactory(HeuristicSettings(workers=4, max_pending=6), random.Random(1))
    assert len(requests(factory.propose(factory_view([site_view("a", [queued("a") for _ in range(4)]), site_view("b")], 90)))) == 2


def test_when_the_pool_is_full_those_that_still_wait_go() -> None:
    factory = HeuristicFactory(HeuristicSettings(workers=2, max_pending=6), random.Random(1))
    waiting = queued("a")
    (gone,) = withdrawals(factory.propose(factory_view([site_view("a", [pilot("a"), pilot("a"), waiting])], 90)))
    assert gone.pilot == waiting.id and gone.cause == UNNEEDED


def test_who_waits_for_too_long_takes_no_place_among_those_that_may_wait() -> None:
    factory = HeuristicFactory(HeuristicSettings(workers=4, max_pending=1), random.Random(1))
    assert len(requests(factory.propose(factory_view([site_view("a", [queued("a", 4000)]), site_view("b")], 90)))) == 1


def test_work_that_only_hopeless_pilots_would_take_gets_others_in_their_stead() -> None:
    stuck = queued("a", 4000)
    (request,) = requests(
        HeuristicFactory(HeuristicSettings(), random.Random(1)).propose(factory_view([site_view("a", [stuck]), site_view("b")]))
    )
    assert (request.site, request.replaces) == ("b", stuck.id) and "waits for too long" in request.reason


def test_the_hybrid_scales_fitness_by_rank() -> None:
    site, record = past("a", 1, 1), read_record(past("a", 1, 1), NOW, 1e6)
    rng = random.Random(1)
    assert HybridFactory(HeuristicSettings(), rng, {"a": 1.6}).fitness(site, record) == pytest.approx(0.8)
    assert HybridFactory(HeuristicSettings(), rng, {}).fitness(site, record) == pytest.approx(0.5)


def test_without_ranks_the_hybrid_goes_by_what_tasks_took_at_the_sites() -> None:
    sites = [site_view(name, history=past(name, 4, 0).history) for name in "ab"]
    pilots = factory_view(sites)
    for worker, site, seconds in (("w", "a", 1.0), ("v", "b", 4.0)):
        for _ in range(20):
            pilots.state.forecasts.task_ended("exec sim", worker, site, seconds)
    hybrid = HybridFactory(HeuristicSettings(), random.Random(1))
    hybrid.propose(pilots)
    fit = [hybrid.fitness(site, read_record(site, NOW, 1e6)) for site in sites]
    assert fit[0] > 2 * fit[1]


def test_the_hybrid_draws_fast_sites_more_often() -> None:
    settings = HeuristicSettings(workers=4000, max_pending=4000)
    sites = [site_view(name, history=past(name, 4, 0).history, max_pilots=9999, max_queued=9999) for name in "ab"]
    counts = draw(HybridFactory(settings, random.Random(9), {"a": 2.0, "b": 0.5}), sites)
    assert chi_square(counts, {"a": 2 / 3.5, "b": 0.5 / 3.5, "generic": 1 / 3.5}) < CHI_SQUARE_999[2]
