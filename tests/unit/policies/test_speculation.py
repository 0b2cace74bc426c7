"""Which tasks get a second attempt, where, and when."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.core.policy_interface import CopyProposal
from pilotfish.core.state import State, Task, Worker
from pilotfish.model.task import Request, TaskSpec
from pilotfish.policies.dispatcher import Dispatcher
from pilotfish.policies.matchers import LocalityMatcher
from pilotfish.policies.speculation import INTERVAL_S, LATE_FACTOR, MIN_RUN_S, ExpectedSeconds, Speculation, forecast
from tests.support.machine_stage import Stage

USUAL_S = 10.0


class Tail(Stage):
    """Three tasks have taken ten seconds each; the fourth runs at ``slow``."""

    def __init__(self, workers: int = 1, **options: Any) -> None:
        self.fifo = Dispatcher(LocalityMatcher())
        super().__init__(policy=self.fifo)
        slow = self.join("slow")
        self.tasks = self.work(count=4, **{"speculate": True, **options})
        for task in self.tasks[:3]:
            self.finish(slow, task, wall_us=int(USUAL_S * 1e6))
        self.straggler = self.tasks[3]
        self.started(slow, self.straggler)
        for number in range(workers):
            self.join(f"idle{number}")

    def expect(self, stealing: bool = True, **seconds: float) -> None:
        def expected_seconds(state: State, task: Task, worker: Worker) -> float | None:
            return seconds.get(worker.id)

        self.fifo.speculation = Speculation(stealing, expected_seconds)
        self.machine.decide_again = True
        self.tell()

    def pass_time(self, seconds: float) -> None:
        self.wait(seconds, quietly=False)

    @property
    def copies(self) -> dict[str, int]:
        placed = [twin.worker.id for twin in self.machine.state.copies.values() if twin.worker is not None]
        return {worker: placed.count(worker) for worker in placed}


def test_a_task_that_takes_half_as_long_again_as_the_others_gets_a_copy() -> None:
    stage = Tail()
    stage.pass_time(LATE_FACTOR * USUAL_S - 1.0)
    assert not stage.copies
    stage.pass_time(1.0 + INTERVAL_S)
    assert stage.copies == {"idle0": 1}


def test_nobody_gets_copies_who_did_not_ask_for_them() -> None:
    for wish in (None, False):
        stage = Tail(speculate=wish)
        stage.pass_time(10 * USUAL_S)
        assert not stage.copies


def test_a_pool_that_steals_does_so_for_everybody_who_does_not_object() -> None:
    stage = Tail(speculate=None)
    stage.expect(slow=100.0, idle0=20.0)
    stage.pass_time(MIN_RUN_S + INTERVAL_S)
    assert stage.copies == {"idle0": 1}
    stage = Tail(speculate=False)
    stage.expect(slow=100.0, idle0=20.0)
    stage.pass_time(MIN_RUN_S + INTERVAL_S)
    assert not stage.copies


def test_nothing_is_said_of_tasks_of_which_little_is_known() -> None:
    stage = Stage()
    slow = stage.join("slow")
    first, second = stage.work(count=2, speculate=True)
    stage.finish(slow, first, wall_us=1000)
    stage.started(slow, second)
    stage.join("idle")
    stage.wait(100.0, quietly=False)
    assert not stage.machine.state.copies


def test_what_is_ready_goes_first() -> None:
    stage = Tail()
    stage.pass_time(LATE_FACTOR * USUAL_S - 1.0)
    (ready,) = stage.work()
    assert ready.worker is not None and ready.worker.id == "idle0"
    stage.pass_time(10.0)
    assert not stage.copies


def test_room_is_not_kept_from_a_task_that_waits_for_it() -> None:
    """The worker has one core free of two, and what is ready needs both."""
    stage = Tail(workers=0)
    wide = stage.join("wide", cores=2.0)
    (long,) = stage.work()
    stage.started(wide, long)
    stage.work(TaskSpec("python", request=Request(2.0)))
    stage.pass_time(10 * USUAL_S)
    assert not stage.copies


def test_copies_take_a_tenth_of_the_pool_at_most_but_one_is_always_allowed() -> None:
    stage = Tail(workers=30)
    more = stage.work(count=10, speculate=True)
    for link in range(2, 5):
        stage.finish(link, wall_us=int(USUAL_S * 1e6))
    for task in more:
        if task.worker is not None:
            stage.started(int(task.worker.id[4:]) + 2, task)
    stage.pass_time(4 * USUAL_S)
    assert sum(stage.copies.values()) == 3


def test_one_that_fits_nowhere_else_does_not_keep_others_from_their_copies() -> None:
    stage = Tail()
    wide = stage.join("wide", cores=2.0)
    large = stage.work(TaskSpec("python", request=Request(2.0)), count=4, speculate=True)
    for task in large[:3]:
        stage.finish(wide, task, wall_us=int(USUAL_S * 1e6))
    stage.started(wide, large[3])
    stage.machine.state.workers["wide"].started[large[3]] -= 50.0
    stage.shadow.workers["wide"].started[stage.shadow.task(large[3].id)] -= 50.0
    stage.pass_time(LATE_FACTOR * USUAL_S + INTERVAL_S)
    assert stage.straggler in stage.machine.state.copies


def test_a_paused_run_gets_copies_when_it_goes_on() -> None:
    stage = Tail()
    stage.ask("pause", run=1)
    stage.pass_time(3 * USUAL_S)
    assert not stage.copies
    stage.ask("resume", run=1)
    stage.pass_time(2 * INTERVAL_S)
    assert stage.copies == {"idle0": 1}


def test_a_copy_goes_where_it_would_end_before_the_first_attempt() -> None:
    stage = Tail(workers=3)
    stage.expect(slow=100.0, idle0=95.0, idle1=30.0, idle2=40.0)
    stage.pass_time(MIN_RUN_S + INTERVAL_S)
    assert stage.copies == {"idle1": 1}


def test_no_copy_is_made_that_would_end_too_late() -> None:
    stage = Tail()
    stage.expect(slow=100.0, idle0=90.0)
    stage.pass_time(150.0)
    assert not stage.copies
    stage.pass_time(60.0)
    assert stage.copies == {"idle0": 1}, "by now it is later than a copy would take"


def test_a_worker_whose_time_is_nearly_over_gets_no_copy() -> None:
    stage = Tail(workers=0)
    stage.join("ends", ends_in_s=LATE_FACTOR * USUAL_S + USUAL_S / 2)
    stage.pass_time(LATE_FACTOR * USUAL_S + INTERVAL_S)
    assert not stage.copies


def test_another_machine_is_better_than_the_same() -> None:
    stage = Tail(workers=0)
    stage.machine.state.workers["slow"].info = {"hostname": "a"}
    stage.shadow.workers["slow"].info = {"hostname": "a"}
    stage.join("beside", info={"hostname": "a"})
    stage.join("elsewhere", info={"hostname": "b"})
    stage.pass_time(LATE_FACTOR * USUAL_S + INTERVAL_S)
    assert stage.copies == {"elsewhere": 1}


def test_a_worker_that_fails_tasks_gets_no_copies() -> None:
    stage = Tail()
    stage.machine.state.workers["idle0"].streak = {1: None}
    stage.shadow.workers["idle0"].streak = {1: None}
    stage.pass_time(10 * USUAL_S)
    assert not stage.copies


def test_a_pool_in_which_nobody_speculates_is_not_woken_for_it() -> None:
    stage = Tail(speculate=None)
    assert stage.fifo.speculation.next_look_at(stage.machine._policy_view()) is None
    stage = Tail()
    assert stage.fifo.speculation.next_look_at(stage.machine._policy_view()) is not None


@pytest.mark.parametrize("expected_seconds", [None, lambda state, task, worker: 50.0], ids=["no forecast", "forecast"])
def test_what_began_a_moment_ago_gets_no_copy(expected_seconds: ExpectedSeconds | None) -> None:
    speculation = Speculation(True, expected_seconds)
    stage = Tail()
    proposals: list[CopyProposal] = speculation.propose(stage.machine._policy_view())
    assert not proposals


def test_a_forecast_is_believed_when_it_was_learnt_from_some_tasks() -> None:
    stage = Tail()
    (unknown,) = stage.work(TaskSpec("python", name="another"))
    state = stage.machine.state
    assert forecast(state, stage.straggler, state.workers["idle0"]) == pytest.approx(USUAL_S, rel=0.5)
    assert forecast(state, unknown, state.workers["idle0"]) is None
