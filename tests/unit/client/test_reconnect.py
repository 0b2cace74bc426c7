"""What a client does when the connection to its master breaks: it comes back at once, and never waits without end."""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotfish.client import master_connection as link_module
from pilotfish.client.master_client import MasterClient
from pilotfish.client.submission import MAX_TRIES
from pilotfish.errors import ConnectionFailed, PilotfishError
from pilotfish.model import messages as wire
from pilotfish.model.task import RunOptions
from pilotfish.store.pool_directory import PoolDirectory
from tests.support.fake_master_server import FakeMaster

WAIT_S = 30.0


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Start the work; returns a function that waits for its result, and fails the test if it never comes."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except PilotfishError as problem:
            outcome.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(WAIT_S)
        assert outcome, "it waits without end"
        return outcome[0]

    return result


@pytest.fixture
def master(tmp_path: Path) -> Iterator[FakeMaster]:
    made = FakeMaster(tmp_path / "pool").start()
    yield made
    if made._thread.is_alive():
        made.kill()


def test_a_master_that_dies_leaves_the_socket_of_its_successor_alone(master: FakeMaster) -> None:
    successor = FakeMaster(master.directory, master.book).start()
    master.kill()
    MasterClient.connect(master.directory).close()
    successor.kill()


def test_a_connection_that_the_dying_master_never_took_costs_one_try(master: FakeMaster) -> None:
    """The client is quicker than the end of the master: its next connection waits at a door that closes."""
    revived: list[FakeMaster] = []

    def revive() -> None:
        revived.append(FakeMaster(master.directory, master.book))
        revived[-1].answers["status"] = lambda arguments: "alive"
        revived[-1].start()

    client = MasterClient.connect(master.directory, revive)
    master.close_door_late = True
    master.kill()
    assert in_thread(lambda: client.ask("status"))() == "alive"
    assert len(revived) == 1
    client.close()
    revived[0].kill()


def test_closing_does_not_wait_for_a_master_that_says_nothing(master: FakeMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "HANDSHAKE_S", 10 * WAIT_S)
    client = MasterClient.connect(master.directory)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(master._path) + ".next")
    listener.listen()
    os.rename(str(master._path) + ".next", master._path)
    master.kill()
    taken, _ = listener.accept()  # now the client waits for its first word
    in_thread(lambda: client.close() or "closed")()  # type: ignore[func-returns-value]
    assert not client._thread.is_alive()
    taken.close()
    listener.close()


def test_a_program_with_many_open_files_reaches_its_master(master: FakeMaster) -> None:
    """select() cannot look at descriptors above 1023."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2048
    if before[1] != resource.RLIM_INFINITY and before[1] < wanted:
        pytest.skip("this system lets a process open too few files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(wanted, before[0]), before[1]))
    files: list[int] = []
    try:
        while not files or files[-1] < 1024:
            files.append(os.open(os.devnull, os.O_RDONLY))
        client = MasterClient.connect(master.directory)
        client.ask("cancel", run=client.open_run("u", RunOptions()).run)
        client.close()
    finally:
        for file in files:
            os.close(file)
        master.wait_for(lambda: not master._peers)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_question_of_which_every_master_dies_is_given_up(master: FakeMaster) -> None:
    master.swallow = lambda message: isinstance(message, wire.Ask) and message.kind == "deadly"
    client = MasterClient.connect(master.directory)
    problem = in_thread(lambda: client.ask("deadly"))()
    assert isinstance(problem, ConnectionFailed)
    assert str(problem).startswith("deadly: the connection broke")
    assert sum(isinstance(message, wire.Ask) for message in master.heard) == MAX_TRIES
    master.answers["status"] = lambda arguments: "alive"
    assert client.ask("status") == "alive"
    client.close()


def test_tasks_of_which_every_master_dies_do_not_keep_the_client_trying_for_ever(master: FakeMaster) -> None:
    client = MasterClient.connect(master.directory, reconnect_s=0.2)
    run = client.open_run("u", RunOptions())
    master.swallow = lambda message: isinstance(message, wire.Submit)
    client.submit(run, 0, b"deadly", lambda index: None)
    in_thread(lambda: client.join() or "gave up")()  # type: ignore[func-returns-value]
    assert isinstance(client.failure, ConnectionFailed)
    client.close()


def test_an_answer_after_a_reconnect_restores_the_whole_timeout(master: FakeMaster) -> None:
    """Otherwise a master that is killed now and then would use it up."""
    master.answers["status"] = lambda arguments: "alive"
    client = MasterClient.connect(master.directory, reconnect_s=WAIT_S)
    reconnection = client._reconnection
    cut: list[wire.Ask] = []

    def cut_once(message: Any) -> bool:
        if isinstance(message, wire.Ask) and message not in cut:
            cut.append(message)
            return True
        return False

    master.swallow = cut_once
    for _ in range(5):
        assert client.ask("status") == "alive"
        assert reconnection._silent_connections == 0
    assert len(cut) == 5
    client.close()


def test_a_question_keeps_its_name_when_it_is_asked_again(master: FakeMaster) -> None:
    asked: list[wire.Ask] = []

    def lose_first(message: Any) -> bool:
        if isinstance(message, wire.Ask):
            asked.append(message)
        return len(asked) == 1 and isinstance(message, wire.Ask)

    master.swallow = lose_first
    master.answers["status"] = lambda arguments: "alive"
    for _ in range(2):
        client = MasterClient.connect(master.directory)
        assert client.ask("status") == "alive"
        client.close()
    first, again, of_another = [message.request for message in asked]
    assert first == again
    assert first != of_another


def test_a_run_whose_forgetting_was_not_confirmed_is_not_opened_again(master: FakeMaster) -> None:
    forgotten: list[int] = []

    def forget(arguments: dict[str, Any]) -> Any:
        if not forgotten:
            del master.book.runs["u"]
            master.mute = True
        forgotten.append(arguments["run"])
        return {}

    def come_back() -> None:
        revived.append(FakeMaster(master.directory, master.book))
        revived[-1].answers["forget"] = forget
        revived[-1].start()

    revived: list[FakeMaster] = []
    master.answers["forget"] = forget
    client = MasterClient.connect(master.directory, come_back)
    run = client.open_run("u", RunOptions()).run
    answer = in_thread(lambda: client.ask("forget", run=run))
    master.wait_for(lambda: bool(forgotten))
    master.kill()
    assert answer() == {}
    assert forgotten == [run, run]
    assert not master.book.runs
    client.close()
    revived[0].kill()


def test_the_exception_that_ended_every_master_is_told(master: FakeMaster) -> None:
    master.swallow = lambda message: isinstance(message, wire.Ask) and message.kind == "deadly"
    pool = PoolDirectory(master.directory)
    pool.crash.write_text("ValueError: no (/opt/my_matcher.py, line 3)")
    client = MasterClient.connect(master.directory)
    problem = in_thread(lambda: client.ask("deadly"))()
    assert isinstance(problem, ConnectionFailed)
    assert str(problem).endswith("; the master ended with ValueError: no (/opt/my_matcher.py, line 3)")
    assert problem.hint == f"see {pool.log}"
    client.close()
