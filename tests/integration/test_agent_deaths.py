"""Tests kills of slots, agents, supervisors and tasks: nothing is lost that could be kept."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotfish.model import messages as wire
from tests.support.scripted_master import Agent, Client, FakeMaster, alive, call_payload, children, eventually, running_agent, unparcel


@pytest.fixture
def master(tmp_path: Path) -> Iterator[FakeMaster]:
    made = FakeMaster(tmp_path, "unix", beat_s=0.5, orphan_s=60.0)
    yield made
    made.close()


@pytest.fixture
def agent(master: FakeMaster) -> Iterator[Agent]:
    with running_agent(master, "--cores", "2", "--memory", str(1 << 30), "--stopped-after", "1", "--worker", "w1") as made:
        master.wait_for(wire.Hello)
        yield made


@pytest.fixture
def client(master: FakeMaster, agent: Agent) -> Client:
    return Client(master)


def hold(path: str, pid_file: str = "") -> int:
    """A call that waits until a file appears."""
    import time

    if pid_file:
        with open(pid_file + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(pid_file + ".new", pid_file)
    while not os.path.exists(path):
        time.sleep(0.01)
    return os.getpid()


def tree(pid: int) -> list[int]:
    found = children(pid)
    for child in list(found):
        found.extend(tree(child))
    return found


def pid_in(path: Path) -> int:
    eventually(path.exists, "the task did not start")
    return int(path.read_text())


def test_a_killed_slot_costs_its_own_task_and_no_other(client: Client, agent: Agent, tmp_path: Path) -> None:
    spec = client.python(hold)
    gate = str(tmp_path / "gate")
    victim = client.call(spec, gate, str(tmp_path / "victim"))
    neighbour = client.call(spec, gate, str(tmp_path / "neighbour"))
    before = agent.pid
    neighbour_pid = pid_in(tmp_path / "neighbour")
    os.kill(pid_in(tmp_path / "victim"), signal.SIGKILL)
    assert client.failure(victim)[:2] == ("slot-lost", "worker")
    Path(gate).touch()
    assert client.value(neighbour) == neighbour_pid
    assert client.value(client.call(spec, gate)) > 0 and agent.pid == before


def test_a_task_that_truncates_all_descriptors_kills_nobody(client: Client, agent: Agent) -> None:
    def truncate_all() -> int:
        truncated = 0
        for descriptor in range(1024):
            try:
                os.ftruncate(descriptor, 0)
                truncated += 1
            except OSError:
                pass
        return truncated

    before = agent.pid
    client.value(client.call(client.python(truncate_all)))
    assert client.value(client.call(client.python(abs), -3)) == 3
    assert agent.pid == before


def test_a_crash_is_told_with_its_signal_and_with_what_was_written(client: Client) -> None:
    def crash() -> None:
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

    task = client.call(client.python(crash))
    cause, blame, message = client.failure(task)
    assert (cause, blame) == ("crash", "task") and "SIGSEGV" in message
    assert unparcel(client.master.wait_for_result(task)[1])[2] == b"last words\n"


def test_among_many_sent_ahead_only_the_guilty_call_fails_and_each_runs_once(client: Client, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def work(number: int, path: str) -> int:
        with open(path, "a") as file:
            file.write(f"{number}\n")
        if number % 100 == 50:
            os.kill(os.getpid(), signal.SIGKILL if number % 200 == 50 else signal.SIGABRT)
        return number

    spec = client.python(work)
    tasks = client.start(spec, *[call_payload(number, str(log)) for number in range(600)])
    for number, task in enumerate(tasks):
        if number % 100 == 50:
            assert client.failure(task)[0] == ("slot-lost" if number % 200 == 50 else "crash")
        else:
            assert client.value(task) == number
    assert sorted(map(int, log.read_text().split())) == list(range(600))


@pytest.mark.parametrize(
    ("way", "cause"),
    [
        ("os._exit(3)", ("exit", "task")),
        ("os.kill(os.getppid(), 9); time.sleep(1000)", ("slot-lost", "worker")),
        ("os.killpg(0, 9); time.sleep(1000)", ("slot-lost", "worker")),
        ("os.kill(os.getpid(), 15); time.sleep(1000)", ("crash", "task")),
        ("os.abort()", ("crash", "task")),
    ],
)
def test_a_call_that_ends_its_process_harms_nobody_else(client: Client, agent: Agent, way: str, cause: tuple[str, str]) -> None:
    before = agent.pid
    bad = client.python(f"import os, time\ndef f():\n    {way}\n", launch={"form": "source"})
    assert client.failure(client.call(bad))[:2] == cause
    assert client.value(client.call(client.python(lambda: 5))) == 5
    assert agent.pid == before


def test_a_call_that_closes_every_descriptor_loses_its_slot_only(client: Client, agent: Agent) -> None:
    before = agent.pid
    task = client.call(client.python(lambda: os.closerange(0, 4096)))
    assert client.failure(task)[0] in ("slot-lost", "exit")
    assert client.value(client.call(client.python(lambda: 5))) == 5
    assert agent.pid == before


def test_what_a_dead_slot_had_started_dies_with_it(client: Client, tmp_path: Path) -> None:
    def leave(path: str) -> None:
        import subprocess
        import time

        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        with open(path + ".new", "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        os.rename(path + ".new", path)
        time.sleep(1000)

    task = client.call(client.python(leave), str(tmp_path / "pids"))
    eventually((tmp_path / "pids").exists)
    slot, child = map(int, (tmp_path / "pids").read_text().split())
    os.kill(slot, signal.SIGKILL)
    assert client.failure(task)[0] == "slot-lost"
    eventually(lambda: not alive(child))


def test_a_stopped_slot_is_noticed_and_replaced(client: Client, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    spec = client.python(hold)
    task = client.call(spec, gate, str(tmp_path / "pid"))
    pid = pid_in(tmp_path / "pid")
    os.kill(pid, signal.SIGSTOP)
    cause, blame, message = client.failure(task)
    assert (cause, blame) == ("slot-lost", "worker") and "SIGSTOP" in message
    eventually(lambda: not alive(pid))
    Path(gate).touch()
    assert client.value(client.call(spec, gate)) != pid


def test_a_time_limit_ends_a_call_and_its_children(client: Client, tmp_path: Path) -> None:
    def work(path: str) -> None:
        import subprocess
        import time

        child = subprocess.Popen(["sleep", "1000"])
        try:
            time.sleep(1000)
        finally:
            with open(path, "w") as file:
                file.write(str(child.pid))

    # long enough for a busy machine to start the child
    task = client.call(client.python(work, time_s=4.0), str(tmp_path / "cleaned"))
    assert client.failure(task)[:2] == ("time", "task")
    child = pid_in(tmp_path / "cleaned")
    eventually(lambda: not alive(child))
    assert client.value(client.call(client.python(lambda: 5))) == 5


def test_a_call_that_will_not_listen_is_killed_after_its_time(client: Client) -> None:
    source = "import time\ndef f():\n    while True:\n        try:\n            time.sleep(1000)\n"
    source += "        except BaseException:\n            pass\n"
    assert client.failure(client.call(client.python(source, launch={"form": "source"}, time_s=0.3)))[:2] == ("time", "task")


def test_a_call_that_takes_too_much_memory_is_killed(client: Client) -> None:
    def grow() -> None:
        import time

        block = bytearray(200 << 20)
        block[::4096] = b"x" * len(block[::4096])
        time.sleep(1000)

    task = client.call(client.python(grow, needs={"memory": float(120 << 20)}))
    assert client.failure(task)[:2] == ("oom", "task")
    assert client.master.wait_for_result(task)[0].rss_kib > 120 << 10


def busy_agent(client: Client, agent: Agent, tmp_path: Path) -> list[int]:
    """Bring an agent into the middle of a call and of an executable; return all processes below its supervisor."""
    gate = str(tmp_path / "gate")
    client.call(client.python(hold), gate, str(tmp_path / "call"))
    client.command(
        client.exec(), "/bin/sh", "-c", f"setsid sleep 1000 & echo $$ > {tmp_path}/exec.new; mv exec.new {tmp_path}/exec; sleep 1000"
    )
    client.command(client.exec(), "/bin/true")
    pid_in(tmp_path / "call")
    eventually(lambda: len([pid for slot in agent.slots() for pid in children(slot)]) >= 1)
    return tree(agent.process.pid)


def test_when_the_agent_is_killed_nothing_of_it_is_left_and_the_master_is_told(client: Client, agent: Agent, tmp_path: Path) -> None:
    everybody = busy_agent(client, agent, tmp_path)
    os.kill(agent.pid, signal.SIGKILL)
    gone = client.master.wait_for(wire.AgentDied)
    assert gone.worker == "w1" and "signal 9" in gone.reason
    assert not any(alive(pid) for pid in everybody)
    code, _ = agent.wait()
    assert code == 1 and not agent.leftovers()


def test_when_the_supervisor_is_killed_the_agent_ends_its_work_and_leaves(client: Client, agent: Agent, tmp_path: Path) -> None:
    everybody = busy_agent(client, agent, tmp_path)
    agent.process.kill()
    leave = client.master.wait_for(wire.Leave)
    assert "supervisor" in leave.reason
    eventually(lambda: not any(alive(pid) for pid in everybody))
    eventually(lambda: not agent.leftovers())


def test_when_both_are_killed_at_once_nothing_is_left_running(client: Client, agent: Agent, tmp_path: Path) -> None:
    everybody = busy_agent(client, agent, tmp_path)
    for pid in (agent.pid, agent.process.pid):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(alive(pid) for pid in everybody))


def test_a_terminated_agent_hands_back_what_has_not_started_and_leaves(client: Client, agent: Agent, tmp_path: Path) -> None:
    spec = client.python(hold)
    tasks = [client.call(spec, str(tmp_path / "gate"), str(tmp_path / f"pid{number}")) for number in range(3)]
    pids = [pid_in(tmp_path / "pid0"), pid_in(tmp_path / "pid1")]
    agent.process.terminate()
    assert client.master.wait_for(wire.Returned).items == [(tasks[2], 1)]
    assert "SIGTERM" in client.master.wait_for(wire.Leave).reason
    assert agent.wait()[0] == 0
    assert not any(alive(pid) for pid in pids)


NO_FORKS_BUT_OF_THE_AGENT = """\
import errno, os, sys
if "agent" in sys.orig_argv:
    agent, really = os.getpid(), os.fork
    def refusing():
        if os.getpid() != agent:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return really()
    os.fork = refusing
