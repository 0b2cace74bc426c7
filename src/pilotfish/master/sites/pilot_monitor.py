"""Polls the queue of a site and cancels pilots.

One query asks for all pilots of the site, or for all pilots of one host with the ssh backend. An answer is *clear* if the queue answered
completely and without errors. A pilot that is missing from an answer possibly still exists.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial

from pilotfish.backends.interface import ENDED, RUNNING, CommandRefused, JobStatus, UnclearAnswer
from pilotfish.master.sites.site_pilots import COLLECT_S, MAX_BACKOFF, POLLING, RETRY_S, BackgroundTasks, PilotRecord, SitePilots
from pilotfish.model import inputs as i
from pilotfish.model.site import BOOTSTRAP, CANCELLED, DIED, EXPIRED, VANISHED

MAX_MISSES = 3
"""A pilot without a worker counts as ended if this many consecutive clear answers do not list the pilot. After the site has received the
cancellation of a pilot, one such answer is enough."""
CANCEL_AGAIN = 5
"""If this many polls still list a cancelled pilot, it is cancelled again."""
EARLY_POLL_S = 1.0


class PilotMonitor:
    def __init__(self, pilots: SitePilots) -> None:
        self._pilots = pilots
        self._to_cancel: dict[str, str] = {}
        """Jobs to cancel, with their hosts."""
        self._backoff = 1
        """Factor by which the poll interval is longer than usual. The factor grows while no host answers."""
        self._next_poll_at = 0.0
        self._next_early_poll_at = 0.0
        self._polling: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self.tasks = BackgroundTasks()

    def start(self) -> None:
        """Starts polling. Polling ends when the site has no pilots."""
        if self._polling is None or self._polling.done():
            self._polling = asyncio.get_running_loop().create_task(self._poll_all())

    async def end(self, timeout_s: float) -> None:
        await self.tasks.end(timeout_s)
        if self._polling is not None:
            self._polling.cancel()

    def poll_early(self) -> None:
        """Lets the next poll come sooner, because the site has just accepted pilots. Further calls during the same poll interval have no
        effect."""
        if time.monotonic() >= self._next_early_poll_at:
            self._next_early_poll_at = time.monotonic() + self._pilots.site.period_s
            self._poll_soon()

    def _poll_soon(self) -> None:
        self._next_poll_at = min(self._next_poll_at, time.monotonic() + min(EARLY_POLL_S, self._pilots.site.period_s))
        self._wake.set()

    # --- polling --------------------------------------------------------------------------------------------------------------------

    async def _poll_all(self) -> None:
        while self._pilots.records:
            wait_s = self._next_poll_at - time.monotonic()
            if wait_s > 0:
                self._wake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):  # wait_for may swallow a cancellation
                        await self._wake.wait()
                continue
            self._next_poll_at = time.monotonic() + self._pilots.site.period_s * self._backoff
            await self._poll()

    async def _poll(self) -> None:
        """Polls each host separately, so that the other pilots are still seen if one host does not answer."""
        by_host: dict[str, list[PilotRecord]] = {}
        for pilot in self._pilots.records.values():
            if pilot.job:
                by_host.setdefault(pilot.host, []).append(pilot)
        if not by_host:
            return
        clear = await asyncio.gather(*(self._poll_host(pilots) for pilots in by_host.values()))
        self._backoff = 1 if any(clear) else min(MAX_BACKOFF, self._backoff * 2)
        if all(clear):
            self._pilots.clear_trouble(POLLING)

    async def _poll_host(self, asked: list[PilotRecord]) -> bool:
        """Polls the pilots of one host. Returns True if the host answered completely and without errors."""
        try:
            return await self._pilots.guard(partial(self._query, asked))
        except (UnclearAnswer, CommandRefused) as problem:
            self._pilots.report(POLLING, problem)
            return False

    async def _query(self, asked: list[PilotRecord]) -> bool:
        query = partial(self._pilots.backend.query, self._pilots.site, [pilot.job for pilot in asked])
        listed, clear = await self._pilots.ask_all(query, POLLING)
        await self._handle([(pilot, listed[pilot.job]) for pilot in asked if pilot.job in listed])
        if clear:
            await self._handle_missing([pilot for pilot in asked if pilot.job not in listed])
        return clear

    async def _handle_missing(self, missing: list[PilotRecord]) -> None:
        """Handles pilots that the queue did not list: asks the accounting of the site how these pilots ended. A pilot that the accounting
        does not know possibly still exists."""
        if not missing:
            return
        pilots = self._pilots
        past, _ = await pilots.ask_all(lambda: filter(None, [pilots.backend.past(pilots.site, [pilot.job for pilot in missing])]))
        await self._handle([(pilot, past[pilot.job]) for pilot in missing if pilot.job in past])
        for pilot in missing:
            if pilot.job in past:
                continue
            pilot.misses += 1
            known = pilots.master.find_pilot(pilot.id)
            if pilot.cancel_sent or (pilot.cancelled and pilot.misses >= MAX_MISSES):
                pilots.remove(pilot, i.PilotEndReported(pilot.id, True, "cancelled", cause=CANCELLED))
            # A connected worker proves that its pilot runs.
            elif pilot.misses >= MAX_MISSES and not (known is not None and known.workers):
                reason = f"{pilots.name} no longer knows its job {pilot.job}"
                # Possibly the job still exists, and no later step would cancel it.
                self.cancel(pilot)
                pilots.remove(pilot, i.PilotEndReported(pilot.id, False, reason, witnessed=False, cause=VANISHED))

    async def _handle(self, found: list[tuple[PilotRecord, JobStatus]]) -> None:
        ended = []
        for pilot, status in found:
            if pilot.id not in self._pilots.records:
                continue
            pilot.misses = 0
            if status.phase == ENDED:
                ended.append(self._ended(pilot, status))
                continue
            if pilot.cancelled:
                pilot.polls_since_cancel += 1
                if pilot.polls_since_cancel % CANCEL_AGAIN == 0:
                    # A restarted batch system has possibly forgotten the cancellation.
                    self.cancel(pilot)
            shown = (status.phase == RUNNING, status.reason)
            if shown != pilot.reported:
                pilot.reported = shown
                self._pilots.master.tell(i.PilotSeen(pilot.id, *shown))
        await asyncio.gather(*ended)

    async def _ended(self, pilot: PilotRecord, status: JobStatus) -> None:
        self._pilots.remove(pilot, await self._describe_end(pilot, status))

    async def _describe_end(self, pilot: PilotRecord, status: JobStatus) -> i.PilotEndReported:
        reason = status.reason or "ended"
        if pilot.cancelled:
            # Possibly the pilot had ended already before it was cancelled. The reason of the batch system shows this.
            return i.PilotEndReported(pilot.id, True, f"cancelled ({reason})", cause=CANCELLED)
        known = self._pilots.master.find_pilot(pilot.id)
        joined = known is not None and known.joined
        if joined and status.expired:
            return i.PilotEndReported(pilot.id, True, f"its time was over ({reason})", cause=EXPIRED)
        if joined:
            return i.PilotEndReported(pilot.id, status.well, reason, cause="" if status.well else DIED)
        log = await self._pilots.access.read_log_tail(pilot.batch, pilot.number) if pilot.batch is not None else ""
        reason = f"ended before its agent joined ({reason})" + (f": {log}" if log else "")
        return i.PilotEndReported(pilot.id, False, reason, cause=EXPIRED if status.expired else BOOTSTRAP)

    # --- cancelling -----------------------------------------------------------------------------------------------------------------

    def cancel(self, pilot: PilotRecord) -> None:
        if not self._to_cancel:
            self.tasks.start(self._cancel_all())
        self._to_cancel[pilot.job] = pilot.host

    async def _cancel_all(self) -> None:
        await asyncio.sleep(COLLECT_S)
        jobs, self._to_cancel = self._to_cancel, {}
        hosts = dict.fromkeys(jobs.values())
        await asyncio.gather(*(self._cancel_at_host([job for job, at in jobs.items() if at == host]) for host in hosts))

    async def _cancel_at_host(self, jobs: list[str]) -> None:
        """Sends the cancellation of jobs again and again, until the site has received it or the jobs have ended."""
        while jobs:
            _, clear = await self._pilots.ask_all(partial(self._pilots.backend.cancel, self._pilots.site, jobs), POLLING)
            left = [pilot for pilot in self._pilots.records.values() if pilot.job in jobs]
            for pilot in left:
                pilot.cancel_sent = pilot.cancel_sent or clear
            self._poll_soon()
            jobs = [pilot.job for pilot in left if not pilot.cancel_sent]
            if jobs:
                await asyncio.sleep(RETRY_S * self._backoff)
