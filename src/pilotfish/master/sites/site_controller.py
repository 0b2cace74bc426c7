"""Between the machine and one site: what the machine asks of a site goes to it, what the site says goes back.

Nothing here decides. What the site answers is told to the machine; what it does not answer changes nothing, and is asked again later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from pilotfish.backends.interface import Backend
from pilotfish.master.sites.pilot_monitor import PilotMonitor
from pilotfish.master.sites.pilot_submission import PilotSubmission
from pilotfish.master.sites.site_pilots import AGAIN_S, SLOWEST, MasterEndpoint, PilotRecord, SiteAccess, SitePilots
from pilotfish.master.sites.submitted_batches import SubmittedBatch
from pilotfish.model import inputs as i
from pilotfish.model.site import PilotSize, Site

log = logging.getLogger(__name__)

SUBMITTED_S = 8.0
"""At the end, a submission that is under way, or looked for, is waited for so long. Then the next master looks for what became of it."""
GOODBYE_S = 45.0
"""Longer than a batch system takes to kill who does not listen."""
TIDY_S = 5.0


class SiteController:
    def __init__(self, name: str, site: Site, backend: Backend, reach: SiteAccess, world: MasterEndpoint) -> None:
        self.name = name
        self._care = SitePilots(name, site, backend, reach, world)
        self._watch = PilotMonitor(self._care)
        self._dispatch = PilotSubmission(self._care, self._watch)

    @property
    def site(self) -> Site:
        return self._care.site

    @site.setter
    def site(self, site: Site) -> None:
        self._care.site = site

    def submit(self, pilot: str, size: PilotSize) -> None:
        self._dispatch.submit(pilot, size)
        self._watch.start()

    def adopt(self, pilot: str, size: PilotSize, job: str) -> None:
        """After a restart: a pilot of the last master."""
        self._dispatch.adopt(pilot, size, job)
        self._watch.start()

    def refresh(self) -> None:
        """Agents must be told anew where the master is: they read their credentials at every dial."""
        for charge in list(self._care.charges.values()):
            if charge.placed is not None and charge.job:
                self._dispatch.refresh(charge.placed)

    def cancel(self, pilot: str) -> None:
        charge = self._care.charges.get(pilot)
        if charge is None:
            self._care.world.tell(i.PilotGone(pilot, True, "was not there"))
            return
        charge.cancelled = True
        if charge.job:
            self._watch.cancel(charge)
        else:
            self._dispatch.forget(charge)

    def tidy(self, placed: SubmittedBatch) -> None:
        """An order of an earlier master, of whose pilots nobody knows: take it out, and its files with it."""
        self._care.clearing.begin(self._tidy(placed))

    async def _tidy(self, placed: SubmittedBatch) -> None:
        clear = not placed.sent
        while not clear:
            found, clear = await self._dispatch.find(placed)
            for number, job in found.items():
                log.warning("site %s: job %s is of a pilot that nobody knows, and is cancelled", self.name, job)
                self._watch.cancel(PilotRecord(placed.pilots[number - 1], placed, number, job, placed.host))
            if not clear:
                await asyncio.sleep(AGAIN_S * SLOWEST)
        await self._care.clear(placed)

    async def end(self) -> None:
        """Cancel what is left, and wait until the site says that it is gone, but not for ever: the next master finds it again."""
        charges = self._care.charges
        for pilot in list(charges):
            self.cancel(pilot)
        await self._until(lambda: all(charge.job for charge in charges.values()), SUBMITTED_S)
        # A command that hangs would keep others from being run that still have something to do.
        await self._dispatch.tasks.end(0.0)
        await self._until(lambda: not any(charge.job for charge in charges.values()), GOODBYE_S)
        if charges:
            log.warning("site %s: left there: %s", self.name, ", ".join(charge.job or pilot for pilot, charge in charges.items()))
        self._care.wallet.rest()
        await self._watch.end(TIDY_S if not charges else 0.0)
        await self._care.clearing.end(TIDY_S)

    async def _until(self, reached: Callable[[], bool], patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while not reached() and (left_s := deadline - time.monotonic()) > 0:
            self._care.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._care.changed.wait()
