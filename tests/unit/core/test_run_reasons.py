"""The state of a run in one word, and why it is in it."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.model import inputs as i
from pilotfish.model.task import Failure, TaskSpec
from tests.support.machine_stage import CLIENT, Stage

WRONG = Failure("exit", "task", "exit status 1")
NO_RETRY = TaskSpec("python", retries=0, time_s=10.0)


def why(stage: Stage, run: int = 1) -> dict[str, Any]:
    answer: dict[str, Any] = stage.ask("why", run=run)
    assert answer["state"] == stage.ask("run", run=run)["status"], "the row and the reasons agree"
    return answer


def test_the_state_of_a_run_follows_its_tasks() -> None:
    stage = Stage()
    run = stage.open_run()
    assert why(stage)["state"] == "open"
    (task,) = stage.submit(run, TaskSpec("python"))
    assert why(stage)["state"] == "waiting"
    assert why(stage)["sentence"].startswith("run 1 is waiting: task 1.0 is ready: ")
    stage.ask("pause", run=run)
    assert why(stage)["state"] == "paused"
    stage.ask("resume", run=run)
    link = stage.join("w")
    assert why(stage)["state"] == "running"
    stage.finish(link, task)
    stage.close_run(run)
    assert why(stage)["sentence"] == "run 1 is done: 1 done, 0 failed, 0 cancelled"
    assert stage.ask("run", run=run)["state"] == "done", "the old key keeps its three values"


def test_a_run_whose_client_went_away_is_incomplete() -> None:
    stage = Stage()
    stage.open_run()
    stage.tell(i.LinkClosed(CLIENT))
    stage.wait(3600.0)
    assert why(stage)["state"] == "incomplete"


def failed_run(*failures: Failure, cancelled: int = 0) -> Stage:
    """A run whose first tasks failed so; the next ones were cancelled."""
    stage = Stage()
    link = stage.join("w", cores=100.0)
    run = stage.open_run()
    tasks = stage.submit(run, NO_RETRY, len(failures) + cancelled + 1)
    stage.close_run(run)
    for task, failure in zip(tasks, failures, strict=False):
        stage.finish(link, task, failure=failure)
    if cancelled:
        stage.ask("cancel", tasks=[f"1.{index}" for index in range(len(failures), len(failures) + cancelled)], reason="too many failed")
    stage.finish(link, tasks[-1])
    return stage


def test_a_failed_run_tells_the_most_frequent_cause_and_an_example() -> None:
    late = Failure("time", "task", "it took too long\nby far")
    answer = why(failed_run(WRONG, late, late))
    text = "3 of 4 tasks failed, 2 of them [time], such as 1.1: it took too long"
    assert (answer["state"], answer["sentence"]) == ("failed", f"run 1 failed: {text}")
    (reason,) = answer["reasons"]
    assert reason == {
        "code": "time",
        "text": text,
        "commands": ["pilotfish tasks 1 --state failed", "pilotfish logs 1.1", "pilotfish rerun 1 --failed --time 20s"],
        "data": {"task": "1.1", "failed": 3},
    }


def test_a_failure_that_was_not_the_tasks_own_names_the_blame() -> None:
    assert why(failed_run(Failure("input", "user", "no such file")))["sentence"].endswith("such as 1.0: no such file (blame: user)")


def test_tasks_that_failed_because_another_did_are_told_of_last() -> None:
    stage = Stage()
    link = stage.join("w", cores=100.0)
    run = stage.open_run()
    first, *_ = stage.submit(run, NO_RETRY, 3, {1: [0], 2: [0]})
    stage.close_run(run)
    stage.finish(link, first, failure=WRONG)
    text = "3 of 3 tasks failed, 1 of them [exit], such as 1.0: exit status 1; and 2 that needed it"
    assert why(stage)["sentence"] == f"run 1 failed: {text}"


def test_a_failed_run_tells_what_was_given_up() -> None:
    assert why(failed_run(WRONG, cancelled=2))["sentence"].endswith("exit status 1; 2 cancelled: too many failed")


def test_a_cancelled_run_tells_what_is_there() -> None:
    stage = Stage()
    link = stage.join("w")
    done, _ = stage.work(count=2)
    stage.finish(link, done)
    stage.ask("cancel", run=1)
    answer = why(stage)
    assert answer["sentence"] == "run 1 is cancelled: 1 of 2 tasks cancelled, 1 done"
    assert answer["reasons"][0]["commands"] == ["pilotfish tasks 1 --state cancelled", "pilotfish results 1"]


def test_an_application_that_was_cancelled_without_tasks_is_not_taken_for_done() -> None:
    stage = Stage()
    stage.open_run(application="sim.py")
    stage.ask("cancel", run=1)
    answer = why(stage)
    assert answer["state"] == "cancelled" and answer["reasons"][0]["commands"] == ["pilotfish logs 1"]


def test_the_deadline_of_a_run_that_goes_on_is_told() -> None:
    stage = Stage()
    stage.work(deadline=stage.now + 7200.0)
    reason = why(stage)["reasons"][-1]
    assert reason["code"] == "deadline" and reason["text"] == "its deadline is in 2 h"
    assert reason["commands"] == ["pilotfish predict 1"] and reason["data"] == {"deadline": 8200.0}
    stage.wait(7200.0 + 60.0)
    assert why(stage)["reasons"][-1]["text"] == "its deadline was 1 min ago"


def test_a_run_whose_tasks_have_all_ended_waits_for_nothing_but_its_client() -> None:
    stage = Stage()
    run = stage.open_run()
    link = stage.join("w")
    (task,) = stage.submit(run, TaskSpec("python"))
    stage.finish(link, task)
    assert why(stage)["sentence"] == "run 1 is open: all its tasks have ended, and its program may still add some"
    stage.tell(i.LinkClosed(CLIENT))
    stage.wait(10.0)
    (reason,) = why(stage)["reasons"]
    assert reason["text"].endswith("before it closed the run, and the run ends in 20 s if the program does not come back")
    assert reason["data"] == {"ends_in_s": 20}
    stage.wait(25.0)
    assert why(stage)["state"] == "incomplete"
    assert "it submitted 1 task, 1 of them done, and may have wanted to submit more" in why(stage)["sentence"]
    row = stage.ask("run", run=run)
    assert row["ended_at"] == stage.machine.state.runs[run].end_times[0], "the wait for the program is not a part of the run"


@pytest.mark.parametrize(
    ("command", "fix"),
    [
        ("python longrun.py 'a b'", ["python longrun.py 'a b'"]),
        ("-- sim 3", ["pilotfish run --resume --name big -- sim 3"]),
        ("--param x=1..3 -- sim '{x}'", ["pilotfish run --resume --name big --param x=1..3 -- sim '{x}'"]),
        ("--dag flow.dag # rescue 3", ["pilotfish run flow.dag"]),
        ("sweep.py 7", ["pilotfish run --resume --name big sweep.py 7"]),
        ("-c", []),
        ("", []),
    ],
)
def test_an_incomplete_run_names_the_command_that_repeats_it(command: str, fix: list[str]) -> None:
    stage = Stage()
    stage.open_run(command=command, name="big")
    stage.tell(i.LinkClosed(CLIENT))
    stage.wait(3600.0)
    assert why(stage)["reasons"][0]["commands"] == fix


def test_a_stopped_pool_says_when_a_run_without_a_client_ends() -> None:
    stage = Stage()
    run = stage.open_run()
    link = stage.join("w")
    (task,) = stage.submit(run, TaskSpec("python"))
    stage.finish(link, task)
    stage.tell(i.LinkClosed(CLIENT))
    stage.ask("stop")
    stage.machine.inspect_only = True
    assert why(stage)["sentence"].endswith("when the pool runs again, the run ends if the program does not come back")
