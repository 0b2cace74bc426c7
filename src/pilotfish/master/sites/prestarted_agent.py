"""Starts an agent on this machine ahead of time. The agent imports its modules, then waits for its command (see agent/local_start.py).

This module imports little, because the master calls it before the master imports its other modules.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

PACKAGES = Path(__file__).parents[3]
"""The folder that contains the package ``pilotfish``."""


def start_ahead(pool_directory: Path, log: Path) -> PrestartedAgent | None:
    """Starts an agent ahead of time. Returns None if the start fails. It reports no error: if the problem lasts, the start of the first
    pilot fails too, and reports the error."""
    try:
        return PrestartedAgent(pool_directory, log)
    except OSError:
        return None


class PrestartedAgent:
    """A supervisor and an agent that wait for their command. If the master ends before it gives the command, both processes end.

    ``pool_directory``: an argument of both processes, so that ``processes_of`` finds them as processes of this pool. ``log``: file for
    error messages of both processes, until they have a command.
    """

    def __init__(self, pool_directory: Path, log: Path) -> None:
        reading, self._writing = os.pipe()
        try:
            with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "pilotfish.agent", "local", str(pool_directory)],
                    stdin=reading,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    cwd=PACKAGES,
                )
        except BaseException:
            os.close(self._writing)
            raise
        finally:
            os.close(reading)
        process.returncode = 0  # The local controller waits for the process through a pidfd, so Popen must not wait.
        self.pid = process.pid

    def begin(self, arguments: Sequence[str], log: Path) -> None:
        """Gives the agent its command: the arguments of the supervisor, and the log of the pilot."""
        with suppress(BrokenPipeError):  # the agent has ended, and the pidfd shows this
            os.write(self._writing, json.dumps({"arguments": list(arguments), "log": str(log)}).encode() + b"\n")
        os.close(self._writing)

    def is_alive(self) -> bool:
        """Returns whether the process is running. Reaps an ended process."""
        return os.waitpid(self.pid, os.WNOHANG)[0] == 0

    def drop(self) -> None:
        """Ends both processes, which have no command yet, and waits for their end."""
        os.close(self._writing)
        os.waitpid(self.pid, 0)
