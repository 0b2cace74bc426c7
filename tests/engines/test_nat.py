"""Tests a master on a laptop behind NAT: agents reach it only through the ssh tunnel that it opened."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engines import network, processes
from tests.engines.campus import Campus, campus_at
from tests.engines.network import Laptop, OpenSSHFromOutside
from tests.engines.people import Person
from tests.engines.slurm import Slurm

TASKS = 200


@pytest.fixture
def laptop() -> Iterator[Laptop]:
    with network.laptop_behind_a_router() as made:
        yield made


@pytest.fixture
def campus(
    laptop: Laptop,
    pilotfish_home: Path,
    person: Person,
    start_engine: Callable[[OpenSSHFromOutside], OpenSSHFromOutside],
) -> Iterator[Campus]:
    openssh = start_engine(OpenSSHFromOutside(accounts=("root", person.name), address=laptop.server))
    laptop.let_out_to(openssh.ports[0])
    with campus_at(pilotfish_home, openssh, person, laptop.pool) as made:
        yield made


def tunnels(campus: Campus) -> list[int]:
    """Return the ssh processes that hold a tunnel."""
    place = os.fsencode(campus.openssh.place)
    found = []
    for pid in processes.everybody():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"-R" in words and any(word.startswith(place) for word in words):
            found.append(pid)
    return found


def ended_well(campus: Campus, run: int) -> bool:
    counts = campus.ask("run", run=run)["counts"]
    return bool(counts["done"] == TASKS and sum(counts.values()) == TASKS)


def wait_for_more(campus: Campus, run: int, more: int) -> None:
    """Wait until this many more tasks are done."""
    before = campus.ask("run", run=run)["counts"]["done"]
    processes.wait_until(lambda: campus.ask("run", run=run)["counts"]["done"] >= before + more, "work goes on")


@pytest.mark.parametrize(("reach", "hosts"), [("tunnel", ()), ("auto", ("desk", "attic"))])
def test_agents_find_a_master_that_nobody_can_call(campus: Campus, slurm: Slurm, reach: str, hosts: tuple[str, ...]) -> None:
    if hosts:
        site = campus.add("far", "ssh", cores=2, reach=reach, hosts=[f"{campus.person.name}@{host}" for host in hosts])
    else:
        site = campus.add("far", "slurm", slurm, cores=2, reach=reach)
    with campus.run(f"{site}:2") as run:
        futures = [run.executable(["sh", "-c", "id -un; sleep 0.02"]) for _ in range(TASKS)]
        said = [future.result(timeout=processes.PATIENCE_S).stdout.decode().strip() for future in futures]
        assert len(tunnels(campus)) == max(1, len(hosts)), "one to the login node, or to each host"
    assert said == [campus.person.name] * TASKS
    assert ended_well(campus, run.id) and campus.ask("run", run=run.id)["attempts"] == TASKS


def test_there_is_no_other_way_than_ssh(laptop: Laptop, campus: Campus) -> None:
    """Otherwise the other tests would prove nothing."""
    there = laptop.server.rpartition(".")[0] + ".2"
    assert laptop.wire not in subprocess.run(["ip", "route", "get", there], capture_output=True, text=True).stdout
    with socket.create_server((laptop.server, 0)) as listener:
        call = f"import socket; socket.create_connection(('{laptop.server}', {{}}), 1.0)"
        for port, answers in ((campus.openssh.ports[0], True), (listener.getsockname()[1], False)):
            said = subprocess.run(laptop.enter(sys.executable, "-c", call.format(port)), capture_output=True)
            assert (said.returncode == 0) is answers


def test_a_tunnel_whose_ssh_is_killed_is_dug_again_and_every_task_runs_once(campus: Campus, slurm: Slurm) -> None:
    """A lost assignment is repeated with a new attempt; therefore the test checks what ran, not attempts."""
    site = campus.add("far", "slurm", slurm, cores=2, reach="tunnel")
    ran = campus.person.home / "ran"
    with campus.run(f"{site}:2") as run:
        futures = [run.executable(["sh", "-c", f"echo $PILOTFISH_TASK >> {ran}; sleep 0.2"]) for _ in range(TASKS)]
        campus.wait_for_workers(site, 2)
        for _ in range(3):
            processes.wait_until(lambda: len(tunnels(campus)) == 1, "there is a tunnel")
            (ssh,) = tunnels(campus)
            os.kill(ssh, signal.SIGKILL)
            wait_for_more(campus, run.id, 20)
        assert [future.result(timeout=processes.PATIENCE_S).exit for future in futures] == [0] * TASKS
    assert sorted(ran.read_text().split()) == sorted(f"{run.id}.{index}" for index in range(TASKS))
    rows = campus.ask("tasks", run=run.id)
    assert ended_well(campus, run.id) and not any(row["failures"] or row["losses"] for row in rows)


def test_a_master_that_is_killed_digs_a_new_tunnel_for_the_agents_of_the_old_one(campus: Campus, slurm: Slurm) -> None:
    site = campus.add("far", "slurm", slurm, cores=2, reach="tunnel")
    with campus.run(f"{site}:2") as run:
        futures = [run.executable(["sh", "-c", "sleep 0.2; echo $PILOTFISH_WORKER"]) for _ in range(TASKS)]
        campus.wait_for_workers(site, 2)
        campus.kill_master()
        wait_for_more(campus, run.id, 20)
        workers = {future.result(timeout=processes.PATIENCE_S).stdout for future in futures}
    assert len(workers) == 2 and ended_well(campus, run.id)


@pytest.mark.campaign
def test_a_network_that_is_away_for_a_while_costs_no_task(laptop: Laptop, campus: Campus, slurm: Slurm) -> None:
    """The outage is longer than the lease: workers are given up and come back."""
    site = campus.add("far", "slurm", slurm, cores=2, reach="tunnel")
    with campus.run(f"{site}:2") as run:
        futures = [run.executable(["sh", "-c", "sleep 0.2"]) for _ in range(TASKS)]
        campus.wait_for_workers(site, 2)
        laptop.cut()
        processes.wait_until(lambda: campus.row(site)["workers"] == 0, "the workers are given up")
        laptop.heal()
        assert [future.result(timeout=2 * processes.PATIENCE_S).exit for future in futures] == [0] * TASKS
    assert ended_well(campus, run.id)
