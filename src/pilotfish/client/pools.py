"""Finds the master of a pool, or starts a master. Users never start a master themselves."""

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

from pilotfish.config import home, print_note
from pilotfish.errors import ConnectionFailed, PilotfishError, PoolStopped, did_you_mean
from pilotfish.model.environment import without_secrets
from pilotfish.portable.processes import processes_of
from pilotfish.store.keyring import require_private
from pilotfish.store.pool_directory import PRIVATE, PoolDirectory, pool_home, stop_mark_path

DEFAULT_POOL = "default"
POOL_VARIABLE = "PILOTFISH_POOL"
START_S = 60.0
"""Maximum seconds to wait for the answer of a master that another process has started. A master needs many seconds to read a long
journal."""
START_RETRY_S = 5.0
"""During this many seconds after the call of ``start``, each new master that dies without an answer is replaced. If a master dies later,
``start`` raises an error."""
NO_ANSWER = {"failed": "it ended without a word"}
STOP_S = 30.0
PRIVATE_SETTINGS: dict[str, Any] = {"orphan_s": 60.0, "linger_s": 2.0, "author_s": 10.0}
"""Settings of a private pool. The waits are short, because the pool ends with its client."""


@dataclass
class PoolHandle:
    """Handle of one pool. Starts the master of the pool, and waits until a stopped master has ended."""

    directory: Path
    settings: dict[str, Any] = field(default_factory=dict)
    temporary: bool = False

    @property
    def name(self) -> str:
        return self.directory.name

    def revive(self) -> None:
        """Starts a master if no master runs. Raises PoolStopped if a user stopped the pool."""
        if stop_mark_path(self.directory).exists():
            raise PoolStopped("the pool was stopped; what is unfinished is kept", "resume it: pilotfish attach")
        self.start()

    def start(self) -> None:
        """Starts a master if no master runs, even if a user stopped the pool. The master of a stopped pool starts no tasks."""
        deadline = time.monotonic() + START_S
        while not is_served(self.directory):
            answer = _start(self)
            for note in answer.get("notes", ()):
                print_note(note)
            if "ready" in answer:
                return
            if answer == NO_ANSWER and time.monotonic() < deadline - START_S + START_RETRY_S:
                continue  # the master was killed while it started
            log = f"see {self.directory}/master.log"
            if "failed" in answer:
                problem = PilotfishError(f"the master of pool {self.name} did not start: {answer['failed']}", answer.get("hint") or log)
                problem.code = answer.get("code", problem.code)
                raise problem
            if time.monotonic() > deadline:
                raise ConnectionFailed(f"no master answers for pool {self.name}: {answer['running']}", log)
            time.sleep(0.02)

    def wait_until_stopped(self, timeout_s: float = STOP_S) -> list[str]:
        """Waits until a stopped master and its processes have ended, but at most ``timeout_s`` seconds. Returns descriptions of the
        processes and files that are left."""
        deadline = time.monotonic() + timeout_s
        while (left := self.leftovers()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return left

    def leftovers(self) -> list[str]:
        left = [f"process {pid} ({command})" for pid, command in processes_of(self.directory)]
        if self.temporary and self.directory.exists():
            left.append(f"directory {self.directory}")
        return left


def selected_pool() -> str:
    """Returns the name of the pool for a user who names no pool."""
    return os.environ.get(POOL_VARIABLE) or DEFAULT_POOL


def ensure_pool(name: str, read_only: bool = False) -> PoolHandle:
    """Returns a pool with a running master. A pool that a user stopped is resumed, except with ``read_only``."""
    pool = PoolHandle(pool_home(name).make().directory)
    if read_only:
        pool.start()
    else:
        stop_mark_path(pool.directory).unlink(missing_ok=True)
        pool.revive()
    return pool


def private_pool(cores: int) -> PoolHandle:
    """Creates a private pool and starts its master. The pool ends when its client closes it or dies."""
    directory = home() / "pools" / f"{PRIVATE}{os.getpid()}-{secrets.token_hex(4)}"
    pool = PoolHandle(PoolDirectory(directory).make().directory, {**PRIVATE_SETTINGS, "local_cores": cores}, temporary=True)
    pool.revive()
    return pool


def find_pools() -> list[PoolHandle]:
    """Returns all pools, with and without a running master."""
    root = home() / "pools"
    if not root.is_dir():
        return []
    return [PoolHandle(path, temporary=PoolDirectory(path).private) for path in sorted(root.iterdir()) if path.is_dir()]


def similar_pool(name: str) -> str:
    """Returns a hint with a pool of a similar name. Returns an empty text if there is none."""
    return did_you_mean(name, [pool.name for pool in find_pools() if not pool.temporary])


def is_served(directory: Path) -> bool:
    """Tests whether a master listens at the pool's socket. The socket file alone proves nothing, because it remains after a master was
    killed."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(PoolDirectory(directory).socket_path())) == 0


def _start(pool: PoolHandle) -> dict[str, Any]:
    """Starts a master and returns its answer. The key of the answer is ``ready``, ``failed``, or ``running`` if a different master already
    runs."""
    require_private(pool.directory)
    reading, writing = os.pipe()
    options = {"settings": pool.settings, "ready": writing, "temporary": pool.temporary}
    command = [sys.executable, "-m", "pilotfish.master", str(pool.directory), json.dumps(options)]
    # A shared pool lives longer than the shell that started it. Later runs must not see the secrets of that shell.
    environment = dict(os.environ) if pool.temporary else without_secrets(os.environ)
    with open(reading) as answer:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[writing], start_new_session=True, env=environment)
        finally:
            os.close(writing)
        with process:
            line = answer.readline()
            return json.loads(line) if line.endswith("\n") else NO_ANSWER
