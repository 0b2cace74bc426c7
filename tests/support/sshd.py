"""Runs a private sshd for tests, on a free port of this machine, for one ordinary user with a temporary home.

sshd runs as root if the tests do, otherwise as the user of the tests. The user's own ssh files are not touched: clients get their own
configuration.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pilotfish.master.sites.command_runner import CommandRunner
from pilotfish.master.sites.site_access import SiteAccess
from pilotfish.master.sites.ssh_connection import SshCommand
from pilotfish.model.site import Site
from tests.engines import requirements
from tests.support.scripted_master import alive, children, eventually

USER = "pilotfish-test"
ALIAS = "login-node"

_SERVER = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {directory}/host_key
PidFile {directory}/sshd.pid
AuthorizedKeysFile {directory}/authorized_keys
AllowUsers {user}
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
SetEnv HOME={home}
MaxStartups 10:30:100
MaxSessions 10
LogLevel VERBOSE
"""
_CLIENT = """\
Host {alias} inner
  IdentityFile {directory}/id
Host refused
  IdentityFile {directory}/other_id
Host nowhere
  Port 1
Host unknown
  IdentityFile {directory}/id
  UserKnownHostsFile /dev/null
Host *
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {directory}/known_hosts
  GlobalKnownHostsFile /dev/null
"""


class Sshd:
    """``config`` is for ``ssh -F``. Hosts in it: ``refused`` has a wrong key, ``nowhere`` does not answer, ``unknown`` has no known host
    key."""

    def __init__(self, directory: Path, user: str, more: str = "") -> None:
        self.directory = directory
        self.user = user
        self.home = directory / "home"
        self.home.mkdir(mode=0o700)
        self.sockets = directory / "c"
        self.sockets.mkdir(mode=0o700)
        self.config = directory / "ssh_config"
        account = pwd.getpwnam(user)
        shutil.chown(self.home, account.pw_uid, account.pw_gid)
        for name in ("host_key", "id", "other_id"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(directory / name)], check=True)
        shutil.copy(directory / "id.pub", directory / "authorized_keys")
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        names = {"port": self.port, "directory": directory, "user": user, "home": self.home, "alias": ALIAS}
        (directory / "sshd_config").write_text(_SERVER.format(**names) + more)
        host_key = " ".join((directory / "host_key.pub").read_text().split()[:2])
        (directory / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {host_key}\n")
        self.config.write_text(_CLIENT.format(**names))
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        log = self.directory / "sshd.log"
        words = ["/usr/sbin/sshd", "-D", "-f", str(self.directory / "sshd_config"), "-E", str(log)]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually((self.directory / "sshd.pid").exists, "sshd did not start")
        return process

    def site(self, **fields: object) -> Site:
        given = {"backend": "slurm", "via": ALIAS, "options": {"ssh_config": str(self.config)}, **fields}
        return Site(**given)  # type: ignore[arg-type]

    def ssh(self, destination: str = ALIAS, alive_s: int = 10) -> SshCommand:
        return SshCommand("test", destination, self.sockets, str(self.config), alive_s=alive_s)

    def processes(self) -> list[int]:
        """All descendants: for each connection a privileged and an unprivileged process, and what the latter started."""
        found, waiting = [], children(self.process.pid)
        while waiting:
            pid = waiting.pop()
            if alive(pid):
                found.append(pid)
                waiting += children(pid)
        return found

    def relays(self) -> list[int]:
        return [pid for pid in self.processes() if {"relay", "--name"} <= set(words_of(pid))]

    def server_of(self, pid: int) -> int:
        """The sshd process of the connection that a process belongs to."""
        while words_of(pid)[:1] != ["sshd:"]:
            pid = parent(pid)
        return pid

    def stop(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.terminate()
        self.process.wait()


def words_of(pid: int) -> list[str]:
    """Command line of a process. sshd overwrites its own with a readable text."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return []
    return text.split() if text.startswith("sshd:") else text.split("\0")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def ordinary_user() -> str:
    """The user of the tests, or an unprivileged user if that is root. It is created if missing, and kept for the next time."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name
    try:
        pwd.getpwnam(USER)
    except KeyError:
        words = ["useradd", "--system", "--no-create-home", "--home-dir", "/", "--shell", "/bin/bash", "--password", "*", USER]
        made = subprocess.run(words, capture_output=True, text=True)
        # Another test may have created the user in the meantime.
        assert made.returncode in (0, 9), made.stderr
    return USER


@contextlib.contextmanager
def running_sshd(more: str = "") -> Iterator[Sshd]:
    """Run an sshd in a directory that every user can enter, unlike pytest's. ``more``: additional lines of its configuration."""
    requirements.require("openssh")
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="pf-sshd-"))
    directory.chmod(0o755)
    server = Sshd(directory, ordinary_user(), more)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)


def access_to(runner: CommandRunner) -> SiteAccess:
    """Returns an access that can only run commands and copy files: it has no keys."""
    nothing: Any = None
    return SiteAccess(runner, nothing, ("127.0.0.1", 0))
