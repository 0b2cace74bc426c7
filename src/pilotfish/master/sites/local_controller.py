"""Starts, watches and ends pilots on this machine: the site ``local``.

A pilot at this site is a process. The controller waits for the end of the process without polling. A restarted master takes over the
processes of the previous master.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilotfish.master.sites.prestarted_agent import PrestartedAgent
from pilotfish.model import inputs as i
from pilotfish.model.site import PilotSize
from pilotfish.portable.processes import started_at
from pilotfish.store.keyring import Keyring, write_private
from pilotfish.store.pool_directory import PoolDirectory

UNUSED_S = 30.0
"""Seconds until a prestarted agent is ended, if no pilot has used it."""
PROCESS_FILE = "process"
"""Name of the file that contains the job id of a pilot. It is in the directory of the pilot."""
KILL_AFTER_S = 5.0
"""Seconds between SIGTERM and SIGKILL."""
LOG_TAIL_BYTES = 2000


@dataclass(slots=True)
class LocalProcess:
    pid: int
    pidfd: int
    child: bool
    """Whether this master started the process. Only then can the master read the exit status of the process."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    kill_timer: asyncio.TimerHandle | None = None
    """Timer for SIGKILL. It is set when SIGTERM is sent."""


class LocalController:
    def __init__(self, pool: PoolDirectory, keyring: Keyring, tell: Callable[[i.Input], None], poll_s: float, cache_size: int = 0) -> None:
        self._pool = pool
        self._keyring = keyring
        self._tell = tell
        self._poll_s = poll_s
        self._cache_size = cache_size
        self._processes: dict[str, LocalProcess] = {}
        self._prestarted: PrestartedAgent | None = None
        self.endpoints: list[dict[str, Any]] = []

    def use_prestarted(self, agent: PrestartedAgent) -> None:
        """Keeps a prestarted agent for the first pilot of this master. If no pilot comes within UNUSED_S seconds, ends the agent."""
        self._prestarted = agent
        asyncio.get_running_loop().call_later(UNUSED_S, self.drop_prestarted)

    def submit(self, pilot: str, size: PilotSize) -> None:
        """Starts an agent. If the start fails, reports the end of the pilot."""
        try:
            pid = self._start(pilot, size)
        except OSError as problem:
            exists = self._pool.directory.is_dir()
            reason = str(problem) if exists else f"the pool's directory {self._pool.directory} does not exist"
            self._tell(i.PilotEndReported(pilot, False, f"could not be started: {reason}"))
            return
        self._watch(pilot, pid, child=True)
        self._tell(i.PilotAccepted(pilot, job_id(pid, started_at(pid))))

    def _start(self, pilot: str, size: PilotSize) -> int:
        directory = self._pool.pilot(pilot)
        workdir = self._pool.work / pilot
        self._write_credentials(pilot)
        for folder in (workdir.parent, workdir):
            folder.mkdir(mode=0o700, exist_ok=True)
        agent, self._prestarted = self._prestarted, None
        if agent is None or not agent.is_alive():
            agent = PrestartedAgent(self._pool.directory, self._pool.log)
        # The file is written before the agent gets its command. If this master dies between these steps, the next master still finds the
        # process.
        write_private(directory / PROCESS_FILE, job_id(agent.pid, started_at(agent.pid)).encode(), durable=False)
        agent.begin(agent_arguments(self._pool, pilot, size, self._poll_s, self._cache_size), directory / "agent.log")
        return agent.pid

    def drop_prestarted(self) -> None:
        """Ends the prestarted agent if no pilot has used it."""
        agent, self._prestarted = self._prestarted, None
        if agent is not None:
            agent.drop()

    def _write_credentials(self, pilot: str) -> None:
        """Writes the credentials of a pilot. An adopted pilot gets new credentials, because possibly the new master listens at a different
        port."""
        directory = self._pool.pilot(pilot)
        for folder in (directory.parent, directory):
            # This does not create parent directories: if the pool directory was deleted, other users could read a new one.
            folder.mkdir(mode=0o700, exist_ok=True)
        write_private(directory / "credentials.json", self._keyring.credentials(f"pilot:{pilot}", self.endpoints), durable=False)

    def adopt(self, pilot: str, size: PilotSize, job: str) -> None:
        """Takes over a pilot of the previous master. Watches the pilot if it is running. Starts the pilot if the previous master has not
        started it. Reports the end of the pilot if it has ended.

        If the previous master crashed just after the start of the pilot, the job id is not in the journal, and ``job`` is empty. In this
        case, the job id is read from a file of the pilot.
        """
        if not job:
            try:
                job = (self._pool.pilot(pilot) / PROCESS_FILE).read_text()
            except FileNotFoundError:
                self.submit(pilot, size)
                return
        pid, started = read_job_id(job)
        if not started or started_at(pid) != started:
            self._tell(i.PilotEndReported(pilot, False, "ended while no master watched", witnessed=False))
            shutil.rmtree(self._pool.work / pilot, ignore_errors=True)
            return
        self._write_credentials(pilot)
        self._watch(pilot, pid, child=False)
        self._tell(i.PilotAccepted(pilot, job))

    def watches(self, pilot: str) -> bool:
        return pilot in self._processes

    def cancel(self, pilot: str) -> None:
        process = self._processes.get(pilot)
        if process is None:
            self._tell(i.PilotEndReported(pilot, True, "was not running"))
            return
        if process.kill_timer is None:
            _signal(process, signal.SIGTERM)
            process.kill_timer = asyncio.get_running_loop().call_later(KILL_AFTER_S, self._kill, process)

    async def end(self) -> None:
        """Cancels all pilots and waits until they have ended."""
        self.drop_prestarted()
        for pilot in list(self._processes):
            self.cancel(pilot)
        await asyncio.gather(*(process.ended.wait() for process in self._processes.values()))

    def _kill(self, process: LocalProcess) -> None:
        """Kills a process that ignored SIGTERM. The process leads its own process group, and the whole group is killed."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            _signal(process, signal.SIGKILL)

    def _watch(self, pilot: str, pid: int, *, child: bool) -> None:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._tell(i.PilotEndReported(pilot, False, "ended at once"))
            return
        self._processes[pilot] = LocalProcess(pid, pidfd, child)
        asyncio.get_running_loop().add_reader(pidfd, self._ended, pilot)

    def _ended(self, pilot: str) -> None:
        process = self._processes.pop(pilot)
        process.ended.set()
        asyncio.get_running_loop().remove_reader(process.pidfd)
        os.close(process.pidfd)
        if process.kill_timer is not None:
            process.kill_timer.cancel()
        status = os.waitpid(process.pid, 0)[1] if process.child else None
        well = status == 0 or process.kill_timer is not None
        reason, directory = "ended", self._pool.pilot(pilot)
        if status is not None:
            reason = describe_exit(os.waitstatus_to_exitcode(status), _last_line(directory / "agent.log"))
        self._tell(i.PilotEndReported(pilot, well, reason, witnessed=status is not None))
        # An agent or its supervisor removes the working directory, but possibly both were killed.
        shutil.rmtree(self._pool.work / pilot, ignore_errors=True)
        if well:
            _remove(directory)


def agent_arguments(pool: PoolDirectory, pilot: str, size: PilotSize, poll_s: float, cache_size: int) -> list[str]:
    """Returns the arguments of an agent. The key is in the credentials file and never in the arguments."""
    credentials, share = pool.pilot(pilot) / "credentials.json", pool.shared_payloads
    argv = ["--credentials", credentials, "--worker", pilot, "--cores", f"{size.cores:g}"]
    argv += ["--workdir", pool.work / pilot, "--share", share, "--cache", pool.cache, "--home", pool.contents]
    argv += ["--cache-bytes", cache_size] if cache_size else []
    argv += ["--poll", f"{poll_s:g}"] if poll_s else []
    return list(map(str, argv))


def job_id(pid: int, started: str) -> str:
    """Returns a job id: process id and start time. The start time is needed because a later process can get the same process id."""
    return f"{pid}:{started}"


def read_job_id(job: str) -> tuple[int, str]:
    pid, _, started = job.partition(":")
    return int(pid) if started else 0, started


def describe_exit(code: int, last_line: str) -> str:
    """Describes how a process ended. ``code``: its exit status, or minus the number of the signal that killed it."""
    if code == 0:
        return "ended"
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
    return f"{how}: {last_line}" if last_line else how


def _signal(process: LocalProcess, number: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(process.pidfd, number)


def _last_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _remove(directory: Path) -> None:
    for name in ("credentials.json", "agent.log", PROCESS_FILE):
        (directory / name).unlink(missing_ok=True)
    with suppress(OSError):
        directory.rmdir()
