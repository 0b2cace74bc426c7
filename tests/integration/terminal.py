"""Simulates a user at a terminal: types commands, reads output, presses Ctrl-C."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from copy import copy
from pathlib import Path
from typing import NamedTuple

PATIENCE_S = 120.0
"""Seconds until a test counts as hung; not a measurement."""


class Said(NamedTuple):
    status: int
    out: str
    err: str


class Typist:
    """Runs commands with its own directory and PILOTFISH_HOME."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / "home"
        self.home.mkdir(mode=0o700)
        self.command = str(Path(sys.executable).parent / "pilotfish")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PILOTFISH")}
        self.environment = kept | {"PILOTFISH_HOME": str(self.home), "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"}

    def at(self, directory: Path) -> Typist:
        """Returns the same user in another directory."""
        other = copy(self)
        other.directory = directory
        return other

    def type(self, *words: str) -> Said:
        return self.run(self.command, *words)

    def run(self, *argv: str) -> Said:
        done = subprocess.run(
            argv,
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def sit_down(self, *words: str) -> Terminal:
        return Terminal(self, words)


class Terminal:
    """One command on its own terminal."""

    def __init__(self, typist: Typist, words: tuple[str, ...]) -> None:
        self._ours, theirs = pty.openpty()
        self.seen = ""
        self.process = subprocess.Popen(
            [typist.command, *words],
            cwd=typist.directory,
            env=typist.environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_make_controlling,  # noqa: PLW1509 (nothing else runs in this process)
        )
        os.close(theirs)

    def wait_for(self, text: str) -> None:
        """Read until the text has appeared."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.seen:
            assert self._read(deadline), f"the command ended without saying {text!r}; it said:\n{self.seen}"

    def press_ctrl_c(self) -> None:
        os.write(self._ours, b"\x03")

    def finish(self) -> tuple[int, str]:
        """Wait for the end; return the exit status and the whole output."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read(deadline):
            pass
        status = self.process.wait(PATIENCE_S)
        os.close(self._ours)
        return status, self.seen.replace("\r\n", "\n")

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"waited in vain; so far:\n{self.seen}"
        try:
            data = os.read(self._ours, 65536)
        except OSError:
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)


def _make_controlling() -> None:
    """Make this the controlling terminal; only then Ctrl-C sends a signal."""
    # Tests that run in the background inherit ignored interrupts.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
