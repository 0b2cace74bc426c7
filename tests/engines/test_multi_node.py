"""Tests a multi-node task on a real batch system: its pilot and its nodes."""

from __future__ import annotations

from tests.engines import processes
from tests.engines.campus import Campus
from tests.engines.slurm import Slurm

ON_EACH = (
    'srun --overlap --mem=0 --nodes=$PILOTFISH_NODES --ntasks-per-node=1 --nodelist=$(cut -d" " -f1 $PILOTFISH_HOSTFILE | paste -sd,)'
    " sh -c 'echo $SLURMD_NODENAME $SLURM_NODEID'"
)


def test_a_task_of_two_nodes_brings_a_pilot_of_two_and_srun_reaches_both(campus: Campus, slurm: Slurm) -> None:
    campus.add("pond", "slurm", slurm, cores=2)
    with campus.run("pond") as run:
        completed = run.executable(["sh", "-c", ON_EACH], nodes=2, cores=2).result(timeout=processes.PATIENCE_S)
    assert sorted(completed.text.splitlines()) == ["n1 0", "n2 1"], completed.stderr
    assert [len(pilot["workers"]) for pilot in campus.pilots("pond")] == [2]
