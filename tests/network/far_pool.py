"""Runs a pool whose master and agents are on different hosts of a network; agents are started by hand, as on remote machines.

Agents cannot see the directory with the submitted files, so that all contents come over the network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pilotfish
from pilotfish.api.futures import ExecutableFuture
from pilotfish.client.master_client import MasterClient
from pilotfish.client.pools import PoolHandle, is_served
from pilotfish.store.pool_directory import PoolDirectory
from tests.engines import processes
from tests.engines.network import REVIVE
from tests.network.namespaces import Host, Network
from tests.support.peer_pool import PeerPool, without_agents

MASTER = "master"
SETTINGS: dict[str, Any] = {"local_cores": 1, "beat_s": 1.0, "lease_s": 6.0, "linger_s": 600.0}


class PoolOnHost(PoolHandle):
    """A pool whose master runs on a host. The client socket is a file, which every host can reach."""

    host: Host

    def start(self) -> None:
        if not is_served(self.directory):
            command = self.host.enter(sys.executable, "-c", REVIVE, str(self.directory), json.dumps(self.settings))
            subprocess.run(command, check=True, timeout=processes.PATIENCE_S)


class FarPool(PeerPool):
    """A pool in which each agent runs on the host of its name."""

    network: Network

    @property
    def master(self) -> Host:
        return self.network[MASTER]

    @property
    def master_address(self) -> str:
        return self.master.address

    def enter(self, name: str, *words: str) -> list[str]:
        return self.network[name].enter(*words)

    def digest_at(self, run: pilotfish.Run, name: str, path: Path) -> ExecutableFuture:
        """Submit a task on that host that prints the digest of its input."""
        return run.executable(["sha256sum", "in.dat"], inputs={"in.dat": path}, tags={"name": name})

    # --- checks -----------------------------------------------------------------------------------------------------------------------

    def assert_nobody_was_blamed(self, run: pilotfish.Run) -> None:
        """Check that every task ran once and no worker was lost."""
        rows = self.ask("tasks", run=run.id)
        assert all(row["state"] == "done" and not row["failures"] and not row["losses"] for row in rows), rows
        assert self.ask("run", run=run.id)["attempts"] == len(rows)
        self.assert_nobody_was_lost()

    def assert_nobody_was_lost(self) -> None:
        rows = self.ask("workers", all=True)
        assert {row["worker"] for row in rows if row["state"] in ("idle", "busy")} >= set(self.agents)
        assert not any(entry["state"] == "lost" for row in rows for entry in row["history"]), [row["history"] for row in rows]


@contextmanager
def far_pool(place: Path, network: Network, **settings: Any) -> Iterator[FarPool]:
    """Start a pool with its master on the host ``master`` and without agents."""
    before = os.environ.get("PILOTFISH_HOME")
    os.environ["PILOTFISH_HOME"] = str(place / "home")
    (place / "home").mkdir(mode=0o700)
    pool = PoolOnHost(PoolDirectory(place / "home" / "pools" / "far").make().directory)
    pool.host = network[MASTER]
    pool.settings = {**SETTINGS, "host": pool.host.address, "subnets": [network.subnet], **settings}
    try:
        pool.revive()
        made = FarPool(place, pool, MasterClient.connect(pool.directory, pool.revive))
        made.network = network
        with without_agents(made):
            yield made
    finally:
        if before is None:
            del os.environ["PILOTFISH_HOME"]
        else:
            os.environ["PILOTFISH_HOME"] = before
