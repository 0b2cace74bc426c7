"""Brings pilots to a site: gathers them into orders, puts their files there, submits them once, and finds out what became of them.

An order is written down before it is sent; if its answer is lost, it is looked for by its name and not sent again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from pilotfish.backends.interface import PATIENCE_S, CommandRefused, UnclearAnswer
from pilotfish.core.explain.site_reasons import FULL
from pilotfish.master.sites.pilot_monitor import PilotMonitor
from pilotfish.master.sites.site_pilots import AGAIN_S, SENDING, SLOWEST, STAGING, BackgroundTasks, PilotRecord, SitePilots
from pilotfish.master.sites.submitted_batches import SubmittedBatch
from pilotfish.model import inputs as i
from pilotfish.model.site import CANCELLED, REFUSED, VANISHED, PilotSize

Done = TypeVar("Done")

GATHER_S = 0.05
"""Pilots that are wanted within so long go together."""
LOOKS = 2
"""So often must a site say that it does not know an order before it is submitted once more."""
LATE_S = PATIENCE_S + 10.0
"""A submission whose end nobody saw may still arrive for so long: until then it is looked for, and not sent again."""
SHUN_S = 60.0
"""For so long a host that failed us gets no pilots, if there are others."""
SOON_S = 1.0


class PilotSubmission:
    def __init__(self, care: SitePilots, watch: PilotMonitor) -> None:
        self._care = care
        self._watch = watch
        self._fresh: dict[PilotSize, list[str]] = {}
        self._shunned: dict[str, float] = {}
        self._recovering: set[str] = set()
        self._refreshing: set[str] = set()
        self._refusals = 0
        self.tasks = BackgroundTasks()

    def submit(self, pilot: str, size: PilotSize) -> None:
        self._care.take(PilotRecord(pilot))
        if not self._fresh:
            self.tasks.begin(self._gather())
        self._fresh.setdefault(size, []).append(pilot)

    def adopt(self, pilot: str, size: PilotSize, job: str) -> None:
        """After a restart: it is at the site, or was about to be submitted, or nobody began with it."""
        placed = self._care.world.orders.find(self._care.name, pilot)
        if placed is None:
            if job:
                self._care.take(PilotRecord(pilot, job=job))
            else:
                self.submit(pilot, size)
            return
        self._care.take(PilotRecord(pilot, placed, placed.pilots.index(pilot) + 1, job, placed.host))
        self.refresh(placed)
        if not job and placed.tag not in self._recovering:
            self._recovering.add(placed.tag)
            late_s = min(LATE_S, placed.sent_at + LATE_S - time.time())
            self.tasks.begin(self._recover(placed, late_s) if placed.sent else self._resume(placed))

    def forget(self, charge: PilotRecord) -> None:
        """If it is not yet on its way, it never will be."""
        for waiting in self._fresh.values():
            if charge.pilot in waiting:
                waiting.remove(charge.pilot)
                self._never_sent([charge])

    def refresh(self, placed: SubmittedBatch) -> None:
        """Write the credentials of an order's pilots anew."""
        if placed.tag not in self._refreshing:
            self._refreshing.add(placed.tag)
            self.tasks.begin(self._refresh(placed))

    async def _refresh(self, placed: SubmittedBatch) -> None:
        try:
            await self._persist(partial(self._stage, placed), self._care.of(placed), STAGING)
            self._care.in_trouble(STAGING, "")
        except CommandRefused as refusal:
            self._care.in_trouble(STAGING, str(refusal))
        finally:
            self._refreshing.discard(placed.tag)

    # --- orders ---------------------------------------------------------------------------------------------------------------------

    async def _gather(self) -> None:
        await asyncio.sleep(GATHER_S)
        fresh, self._fresh = self._fresh, {}
        most = self._care.backend.arrays
        for size, pilots in fresh.items():
            for first in range(0, len(pilots), most):
                self.tasks.begin(self._order(pilots[first : first + most], size))

    async def _order(self, pilots: list[str], size: PilotSize) -> None:
        charges = [self._care.charges[pilot] for pilot in pilots if pilot in self._care.charges]
        try:
            placed = await self._persist(partial(self._place, charges, size), charges, SENDING)
        except CommandRefused as refusal:
            if await self._may_ask():
                self._refused(charges, refusal)
            else:
                self.tasks.begin(self._order(pilots, size))
            return
        if placed is None:
            self._never_sent(charges)
            return
        await self._send(placed)

    async def _place(self, charges: list[PilotRecord], size: PilotSize) -> SubmittedBatch:
        """Written down before it is sent: whatever happens then, it is found again by its name."""
        care = self._care
        await care.wallet.usable()
        host = self._choose_host(charges)
        pilots = [charge.pilot for charge in charges]
        try:
            placed = await care.reach.place(care.world.tag(pilots[0]), pilots, size, host)
        except (UnclearAnswer, CommandRefused):
            self._shunned[host] = time.monotonic() + SHUN_S
            raise
        self._shunned.pop(host, None)
        placed.sent = False
        care.world.orders.write(placed)
        for number, charge in enumerate(charges, 1):
            charge.placed, charge.number = placed, number
        return placed

    def _choose_host(self, charges: list[PilotRecord]) -> str:
        """For machines without a batch system: the one with the fewest of our pilots, those aside that have just failed us."""
        for charge in charges:
            charge.host = ""
        loads = Counter(charge.host for charge in self._care.charges.values())
        now = time.monotonic()
        host = min(self._care.site.hosts, key=lambda name: (self._shunned.get(name, now) > now, loads[name]), default="")
        for charge in charges:
            charge.host = host
        return host

    async def _persist(self, doing: Callable[[], Awaitable[Done]], charges: list[PilotRecord], about: str) -> Done | None:
        """Try until it is clear what became of it; None if nobody wants these pilots any more."""
        while self._care.wanted(charges):
            try:
                return await self._care.clearly(doing)
            except UnclearAnswer as problem:
                self._care.in_trouble(about, str(problem))
            except CommandRefused as refusal:
                if not refusal.later:
                    raise
                self._care.in_trouble(about, str(refusal))
            await self._pause(min(AGAIN_S, self._care.site.period_s), charges)
        return None

    async def _pause(self, seconds: float, charges: list[PilotRecord]) -> None:
        """Wait, but not for pilots that nobody wants any more."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and self._care.wanted(charges):
            await asyncio.sleep(min(left, SOON_S))

    async def _stage(self, placed: SubmittedBatch) -> bool:
        await self._care.wallet.usable()
        await self._care.reach.stage(placed)
        return True

    # --- submitting -----------------------------------------------------------------------------------------------------------------

    async def _send(self, placed: SubmittedBatch) -> None:
        care, charges = self._care, self._care.of(placed)
        try:
            if await self._persist(partial(self._stage, placed), charges, SENDING) is None:
                self._never_sent(care.of(placed))
                return
            began = time.monotonic()
            jobs = await care.clearly(partial(self._submit, placed))
        except CommandRefused as refusal:
            if refusal.later or not await self._may_ask():
                await self._send_later(placed, str(refusal))
            else:
                self._refused(charges, refusal)
            return
        except UnclearAnswer as problem:
            care.in_trouble(SENDING, str(problem))
            await self._recover(placed, LATE_S if problem.unfinished else 0.0)
            return
        self._accepted(placed, dict(enumerate(jobs, 1)), time.monotonic() - began)
        await self._recover(placed, 0.0)

    async def _may_ask(self) -> bool:
        """Without a ticket a site may say anything. What cannot be found out about ours is not in the way."""
        try:
            return await self._care.clearly(self._care.wallet.look)
        except UnclearAnswer:
            return True

    async def _submit(self, placed: SubmittedBatch) -> list[str]:
        placed.sent, placed.sent_at = True, time.time()
        self._care.world.orders.write(placed)
        jobs: list[str] = await self._care.reach.ask(self._care.backend.submit(self._care.site, placed.order()), submission=True)
        return jobs

    async def _send_later(self, placed: SubmittedBatch, refusal: str) -> None:
        """A limit was reached, or something is away for a while: it may take it another time, or a part of it. Asked ever less often."""
        care = self._care
        care.in_trouble(SENDING, f"{FULL}{refusal}")
        self._refusals += 1
        await self._pause(care.site.period_s * min(SLOWEST, 2**self._refusals), care.of(placed))
        charges = care.of(placed)
        wanted = [charge for charge in charges if not charge.cancelled]
        if len(placed.pilots) == 1 or not wanted:
            self.tasks.begin(self._send(placed))
            return
        self._never_sent([charge for charge in charges if charge.cancelled])
        for charge in wanted:
            charge.placed = None
        pilots = [charge.pilot for charge in wanted]
        if pilots[0] != placed.pilots[0]:  # after whom the order is named
            care.clearing.begin(care.clear(placed))
        half = (len(pilots) + 1) // 2
        for part in filter(None, (pilots[:half], pilots[half:])):
            self.tasks.begin(self._order(part, placed.size))

    def _accepted(self, placed: SubmittedBatch, jobs: dict[int, str], took_s: float) -> None:
        care = self._care
        for charge in care.of(placed):
            if not charge.job and jobs.get(charge.number):
                charge.job = jobs[charge.number]
                care.changed.set()
                care.world.tell(i.PilotAccepted(charge.pilot, charge.job, took_s))
                if charge.cancelled:
                    self._watch.cancel(charge)
        if jobs:
            self._refusals = 0
            care.in_trouble(SENDING, "")
            self._watch.glance()

    def _refused(self, charges: list[PilotRecord], refusal: CommandRefused) -> None:
        """It answers, so that nothing is in the way; why it says no is told of each pilot."""
        self._care.in_trouble(SENDING, "")
        for charge in charges:
            self._care.gone(charge, i.PilotGone(charge.pilot, False, f"was refused: {refusal}", cause=REFUSED))

    def _never_sent(self, charges: list[PilotRecord]) -> None:
        for charge in charges:
            self._care.gone(charge, i.PilotGone(charge.pilot, True, "cancelled before it was submitted", cause=CANCELLED))

    # --- finding again --------------------------------------------------------------------------------------------------------------

    async def _resume(self, placed: SubmittedBatch) -> None:
        """The last master had not yet sent it."""
        self._recovering.discard(placed.tag)
        await self._send(placed)

    async def _recover(self, placed: SubmittedBatch, late_s: float) -> None:
        """Was it taken or not? Who has no job is looked for by the order's name until the answer is clear, and for ``late_s`` at least."""
        unknown = 0
        arrives_until = time.monotonic() + late_s
        while any(not charge.job for charge in self._care.of(placed)):
            found, clear = await self.find(placed, SENDING)
            unknown += clear
            self._accepted(placed, found, 0.0)
            missing = [charge for charge in self._care.of(placed) if not charge.job]
            if missing and unknown >= LOOKS and time.monotonic() >= arrives_until:
                self._not_found(placed, missing)
                break
            if missing:
                await asyncio.sleep(min(AGAIN_S, self._care.site.period_s))
        self._recovering.discard(placed.tag)

    def _not_found(self, placed: SubmittedBatch, missing: list[PilotRecord]) -> None:
        if len(missing) < len(self._care.of(placed)):
            # The others of its order are there, so it was there too.
            for charge in missing:
                reason = f"{self._care.name} does not know it, though it knows others that were submitted with it"
                self._care.gone(charge, i.PilotGone(charge.pilot, False, reason, witnessed=False, cause=VANISHED))
        elif self._care.wanted(missing):
            self.tasks.begin(self._send(placed))
        else:
            self._never_sent(missing)

    async def find(self, placed: SubmittedBatch, about: str = "") -> tuple[dict[int, str], bool]:
        """Its jobs, by the numbers of its pilots. An order for one host is not on the others, so that they need not answer."""
        site = replace(self._care.site, hosts=(placed.host,)) if placed.host else self._care.site
        return await self._care.ask_all(lambda: self._care.backend.find(site, placed.tag), about)
