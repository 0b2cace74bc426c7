"""Runs the real machine with simulated hosts, links and clock.

The same machine and policies as in a live master make all decisions. There are no agents and no faults. A simulation of a million tasks
takes about a minute.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import Any

from pilotfish.core.machine import Machine, Turn
from pilotfish.core.pilots.factory_interface import PilotProposal, WithdrawalProposal
from pilotfish.core.policy_interface import HoldProposal, Policy
from pilotfish.core.state import State
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.contents import Content
from pilotfish.model.ids import INDEX_MASK
from pilotfish.model.settings import PoolSettings
from pilotfish.model.site import PilotSize
from pilotfish.model.task import CORES, Request, RunOptions, TaskSpec
from pilotfish.sim.shared_link import SharedLink, SimulatedTransfer, SiteDisk
from pilotfish.sim.workload import SimulatedSite, Workload

CLIENT_LINK = 1
FIRST_LINK = 10
NEVER = float("inf")
MAX_IDLE_TURNS = 500
MEASURE_S, MEASURE_PART = 2.0, 0.01
"""The bandwidth of a busy link is measured every ``MEASURE_S`` seconds. For a link that has been busy for T seconds, the interval is T *
``MEASURE_PART`` if this is longer."""
SETTINGS = PoolSettings(beat_s=3600.0, lease_s=1e9, linger_s=1e9)
"""Heartbeats and leases are practically switched off, because simulated hosts never fail."""


@dataclass(slots=True)
class TaskInterval:
    """Times of one task at one host: assignment, start and end."""

    task: int
    site: str
    host: int
    assigned_at: float
    started_at: float
    ended_at: float


@dataclass(slots=True)
class WorldResult:
    makespan_s: float = 0.0
    sent: dict[str, float] = field(default_factory=dict)
    """Bytes sent over the link of each site."""
    intervals: list[TaskInterval] = field(default_factory=list)
    """Empty if ``record_intervals`` is false."""
    transfers: dict[str, list[SimulatedTransfer]] = field(default_factory=dict)
    """Transfers to each site, in the order of their ends."""
    busy_s: float = 0.0
    """Core-seconds of attempts that ended at a host."""


class OneTimeProvisioner:
    """A provisioner that requests the given pilots once."""

    def __init__(self, proposals: Sequence[PilotProposal]) -> None:
        self._proposals = proposals

    def propose(self, state: State, now: float) -> Sequence[PilotProposal | WithdrawalProposal | HoldProposal]:
        proposals, self._proposals = self._proposals, ()
        return proposals

    def next_look_at(self, state: State, now: float) -> float | None:
        return None

    def standings(self, state: State, now: float) -> dict[str, dict[str, object]]:
        return {}


class SimulatedAttempt:
    """One attempt of a task. ``missing_files``: how many of its files are not at the site yet."""

    __slots__ = ("assigned_at", "cores", "has_cores", "key", "missing_files", "number", "started_at", "task")

    def __init__(self, task: int, number: int, cores: float, assigned_at: float) -> None:
        self.task = task
        self.number = number
        self.key = task, number
        self.cores = cores
        self.assigned_at = assigned_at
        self.has_cores = False
        self.started_at = -1.0
        self.missing_files = 0


class SimulatedHost:
    """Simulates one worker. Like an agent, it fetches files, starts tasks on its free cores, and reports results."""

    def __init__(self, world: LightWorld, link: int, site: SimulatedSite, speed: float, cores: float) -> None:
        self.world = world
        self.link = link
        self.site = site
        self.speed = speed
        self._free = float(cores)
        self._specs: dict[int, m.SentSpec] = {}
        self._queue: deque[SimulatedAttempt] = deque()
        """Assigned attempts that have no cores yet, in the order of assignment."""
        self._attempts: dict[tuple[int, int], SimulatedAttempt] = {}
        self._sent = 0
        self._just_started: list[SimulatedAttempt] = []
        """Attempts that started since the last heartbeat."""
        self._draining = False

    def handle(self, message: m.Message) -> None:
        if type(message) is m.Assign:
            self._take(message)
        elif type(message) is m.Kill:
            for task, number in message.items:
                self._drop(task, number)
        elif type(message) is m.Recall:
            self._return_attempts(message)
        elif type(message) is m.Drain:
            self._draining = True
            self._return_attempts(m.Recall([attempt.key for attempt in self._queue]))
            self._leave_when_done()

    def add_waiting(self, attempt: SimulatedAttempt, contents: tuple[Content, ...] = ()) -> None:
        """Adds an attempt that was assigned before the simulation began, and that still waits for cores or files."""
        self._attempts[attempt.key] = attempt
        if contents:
            self._fetch(attempt, contents)
        self._queue.append(attempt)

    def add_running(self, attempt: SimulatedAttempt, left_s: float) -> None:
        """Adds an attempt that started before the simulation began."""
        self._attempts[attempt.key] = attempt
        attempt.has_cores = True
        self._free -= attempt.cores
        self.world.after(left_s, self._end, attempt, self.world.now - attempt.started_at + left_s)

    @property
    def busy(self) -> bool:
        return bool(self._attempts)

    def leave(self) -> None:
        """Leaves the pool at the end of the pilot's walltime."""
        if self._draining and not self._attempts:
            return
        cut_off = [(a.task, a.number, max(0.0, self.world.now - a.started_at)) for a in self._attempts.values() if a.started_at >= 0]
        self._attempts.clear()
        self._queue.clear()
        self.world.deliver(i.AgentMessage(self.link, m.Leave("its time is over", cut_off), []))

    def _take(self, message: m.Assign) -> None:
        for spec in message.specs:
            self._specs[spec.spec] = spec
        for sent in message.tasks:
            spec = self._specs[sent.spec]
            attempt = SimulatedAttempt(sent.task, sent.attempt, sent.cores or spec.needs.get("cores", 0.0), self.world.now)
            self._attempts[attempt.key] = attempt
            if spec.contents or sent.contents:
                self._fetch(attempt, (*spec.contents, *sent.contents))
            self._queue.append(attempt)
        self.start_attempts()

    def _fetch(self, attempt: SimulatedAttempt, contents: tuple[Content, ...]) -> None:
        disk = self.world.disks[self.site.name]
        self.world.note_fetching(self.site.name)
        for content in contents:
            if not disk.has(content.digest):
                attempt.missing_files += 1
                if disk.fetch(content.digest, content.size, lambda: self._arrived(attempt)):
                    # Only the host that requested the file first reports it to the master.
                    report = i.AgentMessage(self.link, m.CacheReport([content.digest], []), [])
                    disk.fetch(content.digest, content.size, partial(self.world.deliver, report))

    def _arrived(self, attempt: SimulatedAttempt) -> None:
        attempt.missing_files -= 1
        if not attempt.missing_files:
            self._start_if_ready(attempt)

    def start_attempts(self) -> None:
        """Gives cores to queued attempts in the order of the queue. As in an agent, an attempt occupies cores even while its files are in
        transfer."""
        while self._queue and self._free >= self._queue[0].cores:
            attempt = self._queue.popleft()
            if attempt.key in self._attempts:
                self._free -= attempt.cores
                attempt.has_cores = True
                self._start_if_ready(attempt)

    def _start_if_ready(self, attempt: SimulatedAttempt) -> None:
        """Starts an attempt if it has both its cores and its files."""
        if attempt.has_cores and not attempt.missing_files and attempt.key in self._attempts:
            attempt.started_at = self.world.now + self.site.launch_s
            seconds = self.world.seconds(attempt.task, self)
            self.world.after(self.site.launch_s + seconds, self._end, attempt, seconds)
            if self.world.heartbeat_s:
                if not self._just_started:
                    self.world.after(self.world.heartbeat_s, self._send_heartbeat)
                self._just_started.append(attempt)

    def _send_heartbeat(self) -> None:
        """Reports attempts that started and still run, like an agent's heartbeat."""
        just_started, self._just_started = self._just_started, []
        started = [attempt.key for attempt in just_started if attempt.key in self._attempts]
        if started:
            self.world.deliver(i.AgentMessage(self.link, m.Heartbeat(started), []))

    def _end(self, attempt: SimulatedAttempt, seconds: float) -> None:
        if self._attempts.pop(attempt.key, None) is None:
            return
        self._free += attempt.cores
        wall_us = int(seconds * 1e6)
        result = m.ResultItem(attempt.task, attempt.number, None, wall_us, wall_us, 0, 0)
        self._sent += 1
        self.world.note_ended(self, attempt)
        self.world.deliver(i.AgentMessage(self.link, m.Results(self._sent, [result]), [b""]))
        if self._queue:
            self.start_attempts()
        elif self._draining:
            self._leave_when_done()

    def _leave_when_done(self) -> None:
        if not self._attempts:
            self.world.deliver(i.AgentMessage(self.link, m.Leave("has done what it had"), []))

    def _drop(self, task: int, number: int) -> None:
        attempt = self._attempts.pop((task, number), None)
        if attempt is not None and attempt.has_cores:
            self._free += attempt.cores
            self.start_attempts()

    def _return_attempts(self, message: m.Recall) -> None:
        wanted = self._attempts.keys() & set(message.items)
        returned = [attempt for attempt in self._queue if attempt.key in wanted]
        for attempt in returned:
            self._queue.remove(attempt)
            del self._attempts[attempt.key]
        if returned:
            self.world.deliver(i.AgentMessage(self.link, m.Returned([attempt.key for attempt in returned]), []))


