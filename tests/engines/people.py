"""Creates an ordinary user who submits jobs. Root manages the engines, and most of them take no jobs from root."""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.engines import places, processes

NAME = "pftest-{life}"


@dataclass(frozen=True)
class Person:
    name: str
    uid: int
    gid: int
    home: Path

    def environment(self, *more: Mapping[str, str]) -> dict[str, str]:
        own = {"HOME": str(self.home), "USER": self.name, "LOGNAME": self.name}
        own |= {"SHELL": "/bin/bash", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
        for one in more:
            own |= one
        return own

    def run(self, *command: str, stdin: str = "", environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command as after a login: with the user's environment and what an engine's ``environment`` adds."""
        return subprocess.run(
            command,
            user=self.uid,
            group=self.gid,
            extra_groups=[],
            env=self.environment(environment or {}),
            cwd=self.home,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=processes.PATIENCE_S,
        )

    def leave(self) -> None:
        """Remove the user with all processes and files."""
        processes.end_all(lambda: processes.of_user(self.uid))
        with _one_at_a_time():
            subprocess.run(["userdel", "--force", self.name], capture_output=True)
        places.clear_away(self.home.parent)


def new_person() -> Person:
    """Create a user for this test process, so that no two processes share a home."""
    dismiss_those_of_the_dead()
    name = NAME.format(life=processes.life_of(os.getpid()))
    home = places.new_place("person") / "home"
    with _one_at_a_time():
        subprocess.run(["useradd", "--create-home", "--home-dir", str(home), "--shell", "/bin/bash", name], check=True, capture_output=True)
        # useradd locks the account, which sshd respects. "*" is no valid password, but no lock either.
        subprocess.run(["usermod", "--password", "*", name], check=True, capture_output=True)
    entry = pwd.getpwnam(name)
    return Person(name, entry.pw_uid, entry.pw_gid, home)


def dismiss_those_of_the_dead() -> None:
    pattern = re.compile(NAME.format(life=r"(\d+x\d+)"))
    for entry in pwd.getpwall():
        found = pattern.fullmatch(entry.pw_name)
        if found and processes.is_over(found[1]):
            Person(entry.pw_name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir)).leave()


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Hold a lock, because useradd fails while another process writes the user list. It locks a directory and so leaves no file."""
    lock = os.open("/etc", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
