"""Between the machine and one site: gathers pilots into orders, submits them, looks after them with one question per period, cancels them.

Nothing here decides. What the site answers is told to the machine; what it does not answer changes nothing, and is asked again later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pilotfish.backends.exchange import ENDED, PATIENCE_S, RUNNING, Backend, Exchange, Refused, Sighting, Unclear
from pilotfish.live.charges import Charge, Reach
from pilotfish.live.orders import OrderBook, Placed
from pilotfish.live.wallet import Wallet
from pilotfish.model import inputs as i
from pilotfish.model.site import BOOTSTRAP, CANCELLED, DIED, EXPIRED, REFUSED, VANISHED, PilotSize, Site

log = logging.getLogger(__name__)
Done = TypeVar("Done")

GATHER_S = 0.05
"""Pilots that are wanted within so long go together."""
AGAIN_S = 5.0
"""How long to wait before something is tried again that had no clear answer."""
LOOKS = 2
"""So often must a site say that it does not know an order before it is submitted once more."""
LATE_S = PATIENCE_S + 10.0
"""A submission whose end nobody saw may still arrive for so long: until then it is looked for, and not sent again."""
MISSES = 3
"""So many clear answers in a row must leave out a pilot before it counts as gone."""
CANCEL_AGAIN = 5
"""Whoever is seen so often after it was cancelled is cancelled once more."""
SLOWEST = 10
"""While a site does not answer, it is asked less and less often, down to once in so many periods."""
SOON_S = 1.0
GOODBYE_S = 60.0


@dataclass(slots=True)
class World:
    """What a courier needs of the master."""

    tell: Callable[[i.Input], None]
    has_joined: Callable[[str], bool]
    orders: OrderBook
    tag: Callable[[str], str]
    """The name of an order whose first pilot is this one."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def begin(self, doing: Awaitable[None]) -> None:
        async def run() -> None:
            await doing

        task = asyncio.get_running_loop().create_task(run())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


