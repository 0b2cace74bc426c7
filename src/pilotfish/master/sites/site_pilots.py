"""Keeps the pilots of one site and the problems with this site. The controller and the monitor of the site share these records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from pilotfish.backends.interface import Backend, CommandExchange, CommandRefused, UnclearAnswer
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.master.sites.credential_watch import CredentialWatch
from pilotfish.master.sites.site_access import SiteAccess
from pilotfish.master.sites.submitted_batches import BatchRegistry, SubmittedBatch
from pilotfish.model import inputs as i
from pilotfish.model.site import Site

log = logging.getLogger(__name__)

Result = TypeVar("Result")
FindPilot = Callable[[str], Pilot | None]
"""A function that returns the machine's record of a pilot."""

RETRY_S = 5.0
"""Seconds until an action without a clear answer is tried again."""
MAX_BACKOFF = 10
"""Intervals become longer while a site does not answer or refuses pilots, by at most this factor."""
COLLECT_S = 0.05
"""New pilots are collected for this many seconds and then submitted with one command. Cancellations are collected in the same way."""
SUBMITTING, STAGING, POLLING = "submitting", "staging", "polling"
"""Activities that can have trouble. If several activities have trouble, only the first of them in this order is reported."""


@dataclass(slots=True)
class MasterEndpoint:
    """The parts of the master that site controllers use."""

    tell: Callable[[i.Input], None]
    find_pilot: FindPilot
    batches: BatchRegistry


@dataclass(slots=True)
class PilotRecord:
    """One pilot of the site. ``host``: the host that was chosen for it, if the site has several hosts."""

    id: str
    batch: SubmittedBatch | None = None
    number: int = 0
    """Number of the pilot in its batch, from 1."""
    job: str = ""
    host: str = ""
    cancelled: bool = False
    cancel_sent: bool = False
    """Whether the site has received the cancellation."""
    misses: int = 0
    """Number of consecutive clear answers that did not list the pilot."""
    polls_since_cancel: int = 0
    reported: tuple[bool, str] | None = None
    """The last status that was reported to the machine: whether the pilot runs, and the reason."""


class BackgroundTasks:
    """A set of asyncio tasks that are awaited and cancelled together."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self, timeout_s: float) -> None:
        """Waits up to ``timeout_s`` seconds for all tasks, then cancels the tasks that are left. If a cancelled task runs a command, the
        command is killed."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        rest = list(self._tasks)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


class SitePilots:
    """The pilots of one site controller, and the access to their site."""

    def __init__(self, name: str, site: Site, backend: Backend, access: SiteAccess, master: MasterEndpoint) -> None:
        self.name = name
        self.site = site
        self.backend = backend
        self.access = access
        self.master = master
        self.credentials = CredentialWatch(name, lambda: self.site, access, master.tell)
        self.records: dict[str, PilotRecord] = {}
        self.changed = asyncio.Event()
        """Is set each time a pilot ends or gets a job."""
        self.removals = BackgroundTasks()
        self._troubles: dict[str, tuple[str, str]] = {}
        """Text and code of the trouble of each activity."""
        self._reported_trouble = False

    def add(self, pilot: PilotRecord) -> None:
        self.records[pilot.id] = pilot
        self.credentials.start()

    def of_batch(self, batch: SubmittedBatch) -> list[PilotRecord]:
        return [pilot for pilot in self.records.values() if pilot.batch is not None and pilot.batch.tag == batch.tag]

    def any_uncancelled(self, pilots: Iterable[PilotRecord]) -> bool:
        return any(not pilot.cancelled and pilot.id in self.records for pilot in pilots)

    def remove(self, pilot: PilotRecord, end: i.PilotEndReported) -> None:
        """Removes a pilot and reports its end to the machine. After the last pilot of a batch, also removes the files of the batch."""
        if self.records.pop(pilot.id, None) is None:
            return
        self.changed.set()
        self.master.tell(end)
        if pilot.batch is not None and not self.of_batch(pilot.batch):
            self.removals.start(self.remove_batch(pilot.batch))
        if not self.records:
            self.credentials.stop()
            self._troubles.clear()
            self._tell_trouble()

    async def remove_batch(self, batch: SubmittedBatch) -> None:
        """Removes the files of a batch, because they include keys. Repeats the removal until the site answers, and then forgets the
        batch."""
        pause_s = RETRY_S
        while not self.of_batch(batch):
            try:
                await self.guard(lambda: self.access.remove_files(batch))
            except CommandRefused as refusal:
                log.warning("site %s: %s is left there: %s", self.name, batch.folder, refusal)
            except UnclearAnswer as problem:
                log.info("site %s: %s is still there: %s", self.name, batch.folder, problem)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_S * MAX_BACKOFF)
                continue
            self.master.batches.remove(batch)
            return

    # --- commands -------------------------------------------------------------------------------------------------------------------

    async def guard(self, action: Callable[[], Awaitable[Result]]) -> Result:
        """Runs an action and turns unexpected exceptions into UnclearAnswer. So a defect in a backend does not end the control of its
        pilots."""
        try:
            return await action()
        except (UnclearAnswer, CommandRefused):
            raise
        except Exception as problem:
            log.exception("site %s: its answer could not be read", self.name)
            raise UnclearAnswer("its answer could not be read; see the master's log") from problem

    async def ask_all(self, make: Callable[[], Iterable[CommandExchange[Any]]], activity: str = "") -> tuple[dict[Any, Any], bool]:
        """Runs the command exchanges that ``make`` returns. Returns their merged answers, and True if all answers were clear. If
        ``activity`` is given, reports problems as trouble with this activity."""

        async def ask() -> list[dict[Any, Any] | None]:
            return list(await asyncio.gather(*(self._ask(exchange, activity) for exchange in make())))

        try:
            answers = await self.guard(ask)
        except UnclearAnswer as problem:
            if activity:
                self.report(activity, problem)
            return {}, False
        return {key: value for answer in answers if answer for key, value in answer.items()}, None not in answers

    async def _ask(self, exchange: CommandExchange[Any], activity: str) -> dict[Any, Any] | None:
        try:
            return dict(await self.guard(lambda: self.access.ask(exchange)) or {})
        except (UnclearAnswer, CommandRefused) as problem:
            if activity:
                self.report(activity, problem)
            return None

    # --- trouble --------------------------------------------------------------------------------------------------------------------

    def report(self, activity: str, problem: UnclearAnswer | CommandRefused, code: str = "") -> None:
        """Reports trouble with an activity to the machine. The report stays until the activity succeeds."""
        self._troubles[activity] = str(problem), code or problem.code
        self._tell_trouble()

    def clear_trouble(self, activity: str) -> None:
        self._troubles.pop(activity, None)
        self._tell_trouble()

    def _tell_trouble(self) -> None:
        found = next((self._troubles[activity] for activity in (SUBMITTING, STAGING, POLLING) if activity in self._troubles), None)
        if found or self._reported_trouble:
            self._reported_trouble = found is not None
            self.master.tell(i.SiteReachability(self.name, *(found or ("",))))
