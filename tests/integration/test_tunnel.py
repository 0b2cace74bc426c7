"""Tests agents without a direct route to their master: a real tunnel through a real sshd, a real relay, and the death of each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotfish.master.sites.command_runner import CommandRunner
from pilotfish.master.sites.site_files import absolute_folder
from pilotfish.master.sites.ssh_connection import SshCommand
from pilotfish.master.sites.tunnel import Tunnel, TunnelTarget
from pilotfish.model import messages as wire
from tests.support.bundle_file import build_bundle
from tests.support.scripted_master import Client, FakeMaster, alive, eventually, running_agent
from tests.support.sshd import Sshd, access_to, running_sshd

PATIENCE_S = 100.0
"""Seconds until a test counts as hung; it starts dozens of processes on a machine that may be busy."""


@pytest.fixture
def server() -> Iterator[Sshd]:
    """An sshd; nothing may be left of a tunnel: no process, no socket, no connection."""
    with running_sshd() as made:
        yield made
        eventually(lambda: not made.processes(), "something is left on the login node", PATIENCE_S)
        assert list(made.sockets.iterdir()) == []
        assert not list(made.home.glob("*.sock"))


@pytest.fixture
def master(tmp_path: Path) -> Iterator[FakeMaster]:
    made = FakeMaster(tmp_path, "tls", beat_s=0.3, orphan_s=60.0)
    yield made
    made.close()


async def until(condition: Callable[[], Any], what: str = "") -> Any:
    return await asyncio.to_thread(eventually, condition, what, PATIENCE_S)


async def bundle_at(server: Sshd) -> str:
    runner = CommandRunner("test", server.site(), server.sockets)
    try:
        access = access_to(runner)
        return await access.stage_bundle(await access.ask(absolute_folder("~/.pilotfish")))
    finally:
        await runner.close()


class Watched:
    """An open tunnel, and how often it reported new endpoints. The master's agents connect through it."""

    def __init__(self, server: Sshd, master: FakeMaster, ssh: SshCommand | None = None, **fields: Any) -> None:
        self.server, self.master, self.changes = server, master, 0
        self.ssh = ssh or server.ssh()
        self.fields = {"host": "127.0.0.1", "sockets": str(server.home), **fields}

    def changed(self) -> None:
        self.changes += 1
        assert self.tunnel.endpoints
        self.master.write_credentials(**self.tunnel.endpoints[0])

    async def __aenter__(self) -> Watched:
        bundle = await bundle_at(self.server)
        endpoint = self.master.endpoint
        reach = TunnelTarget(bundle, (endpoint["host"], endpoint["port"]), endpoint["fingerprint"], **self.fields)
        self.tunnel = Tunnel(self.ssh, reach, self.changed)
        self.tunnel.start()
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self.tunnel.close()
        assert not alive(self.tunnel.pid)

    async def until_open(self, times: int = 1) -> None:
        await until(lambda: self.tunnel.up and self.tunnel.opened >= times, "it does not open")

    async def until_joined(self) -> None:
        await asyncio.to_thread(self.master.wait_for, wire.Hello, PATIENCE_S)


def swap(text: bytes) -> bytes:
    return text.swapcase()


def kill_ssh(watched: Watched) -> None:
    os.kill(watched.tunnel.pid, signal.SIGKILL)


def kill_server(watched: Watched) -> None:
    os.kill(watched.server.server_of(watched.server.relays()[0]), signal.SIGKILL)


def kill_relay(watched: Watched) -> None:
    os.kill(watched.server.relays()[0], signal.SIGKILL)


@pytest.mark.parametrize("kill", [kill_ssh, kill_server, kill_relay])
def test_agents_join_through_it_and_join_again_after_a_part_died(server: Sshd, master: FakeMaster, kill: Callable[[Watched], None]) -> None:
    async def story() -> None:
        async with Watched(server, master) as watched:
            await watched.until_open()
            port = watched.tunnel.endpoints[0]["port"]
            with running_agent(master, "--cores", "1"):
                await watched.until_joined()
                client = Client(master)
                task = client.call(client.python(swap), b"ab" * 500_000)
                assert await asyncio.to_thread(client.value, task) == b"AB" * 500_000
                for opened in (2, 3):
                    kill(watched)
                    await watched.until_open(opened)
                    await watched.until_joined()
                    assert len(server.relays()) == 1
            assert watched.changes == 1 and watched.tunnel.endpoints[0]["port"] == port

    asyncio.run(story())


def test_a_connection_that_went_silent_is_replaced_together_with_its_relay(server: Sshd, master: FakeMaster) -> None:
    """As after a cut: neither end is notified, and the old relay still holds the port."""

    async def story() -> None:
        async with Watched(server, master, server.ssh(alive_s=2)) as watched:
            await watched.until_open()
            old = server.relays()[0]
            silent = server.server_of(old)
            os.kill(silent, signal.SIGSTOP)
            with running_agent(master, "--cores", "1"):
                await watched.until_open(2)
                await watched.until_joined()
            assert watched.changes == 1 and not alive(old)
            os.kill(silent, signal.SIGKILL)

    asyncio.run(story())


