"""Tasks go where their inputs are, or where they rank highest; all workers are looked at together."""

from __future__ import annotations

from pilotfish.core.state import FailureCounts, Task
from pilotfish.model.task import Request, TaskSpec
from pilotfish.policies.matchers import MAX_TASKS, prefer
from tests.support.policy_stage import Idle


def preferred(stage: Idle) -> dict[str, list[Task]]:
    view = stage.view()
    return prefer(view, view.workers, stage.shapes())


def test_a_task_goes_where_its_input_is() -> None:
    stage = Idle()
    tasks = stage.need({"x": 100}, {"y": 100})
    stage.enter("has y", holds=["y"])
    stage.enter("has x", holds=["x"])
    assert preferred(stage) == {"has x": [tasks[0]], "has y": [tasks[1]]}


def test_the_more_of_its_inputs_are_there_the_better() -> None:
    stage = Idle()
    (task,) = stage.need({"small": 10, "large": 1000})
    stage.enter("little", holds=["small"])
    stage.enter("much", holds=["large"])
    assert preferred(stage) == {"much": [task]}
    stage.enter("all", holds=["small", "large"])
    assert preferred(stage) == {"all": [task]}


def test_all_are_looked_at_together_so_that_nobody_takes_what_another_has_more_of() -> None:
    """Served in turn, the first worker would take the task that only the second one has the input of."""
    stage = Idle()
    tasks = stage.need({"x": 100}, {"x": 100, "y": 1000})
    stage.enter("first", holds=["x"])
    stage.enter("second", holds=["x", "y"])
    assert preferred(stage) == {"first": [tasks[0]], "second": [tasks[1]]}


def test_a_task_is_named_for_one_worker_and_a_worker_for_no_more_than_it_has_room_for() -> None:
    stage = Idle()
    tasks = stage.need(*[{"x": 100}] * 5)
    stage.enter("a", holds=["x"], cores=2.0)
    stage.enter("b", holds=["x"])
    found = preferred(stage)
    assert {name: len(mine) for name, mine in found.items()} == {"a": 2, "b": 1}
    named = [task for mine in found.values() for task in mine]
    assert len(set(named)) == 3 and set(named) == set(tasks[:3]), "the oldest first"


def test_room_is_counted_over_all_kinds_of_tasks() -> None:
    stage = Idle()
    stage.need({"x": 100}, spec=TaskSpec("python", request=Request(2.0)))
    stage.need({"x": 100}, spec=TaskSpec("python", request=Request(1.0)))
    stage.enter("w", cores=2.0, holds=["x"])
    assert sum(len(mine) for mine in preferred(stage).values()) == 1


def test_tasks_without_inputs_and_ranks_are_no_concern_of_this() -> None:
    stage = Idle()
    stage.need({}, {})
    stage.enter("w", holds=["x"])
    assert preferred(stage) == {}


def test_a_content_that_nobody_has_draws_nothing() -> None:
    stage = Idle()
    stage.need({"x": 100})
    stage.enter("w", holds=["y"])
    assert preferred(stage) == {}


def test_a_worker_that_may_not_run_it_is_not_preferred_however_much_it_has() -> None:
    stage = Idle()
    (task,) = stage.need({"x": 100, "y": 1}, spec=TaskSpec("python", requirement='kind == "good"'))
    stage.enter("bad", holds=["x", "y"], kind="bad")
    stage.enter("good", holds=["y"], kind="good")
    assert preferred(stage) == {"good": [task]}


def test_a_worker_where_it_failed_is_not_preferred() -> None:
    stage = Idle()
    (task,) = stage.need({"x": 100})
    stage.enter("w", holds=["x"])
    task.failure_counts = FailureCounts()
    task.failure_counts.avoid = "w"
    assert preferred(stage) == {}


def test_the_highest_rank_wins_where_the_task_has_an_expression_of_its_own() -> None:
    stage = Idle()
    tasks = stage.need({}, {}, {}, {}, spec=TaskSpec("python", rank="-cores"))
    stage.enter("a large one", cores=2.0)
    stage.enter("small")
    assert preferred(stage) == {"small": tasks[:1], "a large one": tasks[1:3]}


def test_an_expression_may_weigh_what_is_held_against_something_else() -> None:
    stage = Idle()
    spec = TaskSpec("python", rank="held + 1000 * cores")
    (task,) = stage.need({"x": 500}, spec=spec)
    stage.enter("has it", holds=["x"], cores=1.0)
    stage.enter("has cores", cores=2.0)
    assert preferred(stage) == {"has cores": [task]}


def test_an_input_that_very_many_tasks_need_is_not_looked_at_for_all_of_them() -> None:
    stage = Idle()
    stage.need(*[{"x": 100}] * (2 * MAX_TASKS))
    stage.enter("w", cores=10.0 * MAX_TASKS, holds=["x"])
    assert len(preferred(stage)["w"]) == MAX_TASKS
