"""Submits, adopts and cancels the pilots of one site. When the master ends, cancels all of them.

The machine decides. The controller carries out the decisions and reports the answers of the site. If an answer is unclear, the controller
changes nothing and asks again. A pilot batch is written to disk before it is submitted. If the answer to the submission is lost, the
controller first looks for the batch by its tag. It submits the batch again only if the site does not have it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from pilotfish.backends.interface import COMMAND_TIMEOUT_S, Backend, CommandRefused, PilotBatch, UnclearAnswer
from pilotfish.master.sites.pilot_monitor import PilotMonitor
from pilotfish.master.sites.site_access import SiteAccess
from pilotfish.master.sites.site_pilots import (
    COLLECT_S,
    MAX_BACKOFF,
    RETRY_S,
    STAGING,
    SUBMITTING,
    BackgroundTasks,
    MasterEndpoint,
    PilotRecord,
    SitePilots,
)
from pilotfish.master.sites.submitted_batches import SubmittedBatch
from pilotfish.model import inputs as i
from pilotfish.model.site import BATCH_LIMIT, CANCELLED, REFUSED, VANISHED, PilotSize, Site

log = logging.getLogger(__name__)

Result = TypeVar("Result")

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
"""Keys of a site whose values a controller cannot change. If the user changes one of them, a new controller serves new pilots."""
SUBMITTED_S = 8.0
"""Seconds that ``end`` waits for submissions and look-ups. If they are still incomplete, the next master continues them."""
CANCELLED_S = 45.0
"""Seconds that ``end`` waits for cancelled pilots. This is long enough for a batch system to kill a job that ignores SIGTERM."""
REMOVED_S = 5.0
"""Seconds that ``end`` waits for the removal of files."""
MIN_LOOKUPS = 2
"""A batch is submitted again only after this many clear look-ups have not found it."""
ARRIVAL_S = COMMAND_TIMEOUT_S + 10.0
"""A submission without an answer can still reach the site during this many seconds. It is not repeated before they are over."""
AVOID_S = 60.0
"""A host that failed gets no pilots for this many seconds, if the site has other hosts."""
PAUSE_STEP_S = 1.0


class SiteController:
    def __init__(self, name: str, site: Site, backend: Backend, access: SiteAccess, master: MasterEndpoint) -> None:
        self._pilots = SitePilots(name, site, backend, access, master)
        self._monitor = PilotMonitor(self._pilots)
        self._new: dict[PilotSize, list[str]] = {}
        self._avoid_until: dict[str, float] = {}
        self._adopted: set[str] = set()
        """Tags of batches of the previous master. This controller submits them or looks for them."""
        self._refreshing: set[str] = set()
        self._refusals = 0
        """Number of consecutive refusals."""
        self._submissions = BackgroundTasks()

    def accepts(self, site: Site) -> bool:
        """Returns True if this controller can still serve the site after the user has changed the site to ``site``."""
        return all(getattr(self._pilots.site, key) == getattr(site, key) for key in CONNECTION_KEYS)

    def change_site(self, site: Site) -> None:
        self._pilots.site = site
        self._pilots.access.change_site(site)

    def submit(self, pilot: str, size: PilotSize) -> None:
        self._add(PilotRecord(pilot))
        if not self._new:
            self._submissions.start(self._make_batches())
        self._new.setdefault(size, []).append(pilot)

    def _add(self, pilot: PilotRecord) -> None:
        self._pilots.add(pilot)
        self._monitor.start()

    def adopt(self, pilot: str, size: PilotSize, job: str) -> None:
        """Takes over a pilot of the previous master, whether its submission is complete, started or not started."""
        batch = self._pilots.master.batches.find(self._pilots.name, pilot)
        if batch is None:
            if job:
                self._add(PilotRecord(pilot, job=job))
            else:
                self.submit(pilot, size)
            return
        self._add(PilotRecord(pilot, batch, batch.pilots.index(pilot) + 1, job, batch.host))
        self._refresh_batch(batch)
        if not job and batch.tag not in self._adopted:
            self._adopted.add(batch.tag)
            arrival_s = min(ARRIVAL_S, batch.sent_at + ARRIVAL_S - time.time())
            self._submissions.start(self._recover(batch, arrival_s) if batch.sent else self._submit(batch))

    def cancel(self, pilot: str) -> None:
        record = self._pilots.records.get(pilot)
        if record is None:
            self._pilots.master.tell(i.PilotEndReported(pilot, True, "was not there"))
            return
        record.cancelled = True
        if record.job:
            self._monitor.cancel(record)
        # A pilot that is already in a batch cannot be cancelled here. It is cancelled as soon as it has a job.
        for waiting in self._new.values():
            if pilot in waiting:
                waiting.remove(pilot)
                self._not_submitted([record])

    def refresh(self) -> None:
        """Writes the credentials of all submitted pilots again, because the endpoints have changed. Agents read their credentials before
        every connection."""
        for pilot in list(self._pilots.records.values()):
            if pilot.batch is not None and pilot.job:
                self._refresh_batch(pilot.batch)

    def _refresh_batch(self, batch: SubmittedBatch) -> None:
        if batch.tag not in self._refreshing:
            self._refreshing.add(batch.tag)
            self._submissions.start(self._stage_again(batch))

    async def _stage_again(self, batch: SubmittedBatch) -> None:
        try:
            await self._retry(partial(self._stage, batch), self._pilots.of_batch(batch), STAGING)
            self._pilots.clear_trouble(STAGING)
        except CommandRefused as refusal:
            self._pilots.report(STAGING, refusal)
        finally:
            self._refreshing.discard(batch.tag)

    # --- new batches ----------------------------------------------------------------------------------------------------------------

    async def _make_batches(self) -> None:
        await asyncio.sleep(COLLECT_S)
        new, self._new = self._new, {}
        max_count = self._pilots.backend.arrays
        for size, pilots in new.items():
            for first in range(0, len(pilots), max_count):
                self._submissions.start(self._start_batch(pilots[first : first + max_count], size))

    async def _start_batch(self, names: list[str], size: PilotSize) -> None:
        pilots = [self._pilots.records[name] for name in names if name in self._pilots.records]
        try:
            batch = await self._retry(partial(self._prepare, pilots, size), pilots, SUBMITTING)
        except CommandRefused as refusal:
            if await self._credentials_valid():
                self._refused(pilots, refusal)
            else:
                self._submissions.start(self._start_batch(names, size))
            return
        if batch is None:
            self._not_submitted(pilots)
            return
        await self._submit(batch)

    async def _prepare(self, pilots: list[PilotRecord], size: PilotSize) -> SubmittedBatch:
        """Makes a batch and writes it to disk. If the submission gets no answer, the controller finds the batch by its tag."""
        await self._pilots.credentials.require_valid()
        host = self._choose_host(pilots)
        try:
            batch = await self._pilots.access.prepare_batch([pilot.id for pilot in pilots], size, host)
        except (UnclearAnswer, CommandRefused):
            self._avoid_until[host] = time.monotonic() + AVOID_S
            raise
        self._avoid_until.pop(host, None)
        batch.sent = False
        self._pilots.master.batches.write(batch)
        for number, pilot in enumerate(pilots, 1):
            pilot.batch, pilot.number = batch, number
        return batch

    def _choose_host(self, pilots: list[PilotRecord]) -> str:
        """Chooses the host with the fewest pilots, if the site has several hosts. Hosts that failed recently come last."""
        for pilot in pilots:
            pilot.host = ""
        loads = Counter(pilot.host for pilot in self._pilots.records.values())
        now = time.monotonic()
        host = min(self._pilots.site.hosts, key=lambda name: (self._avoid_until.get(name, now) > now, loads[name]), default="")
        for pilot in pilots:
            pilot.host = host
        return host

    async def _retry(self, action: Callable[[], Awaitable[Result]], pilots: list[PilotRecord], activity: str) -> Result | None:
        """Repeats an action until its answer is clear. Stops and returns None if all pilots are cancelled. Raises CommandRefused if the
        site refuses the command and a repetition would not help."""
        while self._pilots.any_uncancelled(pilots):
            try:
                return await self._pilots.guard(action)
            except UnclearAnswer as problem:
                self._pilots.report(activity, problem)
            except CommandRefused as refusal:
                if not refusal.later:
                    raise
                self._pilots.report(activity, refusal)
            await self._pause(min(RETRY_S, self._pilots.site.period_s), pilots)
        return None

    async def _pause(self, seconds: float, pilots: list[PilotRecord]) -> None:
        """Sleeps for ``seconds``, or until all of the pilots are cancelled."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0 and self._pilots.any_uncancelled(pilots):
            await asyncio.sleep(min(left_s, PAUSE_STEP_S))

    async def _stage(self, batch: SubmittedBatch) -> bool:
        await self._pilots.credentials.require_valid()
        await self._pilots.access.stage_files(batch)
        return True

    # --- submission -----------------------------------------------------------------------------------------------------------------

    async def _submit(self, batch: SubmittedBatch) -> None:
        pilots = self._pilots.of_batch(batch)
        try:
            if await self._retry(partial(self._stage, batch), pilots, SUBMITTING) is None:
                self._not_submitted(self._pilots.of_batch(batch))
                return
            began = time.monotonic()
            jobs = await self._pilots.guard(partial(self._run_submission, batch))
        except CommandRefused as refusal:
            if refusal.later or not await self._credentials_valid():
                await self._submit_later(batch, refusal)
            else:
                self._refused(pilots, refusal)
            return
        except UnclearAnswer as problem:
            self._pilots.report(SUBMITTING, problem)
            await self._recover(batch, ARRIVAL_S if problem.unfinished else 0.0)
            return
        self._accepted(batch, dict(enumerate(jobs, 1)), time.monotonic() - began)
        await self._recover(batch, 0.0)

    async def _credentials_valid(self) -> bool:
        """Returns True if all credentials are valid. A credential that cannot be checked counts as valid. Is called after the site refused
        a batch: if a credential is not valid, the pilots are not at fault."""
        try:
            return await self._pilots.guard(self._pilots.credentials.check)
        except UnclearAnswer:
            return True

    async def _run_submission(self, batch: SubmittedBatch) -> list[str]:
        batch.sent, batch.sent_at = True, time.time()
        self._pilots.master.batches.write(batch)
        pilots = PilotBatch(batch.tag, len(batch.pilots), batch.size, batch.folder, batch.bundle, batch.host)
        exchange = self._pilots.backend.submit(self._pilots.site, pilots)
        jobs: list[str] = await self._pilots.access.ask(exchange, submission=True)
        return jobs

    async def _submit_later(self, batch: SubmittedBatch, refusal: CommandRefused) -> None:
        """Submits a refused batch again after a pause. The pause is longer after each refusal. A batch of several pilots is divided into
        two batches, because the site possibly accepts smaller batches."""
        self._pilots.report(SUBMITTING, refusal, BATCH_LIMIT)
        self._refusals += 1
        await self._pause(self._pilots.site.period_s * min(MAX_BACKOFF, 2**self._refusals), self._pilots.of_batch(batch))
        pilots = self._pilots.of_batch(batch)
        wanted = [pilot for pilot in pilots if not pilot.cancelled]
        if len(batch.pilots) == 1 or not wanted:
            self._submissions.start(self._submit(batch))
            return
        self._not_submitted([pilot for pilot in pilots if pilot.cancelled])
        for pilot in wanted:
            pilot.batch = None
        names = [pilot.id for pilot in wanted]
        if names[0] != batch.pilots[0]:  # A batch is named after its first pilot, so no new batch gets this tag.
            self._pilots.removals.start(self._pilots.remove_batch(batch))
        half = (len(names) + 1) // 2
        for part in filter(None, (names[:half], names[half:])):
            self._submissions.start(self._start_batch(part, batch.size))

    def _accepted(self, batch: SubmittedBatch, jobs: dict[int, str], took_s: float) -> None:
        for pilot in self._pilots.of_batch(batch):
            if not pilot.job and jobs.get(pilot.number):
                pilot.job = jobs[pilot.number]
                self._pilots.changed.set()
                self._pilots.master.tell(i.PilotAccepted(pilot.id, pilot.job, took_s))
                if pilot.cancelled:
                    self._monitor.cancel(pilot)
        if jobs:
            self._refusals = 0
            self._pilots.clear_trouble(SUBMITTING)
            self._monitor.poll_early()

    def _refused(self, pilots: list[PilotRecord], refusal: CommandRefused) -> None:
        """Reports the end of pilots that the site refused. Also clears the reported trouble with submissions, because the refusal is an
        answer of the site."""
        self._pilots.clear_trouble(SUBMITTING)
        for pilot in pilots:
            self._pilots.remove(pilot, i.PilotEndReported(pilot.id, False, f"was refused: {refusal}", cause=REFUSED))

    def _not_submitted(self, pilots: list[PilotRecord]) -> None:
        for pilot in pilots:
            self._pilots.remove(pilot, i.PilotEndReported(pilot.id, True, "cancelled before it was submitted", cause=CANCELLED))

    # --- recovery -------------------------------------------------------------------------------------------------------------------

    async def _recover(self, batch: SubmittedBatch, arrival_s: float) -> None:
        """Looks for the job ids of a batch until all job ids are known, or until it is certain that the site does not have the missing
        jobs.

        The submission can still reach the site during ``arrival_s`` seconds. So no job counts as missing before this time is over.
        """
        clear_answers = 0
        arrives_until = time.monotonic() + arrival_s
        while any(not pilot.job for pilot in self._pilots.of_batch(batch)):
            jobs, clear = await self._find_jobs(batch, SUBMITTING)
            clear_answers += clear
            self._accepted(batch, jobs, 0.0)
            missing = [pilot for pilot in self._pilots.of_batch(batch) if not pilot.job]
            if missing and clear_answers >= MIN_LOOKUPS and time.monotonic() >= arrives_until:
                self._not_found(batch, missing)
                break
            if missing:
                await asyncio.sleep(min(RETRY_S, self._pilots.site.period_s))

    def _not_found(self, batch: SubmittedBatch, missing: list[PilotRecord]) -> None:
        if len(missing) < len(self._pilots.of_batch(batch)):
            # The site knows the other pilots of the batch, so the submission succeeded and must not be repeated.
            for pilot in missing:
                reason = f"{self._pilots.name} does not know it, though it knows others that were submitted with it"
                self._pilots.remove(pilot, i.PilotEndReported(pilot.id, False, reason, witnessed=False, cause=VANISHED))
        elif self._pilots.any_uncancelled(missing):
            self._submissions.start(self._submit(batch))
        else:
            self._not_submitted(missing)

    async def _find_jobs(self, batch: SubmittedBatch, activity: str = "") -> tuple[dict[int, str], bool]:
        """Returns the job ids of a batch by pilot number, and True if the answer is clear. Asks only the host of the batch."""
        site = replace(self._pilots.site, hosts=(batch.host,)) if batch.host else self._pilots.site
        return await self._pilots.ask_all(lambda: self._pilots.backend.find(site, batch.tag), activity)

    # --- end ----------------------------------------------------------------------------------------------------------------------------

    def remove_batch(self, batch: SubmittedBatch) -> None:
        """Removes a batch whose pilots the machine does not know: cancels its jobs and removes its files."""
        self._pilots.removals.start(self._remove_batch(batch))

    async def _remove_batch(self, batch: SubmittedBatch) -> None:
        clear = not batch.sent
        while not clear:
            jobs, clear = await self._find_jobs(batch)
            for number, job in jobs.items():
                log.warning("site %s: job %s belongs to an unknown pilot and is cancelled", self._pilots.name, job)
                self._monitor.cancel(PilotRecord(batch.pilots[number - 1], batch, number, job, batch.host))
            if not clear:
                await asyncio.sleep(RETRY_S * MAX_BACKOFF)
        await self._pilots.remove_batch(batch)

    async def end(self) -> None:
        """Cancels all pilots and closes the connections. Waits for a limited time. If some pilots are left, the next master finds them."""
        try:
            await self._end_pilots()
        finally:
            await self._pilots.access.close()

    async def _end_pilots(self) -> None:
        records = self._pilots.records
        for pilot in list(records):
            self.cancel(pilot)
        await self._wait_until(lambda: all(pilot.job for pilot in records.values()), SUBMITTED_S)
        # The submissions end first, because a hanging submission would delay the cancellations.
        await self._submissions.end(0.0)
        await self._wait_until(lambda: not any(pilot.job for pilot in records.values()), CANCELLED_S)
        if records:
            log.warning("site %s: left there: %s", self._pilots.name, ", ".join(pilot.job or pilot.id for pilot in records.values()))
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
