"""A task can run after other tasks have ended, whatever their results."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.model import messages as m
from pilotfish.model.states import TASK_STATES
from pilotfish.model.task import TaskSpec
from tests.support.machine_stage import Stage, fail
from tests.support.state_check import check
from tests.unit.core.test_state_snapshot import round_trip

SPEC = TaskSpec("exec", launch={"env": {"A": "1"}})


def chain(stage: Stage, cores: float = 8.0) -> tuple[int, int]:
    """Tasks 0 and 1, of which 1 needs 0, and task 2 after any end of both."""
    link = stage.join("w", cores=cores)
    run = stage.open_run("chain")
    stage.submit(run, SPEC, 3, {1: [0]}, {2: [0, 1]})
    return link, run


def state(stage: Stage, run: int, index: int) -> str:
    return TASK_STATES[stage.task(run, index).state]


def launches(stage: Stage) -> list[Any]:
    return [spec.launch for message in stage.sent(m.Assign) for spec in message.specs]


def test_it_runs_after_failures_and_knows_how_many_there_were() -> None:
    stage = Stage()
    link, run = chain(stage)
    assert state(stage, run, 2) == "waiting"
    stage.finish(link, stage.task(run, 0), failure=fail())
    assert [state(stage, run, index) for index in (0, 1, 2)] == ["failed", "failed", "assigned"]
    # Only one task failed by itself. The other one was skipped.
    assert launches(stage) == [{"env": {"A": "1", "PILOTFISH_FAILED_DEPENDENCIES": "1"}}]


def test_it_runs_after_successes_and_not_before_the_last_end() -> None:
    stage = Stage()
    link, run = chain(stage)
    stage.finish(link, stage.task(run, 0))
    assert state(stage, run, 2) == "waiting"
    stage.finish(link, stage.task(run, 1))
    assert state(stage, run, 2) == "assigned"
    assert launches(stage) == [{"env": {"A": "1", "PILOTFISH_FAILED_DEPENDENCIES": "0"}}]


def test_it_runs_after_a_cancelled_task_and_is_cancelled_with_the_run() -> None:
    stage = Stage()
    _, run = chain(stage)
    stage.ask("cancel", tasks=[f"{run}.0"])
    assert state(stage, run, 2) == "assigned"
    stage = Stage()
    _, run = chain(stage)
    stage.ask("cancel", run=run)
    assert state(stage, run, 2) == "cancelled"


def test_a_dependency_that_must_succeed_still_counts() -> None:
    stage = Stage()
    link = stage.join("w", cores=8.0)
    run = stage.open_run("both")
    stage.submit(run, SPEC, 3, {2: [0]}, {2: [0, 1]})
    stage.finish(link, stage.task(run, 0), failure=fail())
    assert state(stage, run, 2) == "failed"
    stage.finish(link, stage.task(run, 1))
    assert state(stage, run, 2) == "failed"


def test_it_may_be_added_after_the_failure() -> None:
    stage = Stage()
    link = stage.join("w", cores=8.0)
    run = stage.open_run("late")
    stage.submit(run, SPEC)
    stage.finish(link, stage.task(run, 0), failure=fail())
    stage.submit(run, SPEC, 1, after_any={0: [0]})
    assert state(stage, run, 1) == "assigned"
    assert launches(stage)[0]["env"]["PILOTFISH_FAILED_DEPENDENCIES"] == "1"


def test_it_survives_a_snapshot_and_a_restart() -> None:
    stage = Stage()
    _, run = chain(stage, cores=1.0)
    again = round_trip(stage.machine.state)
    check(again)
    assert again.runs[run].followers == stage.machine.state.runs[run].followers == {0: [2], 1: [2]}
    stage.restart()
    check(stage.machine.state)


def test_a_rerun_keeps_the_order() -> None:
    stage = Stage()
    link, run = chain(stage)
    stage.finish(link, stage.task(run, 0), failure=fail())
    stage.finish(link, stage.task(run, 2), failure=fail())
    stage.close_run(run)
    assert stage.ask("rerun", run=run)["tasks"] == 3
    stage.finish(link, stage.task(run, 0), failure=fail())
    assert [state(stage, run, index) for index in (0, 1, 2)] == ["failed", "failed", "assigned"]


def test_why_names_what_it_waits_for() -> None:
    stage = Stage()
    _, run = chain(stage)
    text = stage.ask("why", task=f"{run}.2")["reasons"][0]["text"]
    assert text == "it needs 2 other tasks first: 1.0 (assigned), 1.1 (waiting)"


@pytest.mark.parametrize("after_any", [{0: [0]}, {0: [7]}, {0: [-1]}, {5: [0]}])
def test_only_earlier_tasks_may_be_named(after_any: dict[int, list[int]]) -> None:
    stage = Stage()
    run = stage.open_run("wrong")
    with pytest.raises(IndexError):
        stage.submit(run, SPEC, 1, after_any=after_any)[0]
    assert stage.sent(m.Problem)
