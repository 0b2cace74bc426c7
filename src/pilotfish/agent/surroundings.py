"""Environment variables and working directory as each spec wants them, put right again after whatever a call did to them."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Dict, List

# Of the agent's own start, of no use to tasks.
_LEFT_OUT = ("PILOTFISH_TASK", "PILOTFISH_ATTEMPT", "PILOTFISH_DEADLINE")


class Surroundings:
    """Of one slot. Calls share one process, so theirs are changed in place; executables get a dictionary."""

    def __init__(self, worker: str, scratch: str) -> None:
        self._scratch = scratch
        self._original = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
        self._original["PILOTFISH_WORKER"] = worker
        self._environments: Dict[int, Dict[str, str]] = {}
        self._time_limits: Dict[int, float] = {}
        self._directories: Dict[int, str] = {}
        self._paths: Dict[int, List[str]] = {}
        self._added_paths: List[str] = []
        self._entered = -1
        self._cores = -1.0
        # The table behind os.environ: comparing it finds every change a call made, at the price of one comparison.
        self._table: Any = getattr(os.environ, "_data", None)
        self._expected: Any = None
        self._directory = ""

    def learn(self, number: int, kind: str, time_s: float, launch: Dict[str, Any]) -> None:
        given = {str(name): str(value) for name, value in (launch.get("env") or {}).items()}
        self._environments[number] = {**self._original, **given}
        self._time_limits[number] = time_s
        self._directories[number] = str(launch.get("cwd") or self._scratch)
        self._paths[number] = [str(path) for path in launch.get("path") or []]
        self._entered = -1

    def environment(self, number: int, task: int, attempt: int, cores: float) -> Dict[str, str]:
        """For an executable."""
        environment = dict(self._environments[number])
        environment["PILOTFISH_TASK"] = "%d.%d" % (task >> 32, task & 0xFFFFFFFF)
        environment["PILOTFISH_ATTEMPT"] = str(attempt)
        environment["PILOTFISH_CORES"] = "%g" % cores
        environment.setdefault("OMP_NUM_THREADS", str(max(1, int(cores))))
        if self._time_limits[number] > 0:
            environment["PILOTFISH_DEADLINE"] = "%.3f" % (time.time() + self._time_limits[number])
        self._entered = -1
        return environment

    def enter(self, number: int, task: int, attempt: int, cores: float) -> str:
        """For a call in this process. Empty, or why it cannot be."""
        table = self._table
        if number != self._entered or cores != self._cores or table is None or table != self._expected or not self._still_there():
            problem = self._enter(number, task, attempt, cores)
            if problem:
                return problem
        name = b"%d.%d" % (task >> 32, task & 0xFFFFFFFF)
        count = b"%d" % attempt
        for key, value in ((b"PILOTFISH_TASK", name), (b"PILOTFISH_ATTEMPT", count)):
            if table is None:
                os.environb[key] = value
            elif table.get(key) != value:
                os.putenv(key, value)
                table[key] = self._expected[key] = value
        if self._time_limits[number] > 0:
            os.environ["PILOTFISH_DEADLINE"] = "%.3f" % (time.time() + self._time_limits[number])
            self._expected = dict(table) if table is not None else None
        return ""

    def _still_there(self) -> bool:
        try:
            return os.getcwd() == self._directory
        except OSError:
            return False

    def _enter(self, number: int, task: int, attempt: int, cores: float) -> str:
        wanted = self.environment(number, task, attempt, cores)
        for name in [name for name in os.environ if name not in wanted]:
            del os.environ[name]
        directory = self._directories[number]
        try:
            for name, value in wanted.items():
                if os.environ.get(name) != value:
                    os.environ[name] = value
            os.chdir(directory)
            self._directory = os.getcwd()
        except OSError as error:
            return "cannot enter the directory %r: %s" % (directory, error.strerror)
        except ValueError as error:
            return "cannot set the environment: %s" % error
        if self._added_paths != self._paths[number]:
            for path in self._added_paths:
                if path in sys.path:
                    sys.path.remove(path)
            self._added_paths = self._paths[number]
            sys.path[:0] = self._added_paths
        self._entered, self._cores = number, cores
        self._expected = dict(self._table) if self._table is not None else None
        return ""
