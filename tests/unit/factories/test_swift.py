"""Swift: every move of a score, every step between candidate, hibernated and overloaded, the choice, and replicas."""

from __future__ import annotations

import random

import pytest

from pilotfish.core.pilots.factory_interface import (
    EXPIRED,
    FAILED,
    JOINED,
    OUTRUN,
    OVERDUE,
    RELIEVED,
    SUBMITTED,
    SUCCEEDED,
    WITHDRAWN,
    SiteEvent,
    SiteView,
)
from pilotfish.factories.swift import (
    BEST,
    CANDIDATE,
    FILE_OPERATION,
    FILE_OPERATION_DONE,
    HIBERNATED,
    OVERLOADED,
    TRANSFER,
    TRANSFER_DONE,
    SwiftFactory,
    SwiftSettings,
)
from pilotfish.model.states import REQUESTED
from tests.support.factory_stage import NOW, count_by_site, event, factory_view, pilot, queued, requests, site_view, withdrawals

QUIET = {"period_s": 0.0, "min_rest_s": 100.0}


def swift(*events: SiteEvent, seed: int = 1, **settings: object) -> SwiftFactory:
    factory = SwiftFactory(SwiftSettings(**{**QUIET, **settings}), random.Random(seed))  # type: ignore[arg-type]
    for one in events:
        factory.on_event(one)
    return factory


def score(factory: SwiftFactory, site: SiteView | None = None) -> float:
    return factory.score(site or site_view("a"), NOW)


def status(factory: SwiftFactory, site: SiteView | None = None) -> str:
    return factory.status(site or site_view("a"), NOW)


# --- moves of the score ---------------------------------------------------------------------------------------------------------------


def test_a_site_begins_with_the_initial_score() -> None:
    assert score(swift(initial_score=3.0)) == 3.0


def test_a_pilot_that_is_being_submitted_weighs_on_the_score_until_it_is() -> None:
    factory = swift(submission_load_factor=0.2)
    requested = pilot("a", REQUESTED)
    assert score(factory, site_view("a", [requested])) == pytest.approx(-0.2)
    assert score(factory, site_view("a", [queued("a")])) == 0.0


def test_pilots_wished_for_in_the_same_proposal_weigh_as_well() -> None:
    assert swift(submission_load_factor=0.2).score(site_view("a"), NOW, requested=3) == pytest.approx(-0.6)


@pytest.mark.parametrize(("begun", "done", "cost"), [(FILE_OPERATION, FILE_OPERATION_DONE, 0.01), (TRANSFER, TRANSFER_DONE, 0.2)])
def test_what_is_done_with_files_weighs_on_the_score_until_it_is_done(begun: str, done: str, cost: float) -> None:
    factory = swift(event("a", begun))
    assert score(factory) == pytest.approx(-cost)
    factory.on_event(event("a", done))
    assert score(factory) == 0.0


def test_a_transfer_whose_end_was_missed_is_forgotten() -> None:
    assert score(swift(event("a", TRANSFER, ago_s=200), window_s=100)) == 0.0


def test_an_end_whose_beginning_was_missed_does_no_harm() -> None:
    assert score(swift(event("a", TRANSFER_DONE))) == 0.0


@pytest.mark.parametrize(("seconds", "delta"), [(0.01, 0.0), (0.1, 0.0), (20.0, -1.0), (10.05, -0.5)])
def test_a_slow_submission_costs_and_a_quick_one_does_not(seconds: float, delta: float) -> None:
    factory = swift(event("a", SUBMITTED, seconds=seconds), success_factor=1.0, max_submission_s=20.0, base_submission_s=0.1)
    assert score(factory) == pytest.approx(delta)


def test_a_pilot_that_joins_and_one_that_ends_in_order_are_successes() -> None:
    events = [event("a", JOINED, "p", 300, 10), event("a", SUCCEEDED, "p", 100)]
    assert score(swift(*events[:1], success_factor=0.7)) == pytest.approx(0.7)
    assert score(swift(*events, success_factor=0.7)) == pytest.approx(1.4)
    assert score(swift(events[0], event("a", EXPIRED, "p"), success_factor=0.7)) == pytest.approx(1.4)


def test_a_failure_costs_its_factor_and_leaves_nothing_above_zero() -> None:
    joined = [event("a", JOINED, f"p{number}", 300, 10) for number in range(9)]
    assert score(swift(*joined, event("a", FAILED), success_factor=1.0, failure_factor=5.0)) == 0.0
    assert score(swift(event("a", FAILED), failure_factor=5.0)) == -5.0


