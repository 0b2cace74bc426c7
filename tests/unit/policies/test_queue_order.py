"""Who is next: priorities, deadlines, shares and age, and how a pool is divided in the long run."""

from __future__ import annotations

import pytest

from pilotfish.core.policy_interface import AssignmentProposal
from pilotfish.core.state import Run, Task
from pilotfish.model.states import ASSIGNED, RUNNING
from pilotfish.model.task import Request, TaskSpec
from pilotfish.policies.dispatcher import Dispatcher
from pilotfish.policies.matchers import LocalityMatcher
from pilotfish.policies.queue_order import QueueOrder
from tests.support.policy_clock import Clockwork
from tests.support.policy_stage import Idle


def placed(run: Run) -> int:
    return run.counts[ASSIGNED] + run.counts[RUNNING]


def order(stage: Idle) -> list[int]:
    return [shape.run.id for shape in QueueOrder(stage.machine.state, stage.now).shapes]


# --- one look ----------------------------------------------------------------------------------------------------------------------


def test_without_shares_the_higher_priority_goes_first_and_then_the_older_run() -> None:
    stage = Idle()
    for priority in (0, 5, 0, -1):
        stage.work(TaskSpec("python", priority=priority))
    assert order(stage) == [2, 1, 3, 4]
    assert not QueueOrder(stage.machine.state, stage.now).contested


def test_a_share_that_had_less_goes_before_one_that_had_more_but_after_a_higher_priority() -> None:
    stage = Idle()
    stage.work(share="much")
    stage.work(share="little")
    stage.work(TaskSpec("python", priority=1), share="much")
    stage.work(share="little")
    stage.machine.state.shares["much"].used = 10.0
    assert order(stage) == [3, 2, 4, 1]


def test_the_weight_of_a_share_says_how_much_more_it_may_have() -> None:
    stage = Idle()
    stage.work(share="light")
    stage.work(share="heavy", weight=4.0)
    shares = stage.machine.state.shares
    shares["light"].used, shares["heavy"].used = 10.0, 39.0
    assert order(stage) == [2, 1]
    shares["heavy"].used = 41.0
    assert order(stage) == [1, 2]


def test_a_paused_run_has_no_turn() -> None:
    stage = Idle()
    first, second = stage.work(share="a"), stage.work(share="b")
    stage.ask("pause", run=first[0].shape.run.id)
    assert order(stage) == [second[0].shape.run.id]


def test_what_is_free_at_once_is_divided_at_once() -> None:
    stage = Clockwork(lambda task: 100.0)
    one = stage.add(100, "one")
    three = stage.add(100, "three", weight=3.0)
    stage.hire("w", 16)
    assert (placed(one), placed(three)) == (4, 12)
    stage.hire("x", 8)
    assert (placed(one), placed(three)) == (6, 18)


def test_runs_without_a_share_come_in_order_and_share_with_those_that_name_one() -> None:
    stage = Clockwork(lambda task: 100.0)
    first, second, named = stage.add(100), stage.add(100), stage.add(100, "mine")
    stage.hire("w", 16)
    assert (placed(first), placed(second), placed(named)) == (8, 0, 8)


def test_tasks_of_several_cores_count_as_many() -> None:
    stage = Clockwork(lambda task: 100.0)
    narrow = stage.add(100, "narrow")
    wide = stage.work(TaskSpec("python", request=Request(4.0)), 100, share="wide")[0].shape.run
    stage.cores[1] = 16
    stage.join("w", cores=16.0)
    assert (placed(narrow), placed(wide)) == (8, 2)


def test_a_share_whose_inputs_are_everywhere_gets_its_part_at_once_and_no_more() -> None:
    stage = Idle()
    workers = [stage.enter(f"w{number}") for number in range(8)]
    for share in ("near", "far"):
        stage.options["share"] = share
        stage.need(*[{share: 1000}] * 20)
    for worker in workers:
        stage.holds(worker.id, "near")
    proposals = Dispatcher(LocalityMatcher()).propose(stage.view())
    given = [task.shape.run.options.share for proposal in proposals if isinstance(proposal, AssignmentProposal) for task in proposal.tasks]
    assert sorted(given) == ["far"] * 4 + ["near"] * 4


# --- in the long run ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "cores", "seconds"), [(1, 2, 0.05), (2, 1, 0.05), (1, 16, 0.05), (3, 2, 0.004), (1, 4, 3.0)])
def test_shares_of_one_and_three_get_one_and_three_core_seconds(workers: int, cores: int, seconds: float) -> None:
    stage = Clockwork(lambda task: seconds)
    for number in range(workers):
        stage.hire(f"w{number}", cores)
    count = round(2 * 150 * workers * cores)
    stage.add(count, "one")
    stage.add(count, "three", weight=3.0)
    stage.go(150 * seconds)
    assert stage.part("one") == pytest.approx(0.25, rel=0.05)


