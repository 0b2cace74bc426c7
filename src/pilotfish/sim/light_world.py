"""Drives the real machine with simulated hosts, links and clock.

Decisions are made by the same code as in a live pool: the master's machine with its policy. There are no agents and no faults; a million
tasks run in a minute.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from pilotfish.core.machine import Machine, Turn
from pilotfish.core.pilots.factory_interface import PilotProposal, WithdrawalProposal
from pilotfish.core.policy_interface import HoldProposal, Policy
from pilotfish.core.state import State
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.contents import Content
from pilotfish.model.ids import INDEX_MASK
from pilotfish.model.settings import PoolSettings
from pilotfish.model.site import PilotSize
from pilotfish.model.task import Request, RunOptions, TaskSpec
from pilotfish.sim.shared_link import SharedLink, SiteDisk
from pilotfish.sim.simulated_host import SimulatedHost
from pilotfish.sim.workload import SimulatedSite, Workload

CLIENT_LINK = 1
FIRST_LINK = 10
LATEST_S = float("inf")
TURN_S = 0.005
"""Seconds for which inputs are collected into one turn, as by a live master."""
MOST_LOOKS = 500
MEASURE_S, MEASURE_PART = 2.0, 0.01
"""Seconds between bandwidth measurements of a busy link. During long transfers the interval grows to this fraction of the elapsed time."""
SETTINGS = PoolSettings(beat_s=3600.0, lease_s=1e9, linger_s=1e9)
"""Hosts neither die nor fall silent, so heartbeats and leases are not needed."""


@dataclass(slots=True)
class TaskInterval:
    """One task at one host: times of assignment, start and end."""

    task: int
    place: str
    host: int
    given: float
    began: float
    ended: float


@dataclass(slots=True)
class WorldResult:
    makespan_s: float = 0.0
    turns: int = 0
    sent: dict[str, float] = field(default_factory=dict)
    """Bytes sent over the link of each site."""
    stints: list[TaskInterval] = field(default_factory=list)
    """Recorded only on request."""


class AllPilotsAtOnce:
    """Requests one single-node pilot per host, once."""

    def __init__(self, places: Sequence[SimulatedSite]) -> None:
        self._places = places

    def propose(self, state: State, now: float) -> list[PilotProposal | WithdrawalProposal | HoldProposal]:
        places, self._places = self._places, ()
        return [
            PilotProposal(place.name, PilotSize(cores=place.cores, walltime_s=place.walltime_s), "for the rehearsal")
            for place in places
            for _ in range(place.hosts)
        ]

    def next_look_at(self, state: State, now: float) -> float | None:
        return None

    def standings(self, state: State, now: float) -> dict[str, dict[str, object]]:
        return {}


class LightWorld:
    beat_s = 0.0
    """Seconds between heartbeats that report started tasks; 0: no heartbeats."""

    def __init__(
        self, places: Sequence[SimulatedSite], work: Workload, policy: Policy, seed: int = 0, *, turn_s: float = TURN_S, keep: bool = False
    ) -> None:
        self.now = 0.0
        self.work = work
        self.turn_s = turn_s
        self.dice = random.Random(f"rehearsal {seed}")
        self.machine = Machine(State(), policy, AllPilotsAtOnce(places), SETTINGS)
        self.places = {place.name: place for place in places}
        self.links = {place.name: SharedLink(self, place.bandwidth, place.latency_s) for place in places}
        self.disks = {place.name: SiteDisk(self.links[place.name], place.files) for place in places}
        self.hosts: dict[int, SimulatedHost] = {}
        self.played = WorldResult(sent=dict.fromkeys(self.places, 0.0))
        self.heard: Callable[[State, f.Fact, float], None] | None = None
        """Optional listener for all recorded facts."""
        self._keep = keep
        self._measured: dict[str, float] = {}
        """Time since which a link has been busy, by site."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._inbox: list[i.Input] = []
        self._wake_at = LATEST_S
        self._looks = 0
        """Turns in a row without any input."""

    # --- time -------------------------------------------------------------------------------------------------------------------------

    def after(self, seconds: float, act: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heappush(self._heap, (self.now + seconds, self._count, act, arguments))

    def run(self) -> WorldResult:
        self.begin()
        self.go_on()
        state = self.machine.state
        if state.unfinished:
            raise RuntimeError(f"{state.unfinished} tasks were left: nobody could run them")
        for place in list(self._measured):
            self.played.sent[place] += self.links[place].measure()[0]
        self.played.makespan_s = max((run.ended_at or self.now for run in state.runs.values()), default=self.now)
        return self.played

    def begin(self) -> None:
        self._perform(self.machine.start(self.now))
        self._submit()

    def go_on(self, until: float = LATEST_S, left: int = 0) -> None:
        """Continues while a task can run, until a given time, or until ``left`` tasks are unfinished."""
        heap, state = self._heap, self.machine.state
        while ((heap and state.unfinished > left) or self._inbox) and heap[0][0] <= until:
            self.now, _, act, arguments = heappop(heap)
            act(*arguments)

    def seconds(self, task: int, host: SimulatedHost) -> float:
        """Returns how long a task takes at a host."""
        return self.work.seconds[task & INDEX_MASK] / host.speed

    # --- the master -------------------------------------------------------------------------------------------------------------------

    def tell(self, item: i.Input) -> None:
        self._inbox.append(item)
        if len(self._inbox) == 1:
            self._looks = 0
            self.after(self.turn_s, self._turn)

    def _turn(self) -> None:
        inbox, self._inbox = self._inbox, []
        self._perform(self.machine.handle(inbox, self.now))

    def _perform(self, turn: Turn) -> None:
        self.played.turns += 1
        if self.heard is not None:
            for fact in turn.facts:
                self.heard(self.machine.state, fact, self.now)
        hosts = self.hosts
        for effect in turn.effects:
            if type(effect) is e.Send:
                host = hosts.get(effect.link)
                if host is not None:
                    host.hear(effect.message)
            elif type(effect) is e.SubmitPilot:
                self._start_pilot(effect)
            elif type(effect) is e.CancelPilot:
                self._cancel_pilot(effect.pilot)
        deadline = self.machine.deadline
        if deadline is not None and (deadline < self._wake_at or self._wake_at <= self.now):
            self._wake_at = max(deadline, self.now)
            self.after(self._wake_at - self.now, self._alarm, self._wake_at)

    def _alarm(self, at: float) -> None:
        if at != self._wake_at or self._inbox:
            return
        self._looks += 1
        if not self._looks % MOST_LOOKS and all(act == self._alarm for _, _, act, _ in self._heap):
            self._heap.clear()  # otherwise the machine would wake for ever for tasks that no host can run
            return
        self._wake_at = LATEST_S
        self._turn()

    # --- pilots and hosts -------------------------------------------------------------------------------------------------------------

    def _start_pilot(self, effect: e.SubmitPilot) -> None:
        place = self.places[effect.site]
        wait_s = place.wait_s * self.dice.lognormvariate(0.0, place.wait_spread) if place.wait_s else 0.0
        self.tell(i.PilotAccepted(effect.pilot, effect.pilot))
        self.after(wait_s, self._join, effect.pilot, place)

    def _cancel_pilot(self, pilot: str) -> None:
        self.tell(i.PilotEndReported(pilot, True, "it was cancelled"))

    def _join(self, pilot: str, place: SimulatedSite) -> None:
        link = FIRST_LINK + len(self.hosts)
        speed = place.speed * self.dice.lognormvariate(0.0, place.spread) if place.spread else place.speed
        host = self.hosts[link] = SimulatedHost(self, link, place, speed)
        ends_in = place.walltime_s or None
        info = {"benchmark": speed}
        self.tell(
            i.AgentMessage(link, m.Hello(f"{place.name}-{link}", pilot, {"cores": float(place.cores)}, {}, info, ends_in, 0.0, []), [])
        )
        if place.files:
            self.tell(i.AgentMessage(link, m.CacheReport(list(place.files), [], True), []))
        if ends_in:
            self.after(ends_in, host.leave)

    def ended(self, host: SimulatedHost, task: int, given: float, began: float) -> None:
        if self._keep:
            self.played.stints.append(TaskInterval(task & INDEX_MASK, host.place.name, host.link - FIRST_LINK, given, began, self.now))

    def fetching(self, place: str) -> None:
        """Starts periodic bandwidth measurements of a site's link while it is busy."""
        if place not in self._measured:
            self._measured[place] = self.now
            self._measure_later(place)

    def _measure_later(self, place: str) -> None:
        self.after(max(MEASURE_S, MEASURE_PART * (self.now - self._measured[place])), self._measure, place)

    def _measure(self, place: str) -> None:
        link = self.links[place]
        moved, busy_s = link.measure()
        self.played.sent[place] += moved
        if moved > 0 and busy_s > 0:
            self.tell(i.TransferMeasured(place, moved, busy_s))
        if link.busy:
            self._measure_later(place)
        else:
            del self._measured[place]

    # --- the client -------------------------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        work = self.work
        keys = list(zip(work.kinds or ["task"] * len(work), work.cores or [1] * len(work), strict=True))
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        specs = [TaskSpec("exec", kind, Request(cores=float(cores))) for kind, cores in numbers]
        tasks = [(numbers[key], 0) for key in keys]
        contents = {
            place: tuple(Content(digest, work.files[digest], digest) for digest in needs) for place, needs in enumerate(work.needs) if needs
        }
        deps = {place: list(before) for place, before in enumerate(work.after) if before}
        submit = m.Submit(1, 0, 0, specs, [0] * len(specs), tasks, deps, contents=contents, costs=work.costs)
        self.tell(i.ClientMessage(CLIENT_LINK, m.Open("rehearsal", RunOptions(name="rehearsal")), []))
        self.tell(i.ClientMessage(CLIENT_LINK, submit, [b""] * (len(specs) + len(tasks))))
        self.tell(i.ClientMessage(CLIENT_LINK, m.Close(1), []))
