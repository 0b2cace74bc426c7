"""Fakes a batch system and the access to it, for tests of a site controller. Answers can be lost, refused or garbled."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from pilotfish.backends.interface import (
    QUEUED,
    Command,
    CommandExchange,
    CommandOutput,
    CommandRefused,
    JobStatus,
    PilotBatch,
    UnclearAnswer,
)
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.master.sites import pilot_monitor, site_controller, site_pilots
from pilotfish.master.sites.command_runner import CommandRunner
from pilotfish.master.sites.site_controller import SiteController
from pilotfish.master.sites.site_pilots import MasterEndpoint
from pilotfish.master.sites.submitted_batches import BatchRegistry, SubmittedBatch
from pilotfish.model import inputs as i
from pilotfish.model.backend_traits import UNKNOWN_TRAITS
from pilotfish.model.site import PilotSize, Site

PERIOD_S = 0.02
PATIENCE_S = 60.0
"""Seconds until a test counts as hung; not a measure of speed."""
ONE = PilotSize()
SILENCE = UnclearAnswer("slurmctld does not answer")
Kind = TypeVar("Kind")


@dataclass
class Job:
    tag: str
    number: int
    host: str = ""
    sighting: JobStatus = field(default_factory=lambda: JobStatus(QUEUED, "no reason"))
    listed: bool = True


class FakeSite:
    """Backend and site access in one. ``faults``: errors of the next commands by kind, None for success; ``down``: error of all
    commands."""

    traits = UNKNOWN_TRAITS

    def __init__(self, arrays: int = 1) -> None:
        self.arrays = arrays
        self.jobs: dict[str, Job] = {}
        self.past_jobs: dict[str, JobStatus] | None = {}
        self.commands: list[tuple[str, ...]] = []
        self.times: dict[str, list[float]] = {}
        self.faults: dict[str, list[Exception | None]] = {}
        self.down: Exception | None = None
        self.lost_replies = 0
        """Number of next submissions that are accepted while the answer is lost."""
        self.garbled: dict[str, int] = {}
        """By kind of command: number of next answers that are unreadable."""
        self.room: float = float("inf")
        """Maximum jobs; a batch is accepted as a whole or not at all."""
        self.hears_cancel = True
        self.machines = 1
        """Number of machines to query, each with jobs of its own."""
        self.places: list[str] = []
        """Hosts of the submitted batches."""
        self.deaf: set[str] = set()
        """Hosts that do not answer."""
        self.open: asyncio.Event = asyncio.Event()
        """Submissions hang while this is not set."""
        self.open.set()
        self.quiet: asyncio.Event = asyncio.Event()
        """Last lines of pilots cannot be read while this is not set; ``listening`` counts the requests."""
        self.quiet.set()
        self.listening = 0
        self.staged: list[str] = []
        self.cleared: list[str] = []
        self.words: dict[tuple[str, int], str] = {}
        self.described: list[Site] = []
        self.closed = 0

    def asked(self, kind: str) -> list[tuple[str, ...]]:
        return [argv[1:] for argv in self.commands if argv[0] == kind]

    def job_of(self, tag: str, number: int = 1) -> str:
        return next(name for name, job in self.jobs.items() if (job.tag, job.number) == (tag, number))

    def show(self, *jobs: str, **sighting: Any) -> None:
        """Set the status of these jobs, or of all."""
        for name in jobs or list(self.jobs):
            self.jobs[name].sighting = JobStatus(**sighting)

    # --- Backend ------------------------------------------------------------------------------------------------------------------------

    def submit(self, site: Site, batch: PilotBatch) -> CommandExchange[list[str]]:
        return CommandExchange(
            Command(("submit", batch.tag, str(batch.count)), at=batch.host), lambda answer: list(json.loads(answer.stdout))
        )

    def query(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[dict[str, JobStatus]]]:
        if site.hosts:
            return [CommandExchange(Command(("query", *mine), at=host), _read_sightings) for host, mine in self._by_host(jobs).items()]
        return [CommandExchange(Command(("query", *jobs[n :: self.machines])), _read_sightings) for n in range(self.machines)]

    def past(self, site: Site, jobs: Sequence[str]) -> CommandExchange[dict[str, JobStatus]] | None:
        return CommandExchange(Command(("past", *jobs)), _read_sightings) if self.past_jobs is not None else None

    def cancel(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[None]]:
        return [CommandExchange(Command(("cancel", *mine), at=host), lambda answer: None) for host, mine in self._by_host(jobs).items()]

    def find(self, site: Site, tag: str) -> list[CommandExchange[dict[int, str]]]:
        return [CommandExchange(Command(("find", tag), at=host), _read_numbers) for host in site.hosts or ("",)]

    def _by_host(self, jobs: Sequence[str]) -> dict[str, list[str]]:
        hosts: dict[str, list[str]] = {}
        for job in jobs:
            hosts.setdefault(self.jobs[job].host if job in self.jobs else "", []).append(job)
        return hosts

    # --- Access -------------------------------------------------------------------------------------------------------------------------

    async def ask(self, exchange: CommandExchange[Any], submission: bool = False) -> Any:
        kind = exchange.command.argv[0]
        assert submission == (kind == "submit")
        return exchange.read(await self._run(exchange.command.argv, exchange.command.at))

    async def prepare_batch(self, pilots: Sequence[str], size: PilotSize, host: str) -> SubmittedBatch:
        self.places.append(host)
        self._stumble("place")
        if host in self.deaf:
            raise SILENCE
        tag = f"pf-{pilots[0]}"
        return SubmittedBatch("pond", tag, list(pilots), size, f"/site/{tag}", "/site/agent", host)

    async def stage_files(self, batch: SubmittedBatch) -> None:
        self._stumble("stage")
        self.staged.append(batch.tag)

    async def read_log_tail(self, batch: SubmittedBatch, number: int) -> str:
        self.listening += 1
        if self.faults.get("words"):
            self._stumble("words")
        await self.quiet.wait()
        return self.words.get((batch.tag, number), "")

    async def remove_files(self, batch: SubmittedBatch) -> None:
        self._stumble("clear")
        self.cleared.append(batch.tag)

    def change_site(self, site: Site) -> None:
        self.described.append(site)

    async def close(self) -> None:
        self.closed += 1

    # --- the system itself --------------------------------------------------------------------------------------------------------------

    def _stumble(self, kind: str) -> None:
        fault = self.faults[kind].pop(0) if self.faults.get(kind) else self.down
        if fault is not None:
            raise fault

    async def _run(self, argv: tuple[str, ...], host: str) -> CommandOutput:
        kind, *words = argv
        self.commands.append(argv)
        self.times.setdefault(kind, []).append(time.monotonic())
        await asyncio.sleep(0)
        if kind == "submit":
            await self.open.wait()
        self._stumble(kind)
        if host in self.deaf:
            raise SILENCE
        said = self._run_submit(words[0], words[1], host) if kind == "submit" else getattr(self, f"_run_{kind}")(*words)
        if self.garbled.get(kind):
            self.garbled[kind] -= 1
            return CommandOutput(0, "<html>")
        return CommandOutput(0, json.dumps(said))

    def _run_submit(self, tag: str, count: str, host: str) -> list[str]:
        if sum(job.listed for job in self.jobs.values()) + int(count) > self.room:
            raise CommandRefused("AssocMaxSubmitJobLimit", later=True)
        made = {f"{len(self.jobs) + n}": Job(tag, n, host) for n in range(1, int(count) + 1)}
        self.jobs.update(made)
        if self.lost_replies:
            self.lost_replies -= 1
            raise UnclearAnswer("the connection broke")
        return list(made)

    def _run_query(self, *jobs: str) -> dict[str, Any]:
        shown = {name: self.jobs[name] for name in jobs if name in self.jobs and self.jobs[name].listed}
        return {name: _row(job.sighting) for name, job in shown.items()}

    def _run_past(self, *jobs: str) -> dict[str, Any]:
        assert self.past_jobs is not None
        return {name: _row(self.past_jobs[name]) for name in jobs if name in self.past_jobs}

    def _run_cancel(self, *jobs: str) -> None:
        for name in jobs:
            if self.hears_cancel and name in self.jobs:
                self.jobs[name].listed = False

    def _run_find(self, tag: str) -> dict[int, str]:
        return {job.number: name for name, job in self.jobs.items() if job.tag == tag and job.listed}


def _row(sighting: JobStatus) -> list[Any]:
    return [sighting.phase, sighting.reason, sighting.well, sighting.expired]


def _read_numbers(answer: CommandOutput) -> dict[int, str]:
    return {int(number): job for number, job in json.loads(answer.stdout).items()}


def _read_sightings(answer: CommandOutput) -> dict[str, JobStatus]:
    return {name: JobStatus(*row) for name, row in json.loads(answer.stdout).items()}


class RunnerSite(FakeSite):
    """A site whose commands go through a real runner: submissions run a script, all others do nothing."""

    def __init__(self, runner: CommandRunner, script: str) -> None:
        super().__init__()
        self.runner = runner
        self.script = script

    async def ask(self, exchange: CommandExchange[Any], submission: bool = False) -> Any:
        await self.runner.run(Command(("sh", "-c", self.script if submission else "true")), submission)
        return await super().ask(exchange, submission)


class Desk:
    """A controller of site ``pond``, the inputs it reported, and the pilots that have joined."""

    def __init__(self, directory: Path, arrays: int = 1, **about: Any) -> None:
        self.directory = directory
        self.site = FakeSite(arrays)
        self.about = Site(backend="slurm", **{"period_s": PERIOD_S, **about})
        self.told: list[i.Input] = []
        self.joined: set[str] = set()
        self.beating: set[str] = set()
        self.restart()

    def restart(self) -> None:
        """Kill the controller with all its tasks. The new one knows only what is on disk."""
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        batches = BatchRegistry(self.directory / "orders")
        self.master = MasterEndpoint(self.told.append, self._known, batches)
        access: Any = self.site
        self.controller = SiteController("pond", self.about, self.site, access, self.master)

    def _known(self, pilot: str) -> Pilot:
        known = Pilot(pilot, "pond", ONE, 0.0, joined=int(pilot in self.joined))
        known.workers = [f"{pilot}.1"] if pilot in self.beating else []
        return known

    def order_files(self) -> list[str]:
        return sorted(path.stem for path in (self.directory / "orders").glob("*.json"))

    def submit(self, *pilots: str, size: PilotSize = ONE) -> None:
        for pilot in pilots:
            self.controller.submit(pilot, size)

    def heard(self, kind: type[Kind]) -> list[Kind]:
        return [item for item in self.told if isinstance(item, kind)]

    def gone(self) -> dict[str, i.PilotEndReported]:
        found = self.heard(i.PilotEndReported)
        assert len({item.pilot for item in found}) == len(found), f"told twice: {found}"
        return {item.pilot: item for item in found}

    def jobs(self) -> dict[str, str]:
        return {item.pilot: item.job for item in self.heard(i.PilotAccepted)}

    def trouble(self) -> str:
        failure_counts = self.heard(i.SiteReachability)
        return failure_counts[-1].trouble if failure_counts else ""

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, (self.told[-5:], self.site.commands[-5:])
            await asyncio.sleep(0.002)

    async def looked(self, times: int) -> None:
        """Wait for this number of further queries, and for the answer to the last but one."""
        before = len(self.site.times.get("query", []))
        await self.until(lambda: len(self.site.times.get("query", [])) >= before + times + 1)


@contextmanager
def hasty() -> Iterator[None]:
    """Shorten delays of seconds to one period."""
    with ExitStack() as stack:
        for module in (site_pilots, pilot_monitor, site_controller):
            for name, value in {"RETRY_S": PERIOD_S, "COLLECT_S": 0.005}.items():
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, value))
        yield


def story(tell: Callable[[Desk], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    return story_at()(tell)


def story_at(**desk: Any) -> Callable[[Callable[[Desk], Coroutine[Any, Any, None]]], Callable[[Path], None]]:
    """Make a test that runs on an event loop. At its end, the controller may have no tasks left except those that ``end`` stops."""

    def wrap(tell: Callable[[Desk], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
        def test(tmp_path: Path) -> None:
            async def whole() -> None:
                strange: list[dict[str, Any]] = []
                asyncio.get_running_loop().set_exception_handler(lambda loop, context: strange.append(context))
                made = Desk(tmp_path, **desk)
                await tell(made)
                made.site.faults, made.site.down, made.site.hears_cancel = {}, None, True
                made.site.open.set()
                made.site.deaf.clear()
                await made.controller.end()
                await made.until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
                assert not strange, strange

            with hasty():
                asyncio.run(whole())

        test.__name__, test.__doc__ = tell.__name__, tell.__doc__
        return test

    return wrap