def test_a_relay_that_answers_no_more_is_replaced(server: Sshd, master: FakeMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotfish.master.sites.tunnel.SILENCE_S", 4.0)

    async def story() -> None:
        async with Watched(server, master) as watched:
            await watched.until_open()
            old = server.relays()[0]
            os.kill(old, signal.SIGSTOP)
            await watched.until_open(2)
            assert watched.changes == 1 and old not in server.relays()
            with running_agent(master, "--cores", "1"):
                await watched.until_joined()

    asyncio.run(story())


def test_where_forwarding_is_forbidden_it_says_so(master: FakeMaster) -> None:
    async def story(server: Sshd) -> None:
        async with Watched(server, master) as watched:
            await until(lambda: "forwarding failed" in watched.tunnel.trouble)
            assert not watched.tunnel.up and not watched.tunnel.login_needed

    with running_sshd("DisableForwarding yes\n") as server:
        asyncio.run(story(server))


def test_a_port_that_somebody_else_took_is_replaced_and_told(server: Sshd, master: FakeMaster) -> None:
    async def story() -> None:
        with socket.create_server(("0.0.0.0", 0)) as taken:
            port = taken.getsockname()[1]
            async with Watched(server, master, port=port) as watched:
                await watched.until_open()
                assert watched.changes == 1 and watched.tunnel.endpoints[0]["port"] != port
                with running_agent(master, "--cores", "1"):
                    await watched.until_joined()

    asyncio.run(story())


def test_endpoints_are_what_the_login_node_calls_itself(server: Sshd, master: FakeMaster) -> None:
    async def story() -> None:
        async with Watched(server, master, host="") as watched:
            await watched.until_open()
            hosts = [endpoint["host"] for endpoint in watched.tunnel.endpoints]
            assert hosts[0] == socket.gethostname() and len(set(hosts)) == len(hosts)
            assert all(endpoint["fingerprint"] == master.endpoint["fingerprint"] for endpoint in watched.tunnel.endpoints)

    asyncio.run(story())


def test_where_only_a_person_can_log_in_it_uses_the_persons_connection(server: Sshd, master: FakeMaster) -> None:
    async def story() -> None:
        ssh = server.ssh("refused")
        async with Watched(server, master, ssh) as watched:
            await until(lambda: watched.tunnel.login_needed)
            assert "Permission denied" in watched.tunnel.trouble
            log_in = ssh.open(login=True)
            subprocess.run([*log_in[:1], "-i", str(server.directory / "id"), *log_in[1:]], check=True)
            await watched.until_open()
            with running_agent(master, "--cores", "1"):
                await watched.until_joined()
                kill_ssh(watched)
                await watched.until_open(2)
                await watched.until_joined()
            assert watched.changes == 1
        subprocess.run(ssh.control("exit"), check=True, capture_output=True)

    asyncio.run(story())


def test_why_it_does_not_open_is_said(server: Sshd, master: FakeMaster) -> None:
    async def story() -> None:
        async with Watched(server, master, server.ssh("nowhere")) as watched:
            await until(lambda: "Connection refused" in watched.tunnel.trouble)
            assert not watched.tunnel.up and not watched.tunnel.endpoints and not watched.tunnel.login_needed

    asyncio.run(story())


# --- the relay alone ----------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running_relay(directory: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int, socket.socket]]:
    """Yield the relay's process, its port and the listener that it connects to."""
    path = str(directory / "to.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(30)
        words = [sys.executable, str(build_bundle(directory)), "relay", "--listen", "127.0.0.1:0", "--to", path, *options]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield process, json.loads(line.partition(" ")[2])["port"], listener
        finally:
            process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0 and not os.path.exists(path)


def call(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 30)


def hung_up(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_relay_passes_bytes_both_ways_and_ends_of_streams_too(tmp_path: Path) -> None:
    with running_relay(tmp_path) as (_, port, listener), call(port) as agent:
        agent.sendall(b"early")
        behind, _ = listener.accept()
        with behind, behind.makefile("rb") as heard:
            agent.sendall(b" and late")
            agent.shutdown(socket.SHUT_WR)
            assert heard.read() == b"early and late"
            behind.sendall(b"answer")
            behind.close()
        assert agent.makefile("rb").read() == b"answer"


def test_a_relay_lets_in_only_whom_it_must(tmp_path: Path) -> None:
    with running_relay(tmp_path, "--admit", "10.0.0.0/8", "--admit", "fd00::/8") as (_, port, _), call(port) as agent:
        assert hung_up(agent)


def test_a_relay_has_a_limit_of_connections_and_room_when_one_leaves(tmp_path: Path) -> None:
    with running_relay(tmp_path, "--most", "1") as (_, port, listener):
        with call(port) as first:
            behind = listener.accept()[0]
            with call(port) as second:
                assert hung_up(second)
            first.sendall(b"x")
            assert behind.recv(1) == b"x"
        assert hung_up(behind)
        behind.close()
        eventually(lambda: is_served(port, listener), patience_s=PATIENCE_S)


def is_served(port: int, listener: socket.socket) -> bool:
    with call(port):
        served = bool(select.select([listener], [], [], 0.1)[0])
        if served:
            listener.accept()[0].close()
        return served


def test_a_relay_buffers_little_for_a_peer_that_does_not_read(tmp_path: Path) -> None:
    with running_relay(tmp_path) as (process, port, listener), call(port) as agent, listener.accept()[0]:
        agent.setblocking(False)
        sent = 0
        while select.select([], [agent], [], 1.0)[1]:
            with contextlib.suppress(BlockingIOError):
                sent += agent.send(bytes(1 << 20))
            assert sent < 64 << 20
        memory = Path(f"/proc/{process.pid}/status").read_text().partition("VmRSS:")[2].split()[0]
        assert int(memory) < 60_000


def test_a_relay_that_hears_nothing_ends(tmp_path: Path) -> None:
    with running_relay(tmp_path, "--silence", "0.2") as (process, _, _):
        assert process.wait(30) == 0


def test_a_relay_ends_an_older_one_of_its_name(tmp_path: Path) -> None:
    name = f"test-{os.getpid()}"
    (tmp_path / "2").mkdir()
    with running_relay(tmp_path, "--name", name) as (older, _, _), running_relay(tmp_path / "2", "--name", name) as (newer, _, _):
        assert older.wait(30) == 0 and newer.poll() is None