def test_a_pilot_that_expires_without_having_joined_is_a_failure() -> None:
    assert status(swift(event("a", EXPIRED))) == HIBERNATED


def test_only_a_site_that_was_outrun_pays_for_its_cancelled_replica() -> None:
    assert score(swift(event("a", WITHDRAWN, seconds=50, cause=OUTRUN), queue_time_factor=0.3)) == pytest.approx(-0.3)
    assert score(swift(event("a", WITHDRAWN, seconds=50, cause=RELIEVED), queue_time_factor=0.3)) == 0.0
    assert score(swift(event("a", WITHDRAWN, seconds=50))) == 0.0


# --- candidate, hibernated, overloaded --------------------------------------------------------------------------------------------------


def test_a_new_site_is_a_candidate() -> None:
    assert status(swift()) == CANDIDATE


def test_candidate_to_hibernated_after_a_failure() -> None:
    assert status(swift(event("a", FAILED))) == HIBERNATED


def test_an_overloaded_site_that_fails_is_hibernated_too() -> None:
    factory = swift(job_throttle=2.0)
    full = site_view("a", [pilot("a") for _ in range(3)])
    assert status(factory, full) == OVERLOADED
    factory.on_event(event("a", FAILED))
    assert status(factory, full) == HIBERNATED


def test_candidate_to_hibernated_when_a_cancelled_replica_had_waited_too_long() -> None:
    waits = [event("b", JOINED, f"p{number}", seconds=100) for number in range(3)]
    assert status(swift(*waits, event("a", WITHDRAWN, seconds=701, cause=OUTRUN), queue_time_margin_s=600)) == HIBERNATED
    assert status(swift(*waits, event("a", WITHDRAWN, seconds=699, cause=OUTRUN), queue_time_margin_s=600)) == CANDIDATE


def test_candidate_to_hibernated_at_the_end_of_a_pilot_that_had_waited_too_long_if_there_are_no_replicas() -> None:
    events = [*(event("b", JOINED, f"p{number}", seconds=10) for number in range(50)), event("a", JOINED, "q", seconds=5000)]
    events.append(event("a", SUCCEEDED, "q"))
    assert status(swift(*events, replication_limit=0)) == HIBERNATED
    assert status(swift(*events, replication_limit=2)) == CANDIDATE


def test_candidate_to_hibernated_while_a_pilot_waits_too_long() -> None:
    factory = swift(event("b", JOINED, seconds=100), queue_time_margin_s=600)
    waiting = site_view("a", [queued("a", 701)])
    factory.propose(factory_view([waiting, site_view("b")]))
    assert status(factory, waiting) == HIBERNATED


def test_a_site_is_hibernated_only_once_for_the_same_wait() -> None:
    factory = swift(event("b", JOINED, seconds=100), event("b", FAILED, ago_s=0), queue_time_margin_s=600, replication_limit=0)
    waiting = site_view("a", [queued("a", 701)], max_queued=2)
    later = NOW + 101
    factory.propose(factory_view([waiting]))
    assert count_by_site(factory.propose(factory_view([waiting], 1, now=later))) == {"a": 1}
    assert factory.status(waiting, later) == CANDIDATE


def test_hibernated_to_candidate_with_score_zero_when_no_other_is_left() -> None:
    factory = swift(event("a", FAILED, ago_s=500), failure_factor=5.0)
    assert count_by_site(factory.propose(factory_view([site_view("a")], 1))) == {"a": 1}
    assert status(factory) == CANDIDATE and score(factory) == 0.0


def test_as_long_as_there_is_a_candidate_nobody_is_woken() -> None:
    factory = swift(event("a", FAILED, ago_s=500))
    assert count_by_site(factory.propose(factory_view([site_view("a"), site_view("b")], 2))) == {"b": 2}
    assert status(factory) == HIBERNATED


def test_overloaded_sites_are_no_candidates_so_that_a_hibernated_one_is_woken() -> None:
    factory = swift(event("a", FAILED, ago_s=500), job_throttle=2.0)
    full = site_view("b", [pilot("b") for _ in range(3)])
    assert count_by_site(factory.propose(factory_view([site_view("a"), full], 1))) == {"a": 1}


def test_who_was_hibernated_first_is_woken_first() -> None:
    factory = swift(event("c", FAILED, ago_s=500), event("a", FAILED, ago_s=400), event("b", FAILED, ago_s=300))
    sites = [site_view("a", max_pilots=1), site_view("b", max_pilots=1), site_view("c", max_pilots=1)]
    assert [request.site for request in requests(factory.propose(factory_view(sites, 2)))] == ["c", "a"]
    assert status(factory, site_view("b")) == HIBERNATED


