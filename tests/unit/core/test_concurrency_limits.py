"""At most N tasks with one concurrency limit run at the same time."""

from __future__ import annotations

from pilotfish.core.state import Task
from pilotfish.model.states import READY, TASK_STATES, WAITING
from pilotfish.model.task import TaskSpec
from tests.support.machine_stage import Stage, fail
from tests.support.state_check import check
from tests.unit.core.test_state_snapshot import round_trip

TWO = TaskSpec("python", concurrency_limit=("fetch", 2))


def states(tasks: list[Task]) -> list[str]:
    return [TASK_STATES[task.state] for task in tasks]


def test_no_more_tasks_than_the_limit_are_ready_or_running() -> None:
    stage = Stage()
    link = stage.join("w", cores=8.0)
    tasks = stage.work(TWO, 4)
    assert states(tasks) == ["assigned", "assigned", "waiting", "waiting"]
    others = stage.submit(1, TaskSpec("python"), 2)
    assert states(others) == ["assigned", "assigned"]
    stage.finish(link, tasks[0])
    assert states(tasks) == ["done", "assigned", "assigned", "waiting"]


def test_a_retry_keeps_its_place_and_a_final_failure_frees_it() -> None:
    stage = Stage()
    link = stage.join("w", cores=8.0)
    tasks = stage.work(TaskSpec("python", retries=1, concurrency_limit=("fetch", 1)), 2)
    stage.finish(link, tasks[0], failure=fail())
    assert states(tasks) == ["assigned", "waiting"]
    stage.finish(link, tasks[0], failure=fail())
    assert states(tasks) == ["failed", "assigned"]


def test_a_task_counts_only_when_its_dependencies_are_done_and_a_larger_priority_goes_first() -> None:
    stage = Stage()
    link = stage.join("w", cores=8.0)
    run = stage.open_run("chain")
    first, second = stage.submit(run, TaskSpec("python", concurrency_limit=("x", 1)), 2, {1: [0]})
    urgent = stage.submit(run, TaskSpec("python", priority=5, concurrency_limit=("x", 1)), 1)[0]
    assert states([first, second, urgent]) == ["assigned", "waiting", "waiting"]
    stage.finish(link, first)
    assert states([second, urgent]) == ["waiting", "assigned"]
    stage.finish(link, urgent)
    assert states([second]) == ["assigned"]


def test_cancelled_tasks_free_their_places_and_never_get_one() -> None:
    stage = Stage()
    stage.join("w", cores=8.0)
    tasks = stage.work(TWO, 5)
    stage.ask("cancel", tasks=["1.0", "1.2"])
    assert states(tasks) == ["cancelled", "assigned", "cancelled", "assigned", "waiting"]
    stage.ask("cancel", run=1)
    assert set(states(tasks)) == {"cancelled"}


def test_runs_have_limits_of_their_own() -> None:
    stage = Stage()
    stage.join("w", cores=8.0)
    assert states([*stage.work(TWO, 3), *stage.work(TWO, 3)]).count("assigned") == 4


def test_limits_survive_a_snapshot_and_a_restart() -> None:
    stage = Stage()
    stage.join("w", cores=1.0)
    tasks = stage.work(TWO, 4)
    assert sorted(task.state for task in tasks)[0] == WAITING and READY in [task.state for task in tasks]
    check(round_trip(stage.machine.state))
    stage.restart()
    check(stage.machine.state)


def test_why_names_the_limit() -> None:
    stage = Stage()
    stage.join("w", cores=8.0)
    stage.work(TWO, 3)
    reason = stage.ask("why", task="1.2")["reasons"][0]
    assert reason["text"] == "at most 2 tasks with the limit 'fetch' run at the same time, and 2 are ready or running"
