"""Runs commands, stages files and finds endpoints for one site."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pilotfish.backends.interface import CommandExchange, CommandRefused, UnclearAnswer
from pilotfish.backends.pilot_script import START
from pilotfish.master.agent_bundle import bundle_content, bundle_name
from pilotfish.master.sites import site_files
from pilotfish.master.sites.command_runner import CommandRunner
from pilotfish.master.sites.submitted_batches import SubmittedBatch
from pilotfish.master.sites.tunnel import Tunnel, TunnelTarget
from pilotfish.model.site import PilotSize, Site
from pilotfish.store.keyring import Keyring, pool_digest

LOG_LINES = 3
"""Number of lines of a pilot's log that a message shows."""
OPENING_S = 15.0
"""If a tunnel is not open after this many seconds, this is reported as a problem of the site."""
Endpoint = dict[str, Any]


class SiteAccess:
    """Runs the commands of one site and keeps its tunnels open. Methods that send a command to the site raise UnclearAnswer or
    CommandRefused. ``master_address``: host and port at which the master listens, as seen from this machine."""

    def __init__(self, runner: CommandRunner, keyring: Keyring, master_address: tuple[str, int]) -> None:
        self.runner = runner
        self.on_new_endpoints: Callable[[], None] = lambda: None
        """Is called when the endpoints have changed. Agents then need new credentials."""
        self._keyring = keyring
        self._master_address = master_address
        self._folders: dict[str, str] = {}
        self._tunnels: dict[str, Tunnel] = {}
        """Tunnels by host. The key of the login node is the empty text."""

    def change_site(self, site: Site) -> None:
        self.runner.site = site

    async def ask(self, exchange: CommandExchange[Any], submission: bool = False) -> Any:
        """Runs a command at the site and reads its answer."""
        answer = await self.runner.run(exchange.command, submission)
        try:
            return exchange.read(answer)
        except UnclearAnswer as problem:
            problem.unfinished, problem.code = answer.status is None, answer.code
            raise

    # --- files ------------------------------------------------------------------------------------------------------------------------

    async def prepare_batch(self, pilots: Sequence[str], size: PilotSize, host: str) -> SubmittedBatch:
        """Names a new batch after its first pilot, chooses its folder and makes sure that the agent is at the site."""
        folder = await self._folder(host)
        bundle = await self.stage_bundle(folder, host)
        digest = pool_digest(self._keyring)
        tag = f"pf-{digest}-{pilots[0].rpartition('-')[2]}"
        return SubmittedBatch(self.runner.name, tag, list(pilots), size, f"{folder}/{digest}/{tag}", bundle, host)

    async def stage_bundle(self, folder: str, host: str = "") -> str:
        """Returns the path of the agent's bundle in a folder at the site. If the bundle is missing there, sends it first."""
        content = bundle_content()
        name = bundle_name(content)
        if not await self.ask(site_files.file_exists(f"{folder}/agents/{name}", len(content), host)):
            await self.ask(site_files.stage(f"{folder}/agents", {name: (content, 0o600)}, host))
        return f"{folder}/agents/{name}"

    async def _folder(self, host: str) -> str:
        if host not in self._folders:
            self._folders[host] = await self.ask(site_files.absolute_folder(self.runner.site.folder, host))
        return self._folders[host]

    async def stage_files(self, batch: SubmittedBatch) -> None:
        """Writes the start script and the credentials of a batch."""
        endpoints = await self._endpoints(batch)
        files = {"start.sh": (START.encode(), 0o700)}
        for number, pilot in enumerate(batch.pilots, 1):
            files[f"{number}.json"] = (self._keyring.credentials(f"pilot:{pilot}", endpoints), 0o600)
        await self.ask(site_files.stage(batch.folder, files, batch.host))

    async def read_log_tail(self, batch: SubmittedBatch, number: int) -> str:
        """Returns the last lines of a pilot's log, or an empty text."""
        try:
            text = await self.ask(site_files.read_tail(f"{batch.folder}/{number}.log", at=batch.host))
        except (UnclearAnswer, CommandRefused):  # the message is useful without the log, too
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return " / ".join(lines[-LOG_LINES:])

    async def remove_files(self, batch: SubmittedBatch) -> None:
        await self.ask(site_files.remove(batch.folder, batch.host))

    # --- endpoints --------------------------------------------------------------------------------------------------------------------

    async def _endpoints(self, batch: SubmittedBatch) -> list[Endpoint]:
        """Returns the endpoints at which the agents of a batch reach the master. Raises UnclearAnswer while the tunnel is not open."""
        if not self.runner.site.is_tunnelled:
            host, port = self._master_address
            hosts = [self.runner.site.address] if self.runner.site.address else []
            return [{"kind": "tls", "host": name, "port": port, "fingerprint": self._keyring.fingerprint} for name in [*hosts, host]]
        tunnel = self._tunnels.get(batch.host) or self._open_tunnel(batch)
        with suppress(TimeoutError):
            async with asyncio.timeout(OPENING_S):
                while not tunnel.endpoints and not tunnel.trouble:
                    await asyncio.sleep(0.1)
        if not tunnel.endpoints:
            raise UnclearAnswer(f"the tunnel to {batch.host or self.runner.site.via} is not up: {tunnel.trouble or 'it is being opened'}")
        return list(tunnel.endpoints)

    def _open_tunnel(self, batch: SubmittedBatch) -> Tunnel:
        fingerprint, python = self._keyring.fingerprint, self.runner.site.python
        target = TunnelTarget(batch.bundle, self._master_address, fingerprint, host=self.runner.site.address, python=python)
        tunnel = self._tunnels[batch.host] = Tunnel(self.runner.ssh(batch.host), target, self.on_new_endpoints)
        tunnel.start()
        return tunnel

    async def close(self) -> None:
        await asyncio.gather(*(tunnel.close() for tunnel in self._tunnels.values()))
        await self.runner.close()
