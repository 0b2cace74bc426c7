"""Runs a command with a timeout and limits on its output. If the command takes too long or prints too much, its whole process group is
killed.

The module does not use the subprocesses of asyncio, for two reasons. First, asyncio waits for all background processes that hold a pipe of
the command open, even if the command itself has ended. Second, asyncio needs a thread for each subprocess.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pilotfish.backends.interface import CommandOutput
from pilotfish.model.environment import without_secrets

READ_BYTES = 64 * 1024
MAX_STDOUT_BYTES = 16 * 1024 * 1024
MAX_STDERR_BYTES = 1024 * 1024
FLOODED = "it wrote more than 16 MiB and was killed"
PIPES_S = 0.5
"""If background processes hold the pipes of an ended command open, output is read for this many seconds after the end."""
KILL_S = 2.0
"""Maximum seconds to wait for the end of a killed process. A process that hangs in a broken file system is left behind."""


def environment(public: bool = False, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the environment for commands. It is the environment of the master with the variables ``more``, and without the variables of
    Pilotfish. The language is set, so that commands print English messages.

    If ``public`` is True, variables whose names look like secrets are left out too.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PILOTFISH_") and name != "LANGUAGE"}
    if public:
        kept = without_secrets(kept)
    return {**kept, "LC_ALL": "C", **(more or {})}


OnData = Callable[[bytes], None]


class ChildProcess:
    """A running command. ``ended``: a future with the exit status, in the numbering of shells. ``pipes_closed``: a future that becomes done
    when every process has closed stdout and stderr of the command."""

    def __init__(self, argv: Sequence[str], stdin: int, on_stdout: OnData, on_stderr: OnData, env: Mapping[str, str] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        home = os.path.expanduser("~")
        stdout, child_stdout = os.pipe()
        stderr, child_stderr = os.pipe()
        try:
            process = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=child_stdout,
                stderr=child_stderr,
                start_new_session=True,
                cwd=home if os.path.isdir(home) else "/",
                env=environment() if env is None else env,
            )
        except BaseException:
            os.close(stdout)
            os.close(stderr)
            raise
        finally:
            os.close(child_stdout)
            os.close(child_stderr)
        process.returncode = 0  # This class waits for the process through a pidfd, so Popen must not wait.
        self.pid = process.pid
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self.pipes_closed: asyncio.Future[None] = self._loop.create_future()
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._reap)
        self._pipes: dict[int, OnData] = {stdout: on_stdout, stderr: on_stderr}
        for pipe in self._pipes:
            self._loop.add_reader(pipe, self._read, pipe)

    def kill(self) -> None:
        """Kills the process and its group. The process id still belongs to this process, because only this class reaps it."""
        if not self.ended.done():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def abandon(self) -> None:
        """Kills the process and closes its pipes. The event loop waits for the process later."""
        self.kill()
        for pipe in list(self._pipes):
            self._close(pipe)

    def _read(self, pipe: int) -> None:
        data = os.read(pipe, READ_BYTES)
        if data:
            self._pipes[pipe](data)
        else:
            self._close(pipe)

    def _close(self, pipe: int) -> None:
        if self._pipes.pop(pipe, None) is not None:
            self._loop.remove_reader(pipe)
            os.close(pipe)
        if not self._pipes and not self.pipes_closed.done():
            self.pipes_closed.set_result(None)

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.ended.set_result(code if code >= 0 else 128 - code)


class _Output:
    """The first ``limit`` bytes that a command writes to one pipe. Further bytes are read and dropped.

    ``flood``: future that becomes done when the command has written more than ``MAX_STDOUT_BYTES`` to this pipe.
    """

    def __init__(self, limit: int, flood: asyncio.Future[None]) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._length = 0
        self._flood = flood

    def add(self, data: bytes) -> None:
        room = self._limit - self._length
        self._length += len(data)
        if room > 0:
            self._pieces.append(data[:room])
        if self._length > MAX_STDOUT_BYTES and not self._flood.done():
            self._flood.set_result(None)

    def decode(self) -> str:
        return b"".join(self._pieces).decode("utf-8", "replace")


async def run_child(argv: Sequence[str], stdin: bytes, timeout_s: float, env: Mapping[str, str] | None = None) -> CommandOutput:
    """Runs a command until it ends, or kills it after the timeout. ``env``: the whole environment of the command. The status of a killed
    command is None."""
    # The input comes from a file in memory, because a pipe would need an asyncio task that writes to the pipe.
    source = os.memfd_create("stdin", os.MFD_CLOEXEC) if stdin else subprocess.DEVNULL
    flood: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    stdout, stderr = _Output(MAX_STDOUT_BYTES, flood), _Output(MAX_STDERR_BYTES, flood)
    try:
        if stdin:
            with os.fdopen(os.dup(source), "wb") as file:
                file.write(stdin)
            os.lseek(source, 0, os.SEEK_SET)
        child = ChildProcess(argv, source, stdout.add, stderr.add, env)
    finally:
        if stdin:
            os.close(source)
    try:
        ends: list[asyncio.Future[Any]] = [child.ended, flood]
        await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        status = child.ended.result() if child.ended.done() else None
        if status is None:
            child.kill()
            await asyncio.wait([child.ended], timeout=KILL_S)
        else:
            await asyncio.wait([child.pipes_closed], timeout=PIPES_S)
    finally:
        child.abandon()
    return CommandOutput(None, "", FLOODED) if flood.done() else CommandOutput(status, stdout.decode(), stderr.decode())
