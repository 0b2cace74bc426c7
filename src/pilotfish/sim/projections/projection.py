"""Continues a pool in simulation from a snapshot. The real machine and policy run with simulated hosts in place of the workers.

Task times and queue waits are drawn from observed ones. Random numbers are drawn in the same order for every variation, so two variations
with one seed differ by the variation and not by chance.
"""

from __future__ import annotations

import random
from dataclasses import replace
from heapq import heappop
from math import exp, sqrt

import msgspec
import numpy as np

from pilotfish import plugins
from pilotfish.core.apply import apply
from pilotfish.core.machine import Machine
from pilotfish.core.pilots.factory_interface import PilotProposal
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.core.state import UNIT, State, Task, Worker
from pilotfish.core.tasks import speculative_copies
from pilotfish.factories.provisioner import PoolProvisioner
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.contents import Content
from pilotfish.model.ids import INDEX_MASK
from pilotfish.model.site import JOINED, LOCAL, PilotSize
from pilotfish.model.states import ACTIVE, DONE
from pilotfish.model.task import CORES
from pilotfish.sim.light_world import FIRST_LINK, LightWorld, TaskInterval
from pilotfish.sim.projections.duration_samples import DurationSamples
from pilotfish.sim.projections.pool_snapshot import PoolSnapshot, Variation
from pilotfish.sim.shared_link import STREAMS
from pilotfish.sim.simulated_host import SimulatedAttempt, SimulatedHost
from pilotfish.sim.workload import SimulatedSite, Workload

BANDWIDTH = 125e6
"""Bytes per second of a link without a forecast."""
FEW = 5
"""Minimum remembered tasks of a class; with fewer, forecasts are used."""
NOTHING_KNOWN_S, LEAST_GUESS_S = 60.0, 5.0
VAGUE = (0.15, 0.4, 0.7, 1.0, 1.4, 2.5, 6.0)
"""Possible factors between a guess and the actual value."""
WORKER_DOUBT, STRANGER_DOUBT = 0.35, 0.3
"""Standard deviations of log slowness: of a worker without measurements, and of one that has not joined yet."""
LOCAL_WAIT_S = 1.0
PATIENCE = 200
"""Events without a finished task until the simulation checks whether any task can finish."""


