"""Tests what a private pool does without: it serves one program on one machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pilotfish import Executor, Run
from pilotfish.api.worker_check import NoSuitableWorker
from pilotfish.client.master_client import MasterClient
from pilotfish.client.pools import PoolHandle
from pilotfish.client.temporary_pool import private_master


@pytest.mark.usefixtures("pilotfish_home")
def test_a_private_pool_makes_no_certificate_and_listens_at_no_port() -> None:
    with private_master(1) as private:
        run = private.submit([["true"]])
        assert private.master.ask("run", run=run)["tasks"] == 1
        made = {path.name for path in private.pool.directory.iterdir()}
    assert "client.json" in made
    assert not made & {"master.crt", "master.key", "port"} and private.left == []


def listening_ports(pid: int) -> set[str]:
    """Local ports of the TCP sockets on which a process listens."""
    inodes = {path.readlink().name for path in Path(f"/proc/{pid}/fd").iterdir() if path.readlink().name.startswith("socket:")}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes}


def test_only_a_pool_that_can_have_sites_listens_at_a_port(pool: PoolHandle) -> None:
    client = MasterClient.connect(pool.directory)
    assert len(listening_ports(int(client.ask("status")["pid"]))) == 1
    client.close()
    with private_master(1) as private:
        assert listening_ports(int(private.master.ask("status")["pid"])) == set()


@pytest.mark.usefixtures("pilotfish_home")
@pytest.mark.parametrize(
    ("demand", "said", "fix"),
    [
        ({"cores": 8}, "8 cores asked for, the largest worker has 1 core", "max_workers=8"),
        ({"gpus": 1}, "1 gpu asked for, the largest worker has 0 gpus", "gpus"),
        ({"memory": "900 TB"}, "of memory asked for, the largest worker has", "memory"),
        ({"requirement": "cors > 1"}, "for cors, did you mean cores?", "requirement"),
        ({"tags": {"rack": "a"}}, "no worker has the tags rack=a", "tags"),
        ({"nodes": 2}, "it asks for 2 nodes of one pilot", "nodes"),
    ],
)
def test_a_demand_that_a_private_pool_can_never_meet_is_an_error_at_submission(demand: dict[str, Any], said: str, fix: str) -> None:
    with Executor(max_workers=1, **demand) as executor:
        for _ in range(2):
            with pytest.raises(NoSuitableWorker) as problem:
                executor.submit(abs, -1)
            assert said in str(problem.value)
            assert fix in problem.value.hint


@pytest.mark.usefixtures("pilotfish_home")
def test_a_demand_that_a_private_pool_meets_is_no_error() -> None:
    with Executor(max_workers=2, cores=2, memory="50 MB", requirement="cores > 1") as executor:
        assert list(executor.map(abs, [-1, -2])) == [1, 2]
    with Executor(max_workers=2, memory="50 MB") as executor, ThreadPoolExecutor(4) as threads:
        assert sorted(future.result(60).result(60) for future in [threads.submit(executor.submit, abs, -n) for n in range(4)]) == [
            0,
            1,
            2,
            3,
        ]


def test_a_demand_that_a_shared_pool_cannot_meet_yet_is_explained_once(pool: PoolHandle, capfd: pytest.CaptureFixture[str]) -> None:
    run = Run(pool=pool)
    futures = [run.options(cores=100).submit(abs, -n) for n in range(3)]
    printed = ""
    deadline = time.monotonic() + 30
    while "fix:" not in printed and time.monotonic() < deadline:
        printed += capfd.readouterr().err
        time.sleep(0.05)
    assert "100 cores asked for, the largest worker has" in printed and printed.count("100 cores asked for") == 1
    assert "for larger machines, add a site: pilotfish site add --help" in printed
    assert not any(future.done() for future in futures)
    run.cancel()
    run.close()


INTERRUPTED = """
import signal, sys, time
from pathlib import Path
from pilotfish import Executor

signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background of a shell ignore SIGINT

def wait(directory, number):
    Path(directory, str(number)).touch()
    time.sleep(600)

with Executor(max_workers=1) as executor:
    futures = [executor.submit(wait, sys.argv[1], number) for number in range(3)]
    if sys.argv[2] == "inside":
        futures[0].result()
"""


@pytest.mark.parametrize("place", ["inside", "at the end"])
def test_ctrl_c_in_a_block_of_an_executor_ends_its_calls_and_its_pool_at_once(place: str, tmp_path: Path, pilotfish_home: Path) -> None:
    begun = tmp_path / "0"
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path), place]
    program = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PILOTFISH_HOME": str(pilotfish_home)})
    try:
        deadline = time.monotonic() + 30
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=60)
    finally:
        program.kill()
    assert errors.rstrip().endswith("KeyboardInterrupt") and errors.count("Traceback") == 1
    assert program.returncode in (1, 130, -signal.SIGINT)
    assert not (tmp_path / "1").exists()
    assert list((pilotfish_home / "pools").iterdir()) == []
