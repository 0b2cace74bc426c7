"""Tests pilots with a short walltime: they leave before it ends, are replaced, and their tasks continue elsewhere without charge."""

from __future__ import annotations

import pytest

from tests.engines import scenes
from tests.engines.campus import Campus
from tests.engines.gridengine import GridEngine
from tests.engines.htcondor import HTCondor
from tests.engines.slurm import Slurm


@pytest.mark.campaign
def test_pilots_on_slurm_end_in_time_and_are_replaced_and_no_task_pays_for_it(campus: Campus, slurm: Slurm) -> None:
    site = campus.add("pond", "slurm", slurm, cores=2, queue="short", walltime="60s")
    scenes.let_time_run_out(campus, site, life_s=40.0)
    states = set(slurm.ask("squeue", "--noheader", "--states=all", "--partition=short", "--format=%T").split())
    assert states <= {"COMPLETED", "RUNNING", "CANCELLED", "COMPLETING", "PENDING"}, "no pilot was ended by Slurm for its time"


@pytest.mark.campaign
def test_pilots_on_grid_engine_end_in_time_and_are_replaced_and_no_task_pays_for_it(campus: Campus, gridengine: GridEngine) -> None:
    site = campus.add("reef", "sge", gridengine, cores=2, walltime="44s")
    scenes.let_time_run_out(campus, site, life_s=24.0)
    ends = gridengine.ask("qacct", "-o", campus.person.name, "-j").split("=====\n")
    assert not [end for end in ends if "h_rt=44" in end and "enforced h_rt" in end], "no pilot was ended by Grid Engine for its time"


@pytest.mark.campaign
def test_pilots_on_htcondor_end_in_time_and_are_replaced_and_no_task_pays_for_it(campus: Campus, htcondor: HTCondor) -> None:
    site = campus.add("sky", "htcondor", htcondor, cores=2, walltime="44s")
    scenes.let_time_run_out(campus, site, life_s=24.0)
    reasons = htcondor.ask("condor_history", "-af", "RemoveReason")
    assert "PeriodicRemove" not in reasons, "no pilot was ended by HTCondor for its time"


def test_grid_engine_ends_a_pilot_sooner_than_that_believes(campus: Campus, gridengine: GridEngine) -> None:
    site = campus.add("reef", "sge", gridengine, cores=2, directives=["-l h_rt=15"])
    scenes.have_the_system_end_pilots(campus, site)


def test_htcondor_ends_a_pilot_sooner_than_that_believes(campus: Campus, htcondor: HTCondor) -> None:
    """HTCondor holds a job at the end of its time, which the backend must treat as ended."""
    site = campus.add("sky", "htcondor", htcondor, cores=2, directives=["allowed_job_duration = 15"])
    scenes.have_the_system_end_pilots(campus, site)
    held = ("-constraint", "HoldReasonCode =?= 46 || LastHoldReasonCode =?= 46", "-af", "ClusterId")
    assert htcondor.ask("condor_q", "-allusers", *held) + htcondor.ask("condor_history", *held)
