"""Tests failures at real sites: killed pilots, absent queues, dead nodes, expired walltime, agents that cannot start."""

from __future__ import annotations

import pytest

from tests.engines import processes, scenes
from tests.engines.campus import Campus
from tests.engines.daemons import Engine
from tests.engines.gridengine import GridEngine
from tests.engines.htcondor import HTCondor
from tests.engines.slurm import Slurm


def reasons(campus: Campus, run: int) -> dict[str, dict[str, object]]:
    return {reason["code"]: reason for reason in campus.ask("why", run=run)["reasons"]}


def test_one_queue_of_tasks_over_all_places_at_once(
    campus: Campus, slurm: Slurm, second_slurm: Slurm, gridengine: GridEngine, htcondor: HTCondor
) -> None:
    campus.ask("workers_set", local=1)
    names = [
        campus.add("pond", "slurm", slurm, cores=1),
        campus.add("lake", "slurm", second_slurm, cores=1),
        campus.add("reef", "sge", gridengine, cores=1),
        campus.add("sky", "htcondor", htcondor, cores=1),
        campus.add("desk", "ssh", cores=1),
    ]
    with campus.run("local", *(f"{name}:1" for name in names)) as run:
        first = [run.executable(["sleep", "0.1"]) for _ in range(10)]
        for name in names:
            campus.wait_for_workers(name, 1)
        futures = [run.executable(["sh", "-c", "echo $PILOTFISH_WORKER; sleep 0.1"]) for _ in range(120)]
        where = {future.result(timeout=processes.PATIENCE_S).stdout.decode().partition("-")[0] for future in futures}
        assert all(future.result().exit == 0 for future in first)
    assert where == {"local", *names}


def test_a_pilot_that_a_user_cancels_is_replaced(campus: Campus, slurm: Slurm) -> None:
    campus.add("pond", "slurm", slurm, cores=2)
    with campus.run("pond:1") as run:
        futures = [run.executable(["sleep", "1"]) for _ in range(12)]
        campus.wait_for_workers("pond", 1)
        (pilot,) = campus.pilots("pond")
        assert campus.person.run("scancel", pilot["job"], environment=slurm.environment).returncode == 0
        assert [future.result(timeout=processes.PATIENCE_S).exit for future in futures] == [0] * 12
    assert pilot["pilot"] not in [one["pilot"] for one in campus.pilots("pond")]


@pytest.mark.parametrize(
    ("backend", "fixture"),
    [
        pytest.param("slurm", "slurm", marks=pytest.mark.campaign),
        pytest.param("sge", "gridengine", marks=pytest.mark.campaign),
        ("htcondor", "htcondor"),
    ],
)
def test_the_queue_dies_and_comes_back_under_load(campus: Campus, backend: str, fixture: str, request: pytest.FixtureRequest) -> None:
    engine: Engine = request.getfixturevalue(fixture)
    site = campus.add("here", backend, engine, cores=2)
    scenes.let_the_queue_die_and_come_back(campus, site, engine)


def test_a_pilot_waits_for_the_reason_that_the_queue_gives_and_leaves_it_when_it_is_not_wanted(campus: Campus, slurm: Slurm) -> None:
    site = campus.add("pond", "slurm", slurm, cores=3, directives=["--nodelist=n1", "--exclusive"])
    with campus.run(f"{site}:2") as run:
        future = run.executable(["sh", "-c", "sleep 3"])
        other = run.executable(["sh", "-c", "sleep 3"], cores=2)
        campus.wait_for_workers(site, 1)
        processes.wait_until(lambda: len(slurm.leftovers()) == 2, "the second one waits")
        third = run.executable(["true"], cores=3)
        processes.wait_until(lambda: "pending" in reasons(campus, run.id) or third.done(), "why is asked")
        assert future.result(timeout=processes.PATIENCE_S) and other.result(timeout=processes.PATIENCE_S)
        assert third.result(timeout=processes.PATIENCE_S).exit == 0


def test_agents_that_cannot_start_pause_their_site_with_the_cause_and_it_can_be_tried_again(campus: Campus, slurm: Slurm) -> None:
    site = campus.add("pond", "slurm", slurm, cores=1, python="", setup=["export PATH=/nowhere", "alias sh=/bin/sh"], folder="~/.pf")
    with campus.run(f"{site}:1") as run:
        future = run.executable(["/bin/true"])
        processes.wait_until(lambda: campus.row(site)["state"] == "held", "the site is held")
        assert "python" in campus.row(site)["held"] or "not found" in campus.row(site)["held"], campus.row(site)["held"]
        assert "held" in reasons(campus, run.id)
        assert f"pilotfish site resume {site}" in reasons(campus, run.id)["held"]["commands"]  # type: ignore[operator]
        campus.add("pond", "slurm", slurm, cores=1)
        campus.ask("site_release", site=site)
        assert future.result(timeout=processes.PATIENCE_S).exit == 0


def test_a_node_that_dies_while_its_processes_live_on_costs_no_result(campus: Campus, slurm: Slurm) -> None:
    """Slurm gives up the job; the agent does not know, continues, and its reports count once."""
    site = campus.add("pond", "slurm", slurm, cores=2)
    with campus.run(f"{site}:1") as run:
        futures = [run.executable(["sleep", "1"]) for _ in range(10)]
        campus.wait_for_workers(site, 1)
        (pilot,) = campus.pilots(site)
        node = campus.person.run("squeue", "-h", "-j", pilot["job"], "-o", "%N", environment=slurm.environment).stdout.strip()
        number = int(node.removeprefix("n"))
        slurm.kill_node(number)
        slurm.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        assert [future.result(timeout=processes.PATIENCE_S).exit for future in futures] == [0] * 10
    slurm.restart_node(number)
    assert campus.ask("run", run=run.id)["counts"]["done"] == 10
