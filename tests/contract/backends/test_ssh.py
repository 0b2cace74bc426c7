"""Machines without a batch system: the answers of their scripts, and the scripts themselves, run by the shell of this machine."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from pilotfish.backends import ssh
from pilotfish.backends.interface import (
    ENDED,
    RUNNING,
    CommandExchange,
    CommandOutput,
    CommandRefused,
    JobStatus,
    PilotBatch,
    UnclearAnswer,
)
from pilotfish.backends.ssh import SshBackend
from pilotfish.model.site import PilotSize, Site
from pilotfish.testing.backend_suite import BackendContract, Samples

BACKEND = SshBackend()
DONE = "pilotfish: done\n"


class OneHost(Samples):
    def site(self) -> Site:
        return msgspec.structs.replace(super().site(), hosts=("node",))

    def order(self, tag: str = "pf-tag-1", count: int = 0) -> PilotBatch:
        return replace(super().order(tag, count), host="node")


class TestSsh(BackendContract):
    samples = OneHost(
        backend=BACKEND,
        kind="ssh",
        submitted=CommandOutput(0, "Welcome to node!\nfound 19722.2545425\npilotfish: done\n"),
        jobs=("node:19722:2545425",),
        listed=(
            CommandOutput(0, "lives 19722.2545425\nended 19764.2545479 43 no python here\npilotfish: done\n"),
            {"node:19722:2545425": RUNNING, "node:19764:2545479": ENDED},
        ),
        nothing=(CommandOutput(0, DONE),),
        down=(CommandOutput(255, "", "ssh: connect to host node port 22: Connection refused"), CommandOutput(0, "lives 19722.2545425\n")),
        refused=(
            CommandOutput(70, "", "sh: 17: cannot create /nowhere/pilot.sh: Directory nonexistent"),
            CommandOutput(127, "", "sh: not found"),
        ),
        cancelled=(CommandOutput(0, DONE),),
        found=("pf-tag-1", CommandOutput(0, "found 19722.2545425\npilotfish: done\n"), {1: "node:19722:2545425"}),
        unfound=(CommandOutput(0, DONE),),
        words=dict.fromkeys(("queue", "account", "directives", "memory", "gpus"), "")
        | {"walltime": "--ends-in 5410", "cores": "--cores 4"},
        down_at_submission=(CommandOutput(255, "", "ssh: connect to host node port 22: Connection refused"),),
    )


def test_each_host_is_asked_for_its_own_processes() -> None:
    site = Site(backend="ssh", hosts=("a", "ssh://me@b:2222"))
    jobs = ["a:1:10", "ssh://me@b:2222:2:20", "a:3:30"]
    asked = BACKEND.query(site, jobs)
    assert [exchange.command.at for exchange in asked] == ["a", "ssh://me@b:2222"]
    assert "1.10 3.30" in asked[0].command.stdin and "2.20" not in asked[0].command.stdin
    assert asked[1].read(CommandOutput(0, f"lives 2.20\n{DONE}")) == {jobs[1]: JobStatus(RUNNING)}
    assert [exchange.command.at for exchange in BACKEND.cancel(site, jobs)] == ["a", "ssh://me@b:2222"]
    assert [exchange.command.at for exchange in BACKEND.find(site, "t")] == ["a", "ssh://me@b:2222"]


def test_an_order_goes_to_the_host_that_was_chosen_for_it() -> None:
    site = Site(backend="ssh", hosts=("a", "b"))
    exchange = BACKEND.submit(site, PilotBatch("t", 1, PilotSize(), "/f", "/agent", host="b"))
    assert exchange.command.at == "b" and exchange.read(CommandOutput(0, f"found 1.10\n{DONE}")) == ["b:1:10"]


class Machine:
    """This one, with records of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = Site(backend="ssh", folder=str(folder / "it's here"), setup=("greeting='it is me'",))
        self.path = os.environ["PATH"]
        self.jobs: list[str] = []

    def run(self, exchange: CommandExchange[ssh.Result]) -> ssh.Result:
        command, environment = exchange.command, {**os.environ, "PATH": self.path}
        ran = subprocess.run(command.argv, input=command.stdin, env=environment, capture_output=True, text=True, timeout=command.timeout_s)
        return exchange.read(CommandOutput(ran.returncode, ran.stdout, ran.stderr))

    def start(self, tag: str, start: str) -> str:
        folder = self.folder / tag
        folder.mkdir(exist_ok=True)
        (folder / "start.sh").write_text(start)
        order = PilotBatch(tag, 1, PilotSize(cores=2.0), str(folder), "/agent")
        self.jobs += self.run(BACKEND.submit(self.site, order))
        return self.jobs[-1]

    def look(self, job: str) -> JobStatus | None:
        (exchange,) = BACKEND.query(self.site, [job])
        return self.run(exchange).get(job)

    def end(self, job: str) -> JobStatus:
        sighting = wait_for(lambda: (seen := self.look(job)) and seen.phase == ENDED and seen)
        assert isinstance(sighting, JobStatus)
        return sighting

    def cancel(self, *jobs: str) -> None:
        for exchange in BACKEND.cancel(self.site, jobs):
            self.run(exchange)


