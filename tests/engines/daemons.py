"""Defines what all engines share: a directory, foreground daemons, a log for each, and a complete stop."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from tests.engines import places, processes

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Engine:
    """A batch system for tests. All its files are in ``place``, which exists from start to stop."""

    needs: ClassVar[str]
    """Name in ``requirements`` of the programs that it needs."""

    place: Path = field(init=False)
    ports: list[int] = field(default_factory=list, init=False)
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, init=False)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that a user needs to use it."""
        return {"PATH": SYSTEM_PATH}

    def start(self) -> None:
        """Start and wait until it accepts jobs. Try once more with other ports if another process took one of them."""
        for tries_left in (1, 0):
            self.place = places.new_place(self.needs)
            try:
                self._set_up()
                return
            except BaseException as problem:
                self.stop()
                if not tries_left or not isinstance(problem, processes.EngineFailed):
                    raise

    def stop(self) -> None:
        """Stop it; running jobs end as well."""
        places.clear_away(self.place)
        for name in list(self.daemons):
            self._kill(name)

    def kill_daemon(self) -> None:
        """Kill the daemon that users talk to; jobs continue."""
        raise NotImplementedError

    def restart_daemon(self) -> None:
        raise NotImplementedError

    def leftovers(self) -> list[str]:
        """Return the jobs that are still in its queue."""
        return []

    def ask(self, *command: str, stdin: str = "") -> str:
        """Run a command as root, who manages the engine."""
        said = subprocess.run(
            command,
            env=self.environment | {"HOME": "/root", "USER": "root", "LOGNAME": "root"},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=processes.PATIENCE_S,
        )
        if said.returncode:
            raise processes.EngineFailed(f"{' '.join(command)}: exit status {said.returncode}: {said.stderr or said.stdout}")
        return said.stdout

    def _set_up(self) -> None:
        """Write the files, then start the daemons."""
        raise NotImplementedError

    def _run(self, name: str, *command: str, **environment: str) -> None:
        """Start a daemon in the foreground as a child process, so that its death is noticed at once."""
        with (self.place / f"{name}.out").open("ab") as out:
            self.daemons[name] = subprocess.Popen(
                command,
                env=self.environment | environment,
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _kill(self, name: str, gently: bool = False) -> None:
        daemon = self.daemons.pop(name)
        daemon.send_signal(signal.SIGTERM if gently else signal.SIGKILL)
        try:
            daemon.wait(processes.PATIENCE_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def _wait_until_up(self, what: str, is_up: Callable[[], bool]) -> None:
        """Wait until a daemon is up; fail at once if a daemon has ended."""

        def happened() -> bool:
            for name, daemon in self.daemons.items():
                if daemon.poll() is not None:
                    raise processes.EngineFailed(f"{name} ended with {daemon.returncode} before {what}")
            try:
                return is_up()
            except processes.EngineFailed:
                return False

        try:
            processes.wait_until(happened, what)
        except processes.EngineFailed as failed:
            raise processes.EngineFailed(f"{failed}\n{self._last_words()}") from None

    def _last_words(self) -> str:
        logs = sorted([*self.place.rglob("*.out"), *self.place.rglob("*.log")], key=os.path.getmtime)
        return "\n".join(f"--- {log}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-8:]) for log in logs)
