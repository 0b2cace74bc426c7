"""Tests site matching: which worker gets which delegated task."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.agent.peers.contacts import Contact, MalformedMessage
from pilotfish.agent.peers.site_matching import ACKNOWLEDGE_TIMEOUT_S, CLAIM_S, IDLE_ROUND_S, MAX_MISSED_ROUNDS, PREFERENCE_S, ROUND_S
from tests.support.site_matching_stage import SPEC, Agent, Site, spec_row, task_row


def assigned_to(site: Site) -> dict[int, str]:
    return {task: worker for worker, task, _ in site.assignments}


def test_every_worker_gets_tasks_and_none_more_than_fit() -> None:
    site = Site(1, 2, 1)
    site.appoint(1)
    site.delegate(1, *map(task_row, range(6)))
    site.settle(1.0)
    assert sorted(len(agent.has) for agent in site.living()) == [1, 1, 2]
    assert len(site.agents[1].matching.backlog.tasks) == 2


def test_a_worker_that_is_free_again_gets_the_next_task_without_another_round() -> None:
    site = Site(1, 1)
    site.appoint(1)
    site.delegate(1, *map(task_row, range(4)))
    site.settle(ROUND_S)
    site.agents[2].end(next(iter(site.agents[2].has)))
    site.settle()
    assert len(site.agents[2].got) == 2 and site.now == ROUND_S


def test_acknowledged_assignments_are_claimed_from_the_master() -> None:
    site = Site(1, 1)
    site.appoint(1)
    site.delegate(1, task_row(5, attempt=3), task_row(6))
    site.settle(ROUND_S + CLAIM_S)
    assert sorted(site.claimed()) == sorted(site.assignments)
    assert {task: attempt for _, task, attempt in site.claimed()} == {5: 3, 6: 1}


def test_tasks_go_to_holders_of_their_inputs() -> None:
    site = Site(1)
    site.add(2, holds=("x",))
    site.add(3, holds=("y",))
    site.appoint(1)
    site.delegate(1, task_row(0, contents=(("y", 10),)), task_row(1, contents=(("x", 10),)), task_row(2))
    site.settle(1.0)
    assert assigned_to(site) == {0: "w3", 1: "w2", 2: "w1"}


def test_the_larger_part_of_the_inputs_decides() -> None:
    site = Site(1)
    site.add(2, holds=("small",))
    site.add(3, holds=("large",))
    site.appoint(1)
    site.delegate(1, task_row(0, contents=(("small", 10), ("large", 1000))))
    site.settle(1.0)
    assert assigned_to(site) == {0: "w3"}


def test_a_worker_without_inputs_takes_tasks_that_others_prefer_last() -> None:
    site = Site(1.0)
    site.add(2, holds=("aa", "bb"))
    site.agents[2].matching.free_changed({"cores": 0.0}, site.now)
    site.appoint(1)
    site.delegate(1, task_row(0, contents=(("aa", 10),)), task_row(1, contents=(("bb", 10),)), task_row(2))
    site.settle(2.0)
    assert assigned_to(site) == {2: "w1"}
    site.agents[1].end(2)
    site.settle(0.1)
    assert assigned_to(site) == {2: "w1", 1: "w1"}, "then the latest: who holds the input of the oldest has room sooner"


def test_no_task_waits_for_ever_for_the_holder_of_its_input() -> None:
    site = Site(1.0)
    site.add(2, holds=("aa",))
    site.agents[2].matching.free_changed({"cores": 0.0}, site.now)
    site.appoint(1)
    site.delegate(1, *(task_row(number, contents=(("aa", 10),)) for number in range(3)))
    site.settle(2.0)
    site.settle(PREFERENCE_S)
    site.agents[1].end(2)
    site.settle(0.1)
    assert assigned_to(site) == {2: "w1", 0: "w1"}


def test_a_requirement_is_respected_and_a_rank_followed() -> None:
    site = Site()
    for number, (kind, speed) in enumerate([("bad", 9), ("good", 1), ("good", 5)], 1):
        site.add(number, kind=kind, speed=speed)
    site.appoint(1)
    spec = spec_row(requirement='kind == "good"', rank="speed")
    site.delegate(1, task_row(0), specs=(spec,))
    site.settle(1.0)
    assert assigned_to(site) == {0: "w3"}
    site.delegate(1, task_row(1), task_row(2), specs=(spec,))
    site.settle(2.0)
    assert assigned_to(site) == {0: "w3", 1: "w2"} and len(site.agents[1].matching.backlog.tasks) == 1


def test_tags_and_time_are_respected() -> None:
    site = Site()
    site.add(1)
    for number in (2, 3):
        site.add(number)
        site.agents[number].matching.properties = {"tags.disk": "fast"}
    site.agents[2].matching.ends_at = 50.0
    site.appoint(1)
    site.delegate(1, task_row(0), specs=(spec_row(tags={"disk": "fast"}, time_s=100.0),))
    site.settle(1.0)
    assert assigned_to(site) == {0: "w3"}


def test_a_task_that_is_too_large_for_all_is_not_assigned() -> None:
    site = Site(1, 2)
    site.appoint(1)
    site.delegate(1, task_row(0), specs=(spec_row(needs={"cores": 4.0}),))
    site.settle(IDLE_ROUND_S)
    assert site.assignments == []


def test_a_worker_that_joins_later_gets_tasks_announced_before() -> None:
    site = Site(1)
    site.appoint(1)
    site.delegate(1, *map(task_row, range(3)))
    site.settle(1.0)
    site.add(2)
    site.agents[2].matching.site_master_changed(1, site.agents[1].me)
    site.settle(2 * IDLE_ROUND_S)
    assert len(site.agents[2].has) == 1


# --- faults ---------------------------------------------------------------------------------------------------------------------------


def test_a_task_assigned_to_a_worker_that_died_goes_to_another() -> None:
    site = Site(1, 1)
    site.appoint(1)
    site.settle(IDLE_ROUND_S)
    site.delegate(1, *map(task_row, range(2)))
    site.now += ROUND_S
    site.step(site.agents[1])
    while len(site.assignments) < 2:
        assert site.happen()
    site.die(2)
    site.settle()
    (first,) = site.agents[1].has
    site.agents[1].end(first)
    site.settle(2 * IDLE_ROUND_S)
    assert {task for task, _ in site.agents[1].got} == {0, 1}


def test_a_task_that_is_never_acknowledged_is_assigned_again() -> None:
    site = Site(1, 1)
    site.appoint(1)
    site.agents[2].alive = False
    site.settle(1.0)
    site.agents[2].alive = True
    site.settle(2 * IDLE_ROUND_S)
    site.delegate(1, *map(task_row, range(2)))
    site.settle()
    deaf = site.agents[2]
    original, deaf.alive = deaf.alive, False
    site.settle(ACKNOWLEDGE_TIMEOUT_S + 2 * IDLE_ROUND_S)
    deaf.alive = original
    site.agents[1].end(next(iter(site.agents[1].has)))
    site.settle(ACKNOWLEDGE_TIMEOUT_S + 4 * IDLE_ROUND_S)
    assert {task for agent in site.living() for task, _ in agent.got} == {0, 1}


def test_a_lost_assignment_is_sent_again_together_with_its_spec() -> None:
    site = Site(1.0, 0.0)
    site.appoint(1)
    specs: list[list[int]] = []
    lose = site._assign

    def give(agent: Agent, contact: Contact, header: list[Any], parts: list[bytes]) -> None:
        specs.append([spec[0] for spec in header[1]])
        if len(specs) > 1:
            lose(agent, contact, header, parts)

    site._assign = give  # type: ignore[method-assign]
    site.delegate(1, task_row(1))
    site.settle(ACKNOWLEDGE_TIMEOUT_S + 4 * IDLE_ROUND_S)
    assert specs == [[SPEC], [SPEC]] and ("w1", 1, 1) in site.assignments


def test_a_worker_that_misses_rounds_is_dropped_and_returns_when_it_answers() -> None:
    site = Site(1, 1)
    site.appoint(1)
    site.settle(IDLE_ROUND_S)
    assert [joined for _, joined, *_ in site.messages_of(1, "vouch") if joined] == [["w1", "w2"]]
    site.agents[2].alive = False
    site.settle((MAX_MISSED_ROUNDS + 1) * IDLE_ROUND_S)
    assert [gone for _, _, gone, *_ in site.messages_of(1, "vouch") if gone] == [["w2"]]
    site.agents[2].alive = True
    site.settle(2 * IDLE_ROUND_S)
    assert [joined for _, joined, *_ in site.messages_of(1, "vouch") if joined] == [["w1", "w2"], ["w2"]]


def test_a_replaced_site_master_reports_no_tasks_and_assigns_nothing_any_more() -> None:
    site = Site(1, 1)
    site.appoint(1)
    site.settle()
    site.delegate(1, *map(task_row, range(5)))
    site.appoint(2, 2)
    site.settle(IDLE_ROUND_S)
    assert site.messages_of(1, "reigns")[-1] == ["reigns", 0]
    assert site.agents[1].matching.holding() == []
    assert site.messages_of(2, "reigns")[-1] == ["reigns", 2]


def test_a_site_master_replaced_while_disconnected_reports_it_when_connected() -> None:
    site = Site(1, 1)
    site.appoint(1)
    site.settle()
    site.agents[1].matching.disconnected()
    site.appoint(2, 2)
    sent = len(site.messages_of(1, "loans"))
    site.agents[1].matching.connected()
    site.settle(IDLE_ROUND_S)
    assert site.messages_of(1, "loans")[sent:] == [["loans", []]]
    assert site.messages_of(1, "reigns")[-1] == ["reigns", 0], "or it would be lent tasks, and return them, without end"


def test_a_worker_that_is_no_site_master_returns_delegated_tasks() -> None:
    site = Site(1, 1)
    site.appoint(1)
    site.delegate(2, task_row(0), task_row(1))
    assert site.messages_of(2, "returned") == [["returned", [[0, 1], [1, 1]]]]
    assert site.messages_of(2, "reigns") == [["reigns", 0]], "or they would be lent to it again at once"
    assert site.assignments == []


def test_a_reconnected_site_master_reports_exactly_its_workers() -> None:
    """Earlier reports may have been lost with the connection."""
    site = Site(1, 1, 1)
    site.appoint(1)
    site.settle(IDLE_ROUND_S)
    matching = site.agents[1].matching
    matching.unreachable(3)
    matching.disconnected()
    site.agents[3].alive = False
    site.appoint(2, 2)
    site.appoint(1, 3)
    site.settle(IDLE_ROUND_S)
    sent = len(site.messages_of(1, "vouch"))
    matching.connected()
    site.step(site.agents[1])
    assert [(sorted(joined), gone) for _, joined, gone, _ in site.messages_of(1, "vouch")[sent:]] == [(["w1", "w2"], [])]


def test_a_site_master_appointed_again_while_disconnected_keeps_its_claims() -> None:
    site = Site(1, 1)
    site.appoint(1)
    site.settle()
    site.agents[1].matching.disconnected()
    site.delegate(1, task_row(0), task_row(1))
    site.settle(ROUND_S)
    site.appoint(2, 2)
    site.appoint(1, 3)
    site.agents[1].matching.connected()
    site.step(site.agents[1])
    assert {task for _, task, _ in site.claimed()} == {0, 1}


def test_a_delegated_task_without_its_spec_is_returned() -> None:
    site = Site(1)
    site.appoint(1)
    site.needs[99] = {"cores": 1.0}
    site.delegate(1, task_row(0, spec=99), task_row(1))
    site.settle(IDLE_ROUND_S)
    assert site.messages_of(1, "returned") == [["returned", [[0, 1]]]]
    assert assigned_to(site) == {1: "w1"}


def test_a_recalled_task_is_not_assigned() -> None:
    site = Site(1)
    site.appoint(1)
    site.settle()
    site.delegate(1, task_row(0, attempt=2), task_row(1))
    site.agents[1].matching.dropped([[0, 2], [1, 7], [9, 1]], False)
    site.settle(IDLE_ROUND_S)
    assert assigned_to(site) == {1: "w1"}, "another attempt is not meant"


def test_an_assignment_before_the_site_master_is_known_is_counted_once() -> None:
    site = Site(1, 1)
    site.appoint(1, 1, 2)
    site.delegate(1, *map(task_row, range(6)))
    site.settle(1.0)
    site.agents[2].matching.site_master_changed(1, site.agents[1].me)
    for _ in range(3):
        for agent in site.living():
            if agent.has:
                agent.end(next(iter(agent.has)))
        site.settle(1.0)
    assert len(site.agents[2].got) >= 2


def test_without_the_master_a_site_continues_and_reports_its_claims_afterwards() -> None:
    site = Site(1, 1)
    site.appoint(1)
    site.delegate(1, *map(task_row, range(6)))
    site.settle(ROUND_S + CLAIM_S)
    site.agents[1].matching.disconnected()
    site.sent.clear()
    for _ in range(2):
        for agent in site.living():
            agent.end(next(iter(agent.has)))
        site.settle(5.0)
    assert len(site.assignments) == 6 and site.sent == []
    site.agents[1].matching.connected()
    site.step(site.agents[1])
    assert {task for _, task, _ in site.claimed()} == {2, 3, 4, 5}
    kinds = [header[0] for _, header in site.sent]
    assert kinds.index("reigns") < kinds.index("claims") < kinds.index("loans"), "what is neither claimed nor there is lost"


# --- malformed ------------------------------------------------------------------------------------------------------------------------

MAD = [
    None,
    42,
    [],
    [None],
    [["contact"]],
    [[["zz", 1], "w9", {}, 0, [], []]],
    [[["f" * 64, ["h", 1]], "w9", {"cores": "many"}, 0, [], []]],
    [[["f" * 64, ["h", 1]], "w9", [], 0, [], []]],
    [[["f" * 64, ["h", 1]], "w9", {"cores": 1e308}, 10**400, [[7, 0.0]], []]],
    [[["f" * 64, ["h", 1]], "w9", {"cores": 1.0}, 0, [["x"]], []]],
    [[["f" * 64, ["h", 1]], "w9", {"cores": 1.0}, 0, [[7, "nan"]], [[{}, 1]]]],
    [[["f" * 64, ["h", 1]], "w9", {"cores": float("nan")}, 0, [[7, float("nan")]], [[0, float("nan")]]]],
]


@pytest.mark.parametrize("answer", MAD)
def test_a_malformed_answer_harms_no_other_worker(answer: object) -> None:
    site = Site(1, 1)
    site.appoint(1)
    site.settle(1.0)
    site.agents[1].matching.gathered(answer, site.now)
    site._assign = lambda *gift: None if gift[1].node > 2 else Site._assign(site, *gift)  # type: ignore[method-assign]
    site.step(site.agents[1])
    site.delegate(1, *map(task_row, range(2)))
    site.settle(3 * IDLE_ROUND_S)
    assert len(site.agents[1].got) + len(site.agents[2].got) == 2


@pytest.mark.parametrize(
    "message",
    [["room"], ["room", None, 0], ["room", {"cores": None}, 0], ["room", {"cores": 1.0}, "x"], ["got", 1], ["got", 1, [5]], ["what"], []],
)
def test_a_malformed_message_raises(message: list[object]) -> None:
    site = Site(1, 1)
    site.appoint(1)
    site.settle(1.0)
    with pytest.raises(MalformedMessage):
        site.agents[1].matching.received(site.agents[2].me, message, site.now)


@pytest.mark.parametrize("payload", [None, [], [None, None], [[[1]], []], [[[7, {}, "((", "", {}, 0.0]], [], True], [{}, {}, {}]])
def test_a_malformed_question_is_answered_all_the_same(payload: object) -> None:
    site = Site(1)
    matching = site.agents[1].matching
    matching.turn(0.0)
    matching.delivered("name", payload, 0.0)
    assert [effect[0] for effect in matching.turn(0.0) if effect[0] != "alive"] == ["answer"]
