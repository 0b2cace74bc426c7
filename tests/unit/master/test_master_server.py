"""What leaves the master before its disk is done, and what does not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pilotfish.client.master_connection import repeated_loss
from pilotfish.core.clients import client_messages
from pilotfish.core.machine import Turn
from pilotfish.errors import IllegalTransition
from pilotfish.master.master_server import MasterServer
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import messages as m
from pilotfish.model.settings import PoolSettings
from pilotfish.model.task import RunOptions
from pilotfish.store.pool_directory import PoolDirectory


class Link:
    """Stands for a connection; writes down when what leaves."""

    def __init__(self, name: str, is_local: bool, log: list[str]) -> None:
        self.name, self.is_local, self._log = name, is_local, log
        self._outbox: list[str] = []

    def send(self, message: m.Message, parts: Sequence[Any] = ()) -> None:
        self._outbox.append(f"{self.name}: {type(message).__name__}")

    def seal(self) -> None:
        pass

    def flush(self) -> None:
        self._log += self._outbox
        self._outbox = []


def test_who_stops_with_this_machine_hears_when_it_is_written_all_others_and_all_confirmations_when_it_is_safe(tmp_path: Path) -> None:
    log: list[str] = []
    master = MasterServer(PoolDirectory(tmp_path / "pool").make(), PoolSettings())
    try:
        master._loop = Mock()
        journal = master.journal
        append, sync = journal.append, journal.sync
        journal.append = lambda records: log.append("written") or append(records)  # type: ignore[method-assign, func-returns-value]
        journal.sync = lambda: log.append("safe") or sync()  # type: ignore[method-assign, func-returns-value]
        links = [Link("near", True, log), Link("far", False, log), Link("client", False, log)]
        master.links = dict(enumerate(links))  # type: ignore[arg-type]
        messages: list[tuple[int, m.Message]] = [
            (0, m.Acked(1, 1)),
            (0, m.Kill([])),
            (1, m.Acked(1, 1)),
            (1, m.Kill([])),
            (2, m.Accepted(1, 1)),
            (2, m.RunFinished(1, {})),
        ]
        master._carry_out(Turn(0.0, [f.KeyRevoked("nobody")], [e.Send(link, message) for link, message in messages]))
        assert log[:3] == ["written", "near: Kill", "safe"]
        assert sorted(log[3:]) == ["client: Accepted", "client: RunFinished", "far: Acked", "far: Kill"]
        master._confirm()
        assert log[7:] == ["near: Acked"]
    finally:
        master.journal.close()
        master.payloads.close()
        master.lock.release()


@pytest.mark.parametrize(("name", "is_local"), [("default", False), ("private-1-ab", True)])
def test_only_the_client_of_a_private_pool_ends_with_it(tmp_path: Path, name: str, is_local: bool) -> None:
    master = MasterServer(PoolDirectory(tmp_path / name).make(), PoolSettings())
    try:
        link = Mock(role="client", number=1, is_local=False)
        master._received(link, m.Open("uid", RunOptions()), memoryview(b""))
        assert link.is_local is is_local
    finally:
        master.journal.close()
        master.payloads.close()
        master.lock.release()


def test_an_error_of_the_machine_ends_the_master_and_nothing_of_the_turn_is_kept(tmp_path: Path) -> None:
    """The state may be half changed. What is in the journal is not, and the next master starts from that."""
    master = MasterServer(PoolDirectory(tmp_path / "pool").make(), PoolSettings())
    try:
        link = Mock(role="client", number=1, is_local=False)
        master._schedule_turn = Mock()  # type: ignore[method-assign]
        master._die = Mock()  # type: ignore[method-assign]
        master.machine.start(0.0)
        master.journal.append = Mock()  # type: ignore[method-assign]
        master._received(link, m.Open("uid", RunOptions()), memoryview(b""))
        master._received(link, m.Ask(1, "pause", {"run": 1}), memoryview(b""))
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(client_messages.ANSWERS, "pause", Mock(side_effect=IllegalTransition("a bug")))
            master._turn()
        (error,) = master._die.call_args.args
        assert isinstance(error, IllegalTransition)
        master.journal.append.assert_not_called()
        link.send.assert_not_called()
    finally:
        master.journal.close()
        master.payloads.close()
        master.lock.release()


def test_an_error_with_an_odd_message_ends_the_master_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    pool = PoolDirectory(tmp_path / "pool").make()
    master = MasterServer(pool, PoolSettings())
    monkeypatch.setattr("pilotfish.master.master_server.os", Mock(_exit=Mock(side_effect=SystemExit)))
    monkeypatch.setattr("pilotfish.master.master_server.log", Mock())  # pytest-xdist cannot send such a text to its main process
    for error in (ValueError("file \udcff"), Odd()):
        with pytest.raises(SystemExit):
            master._die(error)
    assert repeated_loss("lost", pool.directory).args[0].startswith("lost; the master ended with ValueError: file ")
    master.journal.close()
    master.payloads.close()
    master.lock.release()


def test_a_client_that_finds_the_socket_also_finds_the_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that start at the same time share a new pool. Each of them connects as soon as the socket listens."""
    pool = PoolDirectory(tmp_path / "pool").make()
    master = MasterServer(pool, PoolSettings())
    bound = socket.socket.bind
    found: list[bool] = []

    def bind(listener: socket.socket, address: Any) -> None:
        if listener.family == socket.AF_UNIX:
            found.append(pool.client_credentials.exists())
        bound(listener, address)

    monkeypatch.setattr(socket.socket, "bind", bind)

    async def listen() -> None:
        master._loop = asyncio.get_running_loop()
        await master._listen()
        for server in master._servers:
            server.close()

    try:
        asyncio.run(listen())
        assert found == [True]
    finally:
        master.journal.close()
        master.payloads.close()
        master.lock.release()
