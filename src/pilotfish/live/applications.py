"""Keeps alive the processes that host ApplicationManagers: user code never runs in the master."""

from __future__ import annotations

import subprocess
import sys

from pilotfish.live.home import PoolHome


class Applications:
    def __init__(self, pool: PoolHome) -> None:
        self._pool = pool
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, run: int, uid: str, path: str) -> None:
        """Start the host of a run's application, unless it runs already."""
        process = self._processes.get(run)
        if process is not None and process.poll() is None:
            return
        command = [sys.executable, "-m", "pilotfish.live.application", str(self._pool.directory), uid, path]
        with (self._pool.directory / f"application-{run}.log").open("ab") as log:
            self._processes[run] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def end_all(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
                process.wait()
