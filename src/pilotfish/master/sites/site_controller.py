"""Controls the pilots of one site.

It decides nothing. It reports the site's answers to the machine; a question without a clear answer changes nothing and is repeated.
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
from pilotfish.master.sites.site_access import SiteAccess
from pilotfish.master.sites.site_pilots import MAX_BACKOFF, RETRY_S, MasterEndpoint, PilotRecord, SitePilots
from pilotfish.master.sites.submitted_batches import SubmittedBatch
from pilotfish.model import inputs as i
from pilotfish.model.site import PilotSize, Site

log = logging.getLogger(__name__)

CONNECTION_KEYS = (
    "backend",
    "via",
    "hosts",
    "folder",
    "options",
    "environment",
    "commands_at_once",
    "submissions_per_minute",
    "reach",
    "address",
)
"""Keys of a site that a controller is made for. When one changes, new pilots get another controller."""
SUBMITTED_S = 8.0
"""Seconds that ``end`` waits for a submission or a look-up. The next master continues it."""
CANCELLED_S = 45.0
"""Seconds that ``end`` waits for cancelled pilots: longer than a batch system takes to kill a job that ignores SIGTERM."""
REMOVED_S = 5.0
"""Seconds that ``end`` waits for files to be removed."""


class SiteController:
    def __init__(self, name: str, site: Site, backend: Backend, access: SiteAccess, master: MasterEndpoint) -> None:
        self.name = name
        self._pilots = SitePilots(name, site, backend, access, master)
        self._monitor = PilotMonitor(self._pilots)
        self._submission = PilotSubmission(self._pilots, self._monitor)

    def accepts(self, site: Site) -> bool:
        """Whether another description of the site needs no other controller."""
        return all(getattr(self._pilots.site, key) == getattr(site, key) for key in CONNECTION_KEYS)

    def change_site(self, site: Site) -> None:
        self._pilots.site = site
        self._pilots.access.change_site(site)

    def submit(self, pilot: str, size: PilotSize) -> None:
        self._submission.submit(pilot, size)
        self._monitor.start()

    def adopt(self, pilot: str, size: PilotSize, job: str) -> None:
        """Take over a pilot of the previous master."""
        self._submission.adopt(pilot, size, job)
        self._monitor.start()

    def refresh(self) -> None:
        """Write the credentials of all pilots again, because the endpoints changed. Agents read them at every connection."""
        for pilot in list(self._pilots.records.values()):
            if pilot.batch is not None and pilot.job:
                self._submission.refresh(pilot.batch)

    def cancel(self, pilot: str) -> None:
        record = self._pilots.records.get(pilot)
        if record is None:
            self._pilots.master.tell(i.PilotEndReported(pilot, True, "was not there"))
            return
        record.cancelled = True
        if record.job:
            self._monitor.cancel(record)
        else:
            self._submission.withdraw(record)

    def remove_batch(self, batch: SubmittedBatch) -> None:
        """Cancel the jobs of a batch whose pilots no master knows, and remove its files."""
        self._pilots.removals.start(self._remove_batch(batch))

    async def _remove_batch(self, batch: SubmittedBatch) -> None:
        clear = not batch.sent
        while not clear:
            jobs, clear = await self._submission.find_jobs(batch)
            for number, job in jobs.items():
                log.warning("site %s: job %s belongs to an unknown pilot and is cancelled", self.name, job)
                self._monitor.cancel(PilotRecord(batch.pilots[number - 1], batch, number, job, batch.host))
            if not clear:
                await asyncio.sleep(RETRY_S * MAX_BACKOFF)
        await self._pilots.remove_batch(batch)

    async def end(self) -> None:
        """Cancel all pilots and close the way to the site. Waits for a limited time; the next master finds what is left."""
        try:
            await self._end_pilots()
        finally:
            await self._pilots.access.close()

    async def _end_pilots(self) -> None:
        records = self._pilots.records
        for pilot in list(records):
            self.cancel(pilot)
        await self._wait_until(lambda: all(pilot.job for pilot in records.values()), SUBMITTED_S)
        # A submission that hangs would keep cancellations from running.
        await self._submission.tasks.end(0.0)
        await self._wait_until(lambda: not any(pilot.job for pilot in records.values()), CANCELLED_S)
        if records:
            log.warning("site %s: left there: %s", self.name, ", ".join(pilot.job or pilot.id for pilot in records.values()))
        self._pilots.credentials.stop()
        await self._monitor.end(REMOVED_S if not records else 0.0)
        await self._pilots.removals.end(REMOVED_S)

    async def _wait_until(self, reached: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not reached() and (left_s := deadline - time.monotonic()) > 0:
            self._pilots.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._pilots.changed.wait()
