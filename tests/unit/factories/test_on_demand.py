"""The factory that follows the work."""

from __future__ import annotations

from typing import Any

from pilotfish.core.pilots.factory_interface import EXPIRED, FAILED, JOINED, OUTRUN, RELIEVED, SUCCEEDED, SiteEvent, SiteView
from pilotfish.factories.on_demand import DemandFactory, DemandSettings
from pilotfish.factories.site_history import BackOff, read_record
from tests.support.factory_stage import NOW, count_by_site, event, factory_view, pilot, queued, requests, site_view, withdrawals


def good(name: str, wait_s: float, **about: Any) -> SiteView:
    """A site where pilots have started after so long, and ended well."""
    return site_view(name, history=[*(event(name, JOINED, seconds=wait_s) for _ in range(5)), event(name, SUCCEEDED)], **about)


def failures(site: str, *ago_s: float) -> list[SiteEvent]:
    return [event(site, FAILED, ago_s=one) for one in ago_s]


def test_pilots_go_where_they_start_soonest() -> None:
    counts = count_by_site(DemandFactory().propose(factory_view([good("slow", 9000), good("quick", 30)], 10)))
    assert counts == {"quick": 10}


def test_sites_that_are_alike_share_the_pilots() -> None:
    assert count_by_site(DemandFactory().propose(factory_view([good("a", 60), good("b", 60)], 10))) == {"a": 5, "b": 5}


def test_what_does_not_fit_the_best_site_goes_to_the_next() -> None:
    counts = count_by_site(DemandFactory().propose(factory_view([good("slow", 900), good("quick", 30, max_queued=4)], 10)))
    assert counts == {"quick": 4, "slow": 6}


def test_a_site_with_few_successes_costs_more_than_it_seems() -> None:
    lossy = site_view("lossy", history=[*(event("lossy", FAILED, ago_s=8000) for _ in range(20)), *good("lossy", 30).history])
    counts = count_by_site(DemandFactory(DemandSettings(window_s=1e6)).propose(factory_view([lossy, good("sound", 60)], 3)))
    assert counts == {"sound": 3}


def test_a_pilot_that_waits_longer_than_its_site_lets_one_expect_makes_it_less_attractive() -> None:
    stalled_sites = site_view("silent", [queued("silent", 850)], good("silent", 30).history)
    counts = count_by_site(DemandFactory().propose(factory_view([stalled_sites, good("other", 300)], 3)))
    assert counts == {"other": 3}


def test_an_unknown_site_gets_a_few_pilots_to_find_out() -> None:
    assert count_by_site(DemandFactory(DemandSettings(probes=2)).propose(factory_view([site_view("new")], 50))) == {"new": 2}


def test_more_follow_as_the_first_ones_start_or_wait_in_peace() -> None:
    started = site_view("new", [pilot("new", age_s=50) for _ in range(2)])
    assert count_by_site(DemandFactory(DemandSettings(probes=2)).propose(factory_view([started], 50))) == {"new": 4}
    patient = site_view("new", [queued("new", 400) for _ in range(2)])
    assert count_by_site(DemandFactory(DemandSettings(probes=2)).propose(factory_view([patient], 50))) == {"new": 2}


def test_where_a_pilot_has_lived_for_a_while_as_many_go_as_the_work_needs() -> None:
    assert count_by_site(DemandFactory().propose(factory_view([site_view("a", [pilot("a", age_s=4000)])], 50))) == {"a": 50}


def test_after_a_failure_it_holds_back_and_says_until_when() -> None:
    seen = factory_view([site_view("a", history=failures("a", 10))], 50)
    factory = DemandFactory(DemandSettings(back_off=BackOff(30)))
    assert factory.propose(seen) == []
    assert factory.next_look_at(seen) == NOW + 20


def test_each_further_failure_doubles_the_pause_up_to_a_limit() -> None:
    back_off = BackOff(30, 100)
    assert [back_off.delay(count) for count in (1, 2, 3, 4, 500)] == [30, 60, 100, 100, 100]
    record = read_record(site_view("a", history=failures("a", 1000, 900, 5)), NOW, 1e6, BackOff(30))
    assert record.setbacks == 3 and record.not_before == NOW - 5 + 120


def test_pilots_that_fail_together_are_one_failure() -> None:
    assert read_record(site_view("a", history=failures("a", 10, 9, 8, 7)), NOW, 1e6, BackOff(30)).setbacks == 1


def test_after_the_pause_one_pilot_is_tried() -> None:
    assert count_by_site(DemandFactory().propose(factory_view([site_view("a", history=failures("a", 40))], 50))) == {"a": 1}