def test_long_and_short_tasks_get_the_same_time_not_the_same_number() -> None:
    stage = Clockwork(lambda task: 2.0 if task.shape.run.options.share == "long" else 0.05)
    stage.hire("w", 4)
    stage.add(400, "long")
    stage.add(10_000, "short")
    stage.go(200.0)
    assert stage.part("long") == pytest.approx(0.5, rel=0.05)


def test_a_newcomer_has_its_part_within_the_length_of_a_task() -> None:
    stage = Clockwork(lambda task: 0.5)
    stage.hire("w", 8)
    stage.add(2000, "old")
    stage.go(20.0)
    assert stage.part("old") == 1.0
    new = stage.add(2000, "new")
    stage.go(1.1)  # what runs and, as tasks are short, what was sent ahead
    assert placed(new) >= 4
    stage.forget_what_was_used()
    stage.go(30.0)
    assert stage.part("old") == pytest.approx(0.5, rel=0.05), "what it took when nobody else waited is not held against it"


def test_the_part_of_an_idle_share_goes_to_the_others() -> None:
    stage = Clockwork()
    stage.hire("w", 4)
    stage.add(40, "brief")
    stage.add(4000, "a")
    stage.add(4000, "b", weight=2.0)
    stage.go(5.0)
    stage.forget_what_was_used()
    stage.go(20.0)
    assert sum(stage.used.values()) == pytest.approx(80.0, rel=0.02)
    assert stage.part("a") == pytest.approx(1 / 3, rel=0.05)


def test_what_a_share_had_too_much_is_forgiven_in_time() -> None:
    def owed_s(hours: float) -> float:
        stage = Clockwork(lambda task: 1.0)
        stage.hire("w", 2)
        greedy = stage.add(10_000, "greedy")
        stage.add(10_000, "patient")
        stage.machine.state.shares["greedy"].used = 100.0
        for run in stage.machine.state.runs.values():
            stage.ask("pause", run=run.id)
        stage.go(5.0)
        stage.now += 3600.0 * hours
        for run in reversed(stage.machine.state.runs.values()):
            stage.ask("resume", run=run.id)
        before = len(greedy.ended)
        started = stage.now
        while len(greedy.ended) == before:
            stage.go(1.0)
        return stage.now - started

    at_once, later = owed_s(0.0), owed_s(3.0)
    assert at_once > 40 and later < at_once / 4


# --- deadlines ----------------------------------------------------------------------------------------------------------------------


def hundred_seconds(task: Task) -> float:
    return 100.0


def test_a_run_that_would_be_late_gets_what_it_needs_and_no_more() -> None:
    stage = Clockwork(hundred_seconds)
    stage.hire("w", 10)
    first = stage.add(1000)
    stage.go(101.0)
    urgent = stage.add(40, deadline=stage.now + 1100.0)
    stage.go(900.0)
    assert 3 <= placed(urgent) <= 7 and placed(first) + placed(urgent) == 10
    while len(urgent.ended) < 40:
        stage.go(10.0)
    assert stage.now <= urgent.options.deadline


def test_a_run_whose_deadline_is_far_waits_for_its_turn() -> None:
    stage = Clockwork(hundred_seconds)
    stage.hire("w", 10)
    stage.add(200)
    stage.go(101.0)
    relaxed = stage.add(20, deadline=stage.now + 1e6)
    stage.go(300.0)
    assert len(relaxed.ended) + placed(relaxed) <= 2, "one of them, to find out how long they take"


def test_of_two_runs_in_danger_the_one_with_the_earlier_deadline_goes_first() -> None:
    stage = Clockwork(hundred_seconds)
    stage.hire("w", 4)
    later = stage.add(30, deadline=stage.now + 1300.0)
    sooner = stage.add(10, deadline=stage.now + 700.0)
    stage.go(650.0)
    assert len(sooner.ended) == 10
    assert len(later.ended) < 20


@pytest.mark.parametrize("deadline_s", [300.0, 2000.0])
def test_a_run_that_is_late_anyway_does_not_keep_others_from_their_parts(deadline_s: float) -> None:
    stage = Clockwork(hundred_seconds)
    stage.hire("w", 10)
    stage.add(1000, "others")
    stage.add(1000, "hopeless", deadline=stage.now + deadline_s)
    stage.go(4000.0)
    stage.forget_what_was_used()
    stage.go(6000.0)
    assert stage.part("others") >= 0.45
