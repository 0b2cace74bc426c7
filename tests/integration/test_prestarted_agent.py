"""Tests the agent that the master starts ahead of time, with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pilotfish.master.sites.local_controller import PROCESS_FILE, LocalController, job_id
from pilotfish.master.sites.prestarted_agent import PrestartedAgent, start_ahead
from pilotfish.model import inputs as i
from pilotfish.model.site import PilotSize
from pilotfish.portable.processes import processes_of, started_at
from pilotfish.store.keyring import open_keyring
from pilotfish.store.pool_directory import PoolDirectory
from tests.support.scripted_master import eventually


@pytest.fixture
def pool(tmp_path: Path) -> PoolDirectory:
    return PoolDirectory(tmp_path / "pool").make()


def test_it_waits_for_its_command_and_then_writes_to_the_log_of_the_pilot(pool: PoolDirectory, tmp_path: Path) -> None:
    agent = PrestartedAgent(pool.directory, pool.log)
    assert agent.is_alive()
    agent.begin(["--credentials", str(tmp_path / "none.json")], tmp_path / "agent.log")
    assert os.waitstatus_to_exitcode(os.waitpid(agent.pid, 0)[1]) == 2, "an agent without credentials cannot work"
    assert "none.json" in (tmp_path / "agent.log").read_text() and pool.log.read_text() == ""
    eventually(lambda: not list(processes_of(pool.directory)), "its processes to end")


def test_one_that_nobody_needs_is_ended(pool: PoolDirectory) -> None:
    agent = PrestartedAgent(pool.directory, pool.log)
    agent.drop()
    eventually(lambda: not list(processes_of(pool.directory)), "its processes to end")
    assert pool.log.read_text() == ""


def test_it_ends_with_a_master_that_was_killed_before_it_gave_the_command(pool: PoolDirectory) -> None:
    script = "import sys, time, pathlib; from pilotfish.master.sites.prestarted_agent import PrestartedAgent as A;"
    script += "folder = pathlib.Path(sys.argv[1]); A(folder, folder / 'master.log'); print('started', flush=True); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", script, str(pool.directory)], stdout=subprocess.PIPE) as master:
        assert master.stdout is not None and master.stdout.readline() == b"started\n"
        master.kill()
    eventually(lambda: not list(processes_of(pool.directory)), "its processes to end")


def test_a_pool_that_is_not_there_starts_none(tmp_path: Path) -> None:
    assert start_ahead(tmp_path / "pool", tmp_path / "pool" / "master.log") is None


def controller_of(pool: PoolDirectory, told: list[i.Input]) -> LocalController:
    controller = LocalController(pool, open_keyring(pool.directory), told.append, 0.0)
    controller.endpoints = [{"kind": "unix", "path": str(pool.directory / "none.sock")}]
    return controller


def test_one_that_died_is_replaced_when_a_pilot_is_needed(pool: PoolDirectory) -> None:
    async def scene() -> None:
        told: list[i.Input] = []
        controller = controller_of(pool, told)
        dead = PrestartedAgent(pool.directory, pool.log)
        os.kill(dead.pid, signal.SIGKILL)
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
        controller.use_prestarted(dead)
        controller.submit("local-1", PilotSize())
        assert [type(item) for item in told] == [i.PilotAccepted]
        assert controller._processes["local-1"].pid != dead.pid
        await controller.end()

    asyncio.run(scene())


def test_a_master_that_died_just_after_the_start_of_a_pilot_leaves_the_process_to_the_next_master(pool: PoolDirectory) -> None:
    async def scene() -> None:
        controller_of(pool, []).submit("local-1", PilotSize())
        told: list[i.Input] = []
        following = controller_of(pool, told)
        following.adopt("local-1", PilotSize(), "")
        pid = following._processes["local-1"].pid
        assert told == [i.PilotAccepted("local-1", job_id(pid, started_at(pid)))]
        assert (pool.pilot("local-1") / PROCESS_FILE).read_text() == job_id(pid, started_at(pid))
        await following.end()

    asyncio.run(scene())
