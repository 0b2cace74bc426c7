"""Finds the master of a pool, or starts it. People never start one by hand."""

from __future__ import annotations

import json
import os
import secrets
import shutil
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
from pilotfish.store.pool_directory import PRIVATE, PoolDirectory, pool_home, stop_marker

START_S = 60.0
"""A master that has a long journal to read may take a while."""
SILENT_S = 5.0
"""For so long a master that dies while it starts is started again."""
SILENT_END = "failed it ended without a word\t"
GOODBYE_S = 30.0
PRIVATE_SETTINGS: dict[str, Any] = {"orphan_s": 60.0, "linger_s": 2.0, "author_s": 10.0}
"""A private pool ends with its client, so that it need not wait long for anybody."""


@dataclass
class PoolHandle:
    """A pool and how to bring its master (back) to life."""

    directory: Path
    settings: dict[str, Any] = field(default_factory=dict)
    temporary: bool = False

    @property
    def name(self) -> str:
        return self.directory.name

    def revive(self) -> None:
        """Have a master serve this pool; harmless if one does. Not against the will of somebody who stopped it."""
        if stop_marker(self.directory).exists():
            raise PoolStopped("the pool was stopped; what is unfinished is kept", "go on with it: pilotfish attach")
        self.start()

    def start(self) -> None:
        """The same for a pool that was stopped, too: as long as the marker is there, its master leaves the work alone."""
        deadline = time.monotonic() + START_S
        while not is_served(self.directory):
            answer = _start(self)
            if answer == "ready":
                return
            if answer == SILENT_END and time.monotonic() < deadline - START_S + SILENT_S:
                continue  # it was killed while it started: not its fault, nor its client's
            if answer.startswith("failed "):
                message, _, hint = answer.removeprefix("failed ").partition("\t")
                raise PilotfishError(f"the master of pool {self.name} did not start: {message}", hint or f"see {self.directory}/master.log")
            if time.monotonic() > deadline:
                raise ConnectionFailed(f"no master answers for pool {self.name}: {answer}", f"see {self.directory}/master.log")
            time.sleep(0.02)

    def wait_until_gone(self, timeout_s: float = GOODBYE_S) -> list[str]:
        """Wait for the master, which was told to stop, and tell what is left of it: nothing, if all is well."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            left = self.leftovers()
            if not left:
                return []
            time.sleep(0.01)
        return self.leftovers()

    def leftovers(self) -> list[str]:
        left = [f"process {pid} ({command})" for pid, command in processes_of(self.directory)]
        if self.temporary and self.directory.exists():
            left.append(f"directory {self.directory}")
        return left


def ensure_pool(name: str = "default", looking: bool = False) -> PoolHandle:
    """The person's pool of that name, with a master that serves it. Only ``looking``, what somebody stopped stays as it is."""
    pool = PoolHandle(pool_home(name).make().directory)
    if looking:
        pool.start()
    else:
        stop_marker(pool.directory).unlink(missing_ok=True)
        pool.revive()
    return pool


def private_pool(workers: int) -> PoolHandle:
    """A pool of one's own, gone when it is closed or its client dies."""
    directory = home() / "pools" / f"{PRIVATE}{os.getpid()}-{secrets.token_hex(4)}"
    pool = PoolHandle(PoolDirectory(directory).make().directory, {**PRIVATE_SETTINGS, "workers": workers}, temporary=True)
    pool.revive()
    return pool


def find_pools() -> list[PoolHandle]:
    """All pools that there are, served or not."""
    root = home() / "pools"
    if not root.is_dir():
        return []
    return [PoolHandle(path, temporary=PoolDirectory(path).private) for path in sorted(root.iterdir()) if path.is_dir()]


def is_served(directory: Path) -> bool:
    """Does a master listen? Asked of the socket itself, because files may be left by a dead one."""
    path = PoolDirectory(directory).socket_path()
    if not path.exists():
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _start(pool: PoolHandle) -> str:
    """Start a master and return its first words."""
    require_private(pool.directory)
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "pilotfish.master", str(pool.directory), "--ready", str(writing)]
    if pool.settings:
        command += ["--settings", json.dumps(pool.settings)]
    if pool.temporary:
        command.append("--temporary")
    try:
        # A shared pool outlives the shell that happened to start it: what is secret there is no business of later runs.
        environment = dict(os.environ) if pool.temporary else without_secrets(os.environ)
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[writing], start_new_session=True, env=environment) as process:
            os.close(writing)
            writing = -1
            with os.fdopen(reading, "r") as answer:
                reading = -1
                line = answer.readline().strip()
            process.wait()
    finally:
        for descriptor in (reading, writing):
            if descriptor >= 0:
                os.close(descriptor)
    return line or SILENT_END


def remove_pool(pool: PoolHandle) -> None:
    shutil.rmtree(pool.directory, ignore_errors=True)
