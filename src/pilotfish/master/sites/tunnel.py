"""A tunnel for a site whose nodes cannot reach the master: one ssh connection to its login node, and a relay there that agents call.

ssh makes a Unix socket over there whose other end is the master's port; the relay (``agent/relay.py``) passes the agents' connections on to
it. The tunnel is opened again, at the same port if that can be, whenever something of it dies.
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
from pilotfish.master.sites.ssh_connection import SshCommand, needs_person, remote_line

log = logging.getLogger("pilotfish.tunnel")

OPEN_S = 60.0
GRACE_S = 3.0
"""So long the relay may take to tidy up when it is told to end."""
SILENCE_S = 60.0
"""A relay that hears nothing for so long ends: its connection is dead, although nobody told it."""
UNANSWERED = 2
"""So many signs of life in a row may stay without an answer."""
RETRY_S = (0.25, 60.0)
STEADY_S = 30.0
"""A tunnel that held so long is opened again at once."""
LOGIN_RETRY_S = 900.0
LOOK_S = 2.0
MOST_SAID = 16 * 1024
SAYS = b"pilotfish-relay "
ENDED = b"pilotfish-relay-ended"

_FIND_PYTHON = (
    'for p in "$0" python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8 /usr/local/bin/python3; do '
    'if "$p" -c "import sys; sys.exit(sys.version_info < (3, 8))" 2>/dev/null; then exec "$p" "$@"; fi; done; '
    'echo "no python3 of 3.8 or later on $(uname -n)" >&2; exit 43'
)


@dataclass(frozen=True)
class TunnelTarget:
    """What a tunnel leads to, and how agents shall find it."""

    bundle: str
    """The agent at the site, in which the relay is."""
    master: tuple[str, int]
    """Where the master listens, seen from here."""
    fingerprint: str
    port: int = 0
    """Asked for over there, such as that of the last time; 0 takes any."""
    listen: str = "0.0.0.0"
    host: str = ""
    """The name under which the nodes know the login node; empty: what it calls itself, and its addresses."""
    admit: tuple[str, ...] = ()
    """Networks from which agents may come; empty: from anywhere."""
    python: str = ""
    sockets: str = "/tmp"
    """Where ssh may make its socket over there: a folder of that machine alone. Nobody else can guess its name, or use it."""


class Tunnel:
    """``changed`` is called when agents have to be told of other endpoints."""

    def __init__(self, ssh: SshCommand, reach: TunnelTarget, changed: Callable[[], None]) -> None:
        self.ssh = ssh
        self.reach = reach
        self.endpoints: list[dict[str, Any]] = []
        """For credentials, the likeliest first. They stay while the tunnel is opened again: most often they are right again."""
        self.up = False
        self.trouble = ""
        """Why it is not up, in ssh's words."""
        self.login_needed = False
        self.opened = 0
        self.pid = 0
        self._changed = changed
        self._port = reach.port
        self._shared = False
        self._leftover = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def endpoint(self) -> dict[str, Any] | None:
        return self.endpoints[0] if self.endpoints else None

    def start(self) -> None:
        self._task = asyncio.create_task(self._supervise())
        self._task.add_done_callback(self._failed)

    def _failed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.trouble = f"the tunnel cannot go on: {task.exception()!r}"
            log.critical("the tunnel to %s cannot go on", self.ssh.destination, exc_info=task.exception())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        pause, most = RETRY_S
        while True:
            began = loop.time()
            await self._hold()
            if loop.time() - began > STEADY_S and self.opened:
                pause = RETRY_S[0]
            await self._rest(pause)
            pause = min(most, pause * 2)

    async def _rest(self, pause_s: float) -> None:
        """Until it is worth another try. Whoever knocks too often is locked out, so that a login is waited for."""
        if not self.login_needed:
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))
            return
        end = asyncio.get_running_loop().time() + LOGIN_RETRY_S
        while asyncio.get_running_loop().time() < end:
            if self.ssh.is_open():
                self._shared = True  # by the connection that a person opened: another would need another login
                return
            await asyncio.sleep(LOOK_S)

    async def _hold(self) -> None:
        """Open it, and return when it is broken."""
        there = f"{self.reach.sockets}/pilotfish-{secrets.token_hex(16)}.sock"
        forward = f"{there}:{self.reach.master[0]}:{self.reach.master[1]}"
        said = _Said()
        stdin, life = os.pipe()
        try:
            child = ChildProcess(self._words(there, forward), stdin, said.hear, said.complain)
        except OSError as problem:
            os.close(life)
            self.trouble = f"ssh could not be started: {problem}"
            return
        finally:
            os.close(stdin)
        self._leftover = there
        try:
            self.pid = child.pid
            await _first(OPEN_S, said.where, child.ended)
            if said.where.done():
                self._is_up(said.where.result())
                await _beat(child, life, said)
        finally:
            await self._end(child, life, said, forward)

    def _words(self, there: str, forward: str) -> list[str]:
        reach = self.reach
        path = self.ssh.control_path() if self._shared else "ControlPath=none"
        words = self.ssh.words(["ControlMaster=no", path, "ExitOnForwardFailure=yes"], "-T", "-R", forward)
        name = hashlib.sha256(f"{reach.fingerprint} {self.ssh.site} {self.ssh.destination}".encode()).hexdigest()[:16]
        relay = [reach.bundle, "relay", "--listen", f"{reach.listen}:{self._port}", "--to", there, "--name", name]
        relay += ["--remove", self._leftover] if self._leftover else []
        relay += ["--silence", f"{SILENCE_S:g}", *(word for network in reach.admit for word in ("--admit", network))]
        return [*words, *self.ssh.to(remote_line(["sh", "-c", _FIND_PYTHON, reach.python or "python3", *relay]))]

    def _is_up(self, where: dict[str, Any]) -> None:
        self.up, self.trouble, self.login_needed = True, "", False
        self.opened += 1
        self._port = where["port"]
        if self.reach.host or self.reach.listen != "0.0.0.0":
            hosts = [self.reach.host or self.reach.listen]
        else:
            hosts = [where["host"], *map(str, where["addresses"])]
        fixed = {"port": self._port, "fingerprint": self.reach.fingerprint}
        endpoints = [{"kind": "tls", "host": host, **fixed} for host in dict.fromkeys(hosts)]
        if endpoints != self.endpoints:
            self.endpoints = endpoints
            self._changed()

    async def _end(self, child: ChildProcess, life: int, said: _Said, forward: str) -> None:
        """Without its life line the relay ends and takes its socket with it, if the connection still holds."""
        was_up, self.up = self.up, False
        os.close(life)
        if not child.ended.done():
            await _first(GRACE_S, child.ended, said.over)
        child.let_go()
        await asyncio.wait([child.ended], timeout=GRACE_S)
        words = " ".join(said.complaints.decode("utf-8", "replace").split())[-500:]
        self.trouble = words or ("the connection was lost" if was_up else f"no relay within {OPEN_S:.0f} s")
        self.login_needed = not was_up and needs_person(words)
        if self._shared:
            # The shared connection would keep the way open for nobody.
            await run_child(self.ssh.control("cancel", "-R", forward), b"", GRACE_S)
            self._shared = self.ssh.is_open()


