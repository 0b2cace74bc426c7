"""Tests machines with low limits on files and processes: a worker uses fewer slots, and no task is charged."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotfish.model import messages as wire
from tests.support.scripted_master import Client, FakeMaster, running_agent

CORES = 32

SHORTAGE = """\
import errno, os, sys
if {role!r} in sys.orig_argv:
    started = os.getpid()
    def refuse(name, really):
        def refusing(*arguments, **named):
            if {condition}:
                raise OSError(errno.{error}, os.strerror(errno.{error}))
            return really(*arguments, **named)
        setattr(os, name, refusing)
    refuse({name!r}, os.{name})
"""
NO_THREADS = """\
import os, sys, threading
if "agent" in sys.orig_argv:
    really = threading.Thread.start
    def refusing(thread):
        if os.path.exists({path!r}):
            raise RuntimeError("can't start new thread")
        really(thread)
    threading.Thread.start = refusing
"""
ONLY_THE_FIRST_SLOT = """\
    def is_another(path):
        try:
            os.symlink(str(os.getpid()), path)
        except FileExistsError:
            pass
        return os.readlink(path) != str(os.getpid())
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[FakeMaster]:
    made = FakeMaster(tmp_path, "unix", beat_s=0.5, orphan_s=60.0)
    yield made
    made.close()


def allow_few_files(directory: Path) -> str:
    """Write a Python wrapper that may have 64 files open."""
    python = directory / "python"
    python.write_text(f'#!/bin/sh\nulimit -n 64\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    return str(python)


def make_shortage(monkeypatch: pytest.MonkeyPatch, directory: Path, name: str, error: str, condition: str, role: str = "agent") -> None:
    """Make a system call fail as at a limit, while the condition holds. ``started``: the process of the agent, which forks the others."""
    if role == "agent":
        condition = f"os.getpid() != started and {condition}"
    text = SHORTAGE.format(name=name, error=error, condition=condition, role=role)
    if "is_another" in condition:
        text = text.replace("    def refuse(", ONLY_THE_FIRST_SLOT + "    def refuse(")
    (directory / "sitecustomize.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(directory))


def test_with_few_files_fewer_slots_do_all_of_the_work(master: FakeMaster, tmp_path: Path) -> None:
    with running_agent(master, "--cores", str(CORES), python=allow_few_files(tmp_path)) as agent:
        master.wait_for(wire.Hello)
        client = Client(master)
        executables = [client.command(client.exec(), "/bin/sleep", "0.2") for _ in range(2 * CORES)]
        calls = client.python(lambda number: number)
        numbers = [client.call(calls, number) for number in range(100)]
        for task in executables:
            assert client.outcome(task)["failure"] is None
        assert [client.value(task) for task in numbers] == list(range(100))
        assert 2 < len(agent.slots()) < CORES and agent.process.poll() is None


@pytest.mark.parametrize(("name", "error"), [("posix_spawn", "EAGAIN"), ("posix_spawn", "ENOMEM"), ("pidfd_open", "EMFILE")])
def test_a_slot_that_can_start_nothing_leaves_the_work_to_those_that_can(
    master: FakeMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: str
) -> None:
    make_shortage(monkeypatch, tmp_path, name, error, f"is_another({str(tmp_path / 'first')!r})")
    with running_agent(master, "--cores", "2", "--worker", "w1"):
        master.wait_for(wire.Hello)
        client = Client(master)
        spec = client.exec()
        tasks = [client.command(spec, "/bin/sleep", "0.2") for _ in range(4)]
        outcomes = [client.outcome(task)["failure"] for task in tasks if client.master.wait_for_result(task)[1]]
        assert outcomes.count(None) >= 3 and all(failure is None or failure.blame == "worker" for failure in outcomes)
        if name == "posix_spawn":
            assert outcomes == [None] * 4, "nothing of it had run, so that it was nobody's loss"


@pytest.mark.parametrize(
    ("name", "error", "cure"),
    [("fork", "EAGAIN", "ulimit -u"), ("posix_spawn", "EAGAIN", "ulimit -u"), ("posix_spawn", "EMFILE", "ulimit -n")],
)
def test_where_no_slot_can_work_tasks_are_lost_to_the_worker_which_goes_on_when_it_can(
    master: FakeMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: str, cure: str
) -> None:
    shortage = tmp_path / "shortage"
    make_shortage(monkeypatch, tmp_path, name, error, f"os.path.exists({str(shortage)!r})")
    shortage.touch()
    with running_agent(master, "--cores", "2", "--worker", "w1") as agent:
        master.wait_for(wire.Hello)
        client = Client(master)
        spec = client.exec()
        cause, blame, message = client.failure(client.command(spec, "/bin/true"))
        assert (cause, blame) == ("spawn", "worker") and cure in message and os.strerror(getattr(errno, error)) in message
        task = client.command(spec, "/bin/true")
        shortage.unlink()
        assert client.outcome(task)["failure"] is None and agent.process.poll() is None


def test_an_agent_that_has_no_thread_to_dial_with_tries_again(master: FakeMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shortage = tmp_path / "shortage"
    shortage.touch()
    (tmp_path / "sitecustomize.py").write_text(NO_THREADS.format(path=str(shortage)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with running_agent(master, "--cores", "1") as agent:
        assert agent.process.stderr is not None
        assert "can't start new thread" in agent.process.stderr.readline()
        shortage.unlink()
        assert master.wait_for(wire.Hello)


def test_a_supervisor_that_cannot_start_its_agent_says_what_to_do(
    master: FakeMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_shortage(monkeypatch, tmp_path, "pipe", "EMFILE", "sys._getframe(1).f_code.co_filename.endswith('subprocess.py')", "--credentials")
    with running_agent(master, "--cores", "1") as agent:
        code, text = agent.wait()
        assert code == 1 and "ulimit -n" in text and "Traceback" not in text
    assert not list(agent.workdir.iterdir())
