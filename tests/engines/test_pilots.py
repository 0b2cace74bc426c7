"""Tests pilots on real batch systems, each reached by ssh as an ordinary user, like a cluster."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

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


def test_calls_take_own_modules_and_input_files_to_a_cluster(
    campus: Campus, slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user of the cluster has neither the modules nor the files. An edited module is used at the next call."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("helper_of_pond.py").write_text("FACTOR = 2\n")
    Path("model_of_pond.py").write_text(
        "import helper_of_pond\n"
        "def run(x):\n    with open('table.txt') as file:\n        return helper_of_pond.FACTOR * x + int(file.read())\n"
    )
    Path("table.txt").write_text("100")
    model = importlib.import_module("model_of_pond")
    campus.add("pond", "slurm", slurm, cores=2)
    with campus.run("pond:1") as run:
        before = [run.options(inputs=["table.txt"]).submit(model.run, x) for x in range(4)]
        assert [future.result(timeout=processes.PATIENCE_S) for future in before] == [100, 102, 104, 106]
        Path("helper_of_pond.py").write_text("FACTOR = 1000\n")
        importlib.reload(sys.modules["helper_of_pond"])
        after = [run.options(inputs=["table.txt"]).submit(model.run, x) for x in range(4)]
        source = run.options(form="source").submit(lambda x: x + 1, 41)
        assert [future.result(timeout=processes.PATIENCE_S) for future in after] == [100, 1100, 2100, 3100]
        assert source.result(timeout=processes.PATIENCE_S) == 42
        assert {task["site"] for task in run.tasks()} == {"pond"}
