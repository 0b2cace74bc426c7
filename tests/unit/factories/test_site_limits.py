"""What no factory may do, whatever it wants."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pilotfish import plugins
from pilotfish.core.pilots.factory_interface import Factory
from pilotfish.factories.heuristic import HeuristicFactory, HeuristicSettings, HybridFactory
from pilotfish.factories.on_demand import DemandFactory
from pilotfish.factories.simple import RANDOM, SimpleFactory
from pilotfish.factories.site_limits import PilotNeeds, ProposalRound, fit
from pilotfish.factories.swift import SwiftFactory, SwiftSettings
from pilotfish.model.site import PilotSize, Site
from tests.support.factory_stage import ONE, count_by_site, factory_view, pilot, queued, requests, site_view, withdrawals

GIB = 1 << 30
FACTORIES: dict[str, Callable[[], Factory]] = {
    "by turns": lambda: SimpleFactory(50, random.Random(1)),
    "at random": lambda: SimpleFactory(50, random.Random(1), RANDOM),
    "heuristic": lambda: HeuristicFactory(HeuristicSettings(workers=50, max_pending=50), random.Random(1)),
    "hybrid": lambda: HybridFactory(HeuristicSettings(workers=50, max_pending=50), random.Random(1), {"a": 2.0}),
    "swift": lambda: SwiftFactory(SwiftSettings(job_throttle=50), random.Random(1)),
    "demand": DemandFactory,
}
every_factory = pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES)


@every_factory
def test_no_more_pilots_than_the_waiting_work_can_use(make: Callable[[], Factory]) -> None:
    assert len(requests(make().propose(factory_view([site_view("a"), site_view("b")], 3)))) == 3


@every_factory
def test_without_work_nothing_is_asked_for(make: Callable[[], Factory]) -> None:
    assert make().propose(factory_view([site_view("a"), site_view("b")])) == []


@every_factory
def test_no_more_pilots_than_a_site_may_have(make: Callable[[], Factory]) -> None:
    site = site_view("a", [pilot("a", age_s=5000) for _ in range(3)], max_pilots=4)
    assert count_by_site(make().propose(factory_view([site], 20))).get("a", 0) <= 1


@every_factory
def test_no_more_pilots_wait_than_may(make: Callable[[], Factory]) -> None:
    site = site_view("a", [*(pilot("a", age_s=5000) for _ in range(3)), queued("a")], max_queued=2)
    assert count_by_site(make().propose(factory_view([site], 20))).get("a", 0) <= 1


@every_factory
def test_no_more_cores_than_a_site_may_give(make: Callable[[], Factory]) -> None:
    site = site_view("a", [pilot("a", age_s=5000)], max_cores=2)
    assert count_by_site(make().propose(factory_view([site], 20))).get("a", 0) <= 1


@every_factory
def test_no_pilot_is_asked_for_that_no_waiting_task_fits(make: Callable[[], Factory]) -> None:
    assert make().propose(factory_view([site_view("a", cores=4)], sizes=[PilotSize(cores=8)])) == []
    assert make().propose(factory_view([site_view("a", walltime_s=600)], sizes=[PilotSize(walltime_s=601)])) == []
    assert make().propose(factory_view([site_view("a")], sizes=[PilotSize(gpus=1)])) == []
    assert make().propose(factory_view([site_view("a", memory=GIB)], sizes=[PilotSize(memory=2 * GIB)])) == []
    assert make().propose(factory_view([site_view("a", backend="sge")], sizes=[PilotSize(nodes=2)])) == []


@every_factory
def test_a_pilot_has_as_many_nodes_as_a_task_wants_where_it_can_have_several(make: Callable[[], Factory]) -> None:
    asked = requests(make().propose(factory_view([site_view("a")], sizes=[PilotSize(nodes=2)])))
    assert [request.size.nodes for request in asked] == [2]
    assert make().propose(factory_view([site_view("a", max_cores=1)], sizes=[PilotSize(nodes=2)])) == []


@every_factory
def test_a_pilot_of_many_cores_counts_for_all_the_tasks_it_takes(make: Callable[[], Factory]) -> None:
    assert len(requests(make().propose(factory_view([site_view("a", cores=16)], 40)))) <= 3


@every_factory
def test_every_wish_says_why_in_numbers(make: Callable[[], Factory]) -> None:
    for request in requests(make().propose(factory_view([site_view("a"), site_view("b")], 3))):
        assert any(letter.isdigit() for letter in request.reason), request.reason


@every_factory
def test_a_number_that_a_person_fixed_is_kept_while_there_is_work(make: Callable[[], Factory]) -> None:
    site = site_view("a", [pilot("a")], wanted=4)
    proposed = factory_view([site], 0)
    proposed.state.unfinished = 1
    said = requests(make().propose(proposed))
    assert [request.site for request in said] == ["a"] * 3
    assert "1 of the 4 pilots that are wanted there" in said[0].reason
    assert make().propose(factory_view([site_view("a", [pilot("a")], wanted=4)])) == []


@every_factory
def test_a_site_with_a_fixed_number_gets_no_more_however_much_waits(make: Callable[[], Factory]) -> None:
    assert count_by_site(make().propose(factory_view([site_view("a", [pilot("a")], wanted=1)], 20))) == {}


@every_factory
def test_a_person_who_wants_fewer_gets_fewer_and_those_that_wait_go_first(make: Callable[[], Factory]) -> None:
    here, old, young = pilot("a"), queued("a", 50), queued("a", 5)
    gone = withdrawals(make().propose(factory_view([site_view("a", [here, old, young], wanted=1)], 5)))
    assert [one.pilot for one in gone] == [young.id, old.id]


@every_factory
def test_the_limits_hold_for_fixed_numbers_too(make: Callable[[], Factory]) -> None:
    assert len(requests(make().propose(factory_view([site_view("a", wanted=9, max_pilots=4, max_queued=3)], 20)))) == 3


@every_factory
def test_a_pilot_that_nobody_needs_goes_after_a_while_but_not_at_once(make: Callable[[], Factory]) -> None:
    factory, waiting = make(), queued("a")
    sites = [site_view("a", [waiting])]
    first = factory_view(sites, spare=[waiting.id])
    assert factory.propose(first) == []
    again = factory.next_look_at(first)
    assert again is not None and again > first.now
    (gone,) = withdrawals(factory.propose(factory_view(sites, spare=[waiting.id], now=again)))
    assert gone.pilot == waiting.id and "no task has needed it" in gone.reason


@every_factory
def test_a_pilot_that_is_needed_again_in_between_stays(make: Callable[[], Factory]) -> None:
    factory, waiting = make(), queued("a", 10)
    sites = [site_view("a", [waiting])]
    start = factory_view(sites, spare=[waiting.id])
    factory.propose(start)
    factory.propose(factory_view(sites, now=start.now + 50))
    assert not withdrawals(factory.propose(factory_view(sites, spare=[waiting.id], now=start.now + 100)))


@every_factory
def test_the_same_past_gives_the_same_proposal(make: Callable[[], Factory]) -> None:
    one, two = (
        [(request.site, request.reason) for request in requests(make().propose(factory_view([site_view("a"), site_view("b")], 9)))]
        for _ in range(2)
    )
    assert one == two


def test_a_pilot_is_as_large_as_its_site_says_or_as_its_task_needs() -> None:
    free = Site(backend="slurm", walltime_s=60)
    assert fit(PilotSize(cores=2.5, memory=GIB), free, plugins.traits("slurm")) == PilotSize(cores=3, walltime_s=60, memory=GIB)
    fixed = Site(backend="slurm", cores=16, nodes=2, memory=32 * GIB, gpus=4)
    assert fit(ONE, fixed, plugins.traits("slurm")) == PilotSize(cores=16, nodes=2, walltime_s=3600, memory=32 * GIB, gpus=4)


def test_memory_that_nobody_fixed_is_enough_for_all_tasks_that_the_cores_take() -> None:
    size = fit(PilotSize(cores=2, memory=GIB), Site(backend="slurm", cores=8), plugins.traits("slurm"))
    assert size is not None and size.memory == 4 * GIB


def test_a_machine_reached_by_ssh_is_taken_whole_and_once() -> None:
    site = Site(backend="ssh", hosts=("one", "two"), max_queued=9)
    assert fit(PilotSize(cores=64), site, plugins.traits("ssh")) == PilotSize(cores=0, walltime_s=3600)
    assert len(requests(DemandFactory().propose(factory_view([site_view("a", site=site, pilots=[queued("a")])], 9)))) == 1


def test_a_pilot_larger_than_all_that_a_site_gives_is_never_asked_for() -> None:
    assert fit(PilotSize(cores=8), Site(backend="slurm", max_cores=4), plugins.traits("slurm")) is None


def test_needs_of_different_kinds_share_one_pilot_if_they_fit() -> None:
    needs = PilotNeeds([PilotSize(cores=4), ONE, ONE, ONE, PilotSize(memory=GIB)])
    needs.serve(PilotSize(cores=6), PilotSize(cores=4))
    assert needs.kinds() == [ONE, PilotSize(memory=GIB)]
    needs.serve(PilotSize(cores=1), ONE)
    assert needs.kinds() == [PilotSize(memory=GIB)]


def test_a_replacement_is_as_large_as_the_work_needs_not_as_the_pilot_was() -> None:
    waiting = queued("a")
    seen = factory_view([site_view("a", [waiting]), site_view("b", cores=2)])
    waiting.size = PilotSize(cores=64)
    seen.demand.needed[waiting.id] = PilotSize(cores=2)
    round_ = ProposalRound(seen)
    assert round_.request_replica("b", waiting, "it waits")
    (request,) = requests(round_.proposals)
    assert request.size.cores == 2 and request.replaces == waiting.id
