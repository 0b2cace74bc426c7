"""Accounts of shares, deadlines as far as the core judges them, and what changes both while a run goes on."""

from __future__ import annotations

import pytest

from pilotfish.core import state_snapshot
from pilotfish.core.apply import apply
from pilotfish.core.state import State
from pilotfish.core.tasks import run_deadlines
from pilotfish.core.tasks.fair_share import HALF_LIFE_S
from pilotfish.model import messages as m
from pilotfish.model.facts import TurnRecord, decode_record, encode_record
from pilotfish.model.states import ASSIGNED
from pilotfish.model.task import Request, TaskSpec
from tests.support.machine_stage import Stage
from tests.support.state_check import check, fingerprint

LONG = TaskSpec("python", request=Request(2.0))


def contest(stage: Stage) -> None:
    """Share ``has`` occupies 4 cores, share ``wants`` waits."""
    stage.join("w", cores=4.0)
    stage.work(LONG, 4, share="has")
    stage.work(LONG, 4, share="wants", weight=2.0)


def test_what_is_occupied_while_another_share_waits_is_charged_as_time_passes() -> None:
    stage = Stage()
    contest(stage)
    shares = stage.machine.state.shares
    before = shares["has"].used
    stage.wait(10.0, quietly=False)
    stage.open_run("later")
    assert shares["has"].used - before == pytest.approx(40.0, rel=0.01)
    assert (shares["wants"].used, shares["wants"].occupied, shares["has"].occupied) == (0.0, 0, 40_000)


def test_what_nobody_else_wants_costs_nothing() -> None:
    stage = Stage()
    stage.join("w", cores=4.0)
    stage.open_run("idle", share="idle")
    stage.work(LONG, 4, share="has")
    stage.wait(1000.0, quietly=False)
    stage.work(LONG, 4, share="wants")
    assert stage.machine.state.shares["has"].used == pytest.approx(0.0, abs=0.01)


def test_a_paused_run_does_not_count_as_one_that_waits() -> None:
    stage = Stage()
    contest(stage)
    stage.ask("pause", run=2)
    before = stage.machine.state.shares["has"].used
    stage.wait(1000.0, quietly=False)
    stage.ask("resume", run=2)
    assert stage.machine.state.shares["has"].used <= before + 0.01


def test_half_of_it_is_forgiven_in_an_hour() -> None:
    stage = Stage()
    contest(stage)
    stage.wait(100.0, quietly=False)
    stage.ask("cancel", run=1)
    account = stage.machine.state.shares["has"]
    before = account.used
    stage.wait(HALF_LIFE_S, quietly=False)
    stage.open_run("later")
    assert account.used == pytest.approx(before / 2, rel=0.01)


def test_a_share_lasts_as_long_as_its_runs() -> None:
    stage = Stage()
    contest(stage)
    stage.ask("cancel", run=1)
    stage.close_run(1)
    stage.ask("forget", run=1)
    assert list(stage.machine.state.shares) == ["wants"]


def test_accounts_survive_a_restart_and_a_snapshot() -> None:
    stage = Stage()
    contest(stage)
    stage.wait(10.0, quietly=False)
    stage.ask("set", run=2, priority=3, deadline=stage.now + 1e6)
    stage.restart()
    state = stage.machine.state
    assert state.shares["wants"].weight == 2.0 and state.shares["has"].used > 30.0
    again = State()
    for fact in state_snapshot.dump(state):
        record = decode_record(encode_record(TurnRecord(stage.now + 50.0, [fact])))
        apply(again, record.facts[0], record.at)
    check(again)
    assert fingerprint(again) == fingerprint(state)
    assert [shape.priority for shape in again.ready] == [shape.priority for shape in state.ready]


# --- changing a run ----------------------------------------------------------------------------------------------------------------


def test_a_run_can_be_moved_to_another_share_with_all_that_it_occupies() -> None:
    stage = Stage()
    contest(stage)
    row = stage.ask("set", run=1, share="wants", weight=5.0)
    shares = stage.machine.state.shares
    assert row["share"] == "wants"
    assert list(shares) == ["wants"]
    assert (shares["wants"].weight, shares["wants"].runs, shares["wants"].occupied) == (5.0, 2, 40_000)
    stage.ask("set", run=1, priority=1)
    assert shares["wants"].weight == 5.0
    stage.ask("set", run=1, share="own")
    assert (shares["own"].weight, shares["wants"].weight) == (1.0, 5.0)


def test_a_new_priority_holds_for_all_tasks_of_the_run_and_for_those_to_come() -> None:
    stage = Stage()
    link = stage.join("w")
    stage.work()
    (first,) = stage.work(TaskSpec("python", priority=7))
    (second,) = stage.work()
    stage.ask("set", run=3, priority=9)
    (third,) = stage.submit(3, TaskSpec("python", priority=-5))
    order = []
    for _ in range(3):
        stage.finish(link, wall_us=10_000_000)
        order += list(stage.held[link])
    assert order == [second.id, third.id, first.id]
    assert stage.ask("task", task="3.0")["spec"]["priority"] == 9


