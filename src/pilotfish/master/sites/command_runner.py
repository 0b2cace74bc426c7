"""Runs the commands for a site on this machine or over ssh, and limits the rate of submissions. A log file lists the recent commands."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pilotfish import plugins
from pilotfish.backends.interface import Command, CommandOutput
from pilotfish.config import HIDDEN
from pilotfish.master.sites.child_process import environment, run_child
from pilotfish.master.sites.ssh_connection import MISSING, SshCommand, SshConnection
from pilotfish.model.site import Site

MAX_SESSIONS = 8
"""Maximum number of simultaneous commands over one connection. Servers usually allow ten sessions per connection, and a tunnel can need one
of the ten."""
MAX_LOG_BYTES = 1 << 20
BURST_S = 5.0
"""After a pause, several submissions can start at once: as many as the rate allows in this many seconds."""
NOT_PERMITTED = 126
_WITH_VARIABLES = 'IFS= read -r variables && eval "$variables" && exec "$@"'
"""Shell script that sets the variables from the first line of its input and then runs a command. The command reads the other lines. The
variables are not on the command line, because all users could read them there. The script is one line, because csh as a login shell accepts
only one line.
"""


class RateLimit:
    """Limits the rate of submissions with a token bucket. The state of the bucket is one number: the time at which the next token is
    due."""

    def __init__(self, per_minute: float) -> None:
        self._interval_s = 60.0 / per_minute if per_minute > 0 else 0.0
        self._burst_s = max(0.0, BURST_S - self._interval_s)
        self._next_at = 0.0

    def take(self, now: float) -> float:
        """Takes a token for one submission. Returns how many seconds the submission must wait."""
        self._next_at = max(self._next_at, now - self._burst_s)
        wait_s = max(0.0, self._next_at - now)
        self._next_at += self._interval_s
        return wait_s


class CommandRunner:
    """Runs the commands of one site. ``sockets``: private directory of ssh control sockets (see ``control_directory``). ``log``: file
    that lists the commands."""

    def __init__(self, name: str, site: Site, sockets: Path, log: Path | None = None) -> None:
        self.name = name
        self._log = log
        self.site = site
        self._sockets = sockets
        self._slots = asyncio.Semaphore(max(1, min(site.commands_at_once, MAX_SESSIONS) if site.via else site.commands_at_once))
        self._rate = RateLimit(site.submissions_per_minute)
        self._connections: dict[str, SshConnection] = {}

    @property
    def login_needed(self) -> str:
        """Returns the message of ssh if a user must log in (``pilotfish site login``). Otherwise returns an empty text."""
        return next((connection.login_needed for connection in self._connections.values() if connection.login_needed), "")

    def ssh(self, at: str = "") -> SshCommand:
        """Returns the ssh command for a host of this site. If ``at`` is empty, returns the command for the login node."""
        jump = self.site.via if at and at != self.site.via else ""
        return SshCommand(self.name, at or self.site.via, self._sockets, self.site.options.get("ssh_config", ""), jump)

    async def run(self, command: Command, submission: bool = False) -> CommandOutput:
        """Runs a command and returns its output. A failure of the command is described in the output and raises no exception. The timeout
        begins when the command starts."""
        if submission:
            await asyncio.sleep(self._rate.take(asyncio.get_running_loop().time()))
        async with self._slots:
            began, clock = time.localtime(), time.monotonic()
            answer = await self._run(command)
            if self._log is not None:
                ending = "no answer" if answer.status is None else f"exit {answer.status}"
                line = f"{time.strftime('%Y-%m-%d %H:%M:%S', began)}  {time.monotonic() - clock:6.2f} s  {ending:9}  {self._typed(command)}"
                with suppress(OSError):
                    _append_to_log(self._log, [line, f"{'':21}{answer.complaint()}"] if answer.status != 0 else [line])
            return answer

    async def _run(self, command: Command) -> CommandOutput:
        stdin = command.stdin.encode("utf-8", "surrogateescape")
        destination = command.at or self.site.via
        argv, variables = command.argv, {} if command.bare else self.site.environment
        if destination.startswith("-") or not argv:
            return CommandOutput(NOT_PERMITTED, stderr=f"not a command for a machine: {destination} {shlex.join(argv)}")
        if not destination:
            public = plugins.traits(self.site.backend).passes_environment
            return await _run_here(argv, stdin, command.timeout_s, environment(public, variables))
        if variables:
            assignments = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
            stdin = f"export {assignments}\n".encode("utf-8", "surrogateescape") + stdin
            argv = ("sh", "-c", _WITH_VARIABLES, "sh", *argv)
        if destination not in self._connections:
            self._connections[destination] = SshConnection(self.ssh(command.at))
        try:
            return await self._connections[destination].run(argv, stdin, command.timeout_s)
        except OSError as problem:
            return CommandOutput(None, stderr=f"ssh could not be started: {problem}")

    def _typed(self, command: Command) -> str:
        """Returns the text that a user would type for a command."""
        destination = command.at or self.site.via
        argv = command.argv
        if self.site.environment and not command.bare:
            argv = ("env", *(f"{name}={HIDDEN}" for name in self.site.environment), *argv)
        text = shlex.join(argv)
        if destination:
            # The remote shell parses the text a second time. So a text with quoted words must be quoted again.
            text = f"ssh {destination} {text if text == ' '.join(argv) else shlex.quote(text)}"
        return f"{text}  # {len(command.stdin)} characters of input" if command.stdin else text

    async def close(self) -> None:
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))


def _append_to_log(path: Path, lines: list[str]) -> None:
    """Appends lines to a log file. If the file is long, removes its older half."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with open(descriptor, "r+", encoding="utf-8", errors="surrogateescape") as file:
        file.write("".join(f"{line}\n" for line in lines))
        if file.tell() > MAX_LOG_BYTES:
            file.seek(0)
            kept = file.read().splitlines(keepends=True)
            file.truncate(0)
            file.writelines(kept[len(kept) // 2 :])


async def _run_here(argv: tuple[str, ...], stdin: bytes, timeout_s: float, env: Mapping[str, str]) -> CommandOutput:
    try:
        return await run_child(argv, stdin, timeout_s, env)
    except FileNotFoundError:
        return CommandOutput(MISSING, stderr=f"{argv[0]}: there is no such command on this machine")
    except (PermissionError, ValueError) as problem:
        return CommandOutput(NOT_PERMITTED, stderr=f"{argv[0]}: {problem}")
    except OSError as problem:
        return CommandOutput(None, stderr=f"{argv[0]} could not be started: {problem}")
