"""All places where pilots of a pool run: this machine, and the sites, each with a courier of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pilotfish.errors import BadInput, PilotfishError
from pilotfish.master.sites.local_controller import LocalController
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model.site import LOCAL, REFUSED, Site
from pilotfish.store.keyring import Keyring
from pilotfish.store.pool_directory import PoolDirectory

if TYPE_CHECKING:
    from pilotfish.core.pilots.pilot_records import Pilot
    from pilotfish.master.sites.site_access import RemoteSiteAccess
    from pilotfish.master.sites.site_controller import SiteController
    from pilotfish.master.sites.site_pilots import MasterEndpoint
    from pilotfish.master.sites.submitted_batches import BatchRegistry

log = logging.getLogger(__name__)
SPOKEN = ("backend", "via", "hosts", "folder", "options", "environment", "commands_at_once", "submissions_per_minute", "reach", "address")
"""What a courier is made for: when it changes, another one is made for the pilots to come."""


class SiteControllers:
    """Couriers are made when a site is described, so that a pool without sites pays nothing for them."""

    def __init__(self, pool: PoolDirectory, keyring: Keyring, launcher: LocalController, tell: Callable[[i.Input], None]) -> None:
        self._pool = pool
        self._keyring = keyring
        self._launcher = launcher
        self._tell = tell
        self.known: Callable[[str], Pilot | None] = lambda pilot: None
        self.address = ("127.0.0.1", 0)
        """Where the master listens."""
        self._couriers: dict[str, tuple[SiteController, RemoteSiteAccess]] = {}
        self._where: dict[str, SiteController] = {}
        """Who looks after each pilot: whoever sent it, also when its site is spoken to in another way since."""
        self._former: list[tuple[SiteController, RemoteSiteAccess]] = []
        self._retiring: set[asyncio.Task[None]] = set()
        self._speechless: dict[str, str] = {}
        """Sites for which no courier could be made, and why."""
        self._world: MasterEndpoint | None = None

    def perform(self, effect: e.SubmitPilot | e.AdoptPilot | e.CancelPilot | e.DescribeSite) -> None:
        if isinstance(effect, e.DescribeSite):
            self._describe(effect.name, effect.site)
        elif isinstance(effect, e.CancelPilot):
            courier = self._where.get(effect.pilot)
            if courier is not None:
                courier.cancel(effect.pilot)
            else:
                self._launcher.cancel(effect.pilot)
        elif effect.site == LOCAL:
            if isinstance(effect, e.SubmitPilot):
                self._launcher.submit(effect.pilot, effect.size.cores)
            else:
                self._launcher.adopt(effect.pilot, effect.size.cores, effect.job)
        else:
            self._send(effect)

    def _send(self, effect: e.SubmitPilot | e.AdoptPilot) -> None:
        courier, _ = self._couriers.get(effect.site, (None, None))
        if courier is None:
            if isinstance(effect, e.SubmitPilot) or effect.site not in self._speechless:
                reason = self._speechless.get(effect.site, f"there is no site {effect.site}")
                self._tell(i.PilotGone(effect.pilot, False, reason, witnessed=False, cause=REFUSED))
            return
        self._where[effect.pilot] = courier
        if isinstance(effect, e.SubmitPilot):
            courier.submit(effect.pilot, effect.size)
        else:
            courier.adopt(effect.pilot, effect.size, effect.job)

    def _hear(self, item: i.Input) -> None:
        """What a courier tells."""
        if isinstance(item, i.PilotGone):
            self._where.pop(item.pilot, None)
            self._retire_former()
        self._tell(item)

    # --- couriers -------------------------------------------------------------------------------------------------------------------

    def _describe(self, name: str, site: Site | None) -> None:
        courier, reach = self._couriers.get(name, (None, None))
        if courier is not None and reach is not None:
            if site is not None and all(getattr(courier.site, field) == getattr(site, field) for field in SPOKEN):
                courier.site = reach.site = reach.runner.site = site
                return
            self._former.append(self._couriers.pop(name))
            self._retire_former()
        self._speechless.pop(name, None)
        if site is not None:
            try:
                self._couriers[name] = self._open(name, site)
            except (OSError, PilotfishError) as problem:
                # That one site cannot be spoken to must not end the master.
                self._speechless[name] = f"it cannot be spoken to: {problem}"
                log.error("site %s: %s", name, self._speechless[name])
                self._tell(i.SiteReachability(name, self._speechless[name]))

    def _open(self, name: str, site: Site) -> tuple[SiteController, RemoteSiteAccess]:
        # Imported here: most pools have no sites, and all start the quicker for it.
        from pilotfish.backends.backend_registry import BACKENDS
        from pilotfish.master.sites.command_runner import CommandRunner
        from pilotfish.master.sites.site_access import RemoteSiteAccess, pool_digest
        from pilotfish.master.sites.site_controller import SiteController
        from pilotfish.master.sites.site_pilots import MasterEndpoint
        from pilotfish.master.sites.ssh_connection import control_directory

        if self._world is None:
            digest = pool_digest(self._keyring)
            self._world = MasterEndpoint(self._hear, self.known, self._orders(), lambda pilot: f"pf-{digest}-{pilot.rpartition('-')[2]}")
            # When all pilots have been adopted that are still known.
            asyncio.get_running_loop().call_soon(self._tidy)
        runner = CommandRunner(name, site, control_directory(self._pool.directory), self._pool.diary(name))
        reach = RemoteSiteAccess(name, site, runner, self._pool, self._keyring)
        reach.master = self.address
        courier = SiteController(name, site, BACKENDS[site.backend], reach, self._world)
        reach.moved = courier.refresh
        return courier, reach

    def _orders(self) -> BatchRegistry:
        from pilotfish.master.sites.submitted_batches import BatchRegistry

        return self._world.orders if self._world is not None else BatchRegistry(self._pool.directory / "orders")

    def _tidy(self) -> None:
        """A master that died may have left orders whose pilots are gone."""
        for placed in self._orders().all():
            courier, _ = self._couriers.get(placed.site, (None, None))
            if courier is not None and not any(pilot in self._where for pilot in placed.pilots):
                courier.tidy(placed)

    def _retire_former(self) -> None:
        """Who was replaced, and has nobody left to look after, holds connections that nobody needs."""
        busy = list(self._where.values())
        for courier, reach in [pair for pair in self._former if pair[0] not in busy]:
            self._former.remove((courier, reach))
            task = asyncio.get_running_loop().create_task(_retire(courier, reach))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    def read(self, path: Path) -> None:
        """What the person has written about sites. What cannot be read changes nothing, and is said in the log."""
        from pilotfish.config import read_sites

        try:
            found = read_sites(path)
        except BadInput as problem:
            log.error("%s (%s)", problem, problem.hint)
            return
        for name, bad in found.bad.items():
            log.error("site %s stays as it was: %s (%s)", name, bad, bad.hint)
        self._tell(i.SitesRead(dict(found), tuple(found.bad)))

    async def end(self) -> None:
        everybody = [*self._couriers.values(), *self._former]
        await asyncio.gather(self._launcher.end_all(), *self._retiring, *(_retire(*pair) for pair in everybody))
        self._forget_strangers()
        if self._world is not None:
            from pilotfish.master.sites.ssh_connection import leave_directory

            leave_directory(self._pool.directory)

    def _forget_strangers(self) -> None:
        """Orders for sites that nobody describes any more: there is no way to them, now or later."""
        if (self._pool.directory / "orders").is_dir():
            orders = self._orders()
            for placed in orders.all():
                if placed.site not in self._couriers and placed.site not in self._speechless:
                    log.warning("there is no site %s any more; left there: %s", placed.site, placed.folder)
                    orders.remove(placed)


async def _retire(courier: SiteController, reach: RemoteSiteAccess) -> None:
    try:
        await courier.end()
    finally:
        await reach.close()