class LightWorld:
    heartbeat_s = 0.0
    """Maximum seconds from the start of an attempt to the heartbeat that reports this start. 0 means no heartbeats."""
    turn_s = 0.005
    """Inputs that arrive within this many seconds are handled in one turn, as in a live master."""

    def __init__(
        self, sites: Sequence[SimulatedSite], work: Workload, policy: Policy, seed: int = 0, *, record_intervals: bool = False
    ) -> None:
        self.now = 0.0
        self.work = work
        self.rng = random.Random(f"rehearsal {seed}")
        pilots = [
            PilotProposal(site.name, PilotSize(cores=site.cores, walltime_s=site.walltime_s), "for the simulation")
            for site in sites
            for _ in range(site.hosts)
        ]
        self.machine = Machine(State(), policy, OneTimeProvisioner(pilots), SETTINGS)
        self.sites = {site.name: site for site in sites}
        self.links = {site.name: SharedLink(self, site.bandwidth, site.latency_s) for site in sites}
        self.disks = {site.name: SiteDisk(self.links[site.name], site.files) for site in sites}
        self.hosts: dict[int, SimulatedHost] = {}
        transfers = {name: disk.transfers for name, disk in self.disks.items()}
        self.result = WorldResult(sent=dict.fromkeys(self.sites, 0.0), transfers=transfers)
        self._record_intervals = record_intervals
        self._measured: dict[str, float] = {}
        """For each site whose link is being measured: the time at which the measurement began."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._inbox: list[i.Input] = []
        self._wake_at = NEVER
        self._idle_turns = 0
        """Number of consecutive turns without any input."""

    # --- time -------------------------------------------------------------------------------------------------------------------------

    def after(self, seconds: float, action: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heappush(self._heap, (self.now + seconds, self._count, action, arguments))

    def run(self) -> WorldResult:
        self.start()
        self.advance()
        state = self.machine.state
        if state.unfinished:
            raise RuntimeError(f"{state.unfinished} tasks were left: nobody could run them")
        for site in list(self._measured):
            self.result.sent[site] += self.links[site].measure()[0]
        self.result.makespan_s = max((run.ended_at or self.now for run in state.runs.values()), default=self.now)
        return self.result

    def start(self) -> None:
        self._perform(self.machine.start(self.now))
        self._submit()

    def advance(self, until: float = NEVER, left: int = 0) -> None:
        """Simulates until the time ``until``. Stops earlier if only ``left`` tasks are unfinished, or if no task can run any more."""
        heap, state = self._heap, self.machine.state
        while ((heap and state.unfinished > left) or self._inbox) and heap[0][0] <= until:
            self.now, _, action, arguments = heappop(heap)
            action(*arguments)

    def seconds(self, task: int, host: SimulatedHost) -> float:
        """Returns the seconds that a task takes at a host."""
        return self.work.seconds[task & INDEX_MASK] / host.speed

    # --- the master -------------------------------------------------------------------------------------------------------------------

    def deliver(self, item: i.Input) -> None:
        self._inbox.append(item)
        if len(self._inbox) == 1:
            self._idle_turns = 0
            self.after(self.turn_s, self._turn)

    def _turn(self) -> None:
        inbox, self._inbox = self._inbox, []
        self._perform(self.machine.handle(inbox, self.now))

    def _perform(self, turn: Turn) -> None:
        hosts = self.hosts
        for effect in turn.effects:
            if type(effect) is e.Send:
                host = hosts.get(effect.link)
                if host is not None:
                    host.handle(effect.message)
            elif type(effect) is e.SubmitPilot:
                self._start_pilot(effect)
            elif type(effect) is e.CancelPilot:
                self.deliver(i.PilotEndReported(effect.pilot, True, "it was cancelled"))
        deadline = self.machine.deadline
        if deadline is not None and (deadline < self._wake_at or self._wake_at <= self.now):
            self._wake_at = max(deadline, self.now)
            self.after(self._wake_at - self.now, self._alarm, self._wake_at)

    def _alarm(self, at: float) -> None:
        if at != self._wake_at or self._inbox:
            return
        self._idle_turns += 1
        if not self._idle_turns % MAX_IDLE_TURNS and all(action == self._alarm for _, _, action, _ in self._heap):
            self._heap.clear()  # without this, the machine would wake again and again for tasks that no host can run
            return
        self._wake_at = NEVER
        self._turn()

    # --- pilots and hosts -------------------------------------------------------------------------------------------------------------

    def _start_pilot(self, effect: e.SubmitPilot) -> None:
        site = self.sites[effect.site]
        wait_s = site.wait_s * self.rng.lognormvariate(0.0, site.wait_spread) if site.wait_s else 0.0
        self.deliver(i.PilotAccepted(effect.pilot, effect.pilot))
        self.after(wait_s, self._join, effect.pilot, site)

    def _join(self, pilot: str, site: SimulatedSite) -> None:
        speed = site.speed * self.rng.lognormvariate(0.0, site.spread) if site.spread else site.speed
        name = f"{site.name}-{FIRST_LINK + len(self.hosts)}"
        hello = m.Hello(name, pilot, {CORES: float(site.cores)}, {}, {"benchmark": speed}, site.walltime_s or None, 0.0, [])
        host = self._join_host(site.name, speed, hello)
        if site.files:
            self.deliver(i.AgentMessage(host.link, m.CacheReport(list(site.files), [], True), []))

    def _join_host(self, site: str, speed: float, hello: m.Hello) -> SimulatedHost:
        """Adds a host. It joins the pool with the message ``hello`` and leaves at the end of its walltime."""
        host = self._add_host(site, speed, hello.capacity[CORES])
        self.deliver(i.AgentMessage(host.link, hello, []))
        if hello.ends_in_s:
            self.after(hello.ends_in_s, host.leave)
        return host

    def _add_host(self, site: str, speed: float, cores: float) -> SimulatedHost:
        link = FIRST_LINK + len(self.hosts)
        host = self.hosts[link] = SimulatedHost(self, link, self.sites[site], speed, cores)
        return host

    def note_ended(self, host: SimulatedHost, attempt: SimulatedAttempt) -> None:
        self.result.busy_s += (self.now - attempt.started_at) * attempt.cores
        if self._record_intervals:
            task, number = attempt.task & INDEX_MASK, host.link - FIRST_LINK
            self.result.intervals.append(TaskInterval(task, host.site.name, number, attempt.assigned_at, attempt.started_at, self.now))

    def note_fetching(self, site: str) -> None:
        """Starts to measure the bandwidth of a site's link until the link is idle. Does nothing if a measurement is running."""
        if site not in self._measured:
            self._measured[site] = self.now
            self._schedule_measurement(site)

    def _schedule_measurement(self, site: str) -> None:
        self.after(max(MEASURE_S, MEASURE_PART * (self.now - self._measured[site])), self._measure, site)

    def _measure(self, site: str) -> None:
        link = self.links[site]
        moved, busy_s = link.measure()
        self.result.sent[site] += moved
        if moved > 0 and busy_s > 0:
            self.deliver(i.TransferMeasured(site, moved, busy_s))
        if link.busy:
            self._schedule_measurement(site)
        else:
            del self._measured[site]

    # --- the client -------------------------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        work = self.work
        keys = list(zip(work.kinds or ["task"] * len(work), work.cores or [1] * len(work), strict=True))
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        specs = [TaskSpec("exec", kind, Request(cores=float(cores))) for kind, cores in numbers]
        tasks = [(numbers[key], 0) for key in keys]
        contents = {
            index: tuple(Content(digest, work.files[digest], digest) for digest in needs) for index, needs in enumerate(work.needs) if needs
        }
        deps = {index: list(before) for index, before in enumerate(work.after) if before}
        submit = m.Submit(1, 0, 0, specs, [0] * len(specs), tasks, deps, contents=contents, costs=work.costs)
        self.deliver(i.ClientMessage(CLIENT_LINK, m.Open("simulation", RunOptions(name="simulation")), []))
        self.deliver(i.ClientMessage(CLIENT_LINK, submit, [b""] * (len(specs) + len(tasks))))
        self.deliver(i.ClientMessage(CLIENT_LINK, m.Close(1), []))