def wait_for(condition: Callable[[], object], timeout_s: float = 30.0) -> object:
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline
    return result


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(ssh, "GRACE_S", 1)
    machine = Machine(tmp_path)
    yield machine
    machine.cancel(*machine.jobs)


def test_a_process_is_started_once_seen_found_and_cancelled(machine: Machine) -> None:
    job = machine.start("pf-a", 'echo "told: $*"; sleep 600 & wait\n')
    assert machine.start("pf-a", "exit 1\n") == job
    assert machine.look(job) == JobStatus(RUNNING)
    assert [machine.run(exchange) for exchange in BACKEND.find(machine.site, "pf-a")] == [{1: job}]
    assert [machine.run(exchange) for exchange in BACKEND.find(machine.site, "pf-b")] == [{}]
    log = machine.folder / "pf-a" / "1.log"
    wait_for(lambda: log.read_text() == f"told: {machine.folder}/pf-a/1.json /agent --cores 2\n")
    machine.cancel(job)
    seen = machine.look(job)
    assert seen is not None and seen.phase == ENDED and not seen.well and seen.reason.startswith("signal 15")
    machine.cancel(job)
    assert [machine.run(exchange) for exchange in BACKEND.find(machine.site, "pf-a")] == [{1: job}]


def test_how_a_process_ended_is_told_with_its_last_words(machine: Machine) -> None:
    assert machine.end(machine.start("pf-well", "exit 0\n")) == JobStatus(ENDED, "exit status 0")
    last = machine.end(machine.start("pf-ill", "echo first; echo 'no python here' >&2; exit 43\n"))
    assert last == JobStatus(ENDED, "exit status 43: no python here", well=False)


def test_who_does_not_listen_is_killed_with_all_that_it_started(machine: Machine) -> None:
    job = machine.start(
        "pf-deaf", "trap '' TERM; sh -c 'echo $$ >\"$0\"; exec sleep 600' \"${1%1.json}child\" & while :; do sleep 1; done\n"
    )
    child = machine.folder / "pf-deaf" / "child"
    wait_for(lambda: child.exists() and child.read_text().strip())
    machine.cancel(job)
    assert machine.end(job) == JobStatus(ENDED, "it was killed, or its machine went down", well=False)
    wait_for(lambda: not alive(int(child.read_text())))


def alive(process: int) -> bool:
    told = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, timeout=60).stdout.strip()
    return bool(told) and not told.startswith("Z")


def test_another_process_with_the_same_number_is_not_taken_for_it(machine: Machine) -> None:
    job = machine.start("pf-a", "sleep 600\n")
    host, process, start = job.rsplit(":", 2)
    other = f"{host}:{process}:{int(start) - 1 if start.isdecimal() else start + 'x'}"
    assert machine.look(other) is None
    machine.cancel(other)
    assert machine.look(job) == JobStatus(RUNNING)


def test_a_machine_without_proc_and_setsid_will_do(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "RECORDS", ssh.RECORDS.replace("/proc/", "/no-such-place/"))
    monkeypatch.setattr(ssh, "START", ssh.START.replace("command -v setsid", "false"))
    job = machine.start("pf-a", "sleep 600\n")
    assert machine.look(job) == JobStatus(RUNNING)
    machine.cancel(job)
    seen = machine.look(job)
    assert seen is not None and seen.phase == ENDED


def test_a_folder_that_is_not_there_is_a_refusal_and_a_cut_answer_is_unclear(machine: Machine) -> None:
    with pytest.raises(CommandRefused):
        machine.run(BACKEND.submit(machine.site, PilotBatch("t", 1, PilotSize(), str(machine.folder / "nowhere"), "/agent")))
    with pytest.raises(UnclearAnswer):
        BACKEND.query(machine.site, [":1:10"])[0].read(CommandOutput(0, "ended 1.10 0\n"))
