"""Finds the slot server for a call: the agent's own, or one with the Python interpreter of the program that submitted the call.

An agent uses the interpreter of a program only if both are on the same machine. At sites, all calls run with the Python of the agent.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from typing import Any, Dict, List, Optional, Tuple

from .. import VERSION
from ..slots.slot_server import SlotServer, execute_slot_server

MAX_SERVERS = 4
"""Maximum number of servers with other interpreters. If there are more, the least recently used server ends. Its slots continue."""
AT_START = ("LD_", "PYTHON")
"""Prefixes of the environment variables that an interpreter reads only when it starts."""
NOT_AT_START = ("PYTHONPATH", "PYTHONSTARTUP")
"""Exceptions to AT_START, because slots get the import path separately and are not interactive."""

Key = Tuple[Any, ...]


class InterpreterMissing(Exception):
    """The interpreter of a program cannot be started."""


class SlotServers:
    """The slot servers of one agent. ``own``: the server that the agent forked."""

    def __init__(self, own: SlotServer, settings: Dict[str, Any]) -> None:
        self.own = own
        self._is_here = bool(settings.get("share"))
        """Whether the programs run on this machine."""
        self._argument = str(settings.get("workdir", ""))
        """A command-line argument of the servers. It shows that they are processes of this agent."""
        self._own_key = _key(sys.executable, os.environ)
        self._others: OrderedDict[Key, SlotServer] = OrderedDict()

    def find(self, launch: Dict[str, Any]) -> SlotServer:
        """Returns the server for a launch description. Starts a server if necessary. Raises InterpreterMissing if that is impossible."""
        interpreter, packages, version = launch.get("interpreter") or ("", "", "")
        if not self._is_here or not interpreter or version != VERSION:
            return self.own
        environment = {str(name): str(value) for name, value in launch["env"].items()}
        key = _key(interpreter, environment)
        if key == self._own_key:
            return self.own
        server = self._others.get(key)
        if server is None or server.has_ended():
            server = self._others[key] = self._start(str(interpreter), str(packages), environment)
        self._others.move_to_end(key)
        while len(self._others) > MAX_SERVERS:
            self._others.popitem(last=False)[1].close()
        return server

    def _start(self, interpreter: str, packages: str, environment: Dict[str, str]) -> SlotServer:
        try:
            return execute_slot_server(interpreter, packages, environment, self._argument)
        except OSError as error:
            text = "cannot start the Python of the program that submitted it, %s: %s" % (interpreter, error.strerror or error)
            raise InterpreterMissing(text) from error

    def pids(self) -> List[int]:
        return [self.own.pid, *(server.pid for server in self._others.values())]


def _key(interpreter: str, environment: Any) -> Key:
    """Returns the key of a launch. Launches with equal keys can use the same server.

    The key contains the directory of the interpreter, the file to which the path of the interpreter links, and the environment variables
    that the interpreter reads when it starts. The key does not contain the name of the link, because ``python`` and ``python3`` in one
    directory are usually the same interpreter.
    """
    read = sorted((name, value) for name, value in environment.items() if name.startswith(AT_START) and name not in NOT_AT_START)
    target: Optional[str] = os.path.realpath(interpreter)
    return os.path.dirname(interpreter), target, tuple(read)
