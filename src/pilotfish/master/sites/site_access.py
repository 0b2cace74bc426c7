"""How one site is reached by its courier: commands, files, and the endpoints at which its agents find the master."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pilotfish.backends.interface import CommandExchange, CommandRefused, UnclearAnswer
from pilotfish.backends.pilot_script import START
from pilotfish.master.sites import site_files
from pilotfish.master.sites.command_runner import CommandRunner
from pilotfish.master.sites.submitted_batches import SubmittedBatch
from pilotfish.master.sites.tunnel import Tunnel, TunnelTarget
from pilotfish.model.site import PilotSize, Site
from pilotfish.store.keyring import Keyring
from pilotfish.store.pool_directory import PoolDirectory

SHOWN_LINES = 3
OPENING_S = 15.0
"""So long is waited for a tunnel before it counts as trouble that it is not up."""
Endpoint = dict[str, Any]


def pool_digest(keyring: Keyring) -> str:
    """A short name for a pool that no other pool has, here or elsewhere."""
    return hashlib.sha256(b"pilotfish-pool|" + keyring.secret).hexdigest()[:8]


class RemoteSiteAccess:
    """``master``: where it listens, seen from here."""

    def __init__(self, name: str, site: Site, runner: CommandRunner, pool: PoolDirectory, keyring: Keyring) -> None:
        self.name = name
        self.site = site
        self.runner = runner
        self.master: tuple[str, int] = ("127.0.0.1", 0)
        self.moved: Callable[[], None] = lambda: None
        """Called when agents have to be told of other endpoints."""
        self._pool = pool
        self._keyring = keyring
        self._folders: dict[str, str] = {}
        self._tunnels: dict[str, Tunnel] = {}
        """By the machine that they lead to: its login node, or each of its hosts."""

    async def ask(self, exchange: CommandExchange[Any], submission: bool = False) -> Any:
        answer = await self.runner.run(exchange.command, submission)
        try:
            return exchange.read(answer)
        except UnclearAnswer as problem:
            problem.unfinished = answer.status is None
            raise

    # --- files ------------------------------------------------------------------------------------------------------------------------

    async def place(self, tag: str, pilots: Sequence[str], size: PilotSize, host: str) -> SubmittedBatch:
        """Where an order shall lie: on its host, if it is for one of several machines."""
        folder = await self._folder(host)
        bundle = await site_files.stage_bundle(self.runner, folder, host)
        return SubmittedBatch(self.name, tag, list(pilots), size, f"{folder}/{pool_digest(self._keyring)}/{tag}", bundle, host)

    async def _folder(self, host: str) -> str:
        if host not in self._folders:
            self._folders[host] = await site_files.absolute_folder(self.runner, self.site.folder, host)
        return self._folders[host]

    async def stage(self, placed: SubmittedBatch) -> None:
        endpoints = await self._endpoints(placed)
        files = {"start.sh": (START.encode(), 0o700)}
        for number, pilot in enumerate(placed.pilots, 1):
            files[f"{number}.json"] = (self._pool.credentials(self._keyring, f"pilot:{pilot}", endpoints), 0o600)
        await site_files.stage(self.runner, placed.folder, files, placed.host)

    async def last_words(self, placed: SubmittedBatch, number: int) -> str:
        try:
            text = await site_files.read_tail(self.runner, f"{placed.folder}/{number}.log", at=placed.host)
        except (UnclearAnswer, CommandRefused):  # it is only a courtesy
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return " / ".join(lines[-SHOWN_LINES:])

    async def clear(self, placed: SubmittedBatch) -> None:
        await site_files.remove(self.runner, placed.folder, placed.host)

    # --- endpoints --------------------------------------------------------------------------------------------------------------------

    async def _endpoints(self, placed: SubmittedBatch) -> list[Endpoint]:
        """Where the agents of this order find the master. Not clear as long as a tunnel is not up."""
        if not self.site.is_tunnelled:
            host, port = self.master
            hosts = [self.site.address] if self.site.address else []
            return [{"kind": "tls", "host": name, "port": port, "fingerprint": self._keyring.fingerprint} for name in [*hosts, host]]
        tunnel = self._tunnels.get(placed.host)
        if tunnel is None:
            reach = TunnelTarget(placed.bundle, self.master, self._keyring.fingerprint, host=self.site.address, python=self.site.python)
            tunnel = self._tunnels[placed.host] = Tunnel(self.runner.ssh(placed.host), reach, self.moved)
            tunnel.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(OPENING_S):
                while not tunnel.endpoints and not tunnel.trouble:
                    await asyncio.sleep(0.1)
        if not tunnel.endpoints:
            raise UnclearAnswer(f"the tunnel to {placed.host or self.site.via} is not up: {tunnel.trouble or 'it is being opened'}")
        return list(tunnel.endpoints)

    async def close(self) -> None:
        await asyncio.gather(*(tunnel.close() for tunnel in self._tunnels.values()))
        await self.runner.close()
