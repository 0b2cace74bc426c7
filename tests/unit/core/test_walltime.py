"""Workers whose time is nearly over, as the master sees them."""

from __future__ import annotations

import random

from pilotfish.core.state import Task
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.settings import PoolSettings
from pilotfish.model.states import DONE, DRAINING, READY, RUNNING
from pilotfish.model.task import TaskSpec
from tests.support.machine_stage import Stage


def test_a_worker_that_says_that_it_ends_soon_gets_no_more_and_finishes_what_it_runs() -> None:
    stage = Stage()
    link = stage.join("w", ends_in_s=60.0)
    first, second = stage.work(count=2)
    stage.started(link, first)
    stage.tell(i.AgentMessage(link, m.Draining("nearly over")))
    assert stage.machine.state.workers["w"].state == DRAINING
    stage.tell(i.AgentMessage(link, m.Draining("nearly over")))
    stage.finish(link, first)
    assert (first.state, second.state) == (DONE, READY)


def test_what_is_cut_off_by_the_end_of_a_worker_is_charged_to_nobody() -> None:
    stage = Stage()
    link = stage.join("w", ends_in_s=60.0)
    (task,) = stage.work()
    stage.started(link, task)
    assert task.state == RUNNING
    stage.tell(i.AgentMessage(link, m.Draining("nearly over")))
    stage.tell(i.AgentMessage(link, m.Leave("the time of this pilot is over")))
    assert task.state == READY and task.failure_counts is None


def cut_off(stage: Stage, link: int, task: Task, ran_s: float) -> None:
    stage.tell(i.AgentMessage(link, m.Leave("the time of this pilot is over", [(task.id, task.attempt, ran_s)])))


def test_a_task_that_was_cut_off_waits_for_a_worker_with_more_time_than_it_had() -> None:
    stage = Stage()
    stage.open_run()
    link = stage.join("old", ends_in_s=1000.0)
    stage.wait(600.0, quietly=False)
    (task,) = stage.work()
    stage.wait(400.0, quietly=False)
    cut_off(stage, link, task, 400.0)
    assert task.state == READY and task.failure_counts is not None and not task.failure_counts.losses
    stage.join("short", ends_in_s=300.0)
    assert task.state == READY
    stage.join("long", ends_in_s=5000.0)
    assert task.worker is stage.machine.state.workers["long"]


def test_one_that_has_only_little_more_is_not_worth_another_try_late_in_its_life() -> None:
    stage = Stage()
    stage.join("older", ends_in_s=1900.0)
    filler = stage.work()
    link = stage.join("old", ends_in_s=1000.0)
    stage.wait(300.0, quietly=False)
    (task,) = stage.work()
    stage.wait(699.0, quietly=False)
    cut_off(stage, link, task, 700.0)
    stage.finish(1, *filler)
    assert task.state == READY, "900 s are left there, of 1900"
    stage.join("long", ends_in_s=1100.0)
    assert task.worker is stage.machine.state.workers["long"]


def test_a_worker_that_has_just_begun_is_tried_even_if_it_has_little_more() -> None:
    stage = Stage()
    stage.open_run()
    link = stage.join("first", ends_in_s=1000.0)
    stage.wait(200.0, quietly=False)
    (task,) = stage.work()
    cut_off(stage, link, task, 800.0)
    stage.join("second", ends_in_s=1000.0)
    assert task.worker is stage.machine.state.workers["second"]


def test_a_task_that_outlived_a_whole_pilot_goes_only_where_pilots_live_longer() -> None:
    stage = Stage()
    link = stage.join("first", ends_in_s=1000.0)
    (task,) = stage.work()
    cut_off(stage, link, task, 995.0)
    stage.join("second", ends_in_s=999.0)
    assert task.state == READY
    stage.restart()
    stage.join("third", ends_in_s=1000.0)
    task = stage.task(1, 0)
    assert task.state == READY and task.attempt == 1
    stage.join("endless")
    assert task.worker is stage.machine.state.workers["endless"]


def test_however_often_it_is_cut_off_the_number_of_tries_is_bounded() -> None:
    """Pilots of all ages come by, and it never ends: it must not be begun again and again for ever."""
    stage = Stage(PoolSettings(beat_s=1000.0, lease_s=5000.0))
    (task,) = stage.work()
    dice = random.Random(1)
    for number in range(60):
        life, age = 3600.0, dice.random() * 3500.0
        filler = stage.work(TaskSpec("python", priority=5))
        link = stage.join(f"w{number}", ends_in_s=life)
        stage.wait(age, quietly=False)
        stage.finish(link, *filler)
        if task.worker:
            cut_off(stage, link, task, life - age)
        else:
            stage.tell(i.AgentMessage(link, m.Leave("bored")))
    assert 2 <= task.attempt <= 25 and task.state == READY


def test_many_tasks_that_were_cut_off_are_few_shapes() -> None:
    stage = Stage()
    tasks = stage.work(count=300)
    link = stage.join("w", cores=300.0, ends_in_s=4000.0)
    stage.tell(i.AgentMessage(link, m.Leave("over", [(task.id, 1, 100.0 + 5 * place) for place, task in enumerate(tasks)])))
    assert len(stage.machine.state.ready) < 20


def test_a_worker_that_falls_silent_after_its_end_has_ended_in_order() -> None:
    stage = Stage()
    link = stage.join("w", ends_in_s=60.0)
    (task,) = stage.work()
    stage.started(link, task)
    stage.wait(50.0, quietly=False)
    stage.tell(i.LinkClosed(link))
    stage.wait(600.0)
    assert "w" not in stage.machine.state.workers
    assert task.state == READY and (task.failure_counts is None or not task.failure_counts.losses)


def test_a_task_that_is_begun_again_and_again_is_told_of_whatever_ends_its_workers() -> None:
    stage = Stage()
    (task,) = stage.work()
    for number in range(6):
        link = stage.join(f"w{number}")
        told = [row for row in stage.ask("status")["warnings"] if row["code"] == "cut-off"]
        assert bool(told) == (number >= 4), number
        stage.tell(i.AgentMessage(link, m.Leave("told to end (SIGTERM)")))
    stage.join("last")
    answer = stage.ask("why", task="1.0")
    assert answer["reasons"][0]["code"] == "cut-off" and "started 7 times" in answer["sentence"] and task.failure_counts is None
