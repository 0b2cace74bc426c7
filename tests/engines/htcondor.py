"""Runs HTCondor: a whole pool on this machine with one partitionable slot."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass, field
from pathlib import Path

from tests.engines import processes
from tests.engines.daemons import Engine


def prefix() -> Path:
    """The directory in which .ci/engines installed it."""
    cache = os.environ.get("XDG_CACHE_HOME") or "/var/cache"
    return Path(cache) / "pilotfish" / "engines" / "condor"


@dataclass
class HTCondor(Engine):
    """An HTCondor pool. Root may not submit."""

    needs = "htcondor"

    cpus: int = 8
    memory_mb: int = 8000
    settings: dict[str, object] = field(default_factory=dict)
    """Additional configuration."""

    @property
    def environment(self) -> dict[str, str]:
        inherited = super().environment
        return inherited | {
            "CONDOR_CONFIG": str(self.place / "condor_config"),
            "PATH": f"{prefix() / 'bin'}:{prefix() / 'sbin'}:{inherited['PATH']}",
        }

    def kill_daemon(self) -> None:
        """Kill the schedd and keep its master from starting it again."""
        processes.end(self._schedds())
        self.ask("condor_off", "-daemon", "schedd")

    def restart_daemon(self) -> None:
        self.ask("condor_on", "-daemon", "schedd")
        self._wait_for_schedd()

    def leftovers(self) -> list[str]:
        return sorted(set(self.ask("condor_q", "-allusers", "-af", "ClusterId").split()))

    def _set_up(self) -> None:
        self.ports = processes.free_ports(1)
        account = pwd.getpwnam("condor")
        for name in ("log", "spool", "execute", "lock", "run", "passwords.d", "tokens.d"):
            folder = self.place / name
            folder.mkdir()
            if name not in ("passwords.d", "tokens.d"):
                os.chown(folder, account.pw_uid, account.pw_gid)
        (self.place / "lock").chmod(0o1777)
        settings = self._places() | self._network() | self._trust() | self._pace() | self._resources() | self.settings
        settings["CONDOR_IDS"] = f"{account.pw_uid}.{account.pw_gid}"
        (self.place / "condor_config").write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
        self._run("master", "condor_master", "-f")
        self._wait_until_up("the collector listens", lambda: processes.is_listening(self.ports[0]))
        self._wait_for_schedd()
        self._wait_until_up("the slot is known", lambda: bool(self.ask("condor_status", "-af", "Name").split()))

    def _schedds(self) -> list[int]:
        return processes.children_of(self.daemons["master"].pid, "condor_schedd")

    def _wait_for_schedd(self) -> None:
        def is_there() -> bool:
            self.ask("condor_q", "-allusers")  # the collector may still list a dead schedd, so only its own answer counts
            return bool(self._schedds())

        self._wait_until_up("the schedd answers", is_there)

    def _places(self) -> dict[str, object]:
        return {
            **{name.upper(): self.place / name for name in ("log", "spool", "execute", "lock", "run")},
            "LOCAL_DIR": self.place,
            "RELEASE_DIR": prefix(),
            "LIB": prefix() / "lib",
            "LIBEXEC": prefix() / "libexec",
            "BIN": prefix() / "bin",
            "SBIN": prefix() / "sbin",
            "LOCAL_DISK_LOCK_DIR": self.place / "lock",
            "SEC_PASSWORD_DIRECTORY": self.place / "passwords.d",
            "SEC_TOKEN_SYSTEM_DIRECTORY": self.place / "tokens.d",
        }

    def _network(self) -> dict[str, object]:
        return {
            "CONDOR_HOST": "127.0.0.1",
            "NETWORK_INTERFACE": "127.0.0.1",
            "BIND_ALL_INTERFACES": False,
            "COLLECTOR_HOST": f"127.0.0.1:{self.ports[0]}",
            "USE_SHARED_PORT": True,
            "SHARED_PORT_PORT": self.ports[0],
            "DAEMON_LIST": "MASTER, SHARED_PORT, COLLECTOR, NEGOTIATOR, SCHEDD, STARTD",
        }

    def _trust(self) -> dict[str, object]:
        """Authenticate users by their kernel identity."""
        return {
            "UID_DOMAIN": "pilotfish.test",
            "FILESYSTEM_DOMAIN": "pilotfish.test",
            "TRUST_DOMAIN": "pilotfish.test",
            "TRUST_UID_DOMAIN": True,
            "SOFT_UID_DOMAIN": True,
            "SEC_DEFAULT_AUTHENTICATION": "REQUIRED",
            "SEC_DEFAULT_AUTHENTICATION_METHODS": "FS",
            "SEC_CLIENT_AUTHENTICATION_METHODS": "FS",
        } | {f"ALLOW_{who}": "*" for who in ("READ", "WRITE", "DAEMON", "NEGOTIATOR", "ADMINISTRATOR")}

    def _pace(self) -> dict[str, object]:
        """Shorten intervals: the defaults suit pools of thousands, where a minute does not matter."""
        return {
            "NEGOTIATOR_INTERVAL": 2,
            "NEGOTIATOR_MIN_INTERVAL": 1,
            "NEGOTIATOR_CYCLE_DELAY": 1,
            "SCHEDD_INTERVAL": 2,
            "SCHEDD_MIN_INTERVAL": 1,
            "UPDATE_INTERVAL": 5,
            "PERIODIC_EXPR_INTERVAL": 2,
            "MAX_PERIODIC_EXPR_INTERVAL": 2,
            "JOB_START_DELAY": 0,
            "RUNBENCHMARKS": False,
        }

    def _resources(self) -> dict[str, object]:
        return {
            "NUM_CPUS": self.cpus,
            "MEMORY": self.memory_mb,
            "NUM_SLOTS_TYPE_1": 1,
            "SLOT_TYPE_1": "100%",
            "SLOT_TYPE_1_PARTITIONABLE": True,
            "START": True,
            "SUSPEND": False,
            "PREEMPT": False,
            "KILL": False,
            "BASE_CGROUP": "",
        }
