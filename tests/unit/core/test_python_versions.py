"""Pickled calls go only to workers whose Python can load them. If no place has that Python, the submission is refused."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from pilotfish.core.pilots.unmet_demand import view_for_factory
from pilotfish.core.state import Task
from pilotfish.model import facts as f
from pilotfish.model import messages as m
from pilotfish.model.settings import PoolSettings
from pilotfish.model.site import Site
from pilotfish.model.states import ASSIGNED, READY
from pilotfish.model.task import TaskSpec
from pilotfish.portable.expressions.evaluation import parse
from tests.support.machine_stage import CLIENT, Stage
from tests.unit.core.test_site_events import add, stage_with

CALL = TaskSpec("python", launch={"form": "pickle", "python": [3, 12]})
SOURCE = TaskSpec("python", launch={"form": "source", "python": [3, 12]})
OPEN = Site(backend="slurm", cores=1, walltime_s=3600.0)


def python(version: str) -> dict[str, Any]:
    return {"info": {"python": version}}


def refusal(stage: Stage) -> m.Problem | None:
    problems = stage.sent(m.Problem, CLIENT)
    return problems[0] if problems else None


def codes(stage: Stage, task: Task) -> list[str]:
    from pilotfish.core.explain.task_reasons import task_reasons

    return [reason.code for reason in task_reasons(stage.machine, task)]


def test_a_pickled_call_goes_to_the_worker_with_its_python_and_source_goes_anywhere() -> None:
    stage = Stage()
    stage.join("old", cores=8.0, **python("3.9.18"))
    stage.join("same", cores=1.0, **python("3.12.1"))
    calls = stage.work(CALL, 3)
    assert [task.state for task in calls] == [ASSIGNED, READY, READY]
    assert calls[0].worker is not None and calls[0].worker.id == "same"
    sources = stage.work(SOURCE, 8)
    assert all(task.state == ASSIGNED for task in sources)


def test_calls_that_no_worker_can_load_are_refused_with_the_versions_and_the_fix() -> None:
    stage = Stage()
    stage.join("old", **python("3.9.18"))
    run = stage.open_run()
    assert stage.submit(run, CALL) == []
    problem = refusal(stage)
    assert problem is not None and "need Python 3.12" in problem.message and "has Python 3.9" in problem.message
    assert "python=python3.12" in problem.hint and "source" in problem.hint
    assert len(stage.submit(run, SOURCE)) == 1


def test_a_pool_without_workers_or_with_a_worker_of_unknown_python_waits() -> None:
    stage = Stage()
    (task,) = stage.work(CALL)
    assert refusal(stage) is None and task.state == READY
    stage.join("unknown")
    assert task.state == ASSIGNED


def test_a_place_that_may_have_the_right_python_is_waited_for() -> None:
    stage = Stage(PoolSettings(local_cores=1))
    stage.join("old", **python("3.9.18"))
    (task,) = stage.work(CALL)
    assert refusal(stage) is None and task.state == READY


def test_why_names_the_versions_if_the_fitting_worker_has_left() -> None:
    stage = Stage()
    stage.join("same", **python("3.12.1"))
    stage.join("old", cores=8.0, **python("3.9.18"))
    tasks = stage.work(CALL, 2)
    stage.lose("same")
    assert codes(stage, tasks[1])[0] == "python"


def test_a_site_whose_workers_had_another_python_gets_no_pilots_for_the_calls_until_it_is_changed() -> None:
    stage = stage_with(pond=OPEN)
    pilot = add(stage, "pond")
    (task,) = stage.work(CALL)
    assert view_for_factory(stage.machine.state, stage.now).demand.tasks
    stage.join("old", pilot=pilot, **python("3.9.18"))
    stage.lose("old")
    stage.restart()
    task = stage.machine.state.runs[task.id >> 32].tasks[0]
    demand = view_for_factory(stage.machine.state, stage.now).demand
    assert not demand.tasks and not demand.needed
    assert "python" in codes(stage, task)
    run = stage.open_run("more")
    assert stage.submit(run, CALL) == []
    problem = refusal(stage)
    assert problem is not None and "site pond has Python 3.9" in problem.message


def test_calls_are_accepted_after_the_fix_although_workers_with_the_other_python_are_still_there() -> None:
    stage = stage_with(pond=OPEN)
    stage.join("old", pilot=add(stage, "pond"), **python("3.9.18"))
    run = stage.open_run("at pond", sites=("pond",))
    assert stage.submit(run, CALL) == []
    stage.machine.record(f.SiteDescribed("pond", replace(OPEN, python="python3.12")))
    (task,) = stage.submit(run, CALL)
    assert task.state == READY


def test_a_client_can_ask_before_it_submits() -> None:
    stage = Stage()
    stage.join("old", **python("3.9.18"))
    run = stage.open_run()
    assert stage.ask("check_python", run=run, python="3.9") == {"found": True}
    stage.request("ask first", "check_python", run=run, python="3.12")
    problem = refusal(stage)
    assert problem is not None and "need Python 3.12" in problem.message


def test_an_answer_says_whether_it_may_change_when_a_worker_joins() -> None:
    stage = stage_with(pond=OPEN)
    run = stage.open_run("at pond", sites=("pond",))
    assert stage.ask("check_python", run=run, python="3.12") == {"found": False}
    stage.join("elsewhere", **python("3.12.1"))
    assert stage.ask("check_python", run=run, python="3.12") == {"found": False}
    stage.join("fitting", pilot=add(stage, "pond"), **python("3.12.1"))
    assert stage.ask("check_python", run=run, python="3.12") == {"found": True}


def test_a_site_master_gets_the_version_as_a_requirement() -> None:
    spec = TaskSpec("python", launch=CALL.launch, requirement="cores >= 2 or memory >= 1G")
    holds = [parse(spec.full_requirement).holds({"python": version, "cores": 2.0}) for version in ("3.12.0", "3.12.11", "3.1.2", "3.13.0")]
    assert holds == [True, True, False, False]
    assert not parse(spec.full_requirement).holds({"python": "3.12.0", "cores": 1.0, "memory": 0.0})
    assert SOURCE.full_requirement == "" and TaskSpec("exec").full_requirement == ""
