"""Tests a real agent near the end of its walltime: it notifies its tasks, and they are not blamed for the end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pilotfish.model import messages as wire
from tests.support.scripted_master import Agent, Client, FakeMaster, alive, children, eventually, running_agent


@pytest.fixture
def master(tmp_path: Path) -> Iterator[FakeMaster]:
    made = FakeMaster(tmp_path, "unix")
    yield made
    made.close()


def test_a_task_that_asked_for_a_signal_is_warned_and_others_are_left_alone(master: FakeMaster) -> None:
    with running_agent(master, "--cores", "2", "--ends-in", "6") as agent:
        master.wait_for(wire.Hello)
        client = Client(master)
        script = "trap 'echo $PILOTFISH_ENDS_AT; exit 0' USR1; sleep 100 & wait"
        warned = client.command(client.exec(launch={"warn_signal": int(signal.SIGUSR1)}), "sh", "-c", script)
        other = client.command(client.exec(), "sh", "-c", "sleep 100")
        outcome = client.outcome(warned)
        assert outcome["failure"] is None
        assert time.time() < float(outcome["stdout"])
        assert "over" in master.wait_for(wire.Leave).reason
        assert agent.wait()[0] == 0
    assert all(item.task != other for item, _ in master.results.values())


@pytest.mark.parametrize("trap", ["true", "trap 'exit 7' TERM"])
def test_a_signal_that_comes_to_the_tasks_of_a_pilot_first_and_then_to_itself_fails_no_task(master: FakeMaster, trap: str) -> None:
    """Batch systems end a job in this way."""
    with running_agent(master, "--cores", "1") as agent:
        master.wait_for(wire.Hello)
        client = Client(master)
        client.command(client.exec(), "sh", "-c", f"{trap}; sleep 100 & wait")
        eventually(lambda: len(whole_tree(agent.process.pid)) > len(without_tasks(agent)) + 1, "it runs")
        itself = agent.pid
        tasks = [pid for pid in whole_tree(agent.process.pid) if pid not in without_tasks(agent)]
        os.kill(itself, signal.SIGSTOP)  # so that it sees the end of its task and its own signal at the same time
        for pid in tasks:  # the shell first: it would succeed by itself once its child is gone
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        eventually(lambda: not any(alive(pid) for pid in tasks), "the task is dead")
        os.kill(itself, signal.SIGTERM)
        os.kill(itself, signal.SIGCONT)
        assert "stopped by a signal" in master.wait_for(wire.Leave).reason
        agent.wait()
    assert not master.results


@pytest.mark.parametrize("notice", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU])
def test_an_agent_goes_in_order_whatever_notice_its_batch_system_gives(master: FakeMaster, notice: signal.Signals) -> None:
    """The notice goes to the process group of the batch job, which tasks have left."""
    with running_agent(master, "--cores", "1") as agent:
        master.wait_for(wire.Hello)
        for pid in (agent.process.pid, agent.pid):
            os.kill(pid, notice)
        assert "stopped by a signal" in master.wait_for(wire.Leave).reason
        assert agent.wait()[0] == 0


def without_tasks(agent: Agent) -> list[int]:
    return [agent.process.pid, agent.pid, *children(agent.pid), *agent.slots()]


def whole_tree(pid: int) -> list[int]:
    """Return the process and its descendants, parents before children."""
    found = [pid]
    for one in found:
        found += children(one)
    return found
