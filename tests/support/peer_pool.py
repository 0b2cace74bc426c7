"""Runs a pool on this machine with agents started by hand. Each has its own cache and cannot see the submitted files.

All agents belong to one site, that of agents without a pilot, and can reach each other.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pilotfish
from pilotfish.client.master_client import MasterClient
from pilotfish.client.pools import PoolHandle
from pilotfish.portable.transfer.cache_directory import content_path
from pilotfish.portable.wire.handshake import AGENT
from pilotfish.store.keyring import open_keyring, write_private
from pilotfish.store.pool_directory import PoolDirectory, stop_mark_path
from tests.engines import processes
from tests.support.bundle_file import build_bundle

SETTINGS: dict[str, Any] = {"local_cores": 1, "beat_s": 0.5, "linger_s": 600.0}
BLOCK = 1024 * 1024
CAN_HIDE = os.geteuid() == 0 and shutil.which("unshare") is not None


@dataclass
class PeerPool:
    place: Path
    pool: PoolHandle
    client: MasterClient
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def hidden(self) -> Path:
        """Directory that agents cannot see."""
        return self.place / "hidden"

    def ask(self, kind: str, **arguments: Any) -> Any:
        return self.client.ask(kind, **arguments)

    @property
    def master_address(self) -> str:
        return "127.0.0.1"

    def enter(self, name: str, *words: str) -> list[str]:
        """Command that runs these words where this agent belongs."""
        return list(words)

    def start(self, *names: str, cores: int = 1, tags: dict[str, str] | None = None, options: Sequence[str] = (), pilot: str = "") -> None:
        """Start agents and wait until all have joined. Each has its name as a tag. ``pilot``: the pilot that they claim to belong to."""
        keyring = open_keyring(self.pool.directory)
        home = PoolDirectory(self.pool.directory)
        endpoint = {"kind": "tls", "host": self.master_address, "port": home.last_port(), "fingerprint": keyring.fingerprint}
        bundle = build_bundle(self.place)
        for name in names:
            self.home_of(name).mkdir()
            write_private(self.home_of(name) / "credentials.json", keyring.credentials(f"pilot:{pilot}" if pilot else AGENT, [endpoint]))
            words = ["--credentials", str(self.home_of(name) / "credentials.json"), "--worker", name, "--cores", str(cores)]
            words += ["--workdir", str(self.home_of(name)), "--cache", str(self.cache_of(name)), *options]
            for tag, value in {"name": name, **(tags or {})}.items():
                words += ["--tag", f"{tag}={value}"]
            agent = shlex.join([sys.executable, str(bundle), *words])
            hiding = f"mount -t tmpfs none {shlex.quote(str(self.hidden))} && exec {agent}"
            words = ["unshare", "--mount", "sh", "-c", hiding] if CAN_HIDE else ["sh", "-c", f"exec {agent}"]
            with open(self.home_of(name) / "log", "wb") as log:
                self.agents[name] = subprocess.Popen(self.enter(name, *words), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        processes.wait_until(lambda: set(names) <= set(self.present()), "the agents join")

    def present(self) -> list[str]:
        return [row["worker"] for row in self.ask("workers") if row["connected"]]

    def home_of(self, name: str) -> Path:
        return self.place / name

    def cache_of(self, name: str) -> Path:
        return self.home_of(name) / "cache"

    def has(self, name: str, digest: str) -> bool:
        """Whether that agent has the whole content."""
        return Path(content_path(str(self.cache_of(name)), digest)).exists()

    def said_by(self, name: str) -> str:
        return (self.home_of(name) / "log").read_text()

    def address_of(self, name: str) -> tuple[str, int]:
        """Address at which its peers reach it."""
        host, port = self.contact_of(name)[1]
        return host, port

    def contact_of(self, name: str) -> list[Any]:
        contact: list[Any] = next(row for row in self.ask("workers") if row["worker"] == name)["info"]["peer"]
        return contact

    def process_of(self, name: str) -> int:
        """Process id of the agent itself, not of its supervisor."""
        supervisor = self.agents[name].pid
        return next(pid for pid in processes.everybody() if processes.parent_of(pid) == supervisor)

    def kill(self, name: str) -> None:
        """Kill the agent and all its processes, without notice."""
        agent = self.agents.pop(name)
        processes.end(processes.with_descendants([agent.pid]))
        agent.wait()

    def master_process(self) -> int:
        lock = max(self.pool.directory.glob("lock-*"))
        return int(json.loads(lock.read_text())["pid"])

    def kill_master(self) -> None:
        """Kill the master without notice. The next client request starts another one."""
        processes.end([self.master_process()])

    # --- work -------------------------------------------------------------------------------------------------------------------------

    def run(self) -> pilotfish.Run:
        return pilotfish.Run(pool=self.pool)

    def write_input(self, name: str, size: int) -> Path:
        """Write random bytes, which cannot be compressed."""
        path = self.hidden / name
        with path.open("wb") as file:
            for start in range(0, size, BLOCK):
                file.write(os.urandom(min(BLOCK, size - start)))
        return path

    def got(self) -> dict[str, int]:
        """Number of contents by source, as reported by agents so far."""
        return {source: row["contents"] for source, row in self.ask("data")["got"].items()}

    def end(self) -> None:
        stop_mark_path(self.pool.directory).touch()  # otherwise a client that still watches would restart the master
        self.ask("stop", now=True)
        left = self.pool.wait_until_stopped(processes.PATIENCE_S)
        assert left == [], f"{left}\n{(self.pool.directory / 'master.log').read_text()[-2000:]}"
        for name, agent in self.agents.items():
            assert agent.wait(processes.PATIENCE_S) == 0, self.said_by(name)
        assert not any("Traceback" in self.said_by(name) for name in self.agents)


Opened = TypeVar("Opened", bound=PeerPool)


@contextmanager
def peer_pool(home: Path, place: Path, **settings: Any) -> Iterator[PeerPool]:
    pool = PoolHandle(PoolDirectory(home / "pools" / "peers").make().directory, {**SETTINGS, **settings})
    pool.revive()
    with without_agents(PeerPool(place, pool, MasterClient.connect(pool.directory, pool.revive))) as made:
        yield made


@contextmanager
def without_agents(made: Opened) -> Iterator[Opened]:
    """A pool without agents at first. Agents started by the test must end by themselves with status 0."""
    made.hidden.mkdir(parents=True)
    made.ask("workers_set", local=0)
    try:
        yield made
        made.end()
    finally:
        stop_mark_path(made.pool.directory).touch()
        made.client.close()
        for name in list(made.agents):
            made.kill(name)
