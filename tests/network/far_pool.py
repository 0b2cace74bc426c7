"""A pool whose master is on one host of a network, and whose agents are on others, started by hand as on machines far away.

What a person submits lies in a directory that the agents do not see: all that they have of it has come over the network.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pilotfish
from pilotfish.agent.cache_directory import content_path
from pilotfish.api.future import ExecutableFuture
from pilotfish.live.bundle import build_bundle
from pilotfish.live.client import Client
from pilotfish.live.daemon import Pool, is_served
from pilotfish.live.home import PoolHome
from pilotfish.live.keys import AGENT, open_keyring
from pilotfish.live.stopping import stop_marker
from tests.engines import processes
from tests.engines.network import REVIVE
from tests.network.namespaces import Host, Network

MASTER = "master"
SETTINGS: dict[str, Any] = {"workers": 1, "beat_s": 1.0, "lease_s": 6.0, "linger_s": 600.0}
BLOCK = 1024 * 1024


class PoolOnHost(Pool):
    """The socket for clients is a file, which can be seen from everywhere."""

    host: Host

    def start(self) -> None:
        if not is_served(self.directory):
            command = self.host.enter(sys.executable, "-c", REVIVE, str(self.directory), json.dumps(self.settings))
            subprocess.run(command, check=True, timeout=processes.PATIENCE_S)


@dataclass
class FarPool:
    place: Path
    network: Network
    pool: PoolOnHost
    client: Client
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def hidden(self) -> Path:
        """What agents do not see."""
        return self.place / "hidden"

    @property
    def master(self) -> Host:
        return self.network[MASTER]

    # --- agents -----------------------------------------------------------------------------------------------------------------------

    def start_agents(self, *names: str, options: Sequence[str] = ()) -> None:
        """One on each of these hosts, of the same name; all are there when this is over."""
        keyring = open_keyring(self.pool.directory)
        port = PoolHome(self.pool.directory).last_port()
        endpoint = {"kind": "tls", "host": self.master.address, "port": port, "fingerprint": keyring.fingerprint}
        bundle = build_bundle(self.place)
        for name in names:
            home = self.home_of(name)
            home.mkdir()
            PoolHome(self.pool.directory).write_credentials(home / "credentials.json", keyring, AGENT, [endpoint])
            words = ["--credentials", str(home / "credentials.json"), "--worker", name, "--cores", "1", "--tag", f"host={name}"]
            words += ["--workdir", str(home), "--cache", str(home / "cache"), *options]
            agent = shlex.join([sys.executable, str(bundle), *words])
            hiding = f"mount -t tmpfs none {shlex.quote(str(self.hidden))} && exec {agent}"
            with open(home / "log", "wb") as log:
                command = self.network[name].enter("unshare", "--mount", "sh", "-c", hiding)
                self.agents[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        processes.wait_until(lambda: set(names) <= {row["worker"] for row in self.ask("workers") if row["connected"]}, "the agents join")

    def home_of(self, name: str) -> Path:
        return self.place / name

    def has(self, name: str, digest: str) -> bool:
        """Whether the agent on that host has a content, whole."""
        return Path(content_path(str(self.home_of(name) / "cache"), digest)).exists()

    def said_by(self, name: str) -> str:
        return (self.home_of(name) / "log").read_text()

    def kill_agent(self, name: str) -> None:
        """With its supervisor, and without a word to anybody: as if its power had gone."""
        agent = self.agents.pop(name)
        processes.end(processes.with_descendants([agent.pid]))
        agent.wait()

    def agent_process(self, name: str) -> int:
        """The one that moves contents; the other one watches it."""
        supervisor = self.agents[name].pid
        return next(pid for pid in processes.everybody() if processes.parent_of(pid) == supervisor)

    # --- the master -------------------------------------------------------------------------------------------------------------------

    def ask(self, kind: str, **arguments: Any) -> Any:
        return self.client.ask(kind, **arguments).data

    def master_process(self) -> int:
        lock = max(self.pool.directory.glob("lock-*"))
        return int(json.loads(lock.read_text())["pid"])

    def kill_master(self) -> None:
        """Without a word. Whoever asks next brings another one to life."""
        processes.end([self.master_process()])

    # --- work -------------------------------------------------------------------------------------------------------------------------

    def write_input(self, name: str, size: int) -> Path:
        """Bytes that nobody can guess or make smaller."""
        path = self.hidden / name
        with path.open("wb") as file:
            for start in range(0, size, BLOCK):
                file.write(os.urandom(min(BLOCK, size - start)))
        return path

    def run(self) -> pilotfish.Run:
        return pilotfish.Run(pool=self.pool)

    def digest_at(self, run: pilotfish.Run, name: str, path: Path) -> ExecutableFuture:
        """A task on that host that says what it finds its input to be."""
        return run.executable(["sha256sum", "in.dat"], inputs={"in.dat": path}, tags={"host": name})

    # --- the verdict ------------------------------------------------------------------------------------------------------------------

    def assert_nobody_was_blamed(self, run: pilotfish.Run) -> None:
        """Every task ran once, and every worker was there all the time."""
        rows = self.ask("tasks", run=run.id)
        assert all(row["state"] == "done" and not row["failures"] and not row["losses"] for row in rows), rows
        assert self.ask("run", run=run.id)["attempts"] == len(rows)
        self.assert_nobody_was_lost()

    def assert_nobody_was_lost(self) -> None:
        rows = self.ask("workers", all=True)
        assert {row["worker"] for row in rows if row["state"] in ("idle", "busy")} >= set(self.agents)
        assert not any(entry["state"] == "lost" for row in rows for entry in row["history"]), [row["history"] for row in rows]

    def end(self) -> None:
        stop_marker(self.pool.directory).touch()  # or some client that still watches would bring it back
        self.ask("stop", now=True)
        left = self.pool.wait_until_gone(processes.PATIENCE_S)
        assert left == [], f"{left}\n{(self.pool.directory / 'master.log').read_text()[-2000:]}"
        for name, agent in self.agents.items():
            assert agent.wait(processes.PATIENCE_S) == 0, self.said_by(name)


@contextmanager
def far_pool(place: Path, network: Network, **settings: Any) -> Iterator[FarPool]:
    """The host ``master`` has the master. No agents yet."""
    before = os.environ.get("PILOTFISH_HOME")
    os.environ["PILOTFISH_HOME"] = str(place / "home")
    (place / "home").mkdir(mode=0o700)
    pool = PoolOnHost(PoolHome(place / "home" / "pools" / "far").make().directory)
    pool.host = network[MASTER]
    pool.settings = {**SETTINGS, "host": pool.host.address, "subnets": [network.subnet], **settings}
    try:
        pool.revive()
        made = FarPool(place, network, pool, Client.connect(pool.directory, pool.revive))
        made.hidden.mkdir()
        made.ask("workers_set", local=0)
        try:
            yield made
            made.end()
        finally:
            stop_marker(pool.directory).touch()
            made.client.close()
            for name in list(made.agents):
                made.kill_agent(name)
    finally:
        if before is None:
            del os.environ["PILOTFISH_HOME"]
        else:
            os.environ["PILOTFISH_HOME"] = before