class Courier:
    def __init__(self, name: str, site: Site, backend: Backend, reach: Reach, world: World) -> None:
        self.name = name
        self.site = site
        self._backend = backend
        self._reach = reach
        self._world = world
        self._wallet = Wallet(name, lambda: self.site, reach, world.tell)
        self._charges: dict[str, Charge] = {}
        self._fresh: dict[PilotSize, list[str]] = {}
        self._gathering = False
        self._to_cancel: list[str] = []
        self._recovering: set[str] = set()
        self._refreshing: set[str] = set()
        self._silent_periods = 1
        self._refusals = 0
        self._next_look_at = 0.0
        self._next_glance_at = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._nobody = asyncio.Event()
        self._nobody.set()

    # --- what the machine asks ------------------------------------------------------------------------------------------------------

    def submit(self, pilot: str, size: PilotSize) -> None:
        self._take(Charge(pilot, None, 0))
        self._fresh.setdefault(size, []).append(pilot)
        if not self._gathering:
            self._gathering = True
            asyncio.get_running_loop().call_later(GATHER_S, self._gather)

    def adopt(self, pilot: str, size: PilotSize, job: str) -> None:
        """After a restart: it is at the site, or was about to be submitted, or nobody began with it."""
        placed = self._world.orders.find(self.name, pilot)
        if placed is None and not job:
            self.submit(pilot, size)
            return
        number = placed.pilots.index(pilot) + 1 if placed is not None else 0
        self._take(Charge(pilot, placed, number, job))
        if placed is not None:
            self._refresh_soon(placed)
        if job:
            self._look_soon()
        elif placed is not None and placed.tag not in self._recovering:
            self._recovering.add(placed.tag)
            self._world.begin(self._recover(placed, LATE_S) if placed.sent else self._resume(placed))

    def refresh(self) -> None:
        """Agents must be told anew where the master is: they read their credentials at every dial."""
        for charge in list(self._charges.values()):
            if charge.placed is not None and charge.job:
                self._refresh_soon(charge.placed)

    def cancel(self, pilot: str) -> None:
        charge = self._charges.get(pilot)
        if charge is None:
            self._world.tell(i.PilotGone(pilot, True, "was not there"))
            return
        charge.cancelled = True
        for waiting in self._fresh.values():
            if pilot in waiting:
                waiting.remove(pilot)
                self._gone(charge, i.PilotGone(pilot, True, "cancelled before it was submitted", cause=CANCELLED))
                return
        if charge.job:
            self._cancel_job(charge.job)

    async def end(self) -> None:
        """Cancel what is left, and wait until the site says that it is gone, but not for ever."""
        for pilot in list(self._charges):
            self.cancel(pilot)
        try:
            await asyncio.wait_for(self._nobody.wait(), GOODBYE_S)
        except TimeoutError:
            left = ", ".join(charge.job or pilot for pilot, charge in self._charges.items())
            log.warning("site %s: left in its queue: %s", self.name, left)
        self._wallet.rest()
        if self._looking is not None:
            self._looking.cancel()

    def _refresh_soon(self, placed: Placed) -> None:
        if placed.tag not in self._refreshing:
            self._refreshing.add(placed.tag)
            self._world.begin(self._refresh(placed))

    async def _refresh(self, placed: Placed) -> None:
        try:
            await self._persist(lambda: self._stage(placed), self._charges_of(placed))
        except Refused as refusal:
            self._in_trouble(str(refusal))
        finally:
            self._refreshing.discard(placed.tag)

    # --- submitting -----------------------------------------------------------------------------------------------------------------

    def _take(self, charge: Charge) -> None:
        self._charges[charge.pilot] = charge
        self._nobody.clear()
        self._wallet.watch()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look_after())

    def _gather(self) -> None:
        self._gathering = False
        fresh, self._fresh = self._fresh, {}
        for size, pilots in fresh.items():
            for first in range(0, len(pilots), self._backend.arrays):
                self._world.begin(self._order(pilots[first : first + self._backend.arrays], size))

    async def _order(self, pilots: list[str], size: PilotSize) -> None:
        """Written down before it is sent: whatever happens then, it is found again by its name."""
        charges = [self._charges[pilot] for pilot in pilots if pilot in self._charges]

        async def place() -> Placed:
            await self._wallet.usable()
            return await self._reach.place(self._world.tag(pilots[0]), pilots, size)

        try:
            placed = await self._persist(place, charges)
        except Refused as refusal:
            if await self._wallet.look():
                self._refused(charges, refusal)
            else:
                self._world.begin(self._order(pilots, size))
            return
        if placed is None:
            self._never_sent(charges)
            return
        placed.sent = False
        self._world.orders.write(placed)
        for charge in charges:
            charge.placed, charge.number = placed, pilots.index(charge.pilot) + 1
        await self._send(placed)

    async def _persist(self, doing: Callable[[], Awaitable[Done]], charges: list[Charge]) -> Done | None:
        """Try until it is clear what became of it; None if nobody wants these pilots any more."""
        while self._wanted(charges):
            try:
                return await self._clearly(doing)
            except Unclear as problem:
                self._in_trouble(str(problem))
            except Refused as refusal:
                if not refusal.later:
                    raise
                self._in_trouble(str(refusal))
            await self._pause(min(AGAIN_S, self.site.period_s), charges)
        return None

    async def _clearly(self, doing: Callable[[], Awaitable[Done]]) -> Done:
        """A backend that stumbles over a strange answer has not understood it, and must not leave its pilots alone."""
        try:
            return await doing()
        except (Unclear, Refused):
            raise
        except Exception as problem:
            log.exception("site %s: its answer could not be read", self.name)
            raise Unclear("its answer could not be read; see the master's log") from problem

    def _wanted(self, charges: list[Charge]) -> bool:
        return any(not charge.cancelled and charge.pilot in self._charges for charge in charges)

    async def _pause(self, seconds: float, charges: list[Charge]) -> None:
        """Wait, but not for pilots that nobody wants any more."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and self._wanted(charges):
            await asyncio.sleep(min(left, SOON_S))

    async def _send(self, placed: Placed) -> None:
        charges = self._charges_of(placed)
        try:
            if await self._persist(lambda: self._stage(placed), charges) is None:
                self._never_sent(self._charges_of(placed))
                return
            placed.sent = True
            self._world.orders.write(placed)
            began = time.monotonic()
            jobs = await self._clearly(lambda: self._reach.ask(self._backend.submit(self.site, placed.order()), submission=True))
        except Refused as refusal:
            # Without a ticket a site may say anything.
            if refusal.later or not await self._wallet.look():
                await self._send_later(placed, str(refusal))
            else:
                self._refused(charges, refusal)
            return
        except Unclear as problem:
            self._in_trouble(str(problem))
            await self._recover(placed, LATE_S if problem.unfinished else 0.0)
            return
        self._refusals = 0
        self._in_trouble("")
        self._accepted(placed, dict(enumerate(jobs, 1)), time.monotonic() - began)
        await self._recover(placed, 0.0)

    async def _send_later(self, placed: Placed, refusal: str) -> None:
        """A limit was reached, or something is away for a while: it may take it another time. Asked less and less often."""
        self._in_trouble(f"it takes no more pilots now: {refusal}")
        self._refusals += 1
        await self._pause(self.site.period_s * min(SLOWEST, 2**self._refusals), self._charges_of(placed))
        self._world.begin(self._send(placed))

    async def _stage(self, placed: Placed) -> bool:
        await self._wallet.usable()
        await self._reach.stage(placed)
        return True

    def _refused(self, charges: list[Charge], refusal: Refused) -> None:
        for charge in charges:
            self._gone(charge, i.PilotGone(charge.pilot, False, f"was refused: {refusal}", cause=REFUSED))

    def _never_sent(self, charges: list[Charge]) -> None:
        for charge in charges:
            self._gone(charge, i.PilotGone(charge.pilot, True, "cancelled before it was submitted", cause=CANCELLED))

    async def _resume(self, placed: Placed) -> None:
        """The last master had not yet sent it."""
        self._recovering.discard(placed.tag)
        await self._send(placed)

    async def _recover(self, placed: Placed, late_s: float) -> None:
        """Was it taken or not? Who has no job is looked for by the order's name until the answer is clear, and for ``late_s`` at least."""
        unknown = 0
        arrives_until = time.monotonic() + late_s
        while missing := [charge for charge in self._charges_of(placed) if not charge.job]:
            if unknown >= LOOKS and time.monotonic() >= arrives_until:
                self._not_found(placed, missing)
                break
            found, clear = await self._find(placed)
            unknown += clear
            self._accepted(placed, found, 0.0)
            if not all(charge.job for charge in missing):
                await asyncio.sleep(min(AGAIN_S, self.site.period_s))
        self._recovering.discard(placed.tag)

    def _not_found(self, placed: Placed, missing: list[Charge]) -> None:
        if len(missing) < len(self._charges_of(placed)):
            # The others of its order are there, so it was there too.
            for charge in missing:
                reason = f"{self.name} does not know it, though it knows others that were submitted with it"
                self._gone(charge, i.PilotGone(charge.pilot, False, reason, witnessed=False, cause=VANISHED))
        elif self._wanted(missing):
            self._world.begin(self._send(placed))
        else:
            self._never_sent(missing)

    async def _find(self, placed: Placed) -> tuple[dict[int, str], bool]:
        found: dict[int, str] = {}
        clear = True
        for exchange in self._backend.find(self.site, placed.tag):
            part = await self._try(exchange)
            found.update(part or {})
            clear = clear and part is not None
        return found, clear

    def _accepted(self, placed: Placed, jobs: dict[int, str], took_s: float) -> None:
        for charge in self._charges_of(placed):
            if not charge.job and jobs.get(charge.number):
                charge.job = jobs[charge.number]
                self._world.tell(i.PilotAccepted(charge.pilot, charge.job, took_s))
                if charge.cancelled:
                    self._cancel_job(charge.job)
        if time.monotonic() >= self._next_glance_at:
            # Whoever comes one after the other is not looked at one after the other.
            self._next_glance_at = time.monotonic() + self.site.period_s
            self._look_soon()

    def _charges_of(self, placed: Placed) -> list[Charge]:
        return [charge for charge in self._charges.values() if charge.placed is not None and charge.placed.tag == placed.tag]

    # --- looking after them ---------------------------------------------------------------------------------------------------------

    def _look_soon(self) -> None:
        """Something changed that the site should know by now."""
        self._next_look_at = min(self._next_look_at, time.monotonic() + min(SOON_S, self.site.period_s))
        self._wake.set()

    async def _look_after(self) -> None:
        while self._charges:
            wait_s = self._next_look_at - time.monotonic()
            if wait_s > 0:
                self._wake.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), wait_s)
                continue
            self._next_look_at = time.monotonic() + self.site.period_s * self._silent_periods
            try:
                await self._look()
            except Exception:  # the edge: a backend that stumbles over a strange answer must not leave its pilots alone
                log.exception("site %s: its answer could not be read", self.name)
                self._in_trouble("its answer could not be read; see the master's log")

    async def _look(self) -> None:
        asked = {charge.job: charge for charge in self._charges.values() if charge.job}
        if not asked:
            return
        answers = await asyncio.gather(*(self._try(exchange) for exchange in self._backend.query(self.site, list(asked))))
        clear = all(answer is not None for answer in answers)
        self._silent_periods = 1 if clear else min(SLOWEST, self._silent_periods * 2)
        if clear:
            self._in_trouble("")
        seen = {job: sighting for answer in answers if answer is not None for job, sighting in answer.items() if job in asked}
        await self._saw({asked[job].pilot: sighting for job, sighting in seen.items()})
        if clear:
            await self._look_for_missing([charge for job, charge in asked.items() if job not in seen])

    async def _look_for_missing(self, missing: list[Charge]) -> None:
        """Some systems keep no memory, whatever they say when asked for it: what is not told from there is as good as not known."""
        if not missing:
            return
        exchange = self._backend.past(self.site, [charge.job for charge in missing])
        past = (await self._try(exchange, quietly=True) if exchange is not None else {}) or {}
        await self._saw({charge.pilot: past[charge.job] for charge in missing if charge.job in past})
        for charge in missing:
            if charge.job in past:
                continue
            charge.misses += 1
            if charge.told or (charge.cancelled and charge.misses >= MISSES):
                self._gone(charge, i.PilotGone(charge.pilot, True, "cancelled", cause=CANCELLED))
            elif charge.misses >= MISSES:
                reason = f"{self.name} no longer knows its job {charge.job}"
                # If it is there after all, nobody else will ever take it out.
                self._cancel_job(charge.job)
                self._gone(charge, i.PilotGone(charge.pilot, False, reason, witnessed=False, cause=VANISHED))

    async def _try(self, exchange: Exchange[dict[Any, Done]], quietly: bool = False) -> dict[Any, Done] | None:
        try:
            return dict(await self._clearly(lambda: self._reach.ask(exchange)))
        except (Unclear, Refused) as problem:
            if not quietly:
                self._in_trouble(str(problem))
            return None

    async def _saw(self, sightings: dict[str, Sighting]) -> None:
        ended = []
        for pilot, sighting in sightings.items():
            charge = self._charges.get(pilot)
            if charge is None:
                continue
            charge.misses = 0
            if sighting.phase == ENDED:
                ended.append(self._ended(charge, sighting))
                continue
            if charge.cancelled:
                charge.lingers += 1
                if charge.lingers % CANCEL_AGAIN == 0:
                    # It was told so, and is still there: a daemon that had just been restarted may have forgotten it.
                    self._cancel_job(charge.job)
            seen = (sighting.phase == RUNNING, sighting.reason)
            if seen != charge.seen:
                charge.seen = seen
                self._world.tell(i.PilotSeen(charge.pilot, *seen))
        await asyncio.gather(*ended)

    async def _ended(self, charge: Charge, sighting: Sighting) -> None:
        self._gone(charge, await self._how_it_ended(charge, sighting))

    async def _how_it_ended(self, charge: Charge, sighting: Sighting) -> i.PilotGone:
        if charge.cancelled:
            return i.PilotGone(charge.pilot, True, "cancelled", cause=CANCELLED)
        reason = sighting.reason or "ended"
        joined = self._world.has_joined(charge.pilot)
        if joined and sighting.expired:
            return i.PilotGone(charge.pilot, True, f"its time was over ({reason})", cause=EXPIRED)
        if joined:
            return i.PilotGone(charge.pilot, sighting.well, reason, cause="" if sighting.well else DIED)
        words = await self._reach.last_words(charge.placed, charge.number) if charge.placed is not None else ""
        reason = f"ended before its agent joined ({reason})" + (f": {words}" if words else "")
        return i.PilotGone(charge.pilot, False, reason, cause=EXPIRED if sighting.expired else BOOTSTRAP)

    # --- ending ---------------------------------------------------------------------------------------------------------------------

    def _cancel_job(self, job: str) -> None:
        if not self._to_cancel:
            asyncio.get_running_loop().call_later(GATHER_S, lambda: self._world.begin(self._cancel_jobs()))
        self._to_cancel.append(job)

    async def _cancel_jobs(self) -> None:
        jobs, self._to_cancel = dict.fromkeys(self._to_cancel), []
        clear = True
        for exchange in self._backend.cancel(self.site, list(jobs)):
            try:
                await self._clearly(partial(self._reach.ask, exchange))
            except (Unclear, Refused) as problem:
                self._in_trouble(str(problem))
                clear = False
        left = [charge for charge in self._charges.values() if charge.job in jobs]
        for charge in left:
            charge.told = charge.told or clear
        if left and not clear:
            asyncio.get_running_loop().call_later(AGAIN_S * self._silent_periods, self._cancel_again, [charge.job for charge in left])
        self._look_soon()

    def _cancel_again(self, jobs: list[str]) -> None:
        for job in jobs:
            if any(charge.job == job for charge in self._charges.values()):
                self._cancel_job(job)

    def _gone(self, charge: Charge, news: i.PilotGone) -> None:
        if self._charges.pop(charge.pilot, None) is None:
            return
        self._world.tell(news)
        if charge.placed is not None and not self._charges_of(charge.placed):
            self._world.begin(self._clear(charge.placed))
        if not self._charges:
            self._nobody.set()
            self._wallet.rest()
            self._wake.set()

    async def _clear(self, placed: Placed) -> None:
        try:
            await self._clearly(lambda: self._reach.clear(placed))
        except (Unclear, Refused) as problem:
            log.info("site %s: %s is left there: %s", self.name, placed.folder, problem)
        self._world.orders.remove(placed)

    def _in_trouble(self, text: str) -> None:
        self._world.tell(i.SiteSpoke(self.name, text))