"""


def test_an_agent_whose_slots_cannot_start_says_so_and_leaves(master: FakeMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_FORKS_BUT_OF_THE_AGENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with running_agent(master, "--cores", "2") as agent:
        master.wait_for(wire.Hello)
        spec = Client(master).python(lambda: 1)
        for _ in range(3):
            Client(master).call(spec)
        assert "Operation not permitted" in master.wait_for(wire.Leave).reason
        assert "no slot can be started" in agent.wait()[1]


def slot_server(agent: Agent) -> int:
    """The process that forks the slots: the child of the agent that has no children."""
    return next(pid for pid in children(agent.pid) if not children(pid))


def test_slots_are_forked_without_the_modules_of_the_agent(client: Client, agent: Agent) -> None:
    def look() -> tuple[list[str], int, int, list[str]]:
        import sys

        ours = [name for name in sys.modules if name.startswith("pilotfish") and (".node" in name or ".peers" in name)]
        return ours, os.getppid(), os.getsid(0), [path for path in sys.path if "bundle" in path]

    ours, monitor, session, paths = client.value(client.call(client.python(look)))
    assert ours == [] and paths == []
    assert monitor in children(agent.pid) and session == monitor


def test_two_slots_draw_different_random_numbers(client: Client, tmp_path: Path) -> None:
    def draw(directory: str) -> tuple[float, int]:
        import random
        import time

        open(f"{directory}/{os.getpid()}", "w").close()
        while len(os.listdir(directory)) < 2:
            time.sleep(0.01)
        return random.random(), os.getpid()

    (tmp_path / "drawn").mkdir()
    spec = client.python(draw)
    drawn = [client.value(task) for task in [client.call(spec, str(tmp_path / "drawn")) for _ in range(2)]]
    assert len({pid for _, pid in drawn}) == len({number for number, _ in drawn}) == 2


KILLED_BETWEEN_THE_FORKS = """\
import os, signal, sys
if "agent" in sys.orig_argv:
    agent, really, killed = os.getpid(), os.fork, {path!r}
    def fork():
        child = really()
        if child and os.getpid() != agent and os.getsid(0) == os.getsid(agent) and not os.path.exists(killed):
            if os.getppid() != agent:
                open(killed, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
        return child
    os.fork = fork
"""


def test_a_process_that_is_killed_between_the_forks_of_a_slot_costs_nothing(
    master: FakeMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "killed"
    (tmp_path / "sitecustomize.py").write_text(KILLED_BETWEEN_THE_FORKS.format(path=str(killed)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with running_agent(master, "--cores", "2") as agent:
        master.wait_for(wire.Hello)
        client = Client(master)
        tasks = [client.call(client.python(os.getpid)) for _ in range(4)]
        assert all(client.value(task) > 0 for task in tasks) and killed.exists()
        assert agent.process.poll() is None


def test_an_agent_whose_slot_server_was_killed_leaves_and_nothing_of_it_is_left(client: Client, agent: Agent, tmp_path: Path) -> None:
    everybody = busy_agent(client, agent, tmp_path)
    os.kill(slot_server(agent), signal.SIGKILL)
    assert "the process that starts its slots ended" in client.master.wait_for(wire.Leave).reason
    agent.wait()
    assert not any(alive(pid) for pid in everybody) and not agent.leftovers()


def test_an_interrupt_from_outside_is_the_calls_to_handle(client: Client, tmp_path: Path) -> None:
    def work(path: str) -> Any:
        import time

        with open(path + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(path + ".new", path)
        try:
            time.sleep(1000)
        except KeyboardInterrupt:
            return "interrupted"

    task = client.call(client.python(work), str(tmp_path / "pid"))
    pid = pid_in(tmp_path / "pid")
    os.kill(pid, signal.SIGINT)
    assert client.value(task) == "interrupted"
    os.kill(pid, signal.SIGINT)
    assert client.value(client.call(client.python(os.getpid))) > 0
