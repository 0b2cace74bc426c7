"""Starts an agent on the master's own machine before the master needs a pilot there. So a user waits less for the first task.

The master starts this process before the master imports its own modules. So on two cores, the master and the agent import their modules at
the same time. This process becomes the supervisor. It forks the agent, and the agent forks the slot server. All three processes wait until
the master needs a pilot. If the master ends before it needs a pilot, all three processes end.
"""

from __future__ import annotations

import json
import os
import sys
from typing import NoReturn

from .agent_process import READ_BYTES, run_agent, write_to_log


class ForkedAgent:
    """The process of the agent, with the methods of ``subprocess.Popen`` that the supervisor needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._has_ended = False

    def send_signal(self, number: int) -> None:
        if not self._has_ended:  # after the end, a new process can have the same number
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Waits until the process ends. Returns the exit status. If a signal ended the process, returns minus the signal number."""
        status = os.waitpid(self.pid, 0)[1]
        self._has_ended = True
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def main() -> NoReturn:
    """Forks the agent. Then waits until the master needs a pilot and writes one line of JSON to standard input. The line has the
    command-line arguments of the supervisor, and the path of its log. Then becomes the supervisor."""
    # The first entry of sys.path is the directory from which the master started this process. Modules there must not hide modules of the
    # user.
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    os.chdir("/")
    pipe_read, pipe_write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(pipe_write)
        _read_from_nowhere()
        run_agent(pipe_read, bundle="")
    os.close(pipe_read)
    from .supervisor import parse_arguments, supervise

    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, READ_BYTES)
        if not piece:
            os._exit(0)  # the agent reads the end of its pipe and ends, too
        line += piece
    request = json.loads(line)
    _read_from_nowhere()
    write_to_log(request["log"])
    options = {**vars(parse_arguments(request["arguments"])), "log": request["log"]}
    sys.exit(supervise(options, lambda options: (ForkedAgent(pid), pipe_write)))


def _read_from_nowhere() -> None:
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
