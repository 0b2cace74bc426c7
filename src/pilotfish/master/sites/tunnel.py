"""Keeps an ssh tunnel and its relay open, for sites whose nodes cannot reach the master.

ssh creates a Unix socket on the login node. Each connection to this socket is forwarded to the port of the master. The relay
(``agent/relay.py``) on the login node accepts connections of agents and forwards them to the Unix socket. If the tunnel or the relay fails,
both start again. If possible, the relay uses the same port again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pilotfish.master.sites.child_process import ChildProcess, run_child
from pilotfish.master.sites.ssh_connection import SshCommand, needs_login, remote_command

log = logging.getLogger("pilotfish.tunnel")

OPEN_S = 60.0
GRACE_S = 3.0
"""Seconds until an ending relay is killed. In this time, the relay can remove its socket."""
SILENCE_S = 60.0
"""A relay ends after this many seconds without data, because its connection is probably lost."""
MAX_UNANSWERED = 2
"""Maximum number of consecutive heartbeats without an answer."""
RETRY_S = (0.25, 60.0)
STEADY_S = 30.0
"""Seconds after which a tunnel counts as stable. A stable tunnel that fails is opened again at once."""
LOGIN_RETRY_S = 900.0
LOGIN_CHECK_S = 2.0
MAX_TEXT = 16 * 1024
ADDRESS_PREFIX = b"pilotfish-relay "
ENDED = b"pilotfish-relay-ended"

_FIND_PYTHON = (
    'for p in "$0" python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8 /usr/local/bin/python3; do '
    'if "$p" -c "import sys; sys.exit(sys.version_info < (3, 8))" 2>/dev/null; then exec "$p" "$@"; fi; done; '
    'echo "no python3 of 3.8 or later on $(uname -n)" >&2; exit 43'
)


@dataclass(frozen=True)
class TunnelTarget:
    """Describes both ends of a tunnel."""

    bundle: str
    """Path of the agent's bundle at the site. The bundle contains the relay."""
    master: tuple[str, int]
    """Host and port at which the master listens, as seen from this machine."""
    fingerprint: str
    port: int = 0
    """Port of the relay on the login node. 0 means any port."""
    host: str = ""
    """Name of the login node as seen from the other nodes. If it is empty, the relay reports its own name and addresses."""
    python: str = ""
    sockets: str = "/tmp"
    """Directory of the socket on the login node. It must be on a local disk. The name of the socket is secret."""