def test_nobody_is_woken_before_it_has_rested_and_rest_doubles() -> None:
    factory = swift(event("a", FAILED, ago_s=40))
    seen = factory_view([site_view("a")], 1)
    assert factory.propose(seen) == []
    assert factory.next_look_at(seen) == NOW + 60
    factory.propose(factory_view([site_view("a")], 1, now=NOW + 60))
    factory.on_event(event("a", FAILED, ago_s=-70))
    again = factory_view([site_view("a")], 1, now=NOW + 71)
    assert factory.propose(again) == []
    assert factory.next_look_at(again) == NOW + 270


def test_who_has_not_rested_does_not_keep_the_next_from_being_woken() -> None:
    twice = [event("a", FAILED, ago_s=5000), event("a", FAILED, ago_s=190)]
    factory = swift(*twice, event("b", FAILED, ago_s=150))
    assert count_by_site(factory.propose(factory_view([site_view("a"), site_view("b")], 1))) == {"b": 1}


def test_hibernated_to_candidate_with_score_one_when_a_remaining_pilot_succeeds() -> None:
    factory = swift(event("a", JOINED, "p", 500, 10), event("a", FAILED, ago_s=400), event("a", SUCCEEDED, "p"))
    assert status(factory) == CANDIDATE and score(factory) == 1.0


def test_hibernated_to_candidate_with_score_one_when_a_remaining_pilot_works_on() -> None:
    factory = swift(event("a", FAILED, ago_s=400))
    there = site_view("a", [pilot("a", age_s=2000)])
    factory.propose(factory_view([there]))
    assert status(factory, there) == CANDIDATE and score(factory, there) == 1.0


def test_that_a_pilot_joins_does_not_bring_a_hibernated_site_back() -> None:
    """Sites that kill what they start would be back at once."""
    factory = swift(event("a", FAILED, ago_s=40), event("a", JOINED, seconds=10))
    factory.propose(factory_view([site_view("a", [pilot("a", age_s=50)])]))
    assert status(factory) == HIBERNATED


def test_a_site_that_was_too_slow_is_not_back_because_a_slow_pilot_ended_well() -> None:
    waits = [event("b", JOINED, f"p{number}", seconds=10) for number in range(50)]
    slow = [event("a", JOINED, "q", seconds=5000), event("a", WITHDRAWN, seconds=5000, cause=OUTRUN), event("a", SUCCEEDED, "q")]
    assert status(swift(*waits, *slow)) == HIBERNATED


def test_candidate_to_overloaded_at_its_limit_and_back_when_a_pilot_is_gone() -> None:
    factory = swift(job_throttle=2.0)
    pilots = [pilot("a") for _ in range(3)]
    assert status(factory, site_view("a", pilots[:2])) == CANDIDATE
    assert status(factory, site_view("a", pilots)) == OVERLOADED
    factory.on_event(event("a", SUCCEEDED, pilots[0].id))
    assert status(factory, site_view("a", pilots[1:])) == CANDIDATE


def test_success_raises_the_limit() -> None:
    factory = swift(*(event("a", SUCCEEDED) for _ in range(5)), success_factor=1.0, job_throttle=2.0)
    assert status(factory, site_view("a", [pilot("a") for _ in range(20)])) == CANDIDATE
    assert status(factory, site_view("a", [pilot("a") for _ in range(21)])) == OVERLOADED


# --- the choice -------------------------------------------------------------------------------------------------------------------------


def test_the_weighted_choice_follows_the_bounded_scores() -> None:
    counts = {"a": 0, "b": 0}
    for seed in range(1500):
        factory = swift(*(event("a", SUCCEEDED) for _ in range(5)), seed=seed, success_factor=0.5)
        counts[requests(factory.propose(factory_view([site_view("a"), site_view("b")], 1)))[0].site] += 1
    share = 3.907 / 4.907  # TScore(2.5) = exp(2 ln 100 / pi * atan 0.5)
    expected = {"a": 1500 * share, "b": 1500 * (1 - share)}
    assert sum((counts[name] - expected[name]) ** 2 / expected[name] for name in expected) < 10.83


def test_the_best_score_is_always_chosen_if_so_wished() -> None:
    factory = swift(*(event("b", SUCCEEDED) for _ in range(9)), choice=BEST)
    assert count_by_site(factory.propose(factory_view([site_view("a"), site_view("b"), site_view("c")], 9))) == {"b": 9}


