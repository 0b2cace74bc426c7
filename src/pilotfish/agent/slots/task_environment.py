"""Sets variables and working directory for each task, and undoes the changes that calls made to them."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import time
from typing import Any, Dict, List

from ...portable.failures import is_limit
from ...portable.processes import libc

MAX_VARIABLE_BYTES = 128

OURS = "PILOTFISH_"

# If the agent itself runs in a task, it has inherited these variables of that task.
_REMOVED = ("PILOTFISH_TASK", "PILOTFISH_ATTEMPT", "PILOTFISH_DEADLINE", "PILOTFISH_NODES", "PILOTFISH_HOSTFILE")


class EnvironmentVariable:
    """An environment variable whose value changes with each task. Its value is overwritten in place, because setenv never frees old
    values."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self._buffer = ctypes.create_string_buffer(name + b"=", MAX_VARIABLE_BYTES)
        self._address = ctypes.addressof(self._buffer) + len(name) + 1

    def attach(self) -> None:
        """Puts this variable into the environment again, after other code has changed the environment."""
        libc().putenv(self._buffer)

    def set(self, value: bytes) -> None:
        ctypes.memmove(self._address, value + b"\0", len(value) + 1)


class TaskEnvironment:
    """The environments of the tasks of one slot. Calls run in the process of the slot; executables get a dictionary."""

    def __init__(self, worker: str, scratch: str, is_here: bool = False) -> None:
        self._scratch = scratch
        self._is_here = is_here
        """Whether the programs that submit tasks run on this machine."""
        self._original = {name: value for name, value in os.environ.items() if name not in _REMOVED}
        self._original["PILOTFISH_WORKER"] = worker
        self._environments: Dict[int, Dict[str, str]] = {}
        self._time_limits: Dict[int, float] = {}
        self._directories: Dict[int, str] = {}
        self._hosts: Dict[int, List[str]] = {}
        self._paths: Dict[int, List[str]] = {}
        self._added_paths: List[str] = []
        self._entered_spec = -1
        self._cores = -1.0
        # The dictionary behind os.environ. One comparison finds all changes that a call made.
        self._table: Any = getattr(os.environ, "_data", None)
        self._expected_table: Any = None
        self._directory = ""
        self._task = EnvironmentVariable(b"PILOTFISH_TASK")
        self._attempt = EnvironmentVariable(b"PILOTFISH_ATTEMPT")
        self._deadline = EnvironmentVariable(b"PILOTFISH_DEADLINE")

    def add_spec(self, number: int, time_s: float, launch: Dict[str, Any], is_call: bool = False) -> None:
        self._environments[number] = self._variables(launch, is_call)
        self._time_limits[number] = time_s
        self._directories[number] = str(launch.get("cwd") or self._scratch)
        self._paths[number] = [str(path) for path in launch.get("path") or []]
        # A task that requests nodes, but has no list of hosts, runs on this node alone.
        own = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        self._hosts[number] = [str(host) for host in launch["hosts"] or [own]] if "hosts" in launch else []
        self._entered_spec = -1

    def _variables(self, launch: Dict[str, Any], is_call: bool) -> Dict[str, str]:
        """Returns the variables of a launch description together with those of the worker.

        On the machine of the submitting program, tasks get the whole environment of the program, and nothing of the shell in which the
        master was started. At a site, a call gets only those variables of the program that the site does not set: the call runs with the
        Python of the site.
        """
        given = {str(name): str(value) for name, value in (launch.get("env") or {}).items()}
        if not launch.get("whole_env"):
            return {**self._original, **given}
        if self._is_here:
            return {**{name: value for name, value in self._original.items() if name.startswith(OURS)}, **given}
        return {**given, **self._original} if is_call else {**self._original, **given}

    def _fixed_variables(self, number: int, cores: float) -> Dict[str, str]:
        """Returns the variables that are the same for all tasks of the spec ``number`` with this number of cores."""
        environment = dict(self._environments[number])
        environment["PILOTFISH_CORES"] = "%g" % cores
        environment.setdefault("OMP_NUM_THREADS", str(max(1, int(cores))))
        if self._hosts[number]:
            environment["PILOTFISH_NODES"] = str(len(self._hosts[number]))
            environment["PILOTFISH_HOSTFILE"] = self._write_hosts(self._hosts[number], max(1, int(cores)))
        return environment

    def _write_hosts(self, hosts: List[str], slots: int) -> str:
        """Writes the host file of a multi-node task, in the format of mpirun; returns its path. ``slots``: cores per host."""
        os.makedirs(self._scratch, 0o700, exist_ok=True)
        path = os.path.join(self._scratch, "hostfile")
        with open(path, "w") as file:
            file.write("".join("%s slots=%d\n" % (host, slots) for host in hosts))
        return path

    def environment(self, number: int, task: int, attempt: int, cores: float) -> Dict[str, str]:
        """Returns the environment of an executable. ``number``: the number of its spec."""
        environment = self._fixed_variables(number, cores)
        environment["PILOTFISH_TASK"] = "%d.%d" % (task >> 32, task & 0xFFFFFFFF)
        environment["PILOTFISH_ATTEMPT"] = str(attempt)
        if self._time_limits[number] > 0:
            environment["PILOTFISH_DEADLINE"] = "%.3f" % (time.time() + self._time_limits[number])
        self._entered_spec = -1
        return environment

    def enter(self, number: int, task: int, attempt: int, cores: float, sandbox: str = "") -> str:
        """Prepares this process for a call: environment variables and current directory. Returns "", or the reason why the call cannot be
        prepared.

        ``number``: the number of the call's spec. ``sandbox``: directory of the call; "" if the call runs in the directory of its spec.
        """
        table = self._table
        if (
            number != self._entered_spec
            or cores != self._cores
            or table is None
            or table != self._expected_table
            or sandbox
            or not self._is_in_directory()
        ):
            problem = self._enter(number, cores, sandbox or self._directories[number])
            if problem:
                return problem
        self._set(self._task, b"%d.%d" % (task >> 32, task & 0xFFFFFFFF))
        self._set(self._attempt, b"%d" % attempt)
        if self._time_limits[number] > 0:
            self._set(self._deadline, b"%.3f" % (time.time() + self._time_limits[number]))
        return ""

    def _set(self, variable: EnvironmentVariable, value: bytes) -> None:
        variable.set(value)
        if self._table is not None:
            self._table[variable.name] = self._expected_table[variable.name] = value

    def _is_in_directory(self) -> bool:
        try:
            return os.getcwd() == self._directory
        except OSError:
            return False

    def _change_directory(self, directory: str) -> None:
        """Enters ``directory``. If that fails, enters the scratch directory, because most calls need no directory."""
        try:
            if directory != self._scratch:
                os.chdir(directory)
                return
        except OSError as error:
            if is_limit(error):
                raise
        # Possibly, a task has removed the scratch directory.
        os.makedirs(self._scratch, 0o700, exist_ok=True)
        os.chdir(self._scratch)

    def _enter(self, number: int, cores: float, directory: str) -> str:
        variables = self._fixed_variables(number, cores)
        for name in [name for name in os.environ if name not in variables]:
            del os.environ[name]
        try:
            for name, value in variables.items():
                if os.environ.get(name) != value:
                    os.environ[name] = value
            self._change_directory(directory)
            self._directory = os.getcwd()
        except OSError as error:
            return "cannot enter the directory %r: %s" % (error.filename or directory, error.strerror)
        except ValueError as error:
            return "cannot set the environment: %s" % error
        if self._added_paths != self._paths[number]:
            for path in self._added_paths:
                if path in sys.path:
                    sys.path.remove(path)
            self._added_paths = self._paths[number]
            sys.path[:0] = self._added_paths
        self._task.attach()
        self._attempt.attach()
        if self._time_limits[number] > 0:
            self._deadline.attach()
        self._entered_spec, self._cores = number, cores
        self._expected_table = dict(self._table) if self._table is not None else None
        return ""