def test_a_site_that_starts_pilots_and_kills_them_does_not_look_sound() -> None:
    history = [event("a", JOINED, "p1", 60, 5), event("a", FAILED, "p1", 20), event("a", JOINED, "p2", 15, 5)]
    assert DemandFactory().propose(factory_view([site_view("a", [pilot("a", age_s=20, id="p2")], history)], 50)) == []


def test_a_pilot_that_died_after_long_work_is_no_reason_to_hold_back() -> None:
    history = [event("a", JOINED, "p1", 5000), event("a", FAILED, "p1", 20)]
    assert len(requests(DemandFactory().propose(factory_view([site_view("a", history=history)], 9)))) == 9


def test_success_ends_the_pause() -> None:
    ended = [*failures("a", 10), event("a", JOINED, "p", 9), event("a", EXPIRED, "p", 1)]
    assert read_record(site_view("a", history=ended), NOW, 1e6).setbacks == 0
    alive = site_view("a", [pilot("a", age_s=400)], failures("a", 500))
    assert read_record(alive, NOW, 1e6).setbacks == 0


def test_failures_of_long_ago_are_forgotten() -> None:
    assert count_by_site(
        DemandFactory(DemandSettings(window_s=100)).propose(factory_view([site_view("a", history=failures("a", 500, 400))], 9))
    ) == {"a": 2}


def test_no_more_than_a_given_number_in_all() -> None:
    sites = [site_view("a", [pilot("a", age_s=4000), queued("a")])]
    assert len(requests(DemandFactory(DemandSettings(workers=5)).propose(factory_view(sites, 50)))) == 3


def test_who_waits_far_longer_than_is_usual_gets_another_elsewhere() -> None:
    stuck = queued("dead", 5000)
    (request,) = requests(DemandFactory().propose(factory_view([site_view("dead", [stuck]), good("quick", 30)])))
    assert (request.site, request.replaces) == ("quick", stuck.id)
    assert "has waited 5000 s at dead, 30 s are usual" in request.reason


def test_where_all_queues_are_long_nobody_is_replaced() -> None:
    seen = factory_view([site_view("a", [queued("a", 5000)]), good("b", 4000)])
    factory = DemandFactory()
    assert factory.propose(seen) == []
    assert factory.next_look_at(seen) == NOW - 5000 + 12_000


def test_replicas_go_to_sites_that_have_none_of_them() -> None:
    members = [queued("dead", 9000, id="root"), queued("b", 5000, replica_of="root")]
    sites = [site_view("dead", members[:1]), site_view("b", members[1:]), good("quick", 30)]
    assert [(request.site, request.replaces) for request in requests(DemandFactory().propose(factory_view(sites)))] == [("quick", "root")]
    assert not requests(DemandFactory().propose(factory_view(sites[:2])))


def test_work_that_has_nobody_yet_comes_before_replicas() -> None:
    sites = [site_view("dead", [queued("dead", 9000)]), good("quick", 30, max_queued=1)]
    assert [request.replaces for request in requests(DemandFactory().propose(factory_view(sites, 1)))] == [""]


def test_a_site_where_somebody_waits_for_too_long_and_nobody_runs_gets_no_more() -> None:
    sites = [site_view("dead", [queued("dead", 9000)]), good("full", 30, max_queued=0)]
    assert not requests(DemandFactory().propose(factory_view(sites, 9)))


def test_where_all_queues_are_silent_they_are_filled_little_by_little() -> None:
    """There is nothing else to do, and the queue may just be long."""
    assert count_by_site(DemandFactory().propose(factory_view([site_view("only", [queued("only", 9000)])], 9))) == {"only": 2}


def test_a_replica_may_itself_be_replaced_when_the_first_one_is_gone() -> None:
    left = queued("b", 5000, replica_of="root")
    (request,) = requests(DemandFactory().propose(factory_view([site_view("b", [left]), good("quick", 30)])))
    assert request.replaces == "root"


def test_the_first_to_start_has_the_others_cancelled_and_only_who_waited_longer_was_outrun() -> None:
    first, second, third = queued("a", 900, id="root"), pilot("b", age_s=500, replica_of="root"), queued("c", 100, replica_of="root")
    gone = withdrawals(DemandFactory().propose(factory_view([site_view("a", [first]), site_view("b", [second]), site_view("c", [third])])))
    assert [(one.pilot, one.cause) for one in gone] == [("root", OUTRUN), (third.id, RELIEVED)]
    assert f"{second.id} at b started first" in gone[0].reason


def test_a_site_that_appears_is_used_and_one_that_is_gone_is_not() -> None:
    factory = DemandFactory()
    factory.propose(factory_view([good("a", 30)], 5))
    assert count_by_site(factory.propose(factory_view([good("b", 30)], 5))) == {"b": 5}
    assert factory.propose(factory_view([], 5)) == []
