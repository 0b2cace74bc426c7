"""Creates and ends one controller per site, and gives each pilot to the controller of its site.

The computer on which the master runs is the site ``local``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pilotfish import plugins
from pilotfish.errors import BadInput, PilotfishError
from pilotfish.master.sites.local_controller import LocalController
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model.settings import PoolSettings
from pilotfish.model.site import LOCAL, REFUSED, Site
from pilotfish.store.keyring import Keyring
from pilotfish.store.pool_directory import PoolDirectory

if TYPE_CHECKING:
    from pilotfish.master.sites.site_controller import SiteController
    from pilotfish.master.sites.site_pilots import FindPilot, MasterEndpoint
    from pilotfish.master.sites.submitted_batches import BatchRegistry

log = logging.getLogger(__name__)


class SiteRouter:
    """Gives pilots to the controllers of their sites.

    The router creates the controller of a site only when the decision machine describes this site. So a pool without sites starts faster.
    Each controller reports PilotEndReported once for each of its pilots.
    """

    def __init__(
        self, pool: PoolDirectory, keyring: Keyring, settings: PoolSettings, tell: Callable[[i.Input], None], find_pilot: FindPilot
    ) -> None:
        self._pool = pool
        self._keyring = keyring
        self._tell = tell
        self.local = LocalController(pool, keyring, self._report, settings.poll_s, settings.cache_size)
        self._find_pilot = find_pilot
        self._address = ("127.0.0.1", 0)
        self._sites: dict[str, SiteController] = {}
        self._controller_of_pilot: dict[str, LocalController | SiteController] = {}
        """For each pilot: the controller that submitted it. The pilot keeps this controller even if its site gets a new controller
        later."""
        self._replaced: list[SiteController] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._unusable: dict[str, str] = {}
        """For each site: the reason why its controller could not be created."""
        self._master: MasterEndpoint | None = None

    def set_address(self, host: str, port: int) -> None:
        """Sets the address at which the master listens for agents at sites."""
        self._address = host, port

    def perform(self, effect: e.SubmitPilot | e.AdoptPilot | e.CancelPilot | e.DescribeSite) -> None:
        if isinstance(effect, e.DescribeSite):
            self._describe(effect.name, effect.site)
        elif isinstance(effect, e.CancelPilot):
            self._cancel(effect.pilot)
        else:
            self._start(effect)

    def _start(self, effect: e.SubmitPilot | e.AdoptPilot) -> None:
        controller = self.local if effect.site == LOCAL else self._sites.get(effect.site)
        if controller is None:
            if isinstance(effect, e.SubmitPilot) or effect.site not in self._unusable:
                reason = self._unusable.get(effect.site, f"there is no site {effect.site}")
                self._tell(i.PilotEndReported(effect.pilot, False, reason, witnessed=False, cause=REFUSED))
            return
        self._controller_of_pilot[effect.pilot] = controller
        if isinstance(effect, e.SubmitPilot):
            controller.submit(effect.pilot, effect.size)
        else:
            controller.adopt(effect.pilot, effect.size, effect.job)

    def _cancel(self, pilot: str) -> None:
        controller = self._controller_of_pilot.get(pilot)
        if controller is not None:
            controller.cancel(pilot)
        else:
            self._tell(i.PilotEndReported(pilot, True, "was not running"))

    def _report(self, item: i.Input) -> None:
        if isinstance(item, i.PilotEndReported):
            self._controller_of_pilot.pop(item.pilot, None)
            self._end_replaced()
        self._tell(item)

    # --- controllers ----------------------------------------------------------------------------------------------------------------

    def _describe(self, name: str, site: Site | None) -> None:
        controller = self._sites.get(name)
        if controller is not None:
            if site is not None and controller.accepts(site):
                controller.change_site(site)
                return
            self._replaced.append(self._sites.pop(name))
            self._end_replaced()
        self._unusable.pop(name, None)
        if site is not None:
            try:
                self._sites[name] = self._create(name, site)
            except (OSError, PilotfishError) as problem:
                # The master continues if it cannot use one site.
                self._unusable[name] = f"it cannot be used: {problem}"
                log.error("site %s: %s", name, self._unusable[name])
                self._tell(i.SiteReachability(name, self._unusable[name]))

    def _create(self, name: str, site: Site) -> SiteController:
        # Imported only when needed: most pools have no sites and start faster without these modules.
        from pilotfish.master.sites.command_runner import CommandRunner
        from pilotfish.master.sites.site_access import SiteAccess
        from pilotfish.master.sites.site_controller import SiteController
        from pilotfish.master.sites.site_pilots import MasterEndpoint
        from pilotfish.master.sites.ssh_connection import control_directory

        if self._master is None:
            self._master = MasterEndpoint(self._report, self._find_pilot, self._batches())
            # The removal runs after all known pilots are adopted.
            asyncio.get_running_loop().call_soon(self._remove_abandoned)
        runner = CommandRunner(name, site, control_directory(self._pool.directory), self._pool.site_log(name))
        access = SiteAccess(runner, self._keyring, self._address)
        controller = SiteController(name, site, plugins.load("backends", site.backend)(), access, self._master)
        access.on_new_endpoints = controller.refresh
        return controller

    def _batches(self) -> BatchRegistry:
        from pilotfish.master.sites.submitted_batches import BatchRegistry

        return self._master.batches if self._master is not None else BatchRegistry(self._pool.directory / "orders")

    def _remove_abandoned(self) -> None:
        """Removes batches of an earlier master if the machine knows none of their pilots."""
        for batch in self._batches().all():
            if batch.site in self._sites and not any(pilot in self._controller_of_pilot for pilot in batch.pilots):
                self._sites[batch.site].remove_batch(batch)

    def _end_replaced(self) -> None:
        """Ends controllers that were replaced and that have no pilots left, because such controllers still keep connections open."""
        busy = list(self._controller_of_pilot.values())
        for controller in [replaced for replaced in self._replaced if replaced not in busy]:
            self._replaced.remove(controller)
            task = asyncio.get_running_loop().create_task(controller.end())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def read(self, path: Path) -> None:
        """Reads ``sites.toml``. If the file cannot be read, logs the problem and changes nothing."""
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
        controllers = [*self._sites.values(), *self._replaced]
        await asyncio.gather(*self._ending, self.local.end(), *(controller.end() for controller in controllers))
        self._forget_unknown_sites()
        if self._master is not None:
            from pilotfish.master.sites.ssh_connection import remove_control_directory

            remove_control_directory(self._pool.directory)

    def _forget_unknown_sites(self) -> None:
        """Forgets the batches of sites that are no longer in ``sites.toml``. The files of these batches stay, because the master cannot
        reach the sites any more."""
        if (self._pool.directory / "orders").is_dir():
            batches = self._batches()
            for batch in batches.all():
                if batch.site not in self._sites and batch.site not in self._unusable:
                    log.warning("there is no site %s any more; left there: %s", batch.site, batch.folder)
                    batches.remove(batch)
