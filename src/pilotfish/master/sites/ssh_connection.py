"""Runs commands over one shared OpenSSH connection per machine.

The connection uses the ssh of the system and the configuration of the user: names, users, keys, jump hosts, Kerberos. This module sets only
options that a program without a terminal needs.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import shlex
import socket
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pilotfish.backends.interface import CommandOutput
from pilotfish.master.sites.child_process import run_child
from pilotfish.model.site import LOGIN_NEEDED
from pilotfish.store.pool_directory import make_private_directory

CONNECT_S = 20
ALIVE_S = 10
ALIVE_COUNT = 3
"""Number of unanswered keep-alive messages after which ssh closes a connection. ssh sends one every ``ALIVE_S`` seconds."""
PERSIST_S = 600
"""Seconds that an unused connection stays open."""
LOGIN_PERSIST = "12h"
OPEN_S = 60.0
CLOSE_S = 5.0
SSH_FAILED = 255
"""Exit status of ssh if ssh itself failed. If the remote command failed, ssh has the exit status of the command."""
MISSING = 127
"""Exit status of a shell for a command that does not exist."""
UNUSED_S = 3600.0
"""An empty socket directory, for example of a killed master, is removed this many seconds after its last change."""
MAX_TEMPORARY_PATH = 32
"""Maximum length of the path of the temporary directory. The path of a socket can have 107 bytes, and ssh appends a few bytes to it."""
RETRY_S = (2.0, 60.0)
RETRY_LOGIN_S = (60.0, 900.0)
"""First and longest pause in seconds if a connection failed because a user must log in. These pauses are longer than the pauses after other
failures (RETRY_S), because servers lock out hosts that try too often."""

_NEEDS_LOGIN = re.compile(
    r"permission denied|keyboard-interactive|host key verification failed|too many authentication failures|password has expired|"
    r"remote host identification has changed",
    re.IGNORECASE,
)
_UNATTENDED = (
    "LogLevel=ERROR",
    "RequestTTY=no",
    "ForwardX11=no",
    "ForwardAgent=no",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    "EscapeChar=none",
)

# The script prints a mark first. Text before the mark comes from the start-up files of the user's shell. If the command itself ends with
# status 255, a second mark shows that ssh did not fail. The timeout ends commands for which the master no longer waits.
_WRAP = (
    'echo "$0"; if command -v timeout >/dev/null 2>&1; then timeout -k 5 "$@"; else shift; "$@"; fi; '
    's=$?; test $s = 255 && echo "$0" >&2; exit $s'
)


def control_directory(pool: Path) -> Path:
    """Creates the directory of a pool's control sockets and returns its path, which is short. The command line and the master use the same
    directory."""
    directory = _control_path(pool)
    make_private_directory(directory.parent)
    for other in directory.parent.glob("ssh-*"):
        # Killed masters leave such directories. If a running master still needs its directory, it creates the directory again.
        with suppress(OSError):
            if time.time() - other.stat().st_mtime > UNUSED_S:
                other.rmdir()
    return make_private_directory(directory)


def remove_control_directory(pool: Path) -> None:
    """Removes the directory of control sockets if it is empty. It is not empty while a login of a user is open."""
    with suppress(OSError):
        _control_path(pool).rmdir()


def _control_path(pool: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(pool)).hexdigest()[:16]
    temporary = tempfile.gettempdir()
    return Path(temporary if len(temporary) <= MAX_TEMPORARY_PATH else "/tmp") / f"pilotfish-{os.geteuid()}" / f"ssh-{digest}"


def needs_login(message: str) -> bool:
    """Returns True if a message of ssh means that a user must log in."""
    return _NEEDS_LOGIN.search(message) is not None


def remote_command(argv: Sequence[str]) -> str:
    """Quotes a command so that every login shell understands it, even csh, which expands ``!`` in quoted words."""
    return shlex.join(argv).replace("!", "'\\!'") if "!" in "".join(argv) else shlex.join(argv)


@dataclass(frozen=True)
class SshCommand:
    """Command lines of ssh for one machine."""

    site: str
    destination: str
    sockets: Path
    config: str = ""
    jump: str = ""
    alive_s: int = ALIVE_S

    def socket_path(self) -> Path:
        text = "\0".join((self.site, self.destination, self.config, self.jump))
        return self.sockets / hashlib.sha256(text.encode()).hexdigest()[:16]

    def control_path(self) -> str:
        """Returns the ControlPath option. The path is quoted, because ssh splits it at blanks and expands percent signs in it."""
        return f'ControlPath="{str(self.socket_path()).replace("%", "%%")}"'

    def argv(self, options: Sequence[str], *flags: str, batch: bool = True) -> list[str]:
        """Returns all words of an ssh command before the destination."""
        given = [*options, *_UNATTENDED, f"ConnectTimeout={CONNECT_S}"]
        given += [f"ServerAliveInterval={self.alive_s}", f"ServerAliveCountMax={ALIVE_COUNT}"]
        given += ["BatchMode=yes"] if batch else []
        given += [f"ProxyJump={self.jump}"] if self.jump else []
        config = ["-F", self.config] if self.config else []
        return ["ssh", *config, *(word for option in given for word in ("-o", option)), *flags]

    def command(self, text: str) -> list[str]:
        """Returns the command line that runs a command over the shared connection. If the shared connection is not open, ssh opens a
        connection for this command only."""
        return [*self.argv(["ControlMaster=no", self.control_path(), "ClearAllForwardings=yes"], "-T"), *self.to(text)]

    def open(self, login: bool = False) -> list[str]:
        """Returns the command line that opens the shared connection. If ``login`` is True, a user at a terminal can answer questions."""
        persist = f"ControlPersist={LOGIN_PERSIST if login else PERSIST_S}"
        options = ["ControlMaster=auto", self.control_path(), persist, "ClearAllForwardings=yes"]
        return [*self.argv(options, "-T", batch=not login), *self.to("exit 0")]

    def control(self, action: str, *flags: str) -> list[str]:
        """Returns the command line that controls the shared connection, for example with ``exit``."""
        return [*self.argv([self.control_path()], "-O", action, *flags), "--", self.destination]

    def to(self, command: str) -> list[str]:
        # Without "--", ssh would take a host name that begins with "-" for an option.
        return ["--", self.destination, command]

    def is_open(self) -> bool:
        """Returns True if a process listens at the control socket. Removes the socket if no process listens, because ssh would fail at
        it."""
        path = self.socket_path()
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except BlockingIOError:
                return True
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
                return False
            except OSError:
                return False
        return True


class SshConnection:
    """The shared connection to one machine. It is opened at the first command. After a failure, there is a pause before the next
    attempt."""

    def __init__(self, ssh: SshCommand) -> None:
        self.ssh = ssh
        self.login_needed = ""
        """Message of ssh if a user must log in."""
        self.through_login_shell = False
        self._opening: asyncio.Task[str] | None = None
        self._opened = False
        self._failures = 0
        self._failure = ""
        self._retry_at = 0.0

    async def run(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> CommandOutput:
        """Runs a command on the machine. If no answer comes, the status of the output is None."""
        failure = await self._open()
        if failure:
            return CommandOutput(None, stderr=failure, code=LOGIN_NEEDED if self.login_needed else "")
        answer = await self._run(argv, stdin, timeout_s)
        if answer.status == MISSING and not self.through_login_shell and argv[0] in answer.stderr:
            # Many clusters set PATH only in login shells, so the command runs again in a login shell.
            self.through_login_shell = True
            again = await self._run(argv, stdin, timeout_s)
            if again.status != MISSING:
                return again
            self.through_login_shell = False
        return answer

    async def _run(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> CommandOutput:
        mark = f"pilotfish-{secrets.token_hex(8)}"
        command = remote_command(["sh", "-c", _WRAP, mark, f"{timeout_s + 5:.0f}", "env", "LC_ALL=C", *argv])
        if self.through_login_shell:
            command = remote_command(["bash", "-l", "-c", command])
        result = await run_child(self.ssh.command(command), stdin, timeout_s)
        answer = self._read(result, mark)
        if answer.status is None and result.status == SSH_FAILED and needs_login(result.stderr):
            self.login_needed = _last_lines(result.stderr)
            return CommandOutput(None, answer.stdout, self._advice(self.login_needed), LOGIN_NEEDED)
        return answer

    def _read(self, result: CommandOutput, mark: str) -> CommandOutput:
        before, found, stdout = result.stdout.partition(f"{mark}\n")
        marked, _, after = result.stderr.rpartition(f"{mark}\n")
        of_command = result.status == SSH_FAILED and result.stderr.endswith(f"{mark}\n")
        stderr = marked + after if of_command else result.stderr
        if result.status is None:
            return CommandOutput(None, stdout, stderr if not found else "")
        if found and (of_command or result.status != SSH_FAILED):
            return CommandOutput(result.status, stdout, stderr)
        if result.status == SSH_FAILED:
            return CommandOutput(None, stdout, stderr or f"the connection to {self.ssh.destination} was lost")
        return CommandOutput(None, "", f"{self.ssh.destination} runs no commands for us: {stderr or before}")

    async def _open(self) -> str:
        """Opens the connection. If this fails, returns the reason, otherwise an empty text. Concurrent calls open only one connection."""
        if self.ssh.is_open():
            self._succeeded()
            return ""
        if self._opening is None:
            if asyncio.get_running_loop().time() < self._retry_at:
                return self._failure
            self._opening = asyncio.create_task(self._dial())
        return await asyncio.shield(self._opening)

    async def _dial(self) -> str:
        try:
            # Another process may have removed the directory.
            make_private_directory(self.ssh.sockets)
            result = await run_child(self.ssh.open(), b"", OPEN_S)
        finally:
            self._opening = None
        if result.status is not None and result.status != SSH_FAILED:
            # Any other status comes from the remote shell, so the connection works.
            self._opened = True
            self._succeeded()
            return ""
        message = _last_lines(result.stderr) or f"no connection to {self.ssh.destination} within {OPEN_S:.0f} s"
        self.login_needed = message if needs_login(result.stderr) else ""
        first_s, longest_s = RETRY_LOGIN_S if self.login_needed else RETRY_S
        self._retry_at = asyncio.get_running_loop().time() + min(longest_s, first_s * 2**self._failures)
        self._failures = min(self._failures + 1, 10)
        self._failure = self._advice(message) if self.login_needed else message
        return self._failure

    def _succeeded(self) -> None:
        self._failures, self._retry_at, self.login_needed = 0, 0.0, ""

    def _advice(self, message: str) -> str:
        return f"{message}; a user must log in: pilotfish site login {self.ssh.site}"

    async def close(self) -> None:
        """Closes the connection if this object opened it. A connection that a user opened with a login stays open until it expires."""
        if self._opening is not None:
            self._opened = True
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._opened and self.ssh.is_open():
            # The action is "stop", because "exit" would interrupt other processes that use the connection.
            await run_child(self.ssh.control("stop"), b"", CLOSE_S)


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-3:])
