"""Starts, watches and ends pilots on this machine. A restarted master finds again the ones that its predecessor started."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilotfish.backends.local import LocalBackend
from pilotfish.master.agent_bundle import build_bundle
from pilotfish.model import inputs as i
from pilotfish.portable.processes import processes_of, started_at
from pilotfish.store.keyring import Keyring
from pilotfish.store.pool_directory import PoolDirectory
from pilotfish.store.shared_payloads import shared_directory

KILL_AFTER_S = 5.0
LOG_TAIL_BYTES = 2000


@dataclass(slots=True)
class LocalProcess:
    pid: int
    pidfd: int
    child: bool
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    ending: asyncio.TimerHandle | None = None


class LocalController:
    def __init__(self, pool: PoolDirectory, keyring: Keyring, tell: Callable[[i.Input], None], poll_s: float, cache_size: int = 0) -> None:
        self._pool = pool
        self._keyring = keyring
        self._tell = tell
        self._poll_s = poll_s
        self._cache_size = cache_size
        self._processes: dict[str, LocalProcess] = {}
        self.endpoints: list[dict[str, Any]] = []

    def submit(self, pilot: str, cores: float) -> None:
        """Start an agent. What cannot be started is reported as a pilot that ended badly."""
        try:
            pid = self._start(pilot, cores)
        except OSError as problem:
            gone = not self._pool.directory.is_dir()
            reason = f"the pool's directory {self._pool.directory} is gone" if gone else str(problem)
            self._tell(i.PilotGone(pilot, False, f"could not be started: {reason}"))
            return
        self._watch(pilot, pid, child=True)
        self._tell(i.PilotAccepted(pilot, f"{pid}:{started_at(pid)}"))

    def _start(self, pilot: str, cores: float) -> int:
        directory = self._pool.pilot(pilot)
        workdir = self._pool.work / pilot
        self.refresh(pilot)
        for folder in (workdir.parent, workdir):
            folder.mkdir(mode=0o700, exist_ok=True)
        bundle = build_bundle(self._pool.directory)
        share = shared_directory(self._pool.payloads)
        credentials = str(directory / "credentials.json")
        agent = LocalBackend(
            sys.executable,
            str(bundle),
            credentials,
            pilot,
            cores,
            str(workdir),
            str(share),
            str(self._pool.cache),
            str(self._pool.contents),
            self._poll_s,
            self._cache_size,
        )
        with (directory / "agent.log").open("ab") as log:
            process = subprocess.Popen(agent.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/")
        process.returncode = 0  # waited for by us, through its pidfd; Popen shall not try
        return process.pid

    def refresh(self, pilot: str) -> None:
        """Write the credentials of a pilot anew: the master may have moved."""
        directory = self._pool.pilot(pilot)
        for folder in (directory.parent, directory):
            # Never with parents: the pool's own directory would come back empty, and open to others.
            folder.mkdir(mode=0o700, exist_ok=True)
        path = directory / "credentials.json"
        self._pool.write_credentials(path, self._keyring, f"pilot:{pilot}", self.endpoints)

    def adopt(self, pilot: str, cores: float, job: str) -> None:
        """After a restart: watch a pilot that runs, submit one that was only decided, report one that is gone.

        One that was started just before the crash is found by its tag, the credentials file among its arguments.
        """
        if not job:
            found = next(processes_of(self._pool.pilot(pilot)), None)
            if found is None:
                self.submit(pilot, cores)
                return
            job = f"{found[0]}:{started_at(found[0])}"
        pid, _, started = job.partition(":")
        if not started or started_at(int(pid)) != started:
            self._tell(i.PilotGone(pilot, False, "ended while no master watched", witnessed=False))
            shutil.rmtree(self._pool.work / pilot, ignore_errors=True)
            return
        self.refresh(pilot)
        self._watch(pilot, int(pid), child=False)
        self._tell(i.PilotAccepted(pilot, job))

    def watches(self, pilot: str) -> bool:
        return pilot in self._processes

    def cancel(self, pilot: str) -> None:
        process = self._processes.get(pilot)
        if process is None:
            self._tell(i.PilotGone(pilot, True, "was not running"))
            return
        if process.ending is None:
            _signal(process, signal.SIGTERM)
            process.ending = asyncio.get_running_loop().call_later(KILL_AFTER_S, self._kill, process)

    async def end_all(self) -> None:
        """Have every pilot end, and wait until none is left."""
        for pilot in list(self._processes):
            self.cancel(pilot)
        await asyncio.gather(*(process.ended.wait() for process in self._processes.values()))

    def _kill(self, process: LocalProcess) -> None:
        """It did not listen. Its session is its own, so that the group is all of it that is left to kill from here."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            _signal(process, signal.SIGKILL)

    def _watch(self, pilot: str, pid: int, *, child: bool) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._tell(i.PilotGone(pilot, False, "ended at once"))
            return
        self._processes[pilot] = LocalProcess(pid, pidfd, child)
        asyncio.get_running_loop().add_reader(pidfd, self._ended, pilot)

    def _ended(self, pilot: str) -> None:
        process = self._processes.pop(pilot)
        process.ended.set()
        asyncio.get_running_loop().remove_reader(process.pidfd)
        os.close(process.pidfd)
        if process.ending is not None:
            process.ending.cancel()
        status = os.waitpid(process.pid, 0)[1] if process.child else None
        well = status == 0 or process.ending is not None
        self._tell(i.PilotGone(pilot, well, self._reason(pilot, status), witnessed=status is not None))
        # The agent tidies up itself; this is for one that was killed together with its supervisor.
        shutil.rmtree(self._pool.work / pilot, ignore_errors=True)
        if well:
            _remove(self._pool.pilot(pilot))

    def _reason(self, pilot: str, status: int | None) -> str:
        if status is None:
            return "ended"
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return "ended"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
        last = _last_line(self._pool.pilot(pilot) / "agent.log")
        return f"{how}: {last}" if last else how


def _signal(process: LocalProcess, number: int) -> None:
    try:
        signal.pidfd_send_signal(process.pidfd, number)
    except ProcessLookupError:
        pass


def _last_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _remove(directory: Path) -> None:
    for name in ("credentials.json", "agent.log"):
        (directory / name).unlink(missing_ok=True)
    try:
        directory.rmdir()
    except OSError:
        pass
