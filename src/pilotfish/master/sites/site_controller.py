"""Between the machine and one site: what the machine asks of a site goes to it, what the site says goes back.

Nothing here decides. What the site answers is told to the machine; what it does not answer changes nothing, and is asked again later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pilotfish.backends.interface import Backend, CommandExchange, CommandRefused, UnclearAnswer
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.master.sites.credential_watch import CredentialWatch
from pilotfish.master.sites.pilot_monitor import PilotMonitor
from pilotfish.master.sites.pilot_submission import PilotSubmission
from pilotfish.master.sites.submitted_batches import BatchRegistry, SubmittedBatch
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


# What a courier works with: the pilots in its care, the way to their site, and what is in the way of speaking to it.

Done = TypeVar("Done")

AGAIN_S = 5.0
"""How long to wait before something is tried again that had no clear answer."""
SLOWEST = 10
"""Whoever does not answer is asked less and less often, down to once in so many times."""
SENDING, STAGING, LOOKING = "sending", "staging", "looking"
"""What can be in trouble, the worst first."""


class SiteAccess(Protocol):
    """How commands and files get to the site."""

    async def ask(self, exchange: CommandExchange[Any], submission: bool = False) -> Any:
        """Run its command there and read the answer; Unclear and Refused are raised."""

    async def place(self, tag: str, pilots: Sequence[str], size: PilotSize, host: str) -> SubmittedBatch:
        """Where the files of an order shall lie; Unclear if that cannot be said now."""

    async def stage(self, placed: SubmittedBatch) -> None:
        """Put the files of an order where its pilots find them; Unclear if that cannot be done now."""

    async def last_words(self, placed: SubmittedBatch, number: int) -> str:
        """The end of what a pilot wrote; empty if there is none."""

    async def clear(self, placed: SubmittedBatch) -> None:
        """Remove the files of an order."""


@dataclass(slots=True)
class MasterEndpoint:
    """What couriers need of the master."""

    tell: Callable[[i.Input], None]
    known: Callable[[str], Pilot | None]
    """What the machine knows of a pilot."""
    orders: BatchRegistry
    tag: Callable[[str], str]
    """The name of an order whose first pilot is this one."""


@dataclass(slots=True)
class PilotRecord:
    """One pilot in our care. ``host``: the one of the site's hosts that it is for, if it has any."""

    pilot: str
    placed: SubmittedBatch | None = None
    number: int = 0
    job: str = ""
    host: str = ""
    cancelled: bool = False
    told: bool = False
    """The site has heard that it is cancelled."""
    misses: int = 0
    lingers: int = 0
    """So often was it seen since it was cancelled."""
    seen: tuple[bool, str] | None = None


class BackgroundTasks:
    """What is under way, so that it can be waited for, or given up."""

    def __init__(self) -> None:
        self.left: set[asyncio.Task[None]] = set()

    def begin(self, doing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(doing)
        self.left.add(task)
        task.add_done_callback(self.left.discard)

    async def end(self, patience_s: float) -> None:
        """Wait for all, and give up what is left then: commands that hang are killed."""
        if self.left:
            await asyncio.wait(self.left, timeout=patience_s)
        left = list(self.left)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


class SitePilots:
    """All pilots in the care of one courier."""

    def __init__(self, name: str, site: Site, backend: Backend, reach: SiteAccess, world: MasterEndpoint) -> None:
        self.name = name
        self.site = site
        self.backend = backend
        self.reach = reach
        self.world = world
        self.wallet = CredentialWatch(name, lambda: self.site, reach, world.tell)
        self.charges: dict[str, PilotRecord] = {}
        self.changed = asyncio.Event()
        """Somebody went, or has a job now."""
        self.clearing = BackgroundTasks()
        self._troubles: dict[str, str] = {}
        self._said = ""

    def take(self, charge: PilotRecord) -> None:
        self.charges[charge.pilot] = charge
        self.wallet.watch()

    def of(self, placed: SubmittedBatch) -> list[PilotRecord]:
        return [charge for charge in self.charges.values() if charge.placed is not None and charge.placed.tag == placed.tag]

    def wanted(self, charges: Iterable[PilotRecord]) -> bool:
        return any(not charge.cancelled and charge.pilot in self.charges for charge in charges)

    def gone(self, charge: PilotRecord, news: i.PilotGone) -> None:
        if self.charges.pop(charge.pilot, None) is None:
            return
        self.changed.set()
        self.world.tell(news)
        if charge.placed is not None and not self.of(charge.placed):
            self.clearing.begin(self.clear(charge.placed))
        if not self.charges:
            self.wallet.rest()
            self._troubles.clear()
            self._tell_trouble()

    async def clear(self, placed: SubmittedBatch) -> None:
        """There are keys among the files of an order, so that they are removed as soon as that can be. Until then it stays in the book."""
        pause_s = AGAIN_S
        while not self.of(placed):
            try:
                await self.clearly(lambda: self.reach.clear(placed))
            except CommandRefused as refusal:
                log.warning("site %s: %s is left there: %s", self.name, placed.folder, refusal)
            except UnclearAnswer as problem:
                log.info("site %s: %s is still there: %s", self.name, placed.folder, problem)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, AGAIN_S * SLOWEST)
                continue
            self.world.orders.remove(placed)
            return

    # --- speaking to the site -------------------------------------------------------------------------------------------------------

    async def clearly(self, doing: Callable[[], Awaitable[Done]]) -> Done:
        """A backend that stumbles over a strange answer has not understood it, and must not leave its pilots alone."""
        try:
            return await doing()
        except (UnclearAnswer, CommandRefused):
            raise
        except Exception as problem:
            log.exception("site %s: its answer could not be read", self.name)
            raise UnclearAnswer("its answer could not be read; see the master's log") from problem

    async def ask_all(self, make: Callable[[], Iterable[CommandExchange[Any]]], about: str = "") -> tuple[dict[Any, Any], bool]:
        """What the answers to all of them tell together, and whether all were clear. Trouble is told if it is ``about`` something."""

        async def ask() -> list[dict[Any, Any] | None]:
            return list(await asyncio.gather(*(self._ask(exchange, about) for exchange in make())))

        try:
            answers = await self.clearly(ask)
        except UnclearAnswer as problem:
            self._complain(about, problem)
            return {}, False
        return {name: said for answer in answers if answer for name, said in answer.items()}, None not in answers

    async def _ask(self, exchange: CommandExchange[Any], about: str) -> dict[Any, Any] | None:
        try:
            return dict(await self.clearly(lambda: self.reach.ask(exchange)) or {})
        except (UnclearAnswer, CommandRefused) as problem:
            self._complain(about, problem)
            return None

    def _complain(self, about: str, problem: Exception) -> None:
        if about:
            self.in_trouble(about, str(problem))

    def in_trouble(self, about: str, text: str) -> None:
        """What is in the way of one thing stays until that very thing works again; empty: it does."""
        self._troubles[about] = text
        self._tell_trouble()

    def _tell_trouble(self) -> None:
        worst = next((self._troubles[about] for about in (SENDING, STAGING, LOOKING) if self._troubles.get(about)), "")
        if worst or self._said:
            self._said = worst
            self.world.tell(i.SiteReachability(self.name, worst))
