"""The factory that keeps a number and learns nothing."""

from __future__ import annotations

import random

import pytest

from pilotfish.core.pilots.factory_interface import FAILED, SUBMITTED
from pilotfish.factories.simple import RANDOM, SimpleFactory
from tests.support.factory_stage import NOW, count_by_site, event, factory_view, pilot, queued, requests, site_view, withdrawals


def test_the_pool_is_filled_up_to_its_number_by_turns() -> None:
    factory = SimpleFactory(7, random.Random(1))
    sites = [site_view("a", [pilot("a")]), site_view("b", [queued("b")]), site_view("c")]
    assert [request.site for request in requests(factory.propose(factory_view(sites, 100)))] == ["a", "b", "c", "a", "b"]


def test_turns_go_on_where_they_were_also_after_a_restart() -> None:
    sites = [site_view("a"), site_view("b"), site_view("c")]
    factory = SimpleFactory(1, random.Random(1))
    factory.on_event(event("b", SUBMITTED))
    assert count_by_site(factory.propose(factory_view(sites, 100))) == {"c": 1}


def test_a_full_site_loses_its_turn() -> None:
    assert count_by_site(SimpleFactory(4, random.Random(1)).propose(factory_view([site_view("a", max_queued=1), site_view("b")], 100))) == {
        "a": 1,
        "b": 3,
    }


def test_at_random_all_sites_are_drawn_alike() -> None:
    counts = count_by_site(
        SimpleFactory(3000, random.Random(5), RANDOM).propose(factory_view([site_view("a"), site_view("b"), site_view("c")], 3000))
    )
    assert all(850 < count < 1150 for count in counts.values()) and len(counts) == 3


def test_it_does_not_ask_again_before_its_period_is_over() -> None:
    factory = SimpleFactory(4, random.Random(1), period_s=10)
    factory.propose(factory_view([site_view("a")], 100))
    soon = factory_view([site_view("a")], 100, now=NOW + 1)
    assert factory.propose(soon) == []
    assert factory.next_look_at(soon) == NOW + 10
    assert len(requests(factory.propose(factory_view([site_view("a")], 100, now=NOW + 10)))) == 4


def test_it_asks_less_and_less_often_where_everything_fails() -> None:
    failed = [event("a", FAILED, ago_s=5) for _ in range(40)]
    factory = SimpleFactory(4, random.Random(1), period_s=10)
    factory.propose(factory_view([site_view("a")], 100))
    soon = factory_view([site_view("a", history=failed)], 100, now=NOW + 10)
    assert factory.propose(soon) == [] and factory.next_look_at(soon) == NOW + 40
    useful = factory_view([site_view("a", [pilot("a")], failed)], 100, now=NOW + 10)
    assert len(requests(factory.propose(useful))) == 3


def test_who_waits_for_ever_gives_its_place_to_another_site() -> None:
    stuck = queued("a", 4000)
    sites = [site_view("a", [stuck], max_queued=1), site_view("b")]
    assert [
        (request.site, request.replaces) for request in requests(SimpleFactory(1, random.Random(1)).propose(factory_view(sites, 5)))
    ] == [("b", "")]
    assert [(request.site, request.replaces) for request in requests(SimpleFactory(1, random.Random(1)).propose(factory_view(sites)))] == [
        ("b", stuck.id)
    ]


def test_when_the_pool_is_full_nobody_waits_any_longer() -> None:
    waiting = queued("a", 4000)
    (gone,) = withdrawals(SimpleFactory(1, random.Random(1)).propose(factory_view([site_view("a", [waiting, pilot("a")])], 5)))
    assert gone.pilot == waiting.id and gone.reason == "there are 1 workers, and 1 shall be"


def test_an_unknown_way_to_choose_is_refused() -> None:
    with pytest.raises(ValueError, match="'nearest'"):
        SimpleFactory(1, random.Random(1), "nearest")
