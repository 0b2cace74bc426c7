"""The system's OpenSSH: the words it is given, and one connection to a machine that all commands for it share.

The person's own configuration holds: names, users, keys, jump hosts, Kerberos. What is set here is only what a program needs that has
nobody at its keyboard.
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
from pilotfish.master.sites.child_process import FLOODED, ProcessResult, run_child
from pilotfish.model.site import LOGIN_NEEDED
from pilotfish.store.pool_directory import make_private_directory

CONNECT_S = 20
ALIVE_S = 10
ALIVE_COUNT = 3
"""A connection that says nothing for so many times ``ALIVE_S`` is given up."""
PERSIST_S = 600
LOGIN_PERSIST = "12h"
OPEN_S = 60.0
LEAVE_S = 5.0
LOST_LINK = 255
"""What ssh ends with when it has something to say itself."""
MISSING = 127
FORGOTTEN_S = 3600.0
MAX_TOP = 32
"""The kernel takes paths of sockets of at most 107 bytes, and ssh adds some to them for a moment."""
RETRY_S = (2.0, 60.0)
RETRY_LOGIN_S = (60.0, 900.0)
"""How long a machine that refused us is left alone, at first and at most: whoever knocks too often is locked out."""

_PERSON = re.compile(
    r"permission denied|keyboard-interactive|host key verification failed|too many authentication failures|password has expired|"
    r"remote host identification has changed",
    re.IGNORECASE,
)
_QUIET = (
    "LogLevel=ERROR",
    "RequestTTY=no",
    "ForwardX11=no",
    "ForwardAgent=no",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    "EscapeChar=none",
)

# Its first word is a mark: what stands before it was said by the start of the person's shell. A status of 255 is marked as the command's
# own. A command that nobody waits for any more shall not stay on a login node.
_WRAP = (
    'echo "$0"; if command -v timeout >/dev/null 2>&1; then timeout -k 5 "$@"; else shift; "$@"; fi; '
    's=$?; test $s = 255 && echo "$0" >&2; exit $s'
)


def control_directory(pool: Path) -> Path:
    """Where the control sockets of a pool are: their paths must be short. The same for the command line and for the master."""
    place = _control_place(pool)
    make_private_directory(place.parent)
    for other in place.parent.glob("ssh-*"):
        # Of masters that were killed; whoever needs one after all makes it again.
        with suppress(OSError):
            if time.time() - other.stat().st_mtime > FORGOTTEN_S:
                other.rmdir()
    return make_private_directory(place)


def leave_directory(pool: Path) -> None:
    """Nobody needs it any more, unless a person is logged in."""
    with suppress(OSError):
        _control_place(pool).rmdir()


def _control_place(pool: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(pool)).hexdigest()[:16]
    top = tempfile.gettempdir()
    return Path(top if len(top) <= MAX_TOP else "/tmp") / f"pilotfish-{os.geteuid()}" / f"ssh-{digest}"


def needs_person(words: str) -> bool:
    """Whether ssh says something that only a person can mend, by logging in once."""
    return _PERSON.search(words) is not None


def remote_line(words: Sequence[str]) -> str:
    """For whatever shell the person has over there: also csh, which looks for ``!`` in quoted words."""
    return shlex.join(words).replace("!", "'\\!'") if "!" in "".join(words) else shlex.join(words)


@dataclass(frozen=True)
class SshCommand:
    """How one machine is reached."""

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
        """As an option: ssh would take blanks and percent signs for its own."""
        return f'ControlPath="{str(self.socket_path()).replace("%", "%%")}"'

    def words(self, options: Sequence[str], *more: str, batch: bool = True) -> list[str]:
        """All words before the destination. ``more`` are flags."""
        given = [*options, *_QUIET, f"ConnectTimeout={CONNECT_S}"]
        given += [f"ServerAliveInterval={self.alive_s}", f"ServerAliveCountMax={ALIVE_COUNT}"]
        given += ["BatchMode=yes"] if batch else []
        given += [f"ProxyJump={self.jump}"] if self.jump else []
        config = ["-F", self.config] if self.config else []
        return ["ssh", *config, *(word for option in given for word in ("-o", option)), *more]

    def command(self, line: str) -> list[str]:
        """Through the shared connection; without it, by one of its own."""
        return [*self.words(["ControlMaster=no", self.control_path(), "ClearAllForwardings=yes"], "-T"), *self.to(line)]

    def open(self) -> list[str]:
        options = ["ControlMaster=auto", self.control_path(), f"ControlPersist={PERSIST_S}", "ClearAllForwardings=yes"]
        return [*self.words(options, "-T"), *self.to("exit 0")]

    def log_in(self) -> list[str]:
        """For a person at a terminal: leaves a connection that the master uses from then on."""
        options = ["ControlMaster=auto", self.control_path(), f"ControlPersist={LOGIN_PERSIST}", "ClearAllForwardings=yes"]
        return [*self.words(options, "-T", batch=False), *self.to("exit 0")]

    def control(self, order: str, *more: str) -> list[str]:
        """An order for the shared connection itself, such as ``exit``."""
        return [*self.words([self.control_path()], "-O", order, *more), "--", self.destination]

    def to(self, line: str) -> list[str]:
        # Behind "--" nobody's host name is taken for an option.
        return ["--", self.destination, line]

    def is_open(self) -> bool:
        """Whether somebody answers at the control socket. One that nobody listens to is removed: it would be in the way."""
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
    """The shared connection to one machine: opened when it is needed, by one at a time, and not too often if that fails."""

    def __init__(self, ssh: SshCommand) -> None:
        self.ssh = ssh
        self.login_needed = ""
        """What ssh said, if only a person can mend it."""
        self.through_login_shell = False
        self._opening: asyncio.Task[str] | None = None
        self._opened = False
        self._failures = 0
        self._failure = ""
        self._retry_at = 0.0

    async def run(self, argv: Sequence[str], stdin: bytes, patience_s: float) -> CommandOutput:
        """Run a command over there; the answer has no status if nobody answered."""
        failure = await self._open()
        if failure:
            return CommandOutput(None, stderr=failure, code=LOGIN_NEEDED if self.login_needed else "")
        answer = await self._run(argv, stdin, patience_s)
        if answer.status == MISSING and not self.through_login_shell and argv[0] in answer.stderr:
            # Many clusters set the path to their commands in what only login shells read.
            self.through_login_shell = True
            again = await self._run(argv, stdin, patience_s)
            if again.status != MISSING:
                return again
            self.through_login_shell = False
        return answer

    async def _run(self, argv: Sequence[str], stdin: bytes, patience_s: float) -> CommandOutput:
        mark = f"pilotfish-{secrets.token_hex(8)}"
        line = remote_line(["sh", "-c", _WRAP, mark, f"{patience_s + 5:.0f}", "env", "LC_ALL=C", *argv])
        if self.through_login_shell:
            line = remote_line(["bash", "-l", "-c", line])
        outcome = await run_child(self.ssh.command(line), stdin, patience_s)
        answer = self._read(outcome, mark)
        if answer.status is None and outcome.status == LOST_LINK and needs_person(outcome.stderr):
            self.login_needed = _last_lines(outcome.stderr)
            return CommandOutput(None, answer.stdout, self._advice(self.login_needed), LOGIN_NEEDED)
        return answer

    def _read(self, outcome: ProcessResult, mark: str) -> CommandOutput:
        before, found, stdout = outcome.stdout.partition(f"{mark}\n")
        marked, _, after = outcome.stderr.rpartition(f"{mark}\n")
        itself = outcome.status == LOST_LINK and outcome.stderr.endswith(f"{mark}\n")
        stderr = marked + after if itself else outcome.stderr
        if outcome.flooded:
            return CommandOutput(None, "", FLOODED)
        if outcome.status is None:
            return CommandOutput(None, stdout, stderr if not found else "")
        if found and (itself or outcome.status != LOST_LINK):
            return CommandOutput(outcome.status, stdout, stderr)
        if outcome.status == LOST_LINK:
            return CommandOutput(None, stdout, stderr or f"the connection to {self.ssh.destination} was lost")
        return CommandOutput(None, "", f"{self.ssh.destination} runs no commands for us: {stderr or before}")

    async def _open(self) -> str:
        """Why it cannot be opened; empty if it is open. Whoever comes while it is being opened waits for the same answer."""
        if self.ssh.is_open():
            self._well()
            return ""
        if self._opening is None:
            if asyncio.get_running_loop().time() < self._retry_at:
                return self._failure
            self._opening = asyncio.create_task(self._dial())
        return await asyncio.shield(self._opening)

    async def _dial(self) -> str:
        try:
            # Somebody else may have left it as the last one.
            make_private_directory(self.ssh.sockets)
            outcome = await run_child(self.ssh.open(), b"", OPEN_S)
        finally:
            self._opening = None
        if outcome.status is not None and outcome.status != LOST_LINK:
            # With a status of its own the shell over there was reached; what it thinks of "exit" is shown by the first command.
            self._opened = True
            self._well()
            return ""
        said = _last_lines(outcome.stderr) or f"no connection to {self.ssh.destination} within {OPEN_S:.0f} s"
        person = needs_person(outcome.stderr)
        self.login_needed = said if person else ""
        first, most = RETRY_LOGIN_S if person else RETRY_S
        self._retry_at = asyncio.get_running_loop().time() + min(most, first * 2**self._failures)
        self._failures = min(self._failures + 1, 10)
        self._failure = self._advice(said) if person else said
        return self._failure

    def _well(self) -> None:
        self._failures, self._retry_at, self.login_needed = 0, 0.0, ""

    def _advice(self, said: str) -> str:
        return f"{said}; a person must log in: pilotfish site login {self.ssh.site}"

    async def close(self) -> None:
        """End what we opened. What a person opened stays until its own time is over."""
        if self._opening is not None:
            self._opened = True
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._opened and self.ssh.is_open():
            # Not "exit": somebody else, such as the master while a person looks at a site, may be in the middle of something.
            await run_child(self.ssh.control("stop"), b"", LEAVE_S)


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-3:])
