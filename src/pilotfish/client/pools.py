"""Finds the master of a pool or starts it. Users never start one by hand."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilotfish.config import home
from pilotfish.errors import ConnectionFailed, PilotfishError, PoolStopped
from pilotfish.model.environment import without_secrets
from pilotfish.portable.processes import processes_of
from pilotfish.store.keyring import require_private
from pilotfish.store.pool_directory import PRIVATE, PoolDirectory, pool_home, stop_mark_path

START_S = 60.0
"""Seconds until a starting master is given up; a long journal takes a while to read."""
START_RETRY_S = 5.0
"""Seconds during which a master that dies at its start is started again."""
NO_ANSWER = "failed it ended without a word\t"
STOP_S = 30.0
PRIVATE_SETTINGS: dict[str, Any] = {"orphan_s": 60.0, "linger_s": 2.0, "author_s": 10.0}
"""Settings with short waits, because a private pool ends with its client."""


@dataclass
class PoolHandle:
    """A pool, and how to start its master."""

    directory: Path
    settings: dict[str, Any] = field(default_factory=dict)
    temporary: bool = False

    @property
    def name(self) -> str:
        return self.directory.name

    def revive(self) -> None:
        """Starts a master if none runs. Raises PoolStopped if a user stopped the pool."""
        if stop_mark_path(self.directory).exists():
            raise PoolStopped("the pool was stopped; what is unfinished is kept", "resume it: pilotfish attach")
        self.start()

    def start(self) -> None:
        """Starts a master, also for a stopped pool; while the stop mark exists, that master starts no work."""
        deadline = time.monotonic() + START_S
        while not is_served(self.directory):
            answer = _start(self)
            if answer == "ready":
                return
            if answer == NO_ANSWER and time.monotonic() < deadline - START_S + START_RETRY_S:
                continue  # it was killed while it started: try again
            if answer.startswith("failed "):
                message, _, hint = answer.removeprefix("failed ").partition("\t")
                raise PilotfishError(f"the master of pool {self.name} did not start: {message}", hint or f"see {self.directory}/master.log")
            if time.monotonic() > deadline:
                raise ConnectionFailed(f"no master answers for pool {self.name}: {answer}", f"see {self.directory}/master.log")
            time.sleep(0.02)

    def wait_until_stopped(self, timeout_s: float = STOP_S) -> list[str]:
        """Waits until the stopped master is gone; returns what is left of it."""
        deadline = time.monotonic() + timeout_s
        while (left := self.leftovers()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return left

    def leftovers(self) -> list[str]:
        left = [f"process {pid} ({command})" for pid, command in processes_of(self.directory)]
        if self.temporary and self.directory.exists():
            left.append(f"directory {self.directory}")
        return left


def ensure_pool(name: str = "default", read_only: bool = False) -> PoolHandle:
    """Returns a pool with a running master. With ``read_only``, a stopped pool stays stopped."""
    pool = PoolHandle(pool_home(name).make().directory)
    if read_only:
        pool.start()
    else:
        stop_mark_path(pool.directory).unlink(missing_ok=True)
        pool.revive()
    return pool


def private_pool(cores: int) -> PoolHandle:
    """Starts a pool that ends when it is closed or its client dies."""
    directory = home() / "pools" / f"{PRIVATE}{os.getpid()}-{secrets.token_hex(4)}"
    pool = PoolHandle(PoolDirectory(directory).make().directory, {**PRIVATE_SETTINGS, "local_cores": cores}, temporary=True)
    pool.revive()
    return pool


def find_pools() -> list[PoolHandle]:
    """Lists all pools, with and without a master."""
    root = home() / "pools"
    if not root.is_dir():
        return []
    return [PoolHandle(path, temporary=PoolDirectory(path).private) for path in sorted(root.iterdir()) if path.is_dir()]


def is_served(directory: Path) -> bool:
    """Whether a master listens. Tests the socket, because a dead master may leave its files."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(PoolDirectory(directory).socket_path())) == 0


def _start(pool: PoolHandle) -> str:
    """Starts a master and returns its first line."""
    require_private(pool.directory)
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "pilotfish.master", str(pool.directory), "--ready", str(writing)]
    if pool.settings:
        command += ["--settings", json.dumps(pool.settings)]
    if pool.temporary:
        command.append("--temporary")
    # A shared pool outlives the shell that started it, so later runs must not see the secrets of that shell.
    environment = dict(os.environ) if pool.temporary else without_secrets(os.environ)
    with open(reading) as answer:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[writing], start_new_session=True, env=environment)
        finally:
            os.close(writing)
        with process:
            return answer.readline().strip() or NO_ANSWER