async def _first(patience_s: float, *parts: asyncio.Future[Any]) -> bool:
    """Wait until one of them is done; whether one is."""
    done, _ = await asyncio.wait(parts, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


async def _beat(child: ChildProcess, life: int, said: _Said) -> None:
    """Say now and then that we are there, until the connection or the relay ends, or the relay answers no more."""
    os.set_blocking(life, False)
    unanswered = 0
    while unanswered < UNANSWERED:
        heard = said.times
        try:
            os.write(life, b"\n")
        except BlockingIOError:
            pass
        except BrokenPipeError:
            return
        if await _first(SILENCE_S / 4, child.ended, child.silent, said.over):
            return
        unanswered = unanswered + 1 if said.times == heard else 0


class _Said:
    """What came from over there: first anything that the person's shell says, then where the relay listens, then signs of life."""

    def __init__(self) -> None:
        self.where: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.times = 0
        self.complaints = b""
        self._text = b""

    def hear(self, data: bytes) -> None:
        self.times += 1
        *lines, rest = (self._text + data).split(b"\n")
        self._text = rest[-MOST_SAID:]
        for line in lines:
            if line.startswith(SAYS) and not self.where.done():
                self._locate(line[len(SAYS) :])
            elif line == ENDED and not self.over.done():
                self.over.set_result(None)

    def _locate(self, text: bytes) -> None:
        try:
            where = json.loads(text)
            self.where.set_result({"host": str(where["host"]), "port": int(where["port"]), "addresses": list(where["addresses"])})
        except (ValueError, KeyError, TypeError):
            self.complain(b"not the words of a relay: " + text)

    def complain(self, data: bytes) -> None:
        self.complaints = (self.complaints + data)[-MOST_SAID:]
