"""A task whose directory is not where it was sent: tried where the directory may be, and nowhere else."""

from __future__ import annotations

from pilotfish.core.pilots.unmet_demand import view_for_factory
from pilotfish.core.state import Task
from pilotfish.model.ids import show_task
from pilotfish.model.states import ASSIGNED, DONE, FAILED, READY
from pilotfish.model.task import NO_DIRECTORY, Failure, TaskSpec
from tests.support.machine_stage import Stage
from tests.unit.core.test_site_events import POND, REEF, add, stage_with
from tests.unit.core.test_state_snapshot import round_trip

LACKING = Failure(NO_DIRECTORY, "site", "there is no directory '/mine' on this node")
EXECUTABLE = TaskSpec("exec", losses=10, launch={"cwd": "/mine"})


def at(task: Task) -> str:
    return task.worker.id if task.worker is not None else ""


def pond_and_reef(*names: str) -> tuple[Stage, dict[str, int]]:
    """Workers of one core each; the first letter of their names is that of their site."""
    stage = stage_with(pond=POND, reef=REEF)
    sites = {"p": "pond", "r": "reef"}
    return stage, {name: stage.join(name, pilot=add(stage, sites[name[0]])) for name in names}


def test_at_the_only_site_it_fails_at_once_and_so_does_each_of_the_others() -> None:
    stage, links = pond_and_reef("p1", "p2")
    tasks = stage.submit(stage.open_run("at pond", sites=("pond",)), EXECUTABLE, 5)
    while any(task.state == ASSIGNED for task in tasks):
        task = next(task for task in tasks if task.state == ASSIGNED)
        stage.finish(links[at(task)], task, failure=LACKING)
    assert [(task.state, task.attempt, task.failure) for task in tasks] == [(FAILED, 1, LACKING)] * 5


def test_another_site_is_waited_for_and_the_first_is_not_asked_again() -> None:
    stage, links = pond_and_reef("p1", "p2", "r1")
    (long,) = stage.submit(stage.open_run("at reef", sites=("reef",)), EXECUTABLE)
    tasks = stage.work(EXECUTABLE, 3)
    first = next(task for task in tasks if at(task) == "p1")
    stage.finish(links["p1"], first, failure=LACKING)
    assert first.state == READY and tasks[2].state == READY, "not even those that were not tried there"
    assert "pond" not in [name for _, places in zip(*_demand(stage), strict=True) for name in places]
    stage.finish(links["r1"], long)
    assert at(first) == "r1"
    stage.finish(links["r1"], first)
    assert first.state == DONE and first.attempt == 2


def _demand(stage: Stage) -> tuple[list[object], list[tuple[str, ...]]]:
    demand = view_for_factory(stage.machine.state, stage.now).demand
    return list(demand.sizes), demand.places


def test_a_site_that_is_used_is_waited_for_even_if_nobody_is_there_yet() -> None:
    stage, links = pond_and_reef("p1")
    (task,) = stage.work(EXECUTABLE)
    stage.finish(links["p1"], task, failure=LACKING)
    assert task.state == READY
    assert "site pond does not have the directory /mine" in stage.ask("why", task=show_task(task.id))["sentence"]
    stage.join("r1", pilot=add(stage, "reef"))
    assert at(task) == "r1"


def test_this_machine_is_waited_for_while_its_worker_starts() -> None:
    stage, links = pond_and_reef("p1")
    stage.ask("workers_set", local=2)
    (task,) = stage.submit(stage.open_run("here", sites=("pond", "local")), EXECUTABLE)
    stage.finish(links["p1"], task, failure=LACKING)
    assert task.state == READY


def test_one_broken_node_of_a_site_where_others_do_well_is_the_nodes_own_trouble() -> None:
    stage, links = pond_and_reef("p1", "p2")
    run = stage.open_run("at pond", sites=("pond",))
    tasks = stage.submit(run, EXECUTABLE, 2)
    good, broken = tasks if at(tasks[0]) == "p1" else reversed(tasks)
    stage.finish(links["p1"], good)
    stage.finish(links["p2"], broken, failure=LACKING)
    assert at(broken) == "p1" and not broken.shape.no_directory_sites


def test_tasks_with_a_directory_of_their_own_still_go_there() -> None:
    stage, links = pond_and_reef("p1", "r1")
    run = stage.open_run("both", sites=("pond", "reef"))
    (task,) = stage.submit(run, EXECUTABLE)
    stage.finish(links[at(task)], task, failure=LACKING)
    (other,) = stage.submit(run, TaskSpec("exec"))
    assert {at(task), at(other)} == {"p1", "r1"}


def test_sites_that_lack_it_are_remembered_when_the_master_starts_anew() -> None:
    stage, links = pond_and_reef("p1", "r1")
    (long,) = stage.submit(stage.open_run("at reef", sites=("reef",)), EXECUTABLE)
    (task,) = stage.work(EXECUTABLE)
    stage.finish(links["p1"], task, failure=LACKING)
    again = round_trip(stage.machine.state)
    assert list(again.task(task.id).shape.no_directory_sites) == ["pond"]
    stage.restart()
    stage.join("p1", pilot=stage.machine.state.workers["p1"].pilot)
    assert stage.task(2, 0).state == READY and long.worker is not None