def test_no_more_than_a_given_number_in_all_replicas_not_counted() -> None:
    there = [pilot("a"), queued("a", id="root"), queued("a", replica_of="root")]
    assert len(requests(swift(workers=4).propose(factory_view([site_view("a", there), site_view("b")], 50)))) == 2


def test_the_reason_has_score_weight_and_limit() -> None:
    (request,) = requests(swift().propose(factory_view([site_view("a")], 1)))
    assert request.reason == "score 0.00, drawn with weight 1.00; 0 of at most 3.0 pilots are there"


# --- replicas ---------------------------------------------------------------------------------------------------------------------------


def test_a_pilot_that_waits_longer_than_the_least_queue_time_gets_a_replica_elsewhere() -> None:
    stuck = queued("a", 901)
    (request,) = requests(swift(replication_min_queue_s=900).propose(factory_view([site_view("a", [stuck]), site_view("b")])))
    assert (request.site, request.replaces) == ("b", stuck.id) and "has waited 901 s at a" in request.reason


def test_before_that_time_there_is_none_and_it_looks_again_then() -> None:
    seen = factory_view([site_view("a", [queued("a", 899)]), site_view("b")])
    factory = swift(replication_min_queue_s=900)
    assert factory.propose(seen) == [] and factory.next_look_at(seen) == NOW + 1


def test_the_next_replica_waits_as_long_again_and_goes_to_a_third_site() -> None:
    stuck = queued("a", 2000, id="root")
    for age, expected in ((899.0, 0), (900.0, 1)):
        sites = [site_view("a", [stuck]), site_view("b", [queued("b", age, replica_of="root")]), site_view("c")]
        made = requests(swift(replication_min_queue_s=900).propose(factory_view(sites)))
        assert [(request.site, request.replaces) for request in made] == [("c", "root")] * expected


def test_there_are_no_more_replicas_than_the_limit() -> None:
    sites = [site_view("a", [queued("a", 2000, id="root")]), site_view("b", [queued("b", 1000, replica_of="root")]), site_view("c")]
    assert not requests(swift(replication_limit=1).propose(factory_view(sites)))


def test_at_the_limit_the_youngest_is_given_up_when_all_have_waited_too_long_so_that_another_site_can_be_tried() -> None:
    old, young = queued("a", 9000, id="root"), queued("b", 8000, replica_of="root")
    proposals = swift(replication_limit=1).propose(factory_view([site_view("a", [old]), site_view("b", [young]), site_view("c")]))
    assert [(one.pilot, one.cause) for one in withdrawals(proposals)] == [(young.id, OVERDUE)] and not requests(proposals)


def test_without_replication_a_pilot_that_waits_too_long_is_given_up() -> None:
    stuck = queued("a", 5000)
    proposals = swift(replication_limit=0, first_queue_time_s=3600.0, queue_time_margin_s=600.0).propose(
        factory_view([site_view("a", [stuck]), site_view("b")])
    )
    assert [(one.pilot, one.cause) for one in withdrawals(proposals)] == [(stuck.id, OVERDUE)] and not requests(proposals)


def test_the_first_to_start_cancels_the_others() -> None:
    old, active, young = queued("a", 900, id="root"), pilot("b", age_s=500, replica_of="root"), queued("c", 100, replica_of="root")
    gone = withdrawals(swift().propose(factory_view([site_view("a", [old]), site_view("b", [active]), site_view("c", [young])])))
    assert [(one.pilot, one.cause) for one in gone] == [("root", OUTRUN), (young.id, RELIEVED)]


def test_a_pilot_that_nobody_needs_gets_no_replica() -> None:
    stuck = queued("a", 2000)
    assert not requests(swift().propose(factory_view([site_view("a", [stuck]), site_view("b")], spare=[stuck.id])))


# --- memory -----------------------------------------------------------------------------------------------------------------------------


def test_who_hears_the_same_events_again_stands_where_it_stood() -> None:
    rng = random.Random(11)
    kinds = (SUBMITTED, JOINED, SUCCEEDED, FAILED, EXPIRED, WITHDRAWN, TRANSFER, TRANSFER_DONE)
    events = [
        SiteEvent(
            NOW - 1000 + number, rng.choice("abcd"), rng.choice(kinds), f"p{number // 2}", rng.uniform(0, 900), rng.choice(("", OUTRUN))
        )
        for number in range(400)
    ]
    one, two = swift(*events), swift(*events)
    for name in "abcd":
        assert status(one, site_view(name)) == status(two, site_view(name)) and score(one, site_view(name)) == score(two, site_view(name))
    sites = [site_view(name) for name in "abcd"]
    assert one.propose(factory_view(sites, 9)) == two.propose(factory_view(sites, 9))
