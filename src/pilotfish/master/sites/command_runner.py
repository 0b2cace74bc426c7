"""Runs the commands of one site: here, or on another machine through ssh. Not too many at once, and submissions not too often.

Every command is remembered for a while, as a person would type it.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pilotfish.backends.interface import Command, CommandOutput
from pilotfish.config import HIDDEN
from pilotfish.master.sites.child_process import FLOODED, environment, run_child
from pilotfish.master.sites.ssh_connection import MISSING, SshCommand, SshConnection
from pilotfish.model.backend_traits import kind_of
from pilotfish.model.site import Site

REMEMBERED = 200
SESSIONS = 8
"""So many commands at once over one connection: servers allow ten, and a tunnel may need one."""
MOST_DIARY = 1 << 20
BURST_S = 5.0
"""As many submissions may go at once as would otherwise take so long."""
NOT_PERMITTED = 126
_TAKE_ON = 'IFS= read -r variables && eval "$variables" && exec "$@"'
"""Runs a command with the variables in the first line of its input: on a command line everybody could read them. A shell reads no further
than that line. One line of script: csh as a login shell takes no more."""


@dataclass(frozen=True)
class CommandRecord:
    """A command that was run: ``typed`` is what a person would type for it, ``at`` the wall clock's time when it began."""

    typed: str
    at: float
    took_s: float
    status: int | None
    complaint: str


class RateLimit:
    """A bucket of tokens, as the time from which on it is not empty."""

    def __init__(self, per_minute: float) -> None:
        self._each_s = 60.0 / per_minute if per_minute > 0 else 0.0
        self._spare_s = max(0.0, BURST_S - self._each_s)
        self._due = 0.0

    def take(self, now: float) -> float:
        """How long to wait before the next one."""
        self._due = max(self._due, now - self._spare_s)
        wait_s = max(0.0, self._due - now)
        self._due += self._each_s
        return wait_s


class CommandRunner:
    """``sockets``: a private directory for the shared connections, see ``control_directory``. ``diary``: a file that has every command."""

    def __init__(self, name: str, site: Site, sockets: Path, diary: Path | None = None) -> None:
        self.name = name
        self._diary = diary
        self.site = site
        self.recent: deque[CommandRecord] = deque(maxlen=REMEMBERED)
        self.under_way = 0
        self._sockets = sockets
        self._room = asyncio.Semaphore(max(1, min(site.commands_at_once, SESSIONS) if site.via else site.commands_at_once))
        self._pace = RateLimit(site.submissions_per_minute)
        self._connections: dict[str, SshConnection] = {}

    @property
    def login_needed(self) -> str:
        """What ssh said where only a person can help, by ``pilotfish site login``; empty if nothing of that kind stands in the way."""
        return next((one.login_needed for one in self._connections.values() if one.login_needed), "")

    def ssh(self, at: str = "") -> SshCommand:
        """How a machine of this site is reached; without a name, its login node."""
        jump = self.site.via if at and at != self.site.via else ""
        return SshCommand(self.name, at or self.site.via, self._sockets, self.site.options.get("ssh_config", ""), jump)

    async def run(self, command: Command, submission: bool = False) -> CommandOutput:
        """Never raises for what a command does. Its patience begins when it is its turn."""
        if submission:
            await asyncio.sleep(self._pace.take(asyncio.get_running_loop().time()))
        async with self._room:
            began, clock = time.time(), time.monotonic()
            self.under_way += 1
            try:
                answer = await self._run(command)
            finally:
                self.under_way -= 1
            complaint = answer.complaint() if answer.status != 0 else ""
            self._remember(CommandRecord(self._typed(command), began, time.monotonic() - clock, answer.status, complaint))
            return answer

    def _remember(self, ran: CommandRecord) -> None:
        self.recent.append(ran)
        if self._diary is not None:
            with suppress(OSError):
                write_diary(self._diary, ran)

    async def _run(self, command: Command) -> CommandOutput:
        stdin = command.stdin.encode("utf-8", "surrogateescape")
        destination = command.at or self.site.via
        argv, variables = command.argv, {} if command.bare else self.site.environment
        if destination.startswith("-") or not argv:
            return CommandOutput(NOT_PERMITTED, stderr=f"not a command for a machine: {destination} {shlex.join(argv)}")
        if not destination:
            return await _run_here(argv, stdin, command.patience_s, environment(kind_of(self.site.backend).hands_on, variables))
        if variables:
            argv, stdin = ("sh", "-c", _TAKE_ON, "sh", *argv), _exports(variables) + stdin
        if destination not in self._connections:
            self._connections[destination] = SshConnection(self.ssh(command.at))
        try:
            return await self._connections[destination].run(argv, stdin, command.patience_s)
        except OSError as problem:
            return CommandOutput(None, stderr=f"ssh could not be started: {problem}")

    def _typed(self, command: Command) -> str:
        destination = command.at or self.site.via
        argv = command.argv
        if self.site.environment and not command.bare:
            argv = ("env", *(f"{name}={HIDDEN}" for name in self.site.environment), *argv)
        text = shlex.join(argv)
        if destination:
            # Over there a shell reads it again, which matters only if there is something to quote.
            text = f"ssh {destination} {text if text == ' '.join(argv) else shlex.quote(text)}"
        return f"{text}  # {len(command.stdin)} characters of input" if command.stdin else text

    async def close(self) -> None:
        """Leave no connection behind."""
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))


def _exports(variables: dict[str, str]) -> bytes:
    """One line for a shell."""
    words = (f"{name}={shlex.quote(value)}" for name, value in variables.items())
    return f"export {' '.join(words)}\n".encode("utf-8", "surrogateescape")


def write_diary(path: Path, ran: CommandRecord) -> None:
    """One line for a command, and one for its complaint. When it is long, the older half goes."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ran.at))
    ending = "no answer" if ran.status is None else f"exit {ran.status}"
    lines = [f"{when}  {ran.took_s:6.2f} s  {ending:9}  {ran.typed}"]
    lines += [f"{'':21}{ran.complaint}"] if ran.complaint else []
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with open(descriptor, "r+", encoding="utf-8", errors="surrogateescape") as file:
        file.write("".join(f"{line}\n" for line in lines))
        if file.tell() > MOST_DIARY:
            file.seek(0)
            kept = file.read().splitlines(keepends=True)
            file.truncate(0)
            file.writelines(kept[len(kept) // 2 :])


async def _run_here(argv: tuple[str, ...], stdin: bytes, patience_s: float, env: Mapping[str, str]) -> CommandOutput:
    try:
        outcome = await run_child(argv, stdin, patience_s, env)
    except FileNotFoundError:
        return CommandOutput(MISSING, stderr=f"{argv[0]}: there is no such command on this machine")
    except (PermissionError, ValueError) as problem:
        return CommandOutput(NOT_PERMITTED, stderr=f"{argv[0]}: {problem}")
    except OSError as problem:
        return CommandOutput(None, stderr=f"{argv[0]} could not be started: {problem}")
    if outcome.flooded:
        return CommandOutput(None, "", FLOODED)
    return CommandOutput(outcome.status, outcome.stdout, outcome.stderr)
