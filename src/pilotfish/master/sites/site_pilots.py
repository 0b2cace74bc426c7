"""Keeps the pilots of one site and what is in the way of reaching it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pilotfish.backends.interface import Backend, CommandExchange, CommandRefused, UnclearAnswer
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.master.sites.credential_watch import CredentialWatch
from pilotfish.master.sites.submitted_batches import BatchRegistry, SubmittedBatch
from pilotfish.model import inputs as i
from pilotfish.model.site import PilotSize, Site

log = logging.getLogger(__name__)

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
