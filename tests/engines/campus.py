"""Gives a user several sites: sites.toml, a pool, runs, and queues that are empty at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pilotfish
from pilotfish.client.master_client import MasterClient
from pilotfish.client.pools import PoolHandle
from pilotfish.store.pool_directory import PoolDirectory, stop_mark_path
from tests.engines import processes
from tests.engines.daemons import Engine
from tests.engines.openssh import OpenSSH
from tests.engines.people import Person

SETTINGS = {"local_cores": 2, "beat_s": 0.5, "lease_s": 10.0, "linger_s": 600.0}


@dataclass
class Campus:
    """The sites, pool and runs of one user. Root's ssh reaches the sites as that user."""

    home: Path
    openssh: OpenSSH
    person: Person
    sites: dict[str, dict[str, Any]] = field(default_factory=dict)
    engines: list[Engine] = field(default_factory=list)
    pool: PoolHandle = field(init=False)
    client: MasterClient = field(init=False)

    def add(self, name: str, backend: str, engine: Engine | None = None, **keys: Any) -> str:
        """Add a site that is reached by ssh as the user, like a cluster."""
        via = {"hosts": [f"{self.person.name}@{name}"]} if backend == "ssh" else {"via": f"{self.person.name}@{name}"}
        site: dict[str, Any] = {
            "backend": backend,
            **via,
            "reach": "direct",
            "period": 1.0,
            "python": "/usr/bin/python3",
            "submissions_per_minute": 600.0,
            "options": {"ssh_config": str(self.openssh.configuration("root")), **keys.pop("options", {})},
            **keys,
        }
        if engine is not None:
            site["environment"] = engine.environment
            self.engines.append(engine)
        self.sites[name] = site
        lines = [
            line for one, keys in self.sites.items() for line in (f"[{one}]", *(f"{key} = {toml(value)}" for key, value in keys.items()))
        ]
        path = self.home / "sites.toml"
        path.write_text("\n".join(lines))
        path.chmod(0o600)
        self.ask("sites_reread")
        processes.wait_until(lambda: any(row["site"] == name for row in self.ask("sites")), f"site {name} is known")
        return name

    def ask(self, kind: str, **arguments: Any) -> Any:
        return self.client.ask(kind, **arguments)

    def run(self, *sites: str) -> pilotfish.Run:
        return pilotfish.Run(pool=self.pool, sites=sites)

    def row(self, site: str) -> dict[str, Any]:
        return next(row for row in self.ask("sites") if row["site"] == site)

    def pilots(self, site: str) -> list[dict[str, Any]]:
        return [pilot for pilot in self.ask("status")["pilots"] if pilot["site"] == site]

    def wait_for_workers(self, site: str, count: int) -> None:
        processes.wait_until(lambda: self.row(site)["workers"] >= count, f"{count} workers at {site}")

    def kill_master(self) -> None:
        """Kill the master with SIGKILL. The next client that connects starts another one."""
        lock = max(self.pool.directory.glob("lock-*"))
        processes.end([int(json.loads(lock.read_text())["pid"])])

    def leave(self) -> None:
        stop_mark_path(self.pool.directory).touch()  # keeps a client that still watches from starting the master again
        self.ask("stop", now=True)
        self.client.close()
        left = self.pool.wait_until_stopped(60.0)
        assert left == [], f"{left}\n{(self.pool.directory / 'master.log').read_text()[-2000:]}"
        processes.wait_until(lambda: not self.left_in_queues(), "the queues are empty")  # some systems list removed jobs for a moment

    def left_in_queues(self) -> list[str]:
        return [job for engine in self.engines for job in engine.leftovers()]


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


@contextmanager
def campus_at(
    home: Path, openssh: OpenSSH, person: Person, make_pool: Callable[[Path, dict[str, Any]], PoolHandle] = PoolHandle
) -> Iterator[Campus]:
    before = os.environ.get("PILOTFISH_HOME")
    os.environ["PILOTFISH_HOME"] = str(home)
    made = Campus(home, openssh, person)
    made.pool = make_pool(PoolDirectory(home / "pools" / "campus").make().directory, dict(SETTINGS))
    made.pool.revive()
    made.client = MasterClient.connect(made.pool.directory, made.pool.revive)
    made.ask("workers_set", local=0)
    try:
        yield made
        made.leave()
    finally:
        if before is None:
            del os.environ["PILOTFISH_HOME"]
        else:
            os.environ["PILOTFISH_HOME"] = before
