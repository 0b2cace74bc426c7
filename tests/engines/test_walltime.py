"""Pilots whose time is short, or who are thrown out: what they ran goes on elsewhere, and is charged for nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.engines import processes
from tests.engines.campus import Campus, campus_at
from tests.engines.openssh import OpenSSH
from tests.engines.people import Person
from tests.engines.slurm import Slurm

PATIENCE_S = 3 * processes.PATIENCE_S
"""Several pilots after each other."""
WAVES = 3


@pytest.fixture
def campus(pilotfish_home: Path, openssh: OpenSSH, person: Person) -> Iterator[Campus]:
    with campus_at(pilotfish_home, openssh, person) as made:
        yield made


def tasks_of(campus: Campus, run: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = campus.ask("tasks", run=run, limit=1000)
    assert [row for row in rows if row["state"] != "done" or row["failures"] or row["losses"]] == []
    return rows


def test_pilots_end_in_time_and_are_replaced_and_no_task_pays_for_it(campus: Campus, slurm: Slurm) -> None:
    site = campus.add("pond", "slurm", slurm, cores=2, queue="short", walltime="60s")
    flag = campus.person.home / "cut off"
    with campus.run(f"{site}:2") as run:
        cut_off = run.executable(["sh", "-c", f"mkdir '{flag}' && sleep 300; echo again"], retries=0, losses=0)
        warned = run.executable(["sh", "-c", "trap 'echo warned; exit 0' USR1; sleep 300 & wait"], warn_signal="USR1", retries=0)
        campus.wait_for_workers(site, 2)
        futures = [run.executable(["sh", "-c", "sleep 2.5; echo $PILOTFISH_WORKER"]) for _ in range(60)]
        futures[15].result(timeout=PATIENCE_S)  # by now no pilot of the first ones has the time for these
        long_ones = [run.executable(["sh", "-c", "echo $(date +%s) $PILOTFISH_ENDS_AT"], time="30s") for _ in range(2)]
        assert warned.result(timeout=PATIENCE_S).stdout == b"warned\n"
        assert cut_off.result(timeout=PATIENCE_S).stdout == b"again\n"
        workers = {future.result(timeout=PATIENCE_S).stdout.decode().split(".")[0] for future in futures}
        for future in long_ones:
            began, ends = map(float, future.result(timeout=PATIENCE_S).stdout.split())
            assert began + 30.0 <= ends + 1.0
    assert len(workers) > 2
    attempts = {row["index"]: row["attempt"] for row in tasks_of(campus, run.id)}
    assert attempts.pop(0) == 2 and set(attempts.values()) == {1}, attempts
    states = set(slurm.ask("squeue", "--noheader", "--states=all", "--partition=short", "--format=%T").split())
    assert states <= {"COMPLETED", "RUNNING", "CANCELLED", "COMPLETING", "PENDING"}, "no pilot was ended by Slurm for its time"
    assert campus.row(site)["failures"] == {}


def test_pilots_that_are_thrown_out_cost_no_task(campus: Campus, slurm: Slurm) -> None:
    """Slurm signals the agent and the tasks alike, and puts the job back into the queue, from which it is taken if others are there."""
    site = campus.add("pond", "slurm", slurm, cores=4, queue="batch")
    urgent = ["sbatch", "--partition=urgent", "--cpus-per-task=4", "--array=1-2", "--output=/dev/null", "--wrap=sleep 1"]
    with campus.run(f"{site}:2") as run:
        futures: list[Future[Any]] = []
        for _ in range(70):
            futures += [run.executable(["sleep", "0.5"]), run.submit(time.sleep, 0.5)]
            futures.append(run.executable(["sh", "-c", "trap 'exit 7' TERM; sleep 0.5 & wait"]))
        for _ in range(WAVES):
            campus.wait_for_workers(site, 2)
            assert campus.person.run(*urgent, environment=slurm.environment).returncode == 0
            processes.wait_until(lambda: campus.row(site)["workers"] == 0, "both are thrown out")
        for future in futures:
            future.result(timeout=PATIENCE_S)
    tasks_of(campus, run.id)
    assert len(campus.pilots(site)) <= 2
