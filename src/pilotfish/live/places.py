"""All places where pilots of a pool run: this machine, and the sites, each with a courier of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pilotfish.errors import BadInput
from pilotfish.live.home import PoolHome
from pilotfish.live.keys import Keyring
from pilotfish.live.launcher import Launcher
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model.site import LOCAL, REFUSED, Site

if TYPE_CHECKING:
    from pilotfish.live.courier import Courier, World
    from pilotfish.live.reach import SiteReach

log = logging.getLogger(__name__)
GOODBYE_S = 10.0
SPOKEN = ("backend", "via", "hosts", "folder", "options", "environment", "commands_at_once", "submissions_per_minute", "reach", "address")
"""What a courier is made for: when it changes, another one is made for the pilots to come."""


class Places:
    """Couriers are made when a site is described, so that a pool without sites pays nothing for them."""

    def __init__(self, pool: PoolHome, keyring: Keyring, launcher: Launcher, tell: Callable[[i.Input], None]) -> None:
        self._pool = pool
        self._keyring = keyring
        self._launcher = launcher
        self._tell = tell
        self.has_joined: Callable[[str], bool] = lambda pilot: False
        self.address = ("127.0.0.1", 0)
        """Where the master listens."""
        self._couriers: dict[str, Courier] = {}
        self._reaches: dict[str, SiteReach] = {}
        self._where: dict[str, Courier] = {}
        """Who looks after each pilot: whoever sent it, also when its site is spoken to in another way since."""
        self._former: list[tuple[Courier, SiteReach]] = []
        self._world: World | None = None

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
        courier = self._couriers.get(effect.site)
        if courier is None:
            self._tell(i.PilotGone(effect.pilot, False, f"there is no site {effect.site}", witnessed=False, cause=REFUSED))
            return
        self._where[effect.pilot] = courier
        if isinstance(effect, e.SubmitPilot):
            courier.submit(effect.pilot, effect.size)
        else:
            courier.adopt(effect.pilot, effect.size, effect.job)

    def _describe(self, name: str, site: Site | None) -> None:
        courier = self._couriers.get(name)
        if site is None:
            return
        if courier is not None and any(getattr(courier.site, field) != getattr(site, field) for field in SPOKEN):
            self._former.append((self._couriers.pop(name), self._reaches.pop(name)))
            courier = None
        if courier is None:
            self._open(name, site)
        else:
            courier.site = self._reaches[name].site = self._reaches[name].runner.site = site

    def _open(self, name: str, site: Site) -> None:
        # Imported here: most pools have no sites, and all start the quicker for it.
        from pilotfish.backends.registry import BACKENDS
        from pilotfish.live.courier import Courier, World
        from pilotfish.live.orders import OrderBook
        from pilotfish.live.reach import SiteReach, pool_digest
        from pilotfish.live.runner import Runner
        from pilotfish.live.ssh import control_directory

        if self._world is None:
            digest = pool_digest(self._keyring)
            orders = OrderBook(self._pool.directory / "orders")
            self._world = World(self._tell, self.has_joined, orders, lambda pilot: f"pf-{digest}-{pilot.rpartition('-')[2]}")
        runner = Runner(name, site, control_directory(self._pool.directory), self._pool.diary(name))
        reach = self._reaches[name] = SiteReach(name, site, runner, self._pool, self._keyring)
        reach.master = self.address
        courier = self._couriers[name] = Courier(name, site, BACKENDS[site.backend], reach, self._world)
        reach.moved = courier.refresh

    def read(self, path: Path) -> None:
        """What the person has written about sites. What cannot be read changes nothing, and is said in the log."""
        from pilotfish.config import read_sites

        try:
            self._tell(i.SitesRead(read_sites(path)))
        except BadInput as problem:
            log.error("%s (%s)", problem, problem.hint)

    async def end(self) -> None:
        everybody = [*((courier, self._reaches[name]) for name, courier in self._couriers.items()), *self._former]
        await asyncio.gather(self._launcher.end_all(), *(courier.end() for courier, _ in everybody))
        if self._world is not None and self._world.tasks:
            # Some of them still clear away.
            await asyncio.wait(self._world.tasks, timeout=GOODBYE_S)
        await asyncio.gather(*(reach.close() for _, reach in everybody))
