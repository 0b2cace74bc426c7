"""Starts a pool to measure: a master as a separate process, reached by its Unix socket, and light agents."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.contestants.processes import MARK, Process, bytes_below, marked_processes, read_process
from benchmarks.peers import end_leftovers

POOL = "default"
REPLY_TIMEOUT_S = 300.0
PILOT = "benchmark"
LISTENING = "0A"
"""Code of the state LISTEN in /proc/net/tcp."""


class OwnPool:
    def __init__(self, home: Path) -> None:
        self.directory = home / "pools" / POOL
        self.master: Any = None

    def start(self, workers: int) -> float:
        """Starts or restarts the master and waits until it answers; returns the seconds."""
        from pilotfish.client.session import connect

        began = time.perf_counter()
        self.master = connect(POOL, start=True, local_cores=workers)
        self.ask("status")
        return time.perf_counter() - began

    def ask(self, kind: str, **arguments: Any) -> Any:
        return self.master.ask(kind, **arguments)

    @property
    def pid(self) -> int:
        """Process id of the master: the process with our mark that serves this pool."""
        serving = f"pilotfish.master {self.directory}"
        return next(process.pid for process in marked_processes(os.environ[MARK]).values() if serving in process.command)

    def disk_bytes(self) -> int:
        return bytes_below(str(self.directory))

    def kill(self, pid: int) -> None:
        """Kills the master and waits until its process has ended."""
        self.master.close()
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while read_process(pid) is not None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"process {pid} still runs after SIGKILL")
            time.sleep(0.001)

    def agent_credentials(self) -> Path:
        """Writes the credentials file of light agents: their own key, derived from the pool secret, and the TLS endpoint."""
        from pilotfish.store.keyring import open_keyring

        keyring = open_keyring(self.directory)
        key_id = f"pilot:{PILOT}"
        endpoint = {"host": "127.0.0.1", "port": listening_port(self.pid), "fingerprint": keyring.fingerprint}
        path = self.directory.parent.parent / "light-agents.json"
        content = {"key_id": key_id, "key": keyring.key(key_id).hex(), "pilot": PILOT, "endpoint": endpoint}
        path.write_text(json.dumps(content))
        path.chmod(0o600)
        return path


def listening_port(pid: int) -> int:
    """Returns the TCP port of a process from /proc, so that the master needs no request only for benchmarks."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        if target.startswith("socket:["):
            sockets.add(target.removeprefix("socket:[").removesuffix("]"))
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == LISTENING and fields[9] in sockets:
            return int(fields[1].partition(":")[2], 16)
    raise RuntimeError(f"process {pid} listens on no TCP port")


class LightAgents:
    """The process of the light agents."""

    def __init__(self, credentials: Path, count: int, cores: float) -> None:
        command = [
            sys.executable,
            "-m",
            "benchmarks.light_agents",
            "--credentials",
            str(credentials),
            "--count",
            str(count),
            "--cores",
            str(cores),
        ]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.joined = self._reply()

    def _reply(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], REPLY_TIMEOUT_S)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            raise RuntimeError("the light agents did not answer")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def report(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("report\n")
        self.process.stdin.flush()
        return self._reply()

    def usage(self) -> Process | None:
        return read_process(self.process.pid)

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()


@contextmanager
def own_pool() -> Iterator[OwnPool]:
    """Provides a pool in a new home; ends its master and workers afterwards."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="pfb", ignore_cleanup_errors=True) as directory:
        os.environ.update({MARK: mark, "PILOTFISH_HOME": directory})
        pool = OwnPool(Path(directory))
        try:
            yield pool
        finally:
            try:
                if pool.master is not None:
                    pool.ask("stop", now=True)
                    pool.master.close()
            finally:
                end_leftovers(mark)
                for name in (MARK, "PILOTFISH_HOME"):
                    os.environ.pop(name, None)