class Tunnel:
    """One tunnel. ``on_new_endpoints`` is called when the endpoints for agents have changed."""

    def __init__(self, ssh: SshCommand, target: TunnelTarget, on_new_endpoints: Callable[[], None]) -> None:
        self.ssh = ssh
        self.target = target
        self.endpoints: list[dict[str, Any]] = []
        """Endpoints for the credentials of agents. The endpoint that most probably works comes first. The endpoints stay while the tunnel
        is opened again, because they rarely change."""
        self.up = False
        self.trouble = ""
        """Message of ssh, if the tunnel is not open."""
        self.login_needed = False
        self.opened = 0
        self.pid = 0
        self._on_new_endpoints = on_new_endpoints
        self._port = target.port
        self._shared = False
        self._old_socket = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._supervise())
        self._task.add_done_callback(self._failed)

    def _failed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.trouble = f"the tunnel cannot continue: {task.exception()!r}"
            log.critical("the tunnel to %s cannot continue", self.ssh.destination, exc_info=task.exception())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s, longest_s = RETRY_S
        while True:
            began = loop.time()
            await self._run_once()
            if loop.time() - began > STEADY_S and self.opened:
                pause_s = RETRY_S[0]
            await self._pause(pause_s)
            pause_s = min(longest_s, pause_s * 2)

    async def _pause(self, pause_s: float) -> None:
        """Pauses before the next attempt. If a user must log in, waits until the user has logged in, but at most LOGIN_RETRY_S seconds.
        This pause is long because servers lock out hosts that try too often."""
        if not self.login_needed:
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))
            return
        end = asyncio.get_running_loop().time() + LOGIN_RETRY_S
        while asyncio.get_running_loop().time() < end:
            if self.ssh.is_open():
                self._shared = True  # A new connection would need a second login, so the tunnel uses the connection that the user opened.
                return
            await asyncio.sleep(LOGIN_CHECK_S)

    async def _run_once(self) -> None:
        """Opens the tunnel and keeps it open. Returns when the tunnel has failed."""
        socket_path = f"{self.target.sockets}/pilotfish-{secrets.token_hex(16)}.sock"
        forward = f"{socket_path}:{self.target.master[0]}:{self.target.master[1]}"
        output = _RelayOutput()
        stdin, heartbeat = os.pipe()
        try:
            child = ChildProcess(self._argv(socket_path, forward), stdin, output.read, output.add_error)
        except OSError as problem:
            os.close(heartbeat)
            self.trouble = f"ssh could not be started: {problem}"
            return
        finally:
            os.close(stdin)
        self._old_socket = socket_path
        try:
            self.pid = child.pid
            await _wait_for_any(OPEN_S, output.address, child.ended)
            if output.address.done():
                self._set_up(output.address.result())
                await _send_heartbeats(child, heartbeat, output)
        finally:
            await self._end(child, heartbeat, output, forward)

    def _argv(self, socket_path: str, forward: str) -> list[str]:
        target = self.target
        path = self.ssh.control_path() if self._shared else "ControlPath=none"
        ssh = self.ssh.argv(["ControlMaster=no", path, "ExitOnForwardFailure=yes"], "-T", "-R", forward)
        name = hashlib.sha256(f"{target.fingerprint} {self.ssh.site} {self.ssh.destination}".encode()).hexdigest()[:16]
        relay = [target.bundle, "relay", "--listen", f"0.0.0.0:{self._port}", "--to", socket_path, "--name", name]
        relay += ["--remove", self._old_socket] if self._old_socket else []
        relay += ["--silence", f"{SILENCE_S:g}"]
        return [*ssh, *self.ssh.to(remote_command(["sh", "-c", _FIND_PYTHON, target.python or "python3", *relay]))]

    def _set_up(self, address: dict[str, Any]) -> None:
        self.up, self.trouble, self.login_needed = True, "", False
        self.opened += 1
        self._port = address["port"]
        hosts = [self.target.host] if self.target.host else [address["host"], *map(str, address["addresses"])]
        fixed = {"port": self._port, "fingerprint": self.target.fingerprint}
        endpoints = [{"kind": "tls", "host": host, **fixed} for host in dict.fromkeys(hosts)]
        if endpoints != self.endpoints:
            self.endpoints = endpoints
            self._on_new_endpoints()

    async def _end(self, child: ChildProcess, heartbeat: int, output: _RelayOutput, forward: str) -> None:
        """Ends the relay: closes its input. If the connection still works, the relay then removes its socket."""
        was_up, self.up = self.up, False
        os.close(heartbeat)
        if not child.ended.done():
            await _wait_for_any(GRACE_S, child.ended, output.relay_ended)
        child.abandon()
        await asyncio.wait([child.ended], timeout=GRACE_S)
        message = " ".join(output.errors.decode("utf-8", "replace").split())[-500:]
        self.trouble = message or ("the connection was lost" if was_up else f"no relay within {OPEN_S:.0f} s")
        self.login_needed = not was_up and needs_login(message)
        if self._shared:
            # Without this command, the shared connection would keep the forwarding.
            await run_child(self.ssh.control("cancel", "-R", forward), b"", GRACE_S)
            self._shared = self.ssh.is_open()


async def _wait_for_any(timeout_s: float, *parts: asyncio.Future[Any]) -> bool:
    """Waits until one of the futures is done or the time is over. Returns True if one is done."""
    done, _ = await asyncio.wait(parts, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


async def _send_heartbeats(child: ChildProcess, heartbeat: int, output: _RelayOutput) -> None:
    """Sends heartbeats until the connection or the relay ends, or the relay does not answer."""
    os.set_blocking(heartbeat, False)
    unanswered = 0
    while unanswered < MAX_UNANSWERED:
        reads = output.reads
        try:
            os.write(heartbeat, b"\n")
        except BlockingIOError:
            pass
        except BrokenPipeError:
            return
        if await _wait_for_any(SILENCE_S / 4, child.ended, child.pipes_closed, output.relay_ended):
            return
        unanswered = unanswered + 1 if output.reads == reads else 0


class _RelayOutput:
    """Output of the login node: first start-up messages of the shell, then the address of the relay, then heartbeats of the relay."""

    def __init__(self) -> None:
        self.address: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.relay_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reads = 0
        self.errors = b""
        self._text = b""

    def read(self, data: bytes) -> None:
        self.reads += 1
        *lines, rest = (self._text + data).split(b"\n")
        self._text = rest[-MAX_TEXT:]
        for line in lines:
            if line.startswith(ADDRESS_PREFIX) and not self.address.done():
                self._read_address(line[len(ADDRESS_PREFIX) :])
            elif line == ENDED and not self.relay_ended.done():
                self.relay_ended.set_result(None)

    def _read_address(self, text: bytes) -> None:
        try:
            address = json.loads(text)
            self.address.set_result({"host": str(address["host"]), "port": int(address["port"]), "addresses": list(address["addresses"])})
        except (ValueError, KeyError, TypeError):
            self.add_error(b"not an address of a relay: " + text)

    def add_error(self, data: bytes) -> None:
        self.errors = (self.errors + data)[-MAX_TEXT:]
