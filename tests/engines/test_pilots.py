"""Tests pilots on real batch systems, each reached by ssh as an ordinary user, like a cluster."""

from __future__ import annotations

from tests.engines import processes, scenes
from tests.engines.campus import Campus
from tests.engines.gridengine import GridEngine
from tests.engines.htcondor import HTCondor
from tests.engines.slurm import Slurm


def test_slurm_runs_200_tasks(campus: Campus, slurm: Slurm) -> None:
    campus.add("pond", "slurm", slurm, cores=2)
    scenes.run_200_tasks(campus, "pond")
    jobs = [pilot["job"] for pilot in campus.pilots("pond")]
    assert len({job.partition("_")[0] for job in jobs}) == 1, f"one array was asked for: {jobs}"


def test_grid_engine_runs_200_tasks(campus: Campus, gridengine: GridEngine) -> None:
    campus.add("reef", "sge", gridengine, cores=2)
    scenes.run_200_tasks(campus, "reef")
    assert len({pilot["job"].partition(".")[0] for pilot in campus.pilots("reef")}) == 1


def test_htcondor_runs_200_tasks(campus: Campus, htcondor: HTCondor) -> None:
    campus.add("sky", "htcondor", htcondor, cores=2)
    scenes.run_200_tasks(campus, "sky")
    assert len({pilot["job"].partition(".")[0] for pilot in campus.pilots("sky")}) == 1


def test_a_host_without_a_batch_system_runs_200_tasks(campus: Campus) -> None:
    campus.add("desk", "ssh", cores=2)
    scenes.run_200_tasks(campus, "desk")


def test_one_pilot_serves_several_nodes(campus: Campus, slurm: Slurm) -> None:
    """One batch job has one agent on each of its nodes; the pilot ends when the last of them has left."""
    campus.add("pond", "slurm", slurm, cores=2, nodes=2)
    with campus.run("pond:1") as run:
        futures = [run.executable(["sh", "-c", "echo $SLURMD_NODENAME; sleep 0.2"]) for _ in range(40)]
        campus.wait_for_workers("pond", 2)
        nodes = {future.result(timeout=processes.PATIENCE_S).text.strip() for future in futures}
    assert nodes == {"n1", "n2"}
    (pilot,) = campus.pilots("pond")
    assert len(pilot["workers"]) == 2
