"""Runs OpenSSH: a server on loopback with key login for named accounts. For its clients every host name is this machine."""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.engines import processes
from tests.engines.daemons import Engine


@dataclass
class OpenSSH(Engine):
    """An ssh server. Each named account may log in as any other, because the server knows all their keys."""

    needs = "openssh"

    accounts: tuple[str, ...] = ("root",)
    _inside: list[str] = field(default_factory=list, init=False)

    def client(self, account: str) -> list[str]:
        """Return the ssh command of this account: ``[*client("root"), "somewhere", "hostname"]``. It works for ``user@somewhere`` too."""
        return ["ssh", "-F", str(self.configuration(account))]

    def configuration(self, account: str) -> Path:
        """Return a complete ssh_config for this account, used in place of its own."""
        return self.place / "clients" / account / "config"

    def stop(self) -> None:
        processes.end(processes.with_descendants(int(life.partition("x")[0]) for life in self._inside if not processes.is_over(life)))
        super().stop()

    def kill_daemon(self) -> None:
        """Kill sshd; open sessions continue. Remember their processes, because nothing else shows that they belong to this server."""
        sshd = self.daemons["sshd"].pid
        self._inside += [processes.life_of(pid) for pid in processes.with_descendants([sshd]) if pid != sshd]
        self._kill("sshd")

    def restart_daemon(self) -> None:
        self._start_sshd()

    def _set_up(self) -> None:
        self.ports = processes.free_ports(1)
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd requires it, and without systemd nothing creates it
        (self.place / "clients").mkdir()
        self._make_key(self.place / "host_key")
        host_key = (self.place / "host_key.pub").read_text()
        (self.place / "known_hosts").write_text(f"[127.0.0.1]:{self.ports[0]} {host_key}")
        keys = [self._make_client(account) for account in self.accounts]
        (self.place / "authorized_keys").write_text("".join(keys))
        (self.place / "sshd_config").write_text("\n".join([*self._settings(), ""]))
        self._start_sshd()

    def _start_sshd(self) -> None:
        self._run("sshd", "/usr/sbin/sshd", "-D", "-e", "-f", str(self.place / "sshd_config"))
        self._wait_until_up("sshd listens", lambda: processes.is_listening(self.ports[0]))

    def _make_client(self, account: str) -> str:
        entry = pwd.getpwnam(account)
        folder = self.configuration(account).parent
        folder.mkdir(mode=0o700)
        self._make_key(folder / "key")
        self.configuration(account).write_text(
            "Host *\n"
            "HostName 127.0.0.1\n"
            f"Port {self.ports[0]}\n"
            f"IdentityFile {folder / 'key'}\n"
            "IdentitiesOnly yes\n"
            "IdentityAgent none\n"
            f"UserKnownHostsFile {self.place / 'known_hosts'}\n"
            "GlobalKnownHostsFile /dev/null\n"
            "StrictHostKeyChecking yes\n"
            "BatchMode yes\n"
        )
        for path in (folder, *folder.iterdir()):
            os.chown(path, entry.pw_uid, entry.pw_gid)
        return (folder / "key.pub").read_text()

    def _make_key(self, path: Path) -> None:
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)], check=True, stdin=subprocess.DEVNULL
        )

    def _settings(self) -> list[str]:
        return [
            "ListenAddress 127.0.0.1",
            f"Port {self.ports[0]}",
            f"HostKey {self.place / 'host_key'}",
            f"PidFile {self.place / 'sshd.pid'}",
            f"AuthorizedKeysFile {self.place / 'authorized_keys'}",
            "StrictModes no",  # temporary directories are writable for all
            f"AllowUsers {' '.join(self.accounts)}",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "Subsystem sftp internal-sftp",
            "MaxStartups 100",
            "MaxSessions 64",
        ]
