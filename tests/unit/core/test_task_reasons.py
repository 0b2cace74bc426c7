"""Every reason code can be reached, is true, and names a way out; taking that way makes the task run."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.core.explain import task_reasons
from pilotfish.core.state import Task
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.settings import PoolSettings
from pilotfish.model.states import ASSIGNED, FAILED, READY, RUNNING
from pilotfish.model.task import Request, TaskSpec
from tests.support.machine_stage import CLIENT, Stage, fail


def why(stage: Stage, task: Task) -> dict[str, Any]:
    answer = task_reasons.explain_task(stage.machine, task)
    assert answer["reasons"], answer
    assert answer["sentence"].startswith(f"task {task.id >> 32}.")
    return answer


def codes(stage: Stage, task: Task) -> list[str]:
    return [reason["code"] for reason in why(stage, task)["reasons"]]


def remedies(stage: Stage, task: Task) -> list[str]:
    return [command for reason in why(stage, task)["reasons"] for command in reason["commands"]]


def test_a_pool_without_workers_says_so_and_how_to_get_some() -> None:
    stage = Stage()
    (task,) = stage.work()
    assert codes(stage, task) == ["no-site", "no-workers"]
    assert any("workers --local-cores" in remedy for remedy in remedies(stage, task))
    stage.ask("workers_set", local=2)
    assert codes(stage, task) == ["starting"]
    stage.tell(i.PilotAccepted("local-1", "job"))
    stage.join("local-1", pilot="local-1", cores=2.0)
    assert task.state == ASSIGNED


def test_workers_that_do_not_start_are_held_and_can_be_tried_again() -> None:
    stage = Stage()
    (task,) = stage.work()
    stage.ask("workers_set", local=2)
    for number in range(1, 4):
        stage.tell(i.PilotEndReported(f"local-{number}", False, "it cannot start"), after_s=20)
        stage.wait(20)
    assert codes(stage, task) == ["held"]
    assert "it cannot start" in why(stage, task)["reasons"][0]["text"]
    assert any("workers --local-cores" in remedy for remedy in remedies(stage, task))
    stage.ask("workers_set", local=2)
    assert codes(stage, task) == ["starting"]


def test_a_paused_run_says_so_and_resuming_it_helps() -> None:
    stage = Stage()
    run = stage.open_run()
    stage.ask("pause", run=run)
    (task,) = stage.submit(run, TaskSpec("python"))
    stage.join("w")
    assert "paused" in codes(stage, task)
    assert f"pilotfish resume {run}" in remedies(stage, task)
    stage.ask("resume", run=run)
    assert task.state == ASSIGNED


def test_a_request_that_fits_nobody_says_what_is_missing() -> None:
    stage = Stage()
    stage.join("w", cores=2.0)
    (task,) = stage.work(TaskSpec("python", request=Request(8.0)))
    assert codes(stage, task) == ["too-big"]
    assert "8 cores asked for, the largest worker has 2 cores" in why(stage, task)["sentence"]
    assert "pilotfish workers --local-cores 8" in remedies(stage, task)
    stage.join("large", cores=8.0)
    assert task.state == ASSIGNED


def test_more_cores_than_this_machine_has_are_not_advised() -> None:
    stage = Stage()
    stage.join("w", cores=1.0, info={"cores": 2})
    small, large = (stage.work(TaskSpec("python", request=Request(cores)))[0] for cores in (2.0, 64.0))
    assert "pilotfish workers --local-cores 2" in remedies(stage, small)
    assert not [remedy for remedy in remedies(stage, large) if "--local-cores" in remedy]
    assert "this machine has 2 cores; for larger machines, add a site: pilotfish site add --help" in remedies(stage, large)


def test_a_request_that_no_single_worker_can_meet_is_too_big_as_well() -> None:
    stage = Stage()
    stage.join("many-cores", cores=8.0, capacity={"memory": 1000.0})
    stage.join("much-memory", cores=1.0, capacity={"memory": 9000.0})
    (task,) = stage.work(TaskSpec("python", request=Request(8.0, memory=9000)))
    assert codes(stage, task) == ["too-big"]


def test_a_wish_for_tags_that_nobody_has_names_them() -> None:
    stage = Stage()
    stage.join("w")
    (task,) = stage.work(TaskSpec("python", tags={"gpu": "a100"}))
    assert codes(stage, task) == ["tags"]
    assert "gpu=a100" in why(stage, task)["sentence"]
    stage.join("tagged", tags={"gpu": "a100"})
    assert task.state == ASSIGNED


def test_a_task_that_would_not_end_in_time_waits_for_a_worker_with_more() -> None:
    stage = Stage()
    stage.join("short", ends_in_s=100.0)
    (task,) = stage.work(TaskSpec("python", time_s=500.0))
    assert codes(stage, task) == ["walltime"]
    assert any("--time" in remedy for remedy in remedies(stage, task))
    stage.join("long", ends_in_s=1000.0)
    assert task.state == ASSIGNED


def test_a_full_disk_is_said_and_work_goes_on_when_there_is_room() -> None:
    stage = Stage()
    (task,) = stage.work()
    stage.tell(i.JournalSpaceChanged(True))
    stage.join("w")
    assert "disk-full" in codes(stage, task)
    assert task.state == READY
    stage.tell(i.JournalSpaceChanged(False))
    assert task.state == ASSIGNED


def test_a_worker_out_of_reach_is_said_and_its_return_helps() -> None:
    stage = Stage()
    link = stage.join("w")
    stage.tell(i.LinkClosed(link))
    (task,) = stage.work()
    assert codes(stage, task) == ["out-of-reach"]
    stage.join("w")
    assert task.state == ASSIGNED
    stage.tell(i.LinkClosed(stage.links))
    assert codes(stage, task) == ["out-of-reach", "placed"]


def test_a_quarantined_worker_is_named_with_the_command_that_ends_its_quarantine() -> None:
    stage = Stage(PoolSettings(quarantine_after=1))
    stage.join("good")
    hole = stage.join("hole")
    last = stage.work(count=9)[-1]
    stage.finish(hole, failure=fail(blame="worker"))
    (reason,) = stage.ask("why", worker="hole")["reasons"]
    assert reason["code"] == "quarantine" and reason["commands"] == ["pilotfish workers --end-quarantine hole"]
    assert codes(stage, last) != ["quarantine"]
    stage.ask("quarantine_clear", worker="hole")
    assert stage.machine.state.workers["hole"].held


def test_a_suspect_says_that_it_must_run_alone() -> None:
    stage = Stage()
    (task,) = stage.work()
    for name in ("a", "b"):
        stage.join(name)
        stage.lose(name)
    assert "suspect" in codes(stage, task)


def test_a_busy_pool_counts_the_others() -> None:
    stage = Stage()
    stage.join("w")
    tasks = stage.work(count=4)
    assert codes(stage, tasks[-1]) == ["busy"]


def test_a_task_that_needs_others_names_the_first_of_them() -> None:
    stage = Stage()
    run = stage.open_run()
    first, second = stage.submit(run, TaskSpec("python"), 2, {1: [0]})
    assert codes(stage, second) == ["waits"]
    assert f"pilotfish why {run}.0" in remedies(stage, second)
    stage.join("w")
    assert first.state == ASSIGNED


@pytest.mark.parametrize("seen", [False, True])
def test_a_placed_task_names_its_worker(seen: bool) -> None:
    stage = Stage()
    link = stage.join("w")
    (task,) = stage.work()
    if seen:
        stage.started(link, task)
    assert task.state == (RUNNING if seen else ASSIGNED)
    assert codes(stage, task) == ["placed"]
    assert "w" in why(stage, task)["sentence"]


@pytest.mark.parametrize(("cause", "advised"), [("time", "pilotfish rerun 1 --failed --time 20s"), ("version", None)])
def test_a_task_that_never_ran_is_run_again_like_the_task_that_it_needs(cause: str, advised: str | None) -> None:
    stage = Stage()
    run = stage.open_run()
    first, second = stage.submit(run, TaskSpec("python", time_s=10.0), 2, {1: [0]})
    link = stage.join("w")
    stage.finish(link, first, failure=fail(cause))
    assert second.state == FAILED
    assert remedies(stage, second) == [command for command in (f"pilotfish why {run}.0", advised) if command]


def test_a_failed_task_gives_its_cause_and_how_to_try_again() -> None:
    stage = Stage()
    link = stage.join("w")
    (task,) = stage.work()
    stage.finish(link, task, failure=fail("missing-input"))
    assert task.state == FAILED
    assert codes(stage, task) == ["missing-input"]
    assert any("rerun" in remedy for remedy in remedies(stage, task))


def test_a_program_that_failed_in_a_sandbox_is_told_how_to_get_files() -> None:
    stage = Stage()
    link = stage.join("w")
    for sandbox in (True, False):
        (task,) = stage.work(TaskSpec("exec", launch={"sandbox": sandbox}))
        stage.finish(link, task, failure=fail("exit"))
        assert any("--input FILE" in remedy for remedy in remedies(stage, task)) is sandbox


def test_ended_tasks_say_how_they_ended() -> None:
    stage = Stage()
    link = stage.join("w")
    done, cancelled = stage.work(count=2)
    stage.finish(link, done)
    stage.ask("cancel", tasks=["1.1"], reason="not needed")
    assert codes(stage, done) == ["done"]
    assert codes(stage, cancelled) == ["cancelled"]
    assert "not needed" in why(stage, cancelled)["sentence"]


def test_runs_and_workers_answer_too() -> None:
    stage = Stage()
    run = stage.open_run()
    assert task_reasons.explain_run(stage.machine, stage.machine.state.runs[run])["reasons"][0]["code"] == "open"
    (task,) = stage.submit(run, TaskSpec("python"))
    assert task_reasons.explain_run(stage.machine, stage.machine.state.runs[run])["reasons"][0]["code"] == "tasks"
    link = stage.join("w")
    worker = stage.machine.state.workers["w"]
    assert task_reasons.explain_worker(stage.machine, worker)["reasons"][0]["code"] == "busy"
    assert task_reasons.explain_run(stage.machine, stage.machine.state.runs[run])["sentence"] == "run 1 is running: 1 task is at workers"
    stage.finish(link, task)
    assert task_reasons.explain_worker(stage.machine, worker)["reasons"][0]["code"] == "idle"
    stage.tell(i.LinkClosed(link))
    assert task_reasons.explain_worker(stage.machine, worker)["reasons"][0]["code"] == "out-of-reach"
    stage.close_run(run)
    assert task_reasons.explain_run(stage.machine, stage.machine.state.runs[run])["state"] == "done"


def test_warnings_tell_of_what_can_never_run() -> None:
    stage = Stage()
    stage.join("w")
    stage.work(TaskSpec("python", request=Request(8.0)), count=3)
    assert [warning.code for warning in task_reasons.warnings(stage.machine)] == ["too-big"]


def test_a_look_at_the_output_of_a_task_whose_worker_is_silent_is_answered_all_the_same() -> None:
    stage = Stage()
    link = stage.join("w")
    (task,) = stage.work()
    stage.started(link, task)
    stage.tell(i.ClientMessage(CLIENT, m.Ask(7, "tail", {"task": "1.0"})))
    assert stage.sent(m.Peek)
    effects = stage.wait(60)
    answers = [effect.message for effect in effects if hasattr(effect, "message") and isinstance(effect.message, m.Answer)]
    assert [answer.query for answer in answers] == [7]
