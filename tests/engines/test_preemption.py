"""Tests preempted pilots: their tasks continue elsewhere and are charged no failure."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engines import processes, scenes
from tests.engines.campus import Campus
from tests.engines.gridengine import GridEngine
from tests.engines.htcondor import HTCondor
from tests.engines.slurm import Slurm


def test_slurm_throws_pilots_out_for_urgent_jobs(campus: Campus, slurm: Slurm) -> None:
    """Slurm signals agent and tasks alike and requeues the job, which is cancelled if other pilots are there."""
    site = campus.add("pond", "slurm", slurm, cores=4, queue="batch")
    urgent = ["sbatch", "--partition=urgent", "--cpus-per-task=4", "--array=1-2", "--output=/dev/null", "--wrap=sleep 1"]

    def throw_out() -> None:
        assert campus.person.run(*urgent, environment=slurm.environment).returncode == 0

    scenes.throw_pilots_out(campus, site, throw_out)


@pytest.mark.campaign
def test_grid_engine_reschedules_pilots(campus: Campus, gridengine: GridEngine) -> None:
    """Rescheduled jobs return to the queue if they may run again.

    Grid Engine ends the old instances only if their host has reported them as running and its next message lists them. No job restarts
    before that because the queue is closed.
    """
    site = campus.add("reef", "sge", gridengine, cores=4, directives=["-r y"])

    def throw_out() -> None:
        there, reports = scenes.workers_at(campus, site), set()

        def has_reported_twice() -> bool:
            reports.add(gridengine.ask("qhost", "-F", "cpu,mem_used"))
            return len(reports) > 2

        gridengine.ask("qmod", "-d", "all.q")
        try:
            processes.wait_until(has_reported_twice, "their host reports that they run")
            jobs = scenes.jobs_with_workers(campus, site)
            assert gridengine.ask("qmod", "-rj", *jobs).count("Pushed rescheduling") == len(jobs)
            processes.wait_until(lambda: not there & scenes.workers_at(campus, site), "the host ends them")
        finally:
            gridengine.ask("qmod", "-e", "all.q")

    scenes.throw_pilots_out(campus, site, throw_out, rounds=250)


@pytest.mark.campaign
def test_grid_engine_suspends_pilots_for_urgent_jobs(start_engine: Callable[[GridEngine], GridEngine], campus: Campus) -> None:
    """Pilots get notice before and leave, instead of holding tasks that do not run."""
    engine = start_engine(GridEngine(has_urgent_queue=True))
    site = campus.add("reef", "sge", engine, cores=4, queue="all.q")
    urgent = ["qsub", "-b", "y", "-q", "urgent.q", "-o", "/dev/null", "-j", "y", "sleep", "8"]

    def throw_out() -> None:
        assert campus.person.run(*urgent, environment=engine.environment).returncode == 0

    scenes.throw_pilots_out(campus, site, throw_out)


@pytest.mark.campaign
def test_htcondor_evicts_pilots(campus: Campus, htcondor: HTCondor) -> None:
    """Evicted jobs go back into the queue."""
    site = campus.add("sky", "htcondor", htcondor, cores=4)

    def throw_out() -> None:
        jobs = scenes.jobs_with_workers(campus, site)
        assert campus.person.run("condor_vacate_job", *jobs, environment=htcondor.environment).returncode == 0

    scenes.throw_pilots_out(campus, site, throw_out)
