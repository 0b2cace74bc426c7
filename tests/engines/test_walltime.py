"""Pilots whose time is short, or who are thrown out: what they ran goes on elsewhere, and is charged for nothing."""

from __future__ import annotations

from collections.abc import Iterator
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


@pytest.fixture
def campus(pilotfish_home: Path, openssh: OpenSSH, person: Person) -> Iterator[Campus]:
    with campus_at(pilotfish_home, openssh, person) as made:
        yield made


def tasks_of(campus: Campus, run: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = campus.ask("tasks", run=run)["tasks"]
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
    states = {line for line in slurm.ask("squeue", "--noheader", "--states=all", "--partition=short", "--format=%T").split()}
    assert states <= {"COMPLETED", "RUNNING", "CANCELLED", "COMPLETING", "PENDING"}, "no pilot was ended by Slurm for its time"
    assert campus.row(site)["failures"] == {}


def test_pilots_that_are_thrown_out_cost_no_task(campus: Campus, slurm: Slurm) -> None:
    """Slurm puts them back into the queue; they may come back as new workers."""
    site = campus.add("pond", "slurm", slurm, cores=4, queue="batch")
    with campus.run(f"{site}:2") as run:
        futures = [run.executable(["sleep", "0.5"]) for _ in range(200)]
        campus.wait_for_workers(site, 2)
        urgent = ["sbatch", "--parsable", "--partition=urgent", "--cpus-per-task=4", "--output=/dev/null", "--wrap=sleep 3"]
        said = campus.person.run(*urgent, environment=slurm.environment)
        assert said.returncode == 0, said.stderr
        processes.wait_until(lambda: campus.row(site)["workers"] < 2, "one is thrown out")
        assert [future.result(timeout=PATIENCE_S).exit for future in futures] == [0] * 200
    tasks_of(campus, run.id)
    jobs = slurm.ask("squeue", "--noheader", "--array", "--states=all", "--partition=batch", "--format=%i|%T")
    assert len(campus.pilots(site)) <= 2, jobs