class Projection(LightWorld):
    beat_s = 5.0

    def __init__(self, moment: PoolSnapshot, variation: Variation, seed: int) -> None:
        state = moment.restore()
        settings = moment.settings
        policy = plugins.load("policies", variation.policy or settings.policy)()
        super().__init__([self._place(state, name, moment) for name in _sites(state, variation)], Workload([]), policy, seed, keep=True)
        factory = plugins.load("factories", settings.factory)(settings.pilots, random.Random(seed))
        patient = msgspec.structs.replace(settings, beat_s=3600.0, lease_s=1e9, linger_s=1e9, author_s=1e9)
        self.machine = Machine(state, policy, PoolProvisioner(factory), patient, traits=plugins.traits_if_usable)
        self.now = self.forked_at = moment.now
        self.variation = variation
        self.guessed: dict[str, int] = {}
        """Classes without measurements, and the number of tasks of each."""
        self._moment = moment
        self._seed = seed
        self._rng = np.random.default_rng([seed, 1])
        self._waiting: list[tuple[SimulatedHost, SimulatedAttempt]] = []
        """Assigned attempts that do not run yet."""
        self._waits: dict[str, DurationSamples] = {}
        self._strangers = 0
        self._awaited = 0
        self._slowness = {worker.id: self._draw_slowness(worker) for worker in state.workers.values()}
        self._lengths: dict[int, float] = {}
        self._draw_lengths()

    # --- forecasts --------------------------------------------------------------------------------------------------------------------

    def _place(self, state: State, name: str, moment: PoolSnapshot) -> SimulatedSite:
        """Returns a site with its forecast link and the files of its workers."""
        told = state.forecasts.bandwidth("", name)
        here = {record.digest: None for worker in state.workers.values() if worker.site == name for record in worker.holds}
        place = SimulatedSite(
            name, 0, bandwidth=told.value if told is not None else BANDWIDTH, launch_s=moment.launches.get(name, 0.0), files=tuple(here)
        )
        return replace(place, latency_s=min(state.forecasts.latency("", name), 10.0)) if told is not None else place

    # --- random draws -----------------------------------------------------------------------------------------------------------------

    def _draw_slowness(self, worker: Worker) -> float:
        forecasts = self.machine.state.forecasts
        doubt = WORKER_DOUBT
        for name in reversed(self._moment.taken):
            unit, told = forecasts.unit(name), forecasts.task(name, 1.0, worker.id, worker.site)
            if unit is not None and told is not None:
                doubt = min(doubt, sqrt(max(0.0, told.error**2 - unit.error**2)) / 0.67)
                break
        return forecasts.slowness(worker.id, worker.site) * exp(float(self._rng.normal(0.0, doubt)))

    def _draw_lengths(self) -> None:
        """Draws the seconds of every unfinished task, for cost 1 and slowness 1."""
        state = self.machine.state
        ahead: dict[tuple[str, int], list[Task]] = {}
        for run in state.runs.values():
            if run.unfinished:
                for task in run.tasks:
                    if task.state < DONE:
                        ahead.setdefault((run.class_of(task.spec), run.id), []).append(task)
        for (name, number), tasks in ahead.items():
            running = [
                (task, worker)
                for task in tasks
                for worker, _ in speculative_copies.attempts(state, task)
                if self._began(worker, task) is not None
            ]
            so_far = [self._so_far(worker, task) for task, worker in running]
            lengths = self._lengths_of(name, number, so_far)
            if name in self.guessed:
                self.guessed[name] += len(tasks)
            for task, drawn in zip(tasks, lengths.draw(self._rng, len(tasks)), strict=True):
                self._lengths[task.id] = float(drawn)
            for (task, _), least in zip(running, so_far, strict=True):
                self._lengths[task.id] = lengths.draw_beyond(self._rng, least)

    def _lengths_of(self, name: str, run: int, so_far: list[float]) -> DurationSamples:
        """Returns durations for a class in a run. Tasks of the same run are preferred: a class may be as general as a shell."""
        forecasts = self.machine.state.forecasts
        taken = self._moment.taken.get(name, ())
        own = [one for one in taken if one[2] == run]
        seen = [seconds / self._slowness_of(worker, site) for worker, site, _, seconds in (own if len(own) >= FEW else taken)]
        unit, ratios = forecasts.unit(name), forecasts.ratios(name)
        if unit is not None and len(seen) < FEW and len(ratios) > len(seen):
            seen = [unit.value * ratio for ratio in ratios]
        elif not seen and unit is not None:
            seen = [unit.value]
        if not seen:
            self.guessed.setdefault(name, 0)
            guess = forecasts.guess(1.0)
            middle = guess.value if guess is not None else max(LEAST_GUESS_S, 2.0 * max(so_far)) if so_far else NOTHING_KNOWN_S
            middle *= exp(float(self._rng.normal(0.0, 0.5)))
            seen = [middle * factor for factor in VAGUE]
        return DurationSamples(seen, so_far, self._rng)

    def _slowness_of(self, worker: str, site: str) -> float:
        found = self._slowness.get(worker)
        if found is None:
            found = self._slowness[worker] = self.machine.state.forecasts.slowness(worker, site)
        return found

    def _began(self, worker: Worker, task: Task) -> float | None:
        return self._moment.began.get((worker.id, task.id))

    def _so_far(self, worker: Worker, task: Task) -> float:
        began = self._began(worker, task)
        assert began is not None
        elapsed = max(0.0, self.forked_at - began - self._moment.launches.get(worker.site, 0.0))
        return elapsed / _cost(task) / self._slowness[worker.id]

    def _draw_wait(self, pilot: str, site: str, so_far: float) -> float:
        """Draws the seconds that a pilot still waits."""
        if site not in self._waits:
            self._waits[site] = self._waits_of(site, so_far)
        return self._waits[site].draw_beyond(np.random.default_rng([self._seed, 2, *pilot.encode()]), so_far) - so_far

    def _waits_of(self, site: str, so_far: float) -> DurationSamples:
        dice = np.random.default_rng([self._seed, 3, *site.encode()])
        state = self.machine.state
        record = state.sites.get(site)
        waits = [event.seconds for event in record.history if event.kind == JOINED] if record is not None else []
        told = state.forecasts.wait(site)
        if not waits:
            usual = told.value if told is not None else LOCAL_WAIT_S if site == LOCAL else max(NOTHING_KNOWN_S, so_far)
            usual *= exp(float(dice.normal(0.0, told.error if told is not None else 1.0)))
            waits = [usual * factor for factor in VAGUE]
        waiting = [self.forked_at - other.requested_at for other in state.pilots.values() if other.site == site and not other.joined]
        return DurationSamples(waits, waiting, dice)

    # --- start from the snapshot ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        state, variation = self.machine.state, self.variation
        for site in variation.with_sites:
            apply(state, f.SiteUseChanged(site, -1), state.at)
        for site in variation.without_sites:
            apply(state, f.PoolSized(0.0) if site == LOCAL else f.SiteUseChanged(site, None), state.at)
        if variation.cores is not None:
            apply(state, f.PoolSized(variation.cores), state.at)
        queued = [pilot for pilot in state.pilots.values() if pilot.state <= ACTIVE and pilot.joined < pilot.size.nodes]
        # No decision is made before all workers have reconnected, which takes no simulated time.
        self.machine.inspect_only = True
        self._perform(self.machine.start(self.now))
        self.machine.inspect_only = False
        for worker in list(state.workers.values()):
            self._call_back(worker)
        self._go_on_fetching()
        for pilot in queued:
            self._await(pilot, self.now - pilot.requested_at)
        self.machine.decide_again = True
        self._turn()  # needed even without workers
        for site, count in variation.more:
            self._add(site, count)

    def _add(self, site: str, count: int) -> None:
        state = self.machine.state
        if site == LOCAL:
            apply(state, f.PoolSized(max(0.0, state.local_cores + count)), state.at)
        else:
            here = [worker for worker in state.workers.values() if worker.site == site]
            for _ in range(count):
                self.machine.request_pilot(PilotProposal(site, self._usual_size(site), "what if"), by_user=True)
            for worker in here[max(0, len(here) + count) :] if count < 0 else ():
                self._send_home(worker)
        self.machine.decide_again = True
        self._turn()

    def _usual_size(self, site: str) -> PilotSize:
        state = self.machine.state
        record, sizes = state.sites.get(site), [pilot.size for pilot in state.pilots.values() if pilot.site == site]
        if sizes:
            return sizes[-1]
        described = record.site if record is not None else None
        return described.pilot_size if described is not None else PilotSize()

    def _call_back(self, worker: Worker) -> None:
        """Reconnects a worker: it reports its attempts and continues them."""
        site = worker.site
        speed = self.variation.speeds.get(site, 1.0) / self._slowness[worker.id]
        host = self._host(site, speed, worker.capacity.get(CORES, 0) / UNIT)
        holding = []
        state = self.machine.state
        for task, needs in [*worker.active.items(), *worker.ahead.items()]:
            attempt = SimulatedAttempt(
                task.id, speculative_copies.attempt_at(state, worker, task), dict(needs).get(CORES, 0) / UNIT, self.now
            )
            began = self._began(worker, task)
            if began is not None:
                attempt.began = attempt.given = began
                left = self._lengths[task.id] - self._so_far(worker, task)
                host.runs(attempt, max(0.0, left) * _cost(task) / speed)
            else:
                attempt.given = self._moment.given.get((worker.id, task.id), self.now)
                self._waiting.append((host, attempt))
            holding.append((task.id, attempt.number, m.QUEUED if began is None else m.STARTED))
        capacity = {name: amount / UNIT for name, amount in worker.capacity.items()}
        info = {name: value for name, value in worker.info.items() if name not in ("peer", "shares", "empty")}
        hello = m.Hello(worker.id, worker.pilot, capacity, worker.tags, info, None, worker.poll_s, holding)
        self.tell(i.AgentMessage(host.link, hello, []))
        if site in self.variation.without_sites:
            self.after(0.0, host.leave)
        elif worker.ends_at is not None:
            self.after(max(0.0, worker.ends_at - self.now), host.leave)

    def _go_on_fetching(self) -> None:
        """Resumes transfers in the order of their requests. Active ones count as half done, because their progress is unknown."""
        under_way: dict[tuple[str, str], None] = {}
        begun: dict[str, int] = {}
        for host, attempt in sorted(self._waiting, key=lambda one: one[1].given):
            name = host.place.name
            wanted = _contents(self.machine.state.task(attempt.task))
            for content in wanted:
                if not self.disks[name].has(content.digest) and (name, content.digest) not in under_way and begun.get(name, 0) < STREAMS:
                    under_way[name, content.digest] = None
                    begun[name] = begun.get(name, 0) + 1
            halved = [msgspec.structs.replace(one, size=one.size // 2) if (name, one.digest) in under_way else one for one in wanted]
            host.holds(attempt, tuple(halved))
        for host in self.hosts.values():
            host.begin()

    def _send_home(self, worker: Worker) -> None:
        connection = self.machine.connections.get(worker.id)
        if connection is not None and connection.link is not None:
            self.hosts[connection.link].leave()

    def _host(self, site: str, speed: float, cores: float) -> SimulatedHost:
        link = FIRST_LINK + len(self.hosts)
        host = self.hosts[link] = SimulatedHost(self, link, self.places[site], speed, cores)
        return host

    # --- pilots -----------------------------------------------------------------------------------------------------------------------

    def _start_pilot(self, effect: e.SubmitPilot) -> None:
        self.tell(i.PilotAccepted(effect.pilot, effect.pilot))
        self._await(self.machine.state.pilots[effect.pilot], 0.0)

    def _await(self, pilot: Pilot, so_far: float) -> None:
        if pilot.site not in self.variation.without_sites:
            self._awaited += 1
            self.after(self._draw_wait(pilot.id, pilot.site, so_far), self._come, pilot.id)

    def _come(self, name: str) -> None:
        self._awaited -= 1
        pilot = self.machine.state.pilots.get(name)
        if pilot is None or pilot.state > ACTIVE:
            return
        dice = random.Random(f"{self._seed} {name}")
        usual = self.machine.state.forecasts.slowness("", pilot.site)
        for node in range(pilot.size.nodes - pilot.joined):
            speed = self.variation.speeds.get(pilot.site, 1.0) / usual / dice.lognormvariate(0.0, STRANGER_DOUBT)
            cores = pilot.size.cores or self._usual_cores(pilot.site)
            host = self._host(pilot.site, speed, cores)
            self._strangers += 1
            ends_in = pilot.size.walltime_s or None
            also = {"memory": float(pilot.size.memory), "gpus": pilot.size.gpus}
            capacity = {CORES: float(cores), **{name: amount for name, amount in also.items() if amount}}
            hello = m.Hello(f"{name}+{node}.{self._strangers}", name, capacity, self._usual_tags(pilot.site), {}, ends_in, 0.0, [])
            self.tell(i.AgentMessage(host.link, hello, []))
            if ends_in:
                self.after(ends_in, host.leave)

    def _usual_cores(self, site: str) -> float:
        state = self.machine.state
        known = [worker for worker in (*state.ended_workers.values(), *state.workers.values()) if worker.site == site]
        return known[-1].capacity.get(CORES, UNIT) / UNIT if known else 1.0

    def _usual_tags(self, site: str) -> dict[str, str]:
        state = self.machine.state
        known = [worker.tags for worker in (*state.ended_workers.values(), *state.workers.values()) if worker.site == site]
        return dict(known[-1]) if known else {}

    # --- simulation -------------------------------------------------------------------------------------------------------------------

    def seconds(self, task: int, host: SimulatedHost) -> float:
        found = self.machine.state.task(task)
        return self._lengths[task] * _cost(found) / host.speed

    def ended(self, host: SimulatedHost, task: int, given: float, began: float) -> None:
        self.played.stints.append(TaskInterval(task, host.place.name, host.link, given, began, self.now))

    def go_on_to_the_end(self, run: int | None = None) -> None:
        """Simulates until one run, or all runs, are finished, or nothing more can happen."""
        heap, state = self._heap, self.machine.state
        target = state.runs.get(run) if run is not None else None
        unfinished, quiet = state.unfinished, 0
        while (heap and state.unfinished) or self._inbox:
            self.now, _, act, arguments = heappop(heap)
            act(*arguments)
            quiet += 1
            if state.unfinished != unfinished:
                unfinished, quiet = state.unfinished, 0
                if target is not None and not target.unfinished:
                    return
            elif quiet % PATIENCE == 0 and not self._awaited and not any(host.busy for host in self.hosts.values()):
                return


def _cost(task: Task) -> float:
    cost = task.shape.run.cost(task.id & INDEX_MASK)
    return cost if cost > 0 else 1.0


def _contents(task: Task) -> tuple[Content, ...]:
    return tuple(record.content for record in (*task.shape.run.spec_contents.get(task.spec, ()), *task.contents))


def _sites(state: State, variation: Variation) -> list[str]:
    names = [LOCAL, "", *state.sites, *(pilot.site for pilot in state.pilots.values()), *(worker.site for worker in state.workers.values())]
    return list(dict.fromkeys([*names, *variation.with_sites, *(site for site, _ in variation.more)]))