@pytest.mark.parametrize(
    "change",
    [{"weight": -1}, {"weight": "much"}, {"deadline": -5}, {"share": 7}, {"share": "x" * 300}, {"priority": 10**12}, {"priority": "high"}],
)
def test_nonsense_changes_nothing(change: dict[str, object]) -> None:
    stage = Stage()
    stage.work()
    before = stage.machine.state.runs[1].options
    assert isinstance(stage.ask("set", run=1, **change), m.Problem)
    assert stage.machine.state.runs[1].options is before


def test_an_ended_run_cannot_be_changed() -> None:
    stage = Stage()
    link = stage.join("w")
    stage.work()
    stage.finish(link)
    stage.close_run(1)
    assert "has ended" in stage.ask("set", run=1, priority=1).message


# --- deadlines ----------------------------------------------------------------------------------------------------------------------


def timed(stage: Stage, count: int, deadline_s: float, known_s: float) -> int:
    """What a run needs of which one task took ``known_s``, in cores; 0.0: none has ended."""
    link = stage.join("w", cores=4.0)
    run = stage.work(count=count + bool(known_s), deadline=stage.now + deadline_s)[0].shape.run
    if known_s:
        stage.finish(link, run.tasks[0], wall_us=round(known_s * 1e6))
    return run_deadlines.needed(run, stage.now, run_deadlines.pool_cores(stage.machine.state)) // 10_000


@pytest.mark.parametrize(
    ("count", "deadline_s", "known_s", "cores"),
    [
        (20, 1000.0, 0.0, 1),  # nothing is known: one shall run
        (20, 1000.0, 100.0, 2),  # 2,000 s of work in the 900 s before the last begins, and some more
        (20, 1e6, 100.0, 0),  # plenty of time
        (20, 200.0, 100.0, 0),  # hopeless: 22 cores of 4
        (20, 90.0, 100.0, 0),  # not one could end
    ],
)
def test_what_a_run_needs_to_be_in_time(count: int, deadline_s: float, known_s: float, cores: int) -> None:
    assert timed(Stage(), count, deadline_s, known_s) == cores


def test_after_its_deadline_a_run_is_one_like_others() -> None:
    stage = Stage()
    assert timed(stage, 20, 1000.0, 100.0) == 2
    stage.wait(1001.0, quietly=False)
    assert run_deadlines.needed(stage.machine.state.runs[1], stage.now, 40_000) == 0


def test_the_rows_of_runs_tell_of_deadlines_and_how_late_it_will_be() -> None:
    stage = Stage()
    link = stage.join("w")
    deadline = stage.now + 100.0
    tasks = stage.work(TaskSpec("python", time_s=50.0), 11, deadline=deadline, share="mine")
    assert stage.ask("run", run=1)["late_s"] is None
    stage.wait(20.0, quietly=False)
    stage.finish(link, tasks[0], wall_us=20_000_000)
    row = stage.ask("run", run=1)
    assert (row["share"], row["deadline"]) == ("mine", deadline)
    assert row["late_s"] == pytest.approx(120.0, abs=2.0)
    assert stage.ask("status")["shares"][0]["share"] == "mine"


# --- why --------------------------------------------------------------------------------------------------------------------------


def why(stage: Stage, task: str) -> list[str]:
    return [reason["code"] for reason in stage.ask("why", task=task)["reasons"]]


def test_a_task_says_that_it_is_the_turn_of_another_share() -> None:
    stage = Stage()
    contest(stage)
    stage.wait(10.0, quietly=False)
    assert why(stage, "1.3") == ["share", "busy"]
    text = stage.ask("why", task="1.3")["reasons"][0]["text"]
    assert text == "share wants comes first: it recently used less of the pool for its weight than share has"
    assert why(stage, "2.0") == ["busy"]


def test_a_task_says_that_another_run_has_a_higher_priority_or_a_deadline() -> None:
    stage = Stage()
    stage.join("w")
    stage.work()
    (low,) = stage.work()
    assert low.state != ASSIGNED and why(stage, "2.0") == ["busy"]
    stage.work(deadline=stage.now + 60.0)
    assert why(stage, "2.0") == ["deadline", "busy"]
    stage.ask("set", run=3, deadline=0.0)
    assert why(stage, "2.0") == ["busy"]
    stage.ask("set", run=3, priority=2)
    reason = stage.ask("why", task="2.0")["reasons"][0]
    assert (reason["code"], reason["commands"]) == ("priority", ["pilotfish set 2 --priority 2"])
