"""Tests a real agent with its master: joining, refusal, reconnection, leaving."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotfish.model import messages as wire
from tests.support.scripted_master import Agent, Client, FakeMaster, alive, call_payload, eventually, parcel, running_agent


@pytest.fixture(params=["tls", "unix"])
def master(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FakeMaster]:
    made = FakeMaster(tmp_path, request.param, beat_s=0.3, orphan_s=60.0)
    yield made
    made.close()


@pytest.fixture
def unix_master(tmp_path: Path) -> Iterator[FakeMaster]:
    made = FakeMaster(tmp_path, "unix", beat_s=0.3, orphan_s=60.0)
    yield made
    made.close()


def hold(path: str) -> str:
    import time

    while not os.path.exists(path):
        time.sleep(0.01)
    return path


def test_it_joins_and_tells_what_it_offers(master: FakeMaster) -> None:
    options = ("--worker", "me", "--cores", "3", "--memory", "1000000", "--gpus", "2", "--resource", "licence=1.5", "--tag", "site=here")
    with running_agent(master, *options, "--ends-in", "1000"):
        hello = master.wait_for(wire.Hello)
    assert (hello.worker, hello.pilot, hello.poll_s, hello.holding) == ("me", "test", 0.0, [])
    assert hello.capacity == {"cores": 3.0, "memory": 1e6, "gpus": 2.0, "licence": 1.5} and hello.tags == {"site": "here"}
    assert 900 < hello.ends_in_s < 1000 and hello.info["hostname"]


def test_it_sends_heartbeats_and_stays_while_they_are_answered(master: FakeMaster) -> None:
    with running_agent(master, "--cores", "1"):
        master.wait_for(wire.Hello)
        for _ in range(4):
            assert master.wait_for(wire.Heartbeat).started == []
        assert len(master.peers) == 1


def test_a_start_is_told_once_when_an_attempt_runs_for_a_while(unix_master: FakeMaster, tmp_path: Path) -> None:
    with running_agent(unix_master, "--cores", "2"):
        unix_master.wait_for(wire.Hello)
        client = Client(unix_master)
        task = client.call(client.python(hold), str(tmp_path / "gate"))
        started: list[Any] = []
        while len(started) < 1:
            started.extend(unix_master.wait_for(wire.Heartbeat).started)
        for _ in range(3):
            started.extend(unix_master.wait_for(wire.Heartbeat).started)
        assert started == [(task, 1)]
        (tmp_path / "gate").touch()
        client.value(task)


def test_running_work_and_unacknowledged_results_survive_a_lost_link(master: FakeMaster, tmp_path: Path) -> None:
    with running_agent(master, "--cores", "2"):
        master.wait_for(wire.Hello)
        client = Client(master)
        spec = client.python(hold)
        master.acknowledge = False
        (tmp_path / "open").touch()
        done = client.call(spec, str(tmp_path / "open"))
        client.value(done)
        running = client.call(spec, str(tmp_path / "gate"))
        while [running, 1] not in [list(pair) for pair in master.wait_for(wire.Heartbeat).started]:
            pass
        master.results.clear()
        master.acknowledge = True
        master.hang_up()
        hello = master.wait_for(wire.Hello)
        assert sorted(hello.holding) == [(done, 1, wire.FINISHED), (running, 1, wire.STARTED)]
        results = master.wait_for(wire.Results)
        assert results.first == 0 and results.items[0].task == done
        (tmp_path / "gate").touch()
        assert client.value(running) == str(tmp_path / "gate")


def test_while_the_link_is_cut_again_and_again_each_task_runs_once_and_none_is_lost(master: FakeMaster, tmp_path: Path) -> None:
    def work(number: int, path: str) -> int:
        with open(path, "a") as file:
            file.write(f"{number}\n")
        return number

    with running_agent(master, "--cores", "2"):
        master.wait_for(wire.Hello)
        client = Client(master)
        spec = client.python(work)
        wanted: dict[int, bytes] = {}
        for cut in range(12):
            payloads = [call_payload(cut * 100 + number, str(tmp_path / "log")) for number in range(100)]
            wanted.update(zip(client.start(spec, *payloads), payloads, strict=True))
            if cut % 3 == 2:
                client.value(list(wanted)[-50])
            master.hang_up()
            held = {task for task, _, _ in master.wait_for(wire.Hello).holding}
            # Tasks lost in transit were never held; they are sent again under the same attempt.
            lost = [task for task in wanted if task not in held and (task, 1) not in master.results]
            items = [wire.SentTask(task, 1, spec, len(wanted[task]), 0, 0) for task in lost]
            master.peer.send(wire.Assign([], items), *[wanted[task] for task in lost])
        assert sorted(client.value(task) for task in wanted) == list(range(1200))
    assert sorted(map(int, (tmp_path / "log").read_text().split())) == list(range(1200))


def test_a_master_that_moved_is_found_by_its_new_credentials(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = FakeMaster(tmp_path / "a", "tls", beat_s=0.3)
    with running_agent(first, "--worker", "me"):
        first.wait_for(wire.Hello)
        second = FakeMaster(tmp_path / "b", "tls", beat_s=0.3)
        second.epoch = 2
        first.credentials.write_text(second.credentials.read_text())
        first.close()
        assert second.wait_for(wire.Hello).worker == "me"
        second.close()


def test_a_silent_master_is_left_and_dialled_again(unix_master: FakeMaster) -> None:
    unix_master.welcome = False
    unix_master.beat_s = 0.3
    with running_agent(unix_master, "--cores", "1"):
        unix_master.wait_for(wire.Hello)
        unix_master.welcome = True
        unix_master.wait_for(wire.Hello, patience_s=60)


def test_an_older_master_is_not_obeyed(unix_master: FakeMaster) -> None:
    unix_master.epoch = 5
    with running_agent(unix_master, "--cores", "1"):
        unix_master.wait_for(wire.Hello)
        unix_master.epoch = 4
        unix_master.hang_up()
        with pytest.raises(queue.Empty):
            unix_master.wait_for(wire.Hello, patience_s=1.0)
        unix_master.epoch = 6
        unix_master.wait_for(wire.Hello)


def test_without_contact_it_kills_its_work_and_ends(unix_master: FakeMaster, tmp_path: Path) -> None:
    unix_master.orphan_s = 1.0
    with running_agent(unix_master, "--cores", "2") as agent:
        unix_master.wait_for(wire.Hello)
        client = Client(unix_master)
        client.call(client.python(hold), str(tmp_path / "gate"))
        slots = eventually(agent.slots)
        unix_master.close()
        code, text = agent.wait()
        assert code == 4 and "no contact" in text
        assert not any(alive(slot) for slot in slots)


def test_wrong_fingerprint_means_no_word_to_that_master(tmp_path: Path) -> None:
    master = FakeMaster(tmp_path, "tls")
    master.write_credentials(fingerprint="00" * 32)
    agent = Agent(master)
    assert agent.process.stderr is not None
    assert "certificate is not the one we know" in agent.process.stderr.readline()
    agent.end()
    with pytest.raises(queue.Empty):
        master.wait_for(wire.Hello, patience_s=0.1)
    master.close()


def test_a_refused_agent_ends_with_the_reason(master: FakeMaster) -> None:
    master.write_credentials(key=b"another key")
    code, text = Agent(master).wait()
    assert code == 3 and "the master refused this agent: wrong key" in text
    assert len(text.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("{}", 0o600, "is not one of ours"),
        ("no json", 0o600, "is not one of ours"),
        ('{"key_id":"a","key":"00","endpoints":[]}', 0o600, "names no master"),
        ('{"key_id":"a","key":"00","endpoints":[{}]}', 0o644, "chmod 600"),
        (None, 0o600, "cannot read"),
    ],
)
def test_unusable_credentials_are_one_clear_line(unix_master: FakeMaster, text: str | None, mode: int, says: str) -> None:
    path = unix_master.credentials
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
        path.chmod(mode)
    code, error = Agent(unix_master).wait()
    assert code == 2 and says in error and len(error.strip().splitlines()) == 1


def test_recall_hands_back_what_has_not_started(unix_master: FakeMaster, tmp_path: Path) -> None:
    with running_agent(unix_master, "--cores", "1"):
        unix_master.wait_for(wire.Hello)
        client = Client(unix_master)
        gate = str(tmp_path / "gate")
        tasks = client.start(client.python(hold), *[call_payload(gate)] * 3)
        assert unix_master.wait_for(wire.Heartbeat).started or unix_master.wait_for(wire.Heartbeat).started
        unix_master.peer.send(wire.Recall([(task, 1) for task in tasks]))
        assert unix_master.wait_for(wire.Returned).items == [(tasks[1], 1), (tasks[2], 1)]
        Path(gate).touch()
        assert client.value(tasks[0]) == gate


def test_a_drained_agent_finishes_lets_applications_clean_up_and_leaves(unix_master: FakeMaster, tmp_path: Path) -> None:
    class Worker:
        def do_work(self, path: str) -> str:
            self.path = path
            return path

        def finalize(self) -> None:
            Path(self.path).write_text("cleaned up")

    import pickle

    with running_agent(unix_master, "--cores", "1") as agent:
        unix_master.wait_for(wire.Hello)
        client = Client(unix_master)
        (task,) = client.start(client.python(Worker, kind="application"), parcel(pickle.dumps(str(tmp_path / "note"))))
        client.value(task)
        unix_master.peer.send(wire.Drain("enough"))
        assert unix_master.wait_for(wire.Leave).reason == "enough"
        assert agent.wait()[0] == 0
        assert (tmp_path / "note").read_text() == "cleaned up"
        assert not agent.leftovers()


def test_a_retired_agent_kills_everything_and_ends(unix_master: FakeMaster, tmp_path: Path) -> None:
    with running_agent(unix_master, "--cores", "1") as agent:
        unix_master.wait_for(wire.Hello)
        client = Client(unix_master)
        client.call(client.python(hold), str(tmp_path / "gate"))
        slots = eventually(agent.slots)
        unix_master.peer.send(wire.Retire("no more"))
        assert agent.wait()[0] == 0
        assert not any(alive(slot) for slot in slots)


def test_a_newer_attempt_replaces_the_older_one(unix_master: FakeMaster, tmp_path: Path) -> None:
    with running_agent(unix_master, "--cores", "1"):
        unix_master.wait_for(wire.Hello)
        client = Client(unix_master)
        spec = client.python(hold)
        payload = call_payload(str(tmp_path / "gate"))
        (task,) = client.start(spec, payload)
        eventually(lambda: [task, 1] in [list(pair) for pair in unix_master.wait_for(wire.Heartbeat).started])
        (tmp_path / "gate2").touch()
        payload = call_payload(str(tmp_path / "gate2"))
        unix_master.peer.send(wire.Assign([], [wire.SentTask(task, 2, spec, len(payload), 0, 0)]), payload)
        item, _ = unix_master.wait_for_result(task, attempt=2)
        assert item.failure is None and (task, 1) not in unix_master.results


def test_a_calling_agent_hangs_up_works_and_calls_with_its_results(master: FakeMaster) -> None:
    with running_agent(master, "--cores", "1", "--poll", "2"):
        hello = master.wait_for(wire.Hello)
        assert hello.poll_s == 2.0
        client = Client(master)
        task = client.call(client.python(lambda: __import__("time").sleep(0.4) or "done"))
        assert client.value(task) == "done"
        assert len(master.peers) >= 2


def test_it_leaves_when_its_time_is_over(unix_master: FakeMaster) -> None:
    with running_agent(unix_master, "--ends-in", "8") as agent:
        unix_master.wait_for(wire.Hello)
        assert "walltime of this pilot is nearly over" in unix_master.wait_for(wire.Draining).reason
        unix_master.wait_for(wire.Leave)
        assert agent.wait()[0] == 0


def test_garbage_and_giant_frames_cost_the_link_and_nothing_else(unix_master: FakeMaster) -> None:
    with running_agent(unix_master, "--cores", "1") as agent:
        unix_master.wait_for(wire.Hello)
        before = agent.pid
        for garbage in (b"\xff" * 100, b"\0\0\0\4\0\0\0\0abcd", b"\0\0\0\2\0\0\0\0[]", b'\0\0\0\x0a\0\0\0\0["assign"]'):
            unix_master.peer.connection.sendall(garbage)
            unix_master.wait_for(wire.Hello)
        client = Client(unix_master)
        assert client.value(client.call(client.python(lambda: 5))) == 5
        assert agent.pid == before
