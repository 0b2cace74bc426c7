"""Looks after the pilots that are at a site, with one question per period, and cancels those that nobody wants any more.

"Not listed" once, or no answer at all, says nothing about a pilot.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial

from pilotfish.backends.interface import ENDED, RUNNING, CommandRefused, JobStatus, UnclearAnswer
from pilotfish.master.sites.site_pilots import AGAIN_S, LOOKING, SLOWEST, BackgroundTasks, PilotRecord, SitePilots
from pilotfish.model import inputs as i
from pilotfish.model.site import BOOTSTRAP, CANCELLED, DIED, EXPIRED, VANISHED

GATHER_S = 0.05
"""Pilots that are cancelled within so long are cancelled together."""
MISSES = 3
"""So many clear answers in a row must leave out a pilot before it counts as gone."""
CANCEL_AGAIN = 5
"""Whoever is seen so often after it was cancelled is cancelled once more."""
SOON_S = 1.0


class PilotMonitor:
    def __init__(self, care: SitePilots) -> None:
        self._care = care
        self._to_cancel: dict[str, str] = {}
        """Jobs, and the hosts that they are on."""
        self._silent_periods = 1
        self._next_look_at = 0.0
        self._next_glance_at = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self.tasks = BackgroundTasks()

    def start(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look_after())

    async def end(self, patience_s: float) -> None:
        await self.tasks.end(patience_s)
        if self._looking is not None:
            self._looking.cancel()

    def glance(self) -> None:
        """Somebody is there now. Whoever comes one after the other is not looked at one after the other."""
        if time.monotonic() >= self._next_glance_at:
            self._next_glance_at = time.monotonic() + self._care.site.period_s
            self._look_soon()

    def _look_soon(self) -> None:
        """Something changed that the site should know by now."""
        self._next_look_at = min(self._next_look_at, time.monotonic() + min(SOON_S, self._care.site.period_s))
        self._wake.set()

    # --- looking --------------------------------------------------------------------------------------------------------------------

    async def _look_after(self) -> None:
        while self._care.charges:
            wait_s = self._next_look_at - time.monotonic()
            if wait_s > 0:
                self._wake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):  # wait_for may overhear that we are told to end
                        await self._wake.wait()
                continue
            self._next_look_at = time.monotonic() + self._care.site.period_s * self._silent_periods
            await self._look()

    async def _look(self) -> None:
        """Hosts answer each for itself: one that is silent must not hide how the pilots of the others ended."""
        asked: dict[str, list[PilotRecord]] = {}
        for charge in self._care.charges.values():
            if charge.job:
                asked.setdefault(charge.host, []).append(charge)
        if not asked:
            return
        clear = await asyncio.gather(*(self._look_at(there) for there in asked.values()))
        self._silent_periods = 1 if any(clear) else min(SLOWEST, self._silent_periods * 2)
        if all(clear):
            self._care.in_trouble(LOOKING, "")

    async def _look_at(self, asked: list[PilotRecord]) -> bool:
        """Whether the answer was clear."""
        try:
            return await self._care.clearly(partial(self._see, asked))
        except (UnclearAnswer, CommandRefused) as problem:
            self._care.in_trouble(LOOKING, str(problem))
            return False

    async def _see(self, asked: list[PilotRecord]) -> bool:
        care = self._care
        seen, clear = await care.ask_all(partial(care.backend.query, care.site, [charge.job for charge in asked]), LOOKING)
        await self._saw([(charge, seen[charge.job]) for charge in asked if charge.job in seen])
        if clear:
            await self._look_for_missing([charge for charge in asked if charge.job not in seen])
        return clear

    async def _look_for_missing(self, missing: list[PilotRecord]) -> None:
        """Some systems keep no memory, whatever they say when asked for it: what is not told from there is as good as not known."""
        if not missing:
            return
        care = self._care
        past, _ = await care.ask_all(lambda: filter(None, [care.backend.past(care.site, [charge.job for charge in missing])]))
        await self._saw([(charge, past[charge.job]) for charge in missing if charge.job in past])
        for charge in missing:
            if charge.job in past:
                continue
            charge.misses += 1
            known = care.world.known(charge.pilot)
            if charge.told or (charge.cancelled and charge.misses >= MISSES):
                care.gone(charge, i.PilotGone(charge.pilot, True, "cancelled", cause=CANCELLED))
            elif charge.misses >= MISSES and not (known is not None and known.workers):  # that its agents beat is the better witness
                reason = f"{care.name} no longer knows its job {charge.job}"
                # If it is there after all, nobody else will ever take it out.
                self.cancel(charge)
                care.gone(charge, i.PilotGone(charge.pilot, False, reason, witnessed=False, cause=VANISHED))

    async def _saw(self, sightings: list[tuple[PilotRecord, JobStatus]]) -> None:
        ended = []
        for charge, sighting in sightings:
            if charge.pilot not in self._care.charges:
                continue
            charge.misses = 0
            if sighting.phase == ENDED:
                ended.append(self._ended(charge, sighting))
                continue
            if charge.cancelled:
                charge.lingers += 1
                if charge.lingers % CANCEL_AGAIN == 0:
                    # It was told so, and is still there: a daemon that had just been restarted may have forgotten it.
                    self.cancel(charge)
            seen = (sighting.phase == RUNNING, sighting.reason)
            if seen != charge.seen:
                charge.seen = seen
                self._care.world.tell(i.PilotSeen(charge.pilot, *seen))
        await asyncio.gather(*ended)

    async def _ended(self, charge: PilotRecord, sighting: JobStatus) -> None:
        self._care.gone(charge, await self._how_it_ended(charge, sighting))

    async def _how_it_ended(self, charge: PilotRecord, sighting: JobStatus) -> i.PilotGone:
        reason = sighting.reason or "ended"
        if charge.cancelled:
            # Who was cancelled because it fell silent may have ended otherwise before: the site's words tell.
            return i.PilotGone(charge.pilot, True, f"cancelled ({reason})", cause=CANCELLED)
        known = self._care.world.known(charge.pilot)
        joined = known is not None and known.joined
        if joined and sighting.expired:
            return i.PilotGone(charge.pilot, True, f"its time was over ({reason})", cause=EXPIRED)
        if joined:
            return i.PilotGone(charge.pilot, sighting.well, reason, cause="" if sighting.well else DIED)
        words = await self._care.reach.last_words(charge.placed, charge.number) if charge.placed is not None else ""
        reason = f"ended before its agent joined ({reason})" + (f": {words}" if words else "")
        return i.PilotGone(charge.pilot, False, reason, cause=EXPIRED if sighting.expired else BOOTSTRAP)

    # --- cancelling -----------------------------------------------------------------------------------------------------------------

    def cancel(self, charge: PilotRecord) -> None:
        if not self._to_cancel:
            self.tasks.begin(self._cancel_together())
        self._to_cancel[charge.job] = charge.host

    async def _cancel_together(self) -> None:
        await asyncio.sleep(GATHER_S)
        jobs, self._to_cancel = self._to_cancel, {}
        hosts = dict.fromkeys(jobs.values())
        await asyncio.gather(*(self._cancel_at([job for job, host in jobs.items() if host == place]) for place in hosts))

    async def _cancel_at(self, jobs: list[str]) -> None:
        """Until the site has heard it, or they are gone."""
        care = self._care
        while jobs:
            _, clear = await care.ask_all(partial(care.backend.cancel, care.site, jobs), LOOKING)
            left = [charge for charge in care.charges.values() if charge.job in jobs]
            for charge in left:
                charge.told = charge.told or clear
            self._look_soon()
            jobs = [charge.job for charge in left if not charge.told]
            if jobs:
                await asyncio.sleep(AGAIN_S * self._silent_periods)
