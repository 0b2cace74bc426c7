"""Tests a task that takes longer than a pilot's walltime: it is not restarted forever, and the suggested fix works."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines import processes
from tests.engines.campus import Campus
from tests.engines.slurm import Slurm

PATIENCE_S = 3 * processes.PATIENCE_S


@pytest.mark.campaign
def test_a_task_that_outlives_its_pilot_waits_for_longer_ones_and_says_how_to_get_them(campus: Campus, slurm: Slurm) -> None:
    """A pilot of 40 s reserves 20 s for an orderly exit, so that a task of 24 s is cut off."""
    site = campus.add("pond", "slurm", slurm, cores=1, walltime="40s")
    with campus.run(f"{site}:1") as run:
        long = run.executable(["sh", "-c", "sleep 24; echo done"])
        processes.wait_until(lambda: bool(walltime_warnings(campus)), "it was cut off, and the person is told", PATIENCE_S)
        (command,) = walltime_warnings(campus)[0]["commands"]
        assert command == "pilotfish site set pond walltime=80s"
        assert campus.ask("why", task=f"{run.id}.0")["reasons"][0]["commands"] == [command]
        subprocess.run([Path(sys.executable).with_name("pilotfish"), *shlex.split(command)[1:]], check=True)
        assert long.result(timeout=PATIENCE_S).stdout == b"done\n"
    (row,) = campus.ask("tasks", run=run.id)
    assert row["attempt"] == 2 and not row["failures"] and not row["losses"]


def walltime_warnings(campus: Campus) -> list[dict[str, list[str]]]:
    return [row for row in campus.ask("status")["warnings"] if row["code"] == "walltime"]
