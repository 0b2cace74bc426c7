"""Matching among the agents of a site: who gets what of what its master was lent."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.agent.peers.contacts import Contact, MalformedMessage
from pilotfish.agent.peers.site_matching import CALL_S, CLAIM_S, LOST_S, MISSED_CALLS, ROUND_S
from pilotfish.agent.peers.task_backlog import HOLD_OFF_S
from tests.support.site_matching_stage import SPEC, Agent, Site, spec_row, task_row


def given_to(site: Site) -> dict[int, str]:
    return {task: worker for worker, task, _ in site.gifts}


def test_all_get_something_and_nobody_more_than_it_has_room_for() -> None:
    site = Site(1, 2, 1)
    site.crown(1)
    site.lend(1, *map(task_row, range(6)))
    site.settle(1.0)
    assert sorted(len(agent.has) for agent in site.living()) == [1, 1, 2]
    assert len(site.agents[1].work.drawer.loans) == 2


def test_who_has_room_again_gets_the_next_one_without_another_round() -> None:
    site = Site(1, 1)
    site.crown(1)
    site.lend(1, *map(task_row, range(4)))
    site.settle(ROUND_S)
    site.agents[2].end(next(iter(site.agents[2].has)))
    site.settle()
    assert len(site.agents[2].got) == 2 and site.now == ROUND_S


def test_what_was_given_and_acknowledged_is_claimed_from_the_pools_master() -> None:
    site = Site(1, 1)
    site.crown(1)
    site.lend(1, task_row(5, attempt=3), task_row(6))
    site.settle(ROUND_S + CLAIM_S)
    assert sorted(site.claimed()) == sorted(site.gifts)
    assert {task: attempt for _, task, attempt in site.claimed()} == {5: 3, 6: 1}


def test_tasks_go_to_who_holds_their_inputs() -> None:
    site = Site(1)
    site.add(2, holds=("x",))
    site.add(3, holds=("y",))
    site.crown(1)
    site.lend(1, task_row(0, contents=(("y", 10),)), task_row(1, contents=(("x", 10),)), task_row(2))
    site.settle(1.0)
    assert given_to(site) == {0: "w3", 1: "w2", 2: "w1"}


def test_the_larger_part_of_the_inputs_decides() -> None:
    site = Site(1)
    site.add(2, holds=("small",))
    site.add(3, holds=("large",))
    site.crown(1)
    site.lend(1, task_row(0, contents=(("small", 10), ("large", 1000))))
    site.settle(1.0)
    assert given_to(site) == {0: "w3"}


def test_who_holds_nothing_leaves_alone_what_suits_another_while_there_is_something_else() -> None:
    site = Site(1.0)
    site.add(2, holds=("aa", "bb"))
    site.agents[2].work.has_room({"cores": 0.0}, site.now)
    site.crown(1)
    site.lend(1, task_row(0, contents=(("aa", 10),)), task_row(1, contents=(("bb", 10),)), task_row(2))
    site.settle(2.0)
    assert given_to(site) == {2: "w1"}
    site.agents[1].end(2)
    site.settle(0.1)
    assert given_to(site) == {2: "w1", 1: "w1"}, "then the latest: who holds the input of the oldest has room sooner"


def test_nothing_waits_for_ever_for_who_holds_its_input() -> None:
    site = Site(1.0)
    site.add(2, holds=("aa",))
    site.agents[2].work.has_room({"cores": 0.0}, site.now)
    site.crown(1)
    site.lend(1, *(task_row(number, contents=(("aa", 10),)) for number in range(3)))
    site.settle(2.0)
    site.settle(HOLD_OFF_S)
    site.agents[1].end(2)
    site.settle(0.1)
    assert given_to(site) == {2: "w1", 0: "w1"}


def test_a_requirement_is_respected_and_a_rank_followed() -> None:
    site = Site()
    for number, (kind, speed) in enumerate([("bad", 9), ("good", 1), ("good", 5)], 1):
        site.add(number, kind=kind, speed=speed)
    site.crown(1)
    spec = spec_row(requirement='kind == "good"', rank="speed")
    site.lend(1, task_row(0), specs=(spec,))
    site.settle(1.0)
    assert given_to(site) == {0: "w3"}
    site.lend(1, task_row(1), task_row(2), specs=(spec,))
    site.settle(2.0)
    assert given_to(site) == {0: "w3", 1: "w2"} and len(site.agents[1].work.drawer.loans) == 1


def test_tags_and_time_are_respected() -> None:
    site = Site()
    site.add(1)
    for number in (2, 3):
        site.add(number)
        site.agents[number].work.properties = {"tags.disk": "fast"}
    site.agents[2].work.ends_at = 50.0
    site.crown(1)
    site.lend(1, task_row(0), specs=(spec_row(tags={"disk": "fast"}, time_s=100.0),))
    site.settle(1.0)
    assert given_to(site) == {0: "w3"}


def test_a_task_that_is_too_large_for_all_is_given_to_nobody() -> None:
    site = Site(1, 2)
    site.crown(1)
    site.lend(1, task_row(0), specs=(spec_row(needs={"cores": 4.0}),))
    site.settle(CALL_S)
    assert site.gifts == []


def test_whoever_joins_later_gets_of_what_was_announced_before_it_came() -> None:
    site = Site(1)
    site.crown(1)
    site.lend(1, *map(task_row, range(3)))
    site.settle(1.0)
    site.add(2)
    site.agents[2].work.reigns(1, site.agents[1].me, site.now)
    site.settle(2 * CALL_S)
    assert len(site.agents[2].has) == 1


# --- troubles -------------------------------------------------------------------------------------------------------------------------


def test_what_was_under_way_to_somebody_who_died_goes_to_another() -> None:
    site = Site(1, 1)
    site.crown(1)
    site.settle(CALL_S)
    site.lend(1, *map(task_row, range(2)))
    site.now += ROUND_S
    site.step(site.agents[1])
    while len(site.gifts) < 2:
        assert site.happen()
    site.die(2)
    site.settle()
    (first,) = site.agents[1].has
    site.agents[1].end(first)
    site.settle(2 * CALL_S)
    assert {task for task, _ in site.agents[1].got} == {0, 1}


def test_a_gift_that_is_never_acknowledged_is_given_again() -> None:
    site = Site(1, 1)
    site.crown(1)
    site.agents[2].alive = False
    site.settle(1.0)
    site.agents[2].alive = True
    site.settle(2 * CALL_S)
    site.lend(1, *map(task_row, range(2)))
    site.settle()
    deaf = site.agents[2]
    original, deaf.alive = deaf.alive, False
    site.settle(LOST_S + 2 * CALL_S)
    deaf.alive = original
    site.agents[1].end(next(iter(site.agents[1].has)))
    site.settle(LOST_S + 4 * CALL_S)
    assert {task for agent in site.living() for task, _ in agent.got} == {0, 1}


def test_a_gift_that_was_lost_is_given_again_together_with_its_spec() -> None:
    site = Site(1.0, 0.0)
    site.crown(1)
    specs: list[list[int]] = []
    lose = site._give

    def give(agent: Agent, contact: Contact, header: list[Any], parts: list[bytes]) -> None:
        specs.append([spec[0] for spec in header[1]])
        if len(specs) > 1:
            lose(agent, contact, header, parts)

    site._give = give  # type: ignore[method-assign]
    site.lend(1, task_row(1))
    site.settle(LOST_S + 4 * CALL_S)
    assert specs == [[SPEC], [SPEC]] and ("w1", 1, 1) in site.gifts


def test_who_misses_calls_is_no_longer_vouched_for_and_comes_back_when_it_answers() -> None:
    site = Site(1, 1)
    site.crown(1)
    site.settle(CALL_S)
    assert [joined for _, joined, *_ in site.words(1, "vouch") if joined] == [["w1", "w2"]]
    site.agents[2].alive = False
    site.settle((MISSED_CALLS + 1) * CALL_S)
    assert [gone for _, _, gone, *_ in site.words(1, "vouch") if gone] == [["w2"]]
    site.agents[2].alive = True
    site.settle(2 * CALL_S)
    assert [joined for _, joined, *_ in site.words(1, "vouch") if joined] == [["w1", "w2"], ["w2"]]


def test_a_deposed_master_says_that_it_has_nothing_and_gives_nothing_any_more() -> None:
    site = Site(1, 1)
    site.crown(1)
    site.settle()
    site.lend(1, *map(task_row, range(5)))
    site.crown(2, 2)
    site.settle(CALL_S)
    assert site.words(1, "reigns")[-1] == ["reigns", 0]
    assert site.agents[1].work.holding() == []
    assert site.words(2, "reigns")[-1] == ["reigns", 2]


def test_one_that_was_deposed_while_nobody_listened_says_so_when_it_is_back() -> None:
    site = Site(1, 1)
    site.crown(1)
    site.settle()
    site.agents[1].work.disconnected()
    site.crown(2, 2)
    said = len(site.words(1, "loans"))
    site.agents[1].work.connected(2, site.now)
    site.settle(CALL_S)
    assert site.words(1, "loans")[said:] == [["loans", []]]
    assert site.words(1, "reigns")[-1] == ["reigns", 0], "or it would be lent tasks, and return them, without end"


def test_who_is_no_master_hands_back_what_it_is_lent() -> None:
    site = Site(1, 1)
    site.crown(1)
    site.lend(2, task_row(0), task_row(1))
    assert site.words(2, "returned") == [["returned", [[0, 1], [1, 1]]]]
    assert site.words(2, "reigns") == [["reigns", 0]], "or they would be lent to it again at once"
    assert site.gifts == []


def test_a_master_that_is_back_names_all_that_it_vouches_for_and_nobody_else() -> None:
    """What it said of them before may have been lost with the connection."""
    site = Site(1, 1, 1)
    site.crown(1)
    site.settle(CALL_S)
    work = site.agents[1].work
    work.unreachable(3, site.now)
    work.disconnected()
    site.agents[3].alive = False
    site.crown(2, 2)
    site.crown(1, 3)
    site.settle(CALL_S)
    said = len(site.words(1, "vouch"))
    work.connected(3, site.now)
    site.step(site.agents[1])
    assert [(sorted(joined), gone) for _, joined, gone, _ in site.words(1, "vouch")[said:]] == [(["w1", "w2"], [])]


def test_a_loan_without_its_spec_is_handed_back() -> None:
    site = Site(1)
    site.crown(1)
    site.needs[99] = {"cores": 1.0}
    site.lend(1, task_row(0, spec=99), task_row(1))
    site.settle(CALL_S)
    assert site.words(1, "returned") == [["returned", [[0, 1]]]]
    assert given_to(site) == {1: "w1"}


def test_what_is_wanted_back_is_not_given() -> None:
    site = Site(1)
    site.crown(1)
    site.settle()
    site.lend(1, task_row(0, attempt=2), task_row(1))
    site.agents[1].work.dropped([[0, 2], [1, 7], [9, 1]], False, site.now)
    site.settle(CALL_S)
    assert given_to(site) == {1: "w1"}, "another attempt is not meant"


def test_a_gift_that_comes_before_one_has_heard_who_reigns_is_not_counted_against_it() -> None:
    site = Site(1, 1)
    site.crown(1, 1, 2)
    site.lend(1, *map(task_row, range(6)))
    site.settle(1.0)
    site.agents[2].work.reigns(1, site.agents[1].me, site.now)
    for _ in range(3):
        for agent in site.living():
            if agent.has:
                agent.end(next(iter(agent.has)))
        site.settle(1.0)
    assert len(site.agents[2].got) >= 2


def test_without_the_pools_master_a_site_goes_on_and_says_afterwards_what_it_did() -> None:
    site = Site(1, 1)
    site.crown(1)
    site.lend(1, *map(task_row, range(6)))
    site.settle(ROUND_S + CLAIM_S)
    site.agents[1].work.disconnected()
    site.said.clear()
    for _ in range(2):
        for agent in site.living():
            agent.end(next(iter(agent.has)))
        site.settle(5.0)
    assert len(site.gifts) == 6 and site.said == []
    site.agents[1].work.connected(1, site.now)
    site.step(site.agents[1])
    assert {task for _, task, _ in site.claimed()} == {2, 3, 4, 5}
    kinds = [header[0] for _, header in site.said]
    assert kinds.index("reigns") < kinds.index("claims") < kinds.index("loans"), "what is neither claimed nor there is lost"


# --- mad ones -------------------------------------------------------------------------------------------------------------------------

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
def test_a_mad_answer_harms_nobody_else(answer: object) -> None:
    site = Site(1, 1)
    site.crown(1)
    site.settle(1.0)
    site.agents[1].work.gathered(answer, site.now)
    site._give = lambda *gift: None if gift[1].node > 2 else Site._give(site, *gift)  # type: ignore[method-assign]
    site.step(site.agents[1])
    site.lend(1, *map(task_row, range(2)))
    site.settle(3 * CALL_S)
    assert len(site.agents[1].got) + len(site.agents[2].got) == 2


@pytest.mark.parametrize(
    "message",
    [["room"], ["room", None, 0], ["room", {"cores": None}, 0], ["room", {"cores": 1.0}, "x"], ["got", 1], ["got", 1, [5]], ["what"], []],
)
def test_a_mad_message_is_called_that(message: list[object]) -> None:
    site = Site(1, 1)
    site.crown(1)
    site.settle(1.0)
    with pytest.raises(MalformedMessage):
        site.agents[1].work.told(site.agents[2].me, message, site.now)


@pytest.mark.parametrize("payload", [None, [], [None, None], [[[1]], []], [[[7, {}, "((", "", {}, 0.0]], [], True], [{}, {}, {}]])
def test_a_mad_question_is_answered_all_the_same(payload: object) -> None:
    site = Site(1)
    work = site.agents[1].work
    work.turn(0.0)
    work.delivered("name", payload, 0.0)
    assert [effect[0] for effect in work.turn(0.0) if effect[0] != "alive"] == ["answer"]
