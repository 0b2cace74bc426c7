"""A process that runs for us: listened to while it runs, limited in time and in talk, killed together with all that it started.

Not asyncio's own, which may wait for the last heir of a pipe although the process itself has long ended, and which needs a thread for each.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilotfish.model.environment import without_secrets

READ_BYTES = 64 * 1024
MOST_OUTPUT_BYTES = 16 * 1024 * 1024
MOST_COMPLAINT_BYTES = 1024 * 1024
FLOODED = "it wrote more than anybody could read, and was stopped"
HEIRS_S = 0.5
"""What it left in the background may hold its pipes open; so long is listened to that."""
KILL_S = 2.0
"""So long it may take to die; who is caught in a broken file system is not waited for."""


def environment(public: bool = False, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, with texts that are the same everywhere. ``public``: others will see it, so without what looks like a secret."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PILOTFISH_") and name != "LANGUAGE"}
    if public:
        kept = without_secrets(kept)
    return {**kept, "LC_ALL": "C", **(more or {})}


Hear = Callable[[bytes], None]


class ChildProcess:
    """To be made in a running loop. ``ended`` has its exit status, as a shell would give it; ``silent``: its pipes are closed."""

    def __init__(self, words: Sequence[str], stdin: int, hear: Hear, hear_complaint: Hear, env: Mapping[str, str] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        output, its_output = os.pipe()
        complaints, its_complaints = os.pipe()
        try:
            process = subprocess.Popen(
                words,
                stdin=stdin,
                stdout=its_output,
                stderr=its_complaints,
                start_new_session=True,
                cwd=_home(),
                env=environment() if env is None else env,
            )
        except BaseException:
            os.close(output)
            os.close(complaints)
            raise
        finally:
            os.close(its_output)
            os.close(its_complaints)
        process.returncode = 0  # waited for by us, through its pidfd; Popen shall not try
        self.pid = process.pid
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self.silent: asyncio.Future[None] = self._loop.create_future()
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._reap)
        self._pipes: dict[int, Hear] = {output: hear, complaints: hear_complaint}
        for pipe in self._pipes:
            self._loop.add_reader(pipe, self._listen, pipe)

    def kill(self) -> None:
        """It and all of its group. Nobody else has its number as long as it was not waited for."""
        if not self.ended.done():
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def let_go(self) -> None:
        """Listen no more, and see to it that it ends; it is waited for in the background."""
        self.kill()
        for pipe in list(self._pipes):
            self._close(pipe)

    def _listen(self, pipe: int) -> None:
        data = os.read(pipe, READ_BYTES)
        if data:
            self._pipes[pipe](data)
        else:
            self._close(pipe)

    def _close(self, pipe: int) -> None:
        if self._pipes.pop(pipe, None) is not None:
            self._loop.remove_reader(pipe)
            os.close(pipe)
        if not self._pipes and not self.silent.done():
            self.silent.set_result(None)

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.ended.set_result(code if code >= 0 else 128 - code)


class _Text:
    """What a pipe says, up to a limit; the rest is heard and forgotten. ``flood``: done when it is too much even for that."""

    def __init__(self, most: int, flood: asyncio.Future[None]) -> None:
        self.most = most
        self.pieces: list[bytes] = []
        self.length = 0
        self._flood = flood

    def hear(self, data: bytes) -> None:
        room = self.most - self.length
        self.length += len(data)
        if room > 0:
            self.pieces.append(data[:room])
        if self.length > MOST_OUTPUT_BYTES and not self._flood.done():
            self._flood.set_result(None)

    def decoded(self) -> str:
        return b"".join(self.pieces).decode("utf-8", "replace")


@dataclass(frozen=True)
class ProcessResult:
    """``status`` is None if it did not end in time. ``flooded``: it said more than anybody wants to know, and was killed for it."""

    status: int | None
    stdout: str
    stderr: str
    flooded: bool = False


async def run_child(words: Sequence[str], stdin: bytes, patience_s: float, env: Mapping[str, str] | None = None) -> ProcessResult:
    """Run it to its end, or to the end of our patience. ``env``: instead of ours."""
    # A file in memory needs nobody who feeds it.
    source = os.memfd_create("stdin", os.MFD_CLOEXEC) if stdin else subprocess.DEVNULL
    flood: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    output, complaints = _Text(MOST_OUTPUT_BYTES, flood), _Text(MOST_COMPLAINT_BYTES, flood)
    try:
        if stdin:
            with os.fdopen(os.dup(source), "wb") as file:
                file.write(stdin)
            os.lseek(source, 0, os.SEEK_SET)
        child = ChildProcess(words, source, output.hear, complaints.hear, env)
    finally:
        if stdin:
            os.close(source)
    try:
        over: list[asyncio.Future[Any]] = [child.ended, flood]
        await asyncio.wait(over, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        status = child.ended.result() if child.ended.done() else None
        if status is None:
            child.kill()
            await asyncio.wait([child.ended], timeout=KILL_S)
        else:
            await asyncio.wait([child.silent], timeout=HEIRS_S)
    finally:
        child.let_go()
    return ProcessResult(status, output.decoded(), complaints.decoded(), flood.done())


def _home() -> str:
    home = os.path.expanduser("~")
    return home if os.path.isdir(home) else "/"
