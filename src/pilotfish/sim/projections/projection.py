"""Simulates how a pool continues from a snapshot. The real machine and policy run with simulated hosts in place of the workers.

Task times and queue waits are drawn from distributions of observed values. For a given seed, every variation gets the same random numbers.
So the results of two variations with the same seed differ only because of the variations.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from heapq import heappop
from math import exp, log, sqrt
from statistics import NormalDist

import msgspec
import numpy as np
from numpy.typing import NDArray

from pilotfish import plugins
from pilotfish.core.apply import apply
from pilotfish.core.data import replicas
from pilotfish.core.machine import Machine
from pilotfish.core.pilots.factory_interface import PilotProposal
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.core.state import State, Task, Worker
from pilotfish.core.tasks import speculative_copies
from pilotfish.factories.provisioner import PoolProvisioner
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.ids import INDEX_MASK
from pilotfish.model.site import JOINED, LOCAL, PilotSize
from pilotfish.model.states import ACTIVE, DONE
from pilotfish.model.task import CORES, UNIT
from pilotfish.sim.light_world import LightWorld, SimulatedAttempt, SimulatedHost, TaskInterval
from pilotfish.sim.projections.pool_snapshot import PoolSnapshot, Variation
from pilotfish.sim.shared_link import STREAMS
from pilotfish.sim.workload import SimulatedSite, Workload

SMOOTHING = 0.3
"""Noise is added to the logarithm of each observed duration. With one observation, the standard deviation of the noise is this fraction of
the standard deviation of the log durations. With more observations, the noise is smaller."""
UNSEEN = 4.0
"""The fitted distribution has the same weight as this many observations."""
SPREAD, SPREAD_WEIGHT = 0.8, 4.0
"""Assumed standard deviation of log durations before any observation. It has the same weight as SPREAD_WEIGHT observations."""
MAX_SPREAD = 1.5
"""Maximum standard deviation of log durations. With a larger value, some samples would take years."""
LONGER = 1.3
"""One longer duration is added to the observed durations: the longest observation times this factor."""
MIN_S = 1e-9
MAX_PROBABILITY = 1.0 - 1e-9


class DurationSamples:
    """Draws durations. The distribution is made from the durations of ended tasks and the elapsed times of running tasks.

    A running task is a censored observation: its duration is longer than its elapsed time (Kaplan and Meier). Each sample of a prediction
    gives the observations random weights (the Bayesian bootstrap). So samples differ more if there are few observations. Durations outside
    the observed range are possible, too. So a part of the durations is drawn from a fitted lognormal distribution. This part is smaller if
    there are more observations.
    """

    def __init__(self, seen: Sequence[float], running: Sequence[float], rng: np.random.Generator) -> None:
        """``seen``: durations of ended tasks; ``running``: elapsed seconds of running tasks. At least one of the two has an element."""
        values = np.maximum(np.array([*seen, *running], dtype=float), MIN_S)
        over = np.array([True] * len(seen) + [False] * len(running))
        order = np.argsort(values, kind="stable")
        values, over = values[order], over[order]
        weights = rng.exponential(size=len(values)) + MIN_S
        at_risk = np.cumsum(weights[::-1])[::-1]
        left = np.cumprod(np.where(over, 1.0 - weights / at_risk, 1.0))
        left[left < MIN_S] = 0.0
        self._values: NDArray[np.float64] = np.append(values, values[-1] * LONGER)
        self._below: NDArray[np.float64] = np.append(1.0 - left, 1.0)
        """For each element of ``_values``: the probability that a duration is at most this value."""
        count = max(1, len(seen))
        logs, masses = np.log(self._values), np.diff(self._below, prepend=0.0)
        middle = float(np.sum(masses * logs))
        squares = count * float(np.sum(masses * (logs - middle) ** 2)) + SPREAD_WEIGHT * SPREAD**2
        spread = min(MAX_SPREAD, sqrt(squares / float(rng.chisquare(count + SPREAD_WEIGHT))))
        self._law = NormalDist(middle + float(rng.normal(0.0, spread / sqrt(count))), spread)
        """Fitted distribution of log durations."""
        self._unseen = UNSEEN / (UNSEEN + count)
        self._blur = SMOOTHING * spread * count**-0.2

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        indices = np.searchsorted(self._below, rng.random(count), side="right")
        blur = np.exp(rng.normal(-(self._blur**2) / 2, self._blur, count))
        known = self._values[np.minimum(indices, len(self._values) - 1)] * blur
        unknown = np.exp(rng.normal(self._law.mean, self._law.stdev, count))
        drawn: NDArray[np.float64] = np.where(rng.random(count) < self._unseen, unknown, known)
        return drawn

    def draw_beyond(self, rng: np.random.Generator, least: float) -> float:
        """Draws one of the durations that are at least ``least``."""
        which, chance, blur = rng.random(), float(rng.random()), exp(float(rng.normal(0.0, self._blur)))
        index = int(np.searchsorted(self._values, least, side="right"))
        below = float(self._below[index - 1]) if index else 0.0
        below_by_law = self._law.cdf(log(max(least, MIN_S)))
        seen, unseen = (1.0 - self._unseen) * (1.0 - below), self._unseen * (1.0 - below_by_law)
        if which * (seen + unseen) < unseen or index >= len(self._values):
            probability = below_by_law + chance * (1.0 - below_by_law)
            return max(least, exp(self._law.inv_cdf(min(max(probability, MIN_S), MAX_PROBABILITY))))
        found = int(np.searchsorted(self._below, below + chance * (1.0 - below), side="right"))
        return max(least, float(self._values[min(found, len(self._values) - 1)]) * blur)


BANDWIDTH = 125e6
"""Bytes per second of a link without a forecast."""
MIN_SAMPLES = 5
"""Minimum number of remembered tasks of a class. With fewer tasks, the forecast for the class is used."""
UNKNOWN_S, MIN_GUESS_S = 60.0, 5.0
UNKNOWN_FACTORS = (0.15, 0.4, 0.7, 1.0, 1.4, 2.5, 6.0)
"""If only a guess is known, the guess times each of these factors counts as an observed value."""
WORKER_DOUBT, NEW_WORKER_DOUBT = 0.35, 0.3
"""Standard deviations of the logarithm of the slowness. First value: for a worker without measurements. Second value: for a worker that has
not joined yet."""
LOCAL_WAIT_S = 1.0
CHECK_INTERVAL = 200
"""After this many events without the end of a task, the simulation checks whether any task can still end."""


class Projection(LightWorld):
    heartbeat_s = 5.0

    def __init__(self, snapshot: PoolSnapshot, variation: Variation, seed: int) -> None:
        state = snapshot.restore()
        settings = snapshot.settings
        policy = plugins.load("policies", variation.policy or settings.policy)()
        super().__init__(
            [self._site(state, name, snapshot) for name in _sites(state, variation)], Workload([]), policy, seed, record_intervals=True
        )
        factory = plugins.load("factories", settings.factory)(settings.pilots, random.Random(seed))
        settings_without_timeouts = msgspec.structs.replace(settings, beat_s=3600.0, lease_s=1e9, linger_s=1e9, author_s=1e9)
        self.machine = Machine(state, policy, PoolProvisioner(factory), settings_without_timeouts, traits=plugins.traits_if_usable)
        self.now = self.snapshot_at = snapshot.now
        self.variation = variation
        self.guessed: dict[str, int] = {}
        """For each task class without measurements: its number of tasks."""
        self._snapshot = snapshot
        self._seed = seed
        self._rng = np.random.default_rng([seed, 1])
        self._waiting: list[tuple[SimulatedHost, SimulatedAttempt]] = []
        """Assigned attempts that have not started."""
        self._waits: dict[str, DurationSamples] = {}
        self._new_workers = 0
        self._pilots_waiting = 0
        self._slowness = {worker.id: self._draw_slowness(worker) for worker in state.workers.values()}
        self._durations: dict[int, float] = {}
        self._draw_durations()

    # --- forecasts --------------------------------------------------------------------------------------------------------------------

    def _site(self, state: State, name: str, snapshot: PoolSnapshot) -> SimulatedSite:
        """Returns a simulated site with the forecast of its link and the files of its workers."""
        here = {record.digest: None for worker in state.workers.values() if worker.site == name for record in worker.holds}
        return SimulatedSite(
            name,
            0,
            bandwidth=link_bandwidth(state, name),
            latency_s=min(state.forecasts.latency(name), 10.0) if state.forecasts.bandwidth(name) is not None else 0.0,
            launch_s=snapshot.launches.get(name, 0.0),
            files=tuple(here),
        )

    # --- random draws -----------------------------------------------------------------------------------------------------------------

    def _draw_slowness(self, worker: Worker) -> float:
        forecasts = self.machine.state.forecasts
        doubt = WORKER_DOUBT
        for name in reversed(self._snapshot.durations):
            unit, forecast = forecasts.unit(name), forecasts.task(name, 1.0, worker.id, worker.site)
            if unit is not None and forecast is not None:
                doubt = min(doubt, sqrt(max(0.0, forecast.error**2 - unit.error**2)) / 0.67)
                break
        return forecasts.slowness(worker.id, worker.site) * exp(float(self._rng.normal(0.0, doubt)))

    def _draw_durations(self) -> None:
        """Draws the seconds of every unfinished task, as if the task had cost 1 and ran on a host of slowness 1."""
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
                if (worker.id, task.id) in self._snapshot.started_at
            ]
            elapsed = [self._elapsed(worker, task) for task, worker in running]
            durations = self._durations_of(name, number, elapsed)
            if name in self.guessed:
                self.guessed[name] += len(tasks)
            for task, drawn in zip(tasks, durations.draw(self._rng, len(tasks)), strict=True):
                self._durations[task.id] = float(drawn)
            for (task, _), least in zip(running, elapsed, strict=True):
                self._durations[task.id] = durations.draw_beyond(self._rng, least)

    def _durations_of(self, name: str, run: int, elapsed: list[float]) -> DurationSamples:
        """Returns durations for a task class in a run. Prefers durations of tasks of this run, because a class can contain very different
        tasks."""
        forecasts = self.machine.state.forecasts
        durations = self._snapshot.durations.get(name, ())
        own = [one for one in durations if one[2] == run]
        seen = [seconds / self._slowness_of(worker, site) for worker, site, _, seconds in (own if len(own) >= MIN_SAMPLES else durations)]
        unit, ratios = forecasts.unit(name), forecasts.ratios(name)
        if unit is not None and len(seen) < MIN_SAMPLES and len(ratios) > len(seen):
            seen = [unit.value * ratio for ratio in ratios]
        elif not seen and unit is not None:
            seen = [unit.value]
        if not seen:
            self.guessed.setdefault(name, 0)
            guess = forecasts.guess()
            middle = guess.value if guess is not None else max(MIN_GUESS_S, 2.0 * max(elapsed)) if elapsed else UNKNOWN_S
            middle *= exp(float(self._rng.normal(0.0, 0.5)))
            seen = [middle * factor for factor in UNKNOWN_FACTORS]
        return DurationSamples(seen, elapsed, self._rng)

    def _slowness_of(self, worker: str, site: str) -> float:
        found = self._slowness.get(worker)
        if found is None:
            found = self._slowness[worker] = self.machine.state.forecasts.slowness(worker, site)
        return found

    def _elapsed(self, worker: Worker, task: Task) -> float:
        started_at = self._snapshot.started_at[worker.id, task.id]
        elapsed = max(0.0, self.snapshot_at - started_at - self._snapshot.launches.get(worker.site, 0.0))
        return elapsed / _cost(task) / self._slowness[worker.id]

    def _draw_wait(self, pilot: str, site: str, elapsed: float) -> float:
        """Draws the seconds that a pilot will still wait. ``elapsed``: the seconds that it has already waited."""
        if site not in self._waits:
            self._waits[site] = self._waits_of(site, elapsed)
        return self._waits[site].draw_beyond(np.random.default_rng([self._seed, 2, *pilot.encode()]), elapsed) - elapsed

    def _waits_of(self, site: str, elapsed: float) -> DurationSamples:
        rng = np.random.default_rng([self._seed, 3, *site.encode()])
        state = self.machine.state
        record = state.sites.get(site)
        waits = [event.seconds for event in record.history if event.kind == JOINED] if record is not None else []
        forecast = state.forecasts.wait(site)
        if not waits:
            usual = forecast.value if forecast is not None else LOCAL_WAIT_S if site == LOCAL else max(UNKNOWN_S, elapsed)
            usual *= exp(float(rng.normal(0.0, forecast.error if forecast is not None else 1.0)))
            waits = [usual * factor for factor in UNKNOWN_FACTORS]
        waiting = [self.snapshot_at - other.requested_at for other in state.pilots.values() if other.site == site and not other.joined]
        return DurationSamples(waits, waiting, rng)

    # --- start from the snapshot ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        state, variation = self.machine.state, self.variation
        for site in variation.with_sites:
            apply(state, f.SiteUseChanged(site, -1), state.at)
        for site in variation.without_sites:
            apply(state, f.PoolSized(0.0) if site == LOCAL else f.SiteUseChanged(site, None), state.at)
        if variation.cores is not None:
            apply(state, f.PoolSized(variation.cores), state.at)
        queued = [pilot for pilot in state.pilots.values() if pilot.state <= ACTIVE and pilot.joined < pilot.size.nodes]
        # The machine decides only after all workers have reconnected. Reconnecting takes no simulated time.
        self.machine.inspect_only = True
        self._perform(self.machine.start(self.now))
        self.machine.inspect_only = False
        for worker in list(state.workers.values()):
            self._reconnect(worker)
        self._resume_transfers()
        for pilot in queued:
            self._start_later(pilot, self.now - pilot.requested_at)
        self.machine.decide_again = True
        self._turn()  # if no worker sends a message, nothing else causes the first turn
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
                connection = self.machine.connections.get(worker.id)
                if connection is not None and connection.link is not None:
                    self.hosts[connection.link].leave()
        self.machine.decide_again = True
        self._turn()

    def _usual_size(self, site: str) -> PilotSize:
        state = self.machine.state
        record, sizes = state.sites.get(site), [pilot.size for pilot in state.pilots.values() if pilot.site == site]
        if sizes:
            return sizes[-1]
        site_settings = record.site if record is not None else None
        return site_settings.pilot_size if site_settings is not None else PilotSize()

    def _reconnect(self, worker: Worker) -> None:
        """Connects a host in place of a worker. The host reports the attempts of the worker and continues them."""
        site = worker.site
        speed = self.variation.speeds.get(site, 1.0) / self._slowness[worker.id]
        host = self._add_host(site, speed, worker.capacity.get(CORES, 0) / UNIT)
        holding = []
        state = self.machine.state
        for task, needs in [*worker.active.items(), *worker.ahead.items()]:
            attempt = SimulatedAttempt(
                task.id, speculative_copies.attempt_at(state, worker, task), dict(needs).get(CORES, 0) / UNIT, self.now
            )
            started_at = self._snapshot.started_at.get((worker.id, task.id))
            if started_at is not None:
                attempt.started_at = attempt.assigned_at = started_at
                left = self._durations[task.id] - self._elapsed(worker, task)
                host.add_running(attempt, max(0.0, left) * _cost(task) / speed)
            else:
                attempt.assigned_at = self._snapshot.assigned_at.get((worker.id, task.id), self.now)
                self._waiting.append((host, attempt))
            holding.append((task.id, attempt.number, m.QUEUED if started_at is None else m.STARTED))
        capacity = {name: amount / UNIT for name, amount in worker.capacity.items()}
        info = {name: value for name, value in worker.info.items() if name not in ("peer", "shares", "empty")}
        hello = m.Hello(worker.id, worker.pilot, capacity, worker.tags, info, None, worker.poll_s, holding)
        self.deliver(i.AgentMessage(host.link, hello, []))
        if site in self.variation.without_sites:
            self.after(0.0, host.leave)
        elif worker.ends_at is not None:
            self.after(max(0.0, worker.ends_at - self.now), host.leave)

    def _resume_transfers(self) -> None:
        """Continues the transfers in the order of their requests. An active transfer counts as half done, because its progress is
        unknown."""
        active: dict[tuple[str, str], None] = {}
        active_counts: dict[str, int] = {}
        for host, attempt in sorted(self._waiting, key=lambda one: one[1].assigned_at):
            name = host.site.name
            wanted = [record.content for record in replicas.needs(self.machine.state.task(attempt.task))]
            for content in wanted:
                if (
                    not self.disks[name].has(content.digest)
                    and (name, content.digest) not in active
                    and active_counts.get(name, 0) < STREAMS
                ):
                    active[name, content.digest] = None
                    active_counts[name] = active_counts.get(name, 0) + 1
            halved = [msgspec.structs.replace(one, size=one.size // 2) if (name, one.digest) in active else one for one in wanted]
            host.add_waiting(attempt, tuple(halved))
        for host in self.hosts.values():
            host.start_attempts()

    # --- pilots -----------------------------------------------------------------------------------------------------------------------

    def _start_pilot(self, effect: e.SubmitPilot) -> None:
        self.deliver(i.PilotAccepted(effect.pilot, effect.pilot))
        self._start_later(self.machine.state.pilots[effect.pilot], 0.0)

    def _start_later(self, pilot: Pilot, elapsed: float) -> None:
        if pilot.site not in self.variation.without_sites:
            self._pilots_waiting += 1
            self.after(self._draw_wait(pilot.id, pilot.site, elapsed), self._join_pilot, pilot.id)

    def _join_pilot(self, name: str) -> None:
        self._pilots_waiting -= 1
        pilot = self.machine.state.pilots.get(name)
        if pilot is None or pilot.state > ACTIVE:
            return
        rng = random.Random(f"{self._seed} {name}")
        usual = self.machine.state.forecasts.slowness("", pilot.site)
        last = self._last_worker(pilot.site)
        tags, usual_cores = (dict(last.tags), last.capacity.get(CORES, UNIT) / UNIT) if last is not None else ({}, 1.0)
        for node in range(pilot.size.nodes - pilot.joined):
            speed = self.variation.speeds.get(pilot.site, 1.0) / usual / rng.lognormvariate(0.0, NEW_WORKER_DOUBT)
            cores = pilot.size.cores or usual_cores
            self._new_workers += 1
            other_amounts = {"memory": float(pilot.size.memory), "gpus": pilot.size.gpus}
            capacity = {CORES: float(cores), **{name: amount for name, amount in other_amounts.items() if amount}}
            hello = m.Hello(f"{name}+{node}.{self._new_workers}", name, capacity, tags, {}, pilot.size.walltime_s or None, 0.0, [])
            self._join_host(pilot.site, speed, hello)

    def _last_worker(self, site: str) -> Worker | None:
        state = self.machine.state
        known = [worker for worker in (*state.ended_workers.values(), *state.workers.values()) if worker.site == site]
        return known[-1] if known else None

    # --- simulation -------------------------------------------------------------------------------------------------------------------

    def seconds(self, task: int, host: SimulatedHost) -> float:
        found = self.machine.state.task(task)
        return self._durations[task] * _cost(found) / host.speed

    def note_ended(self, host: SimulatedHost, attempt: SimulatedAttempt) -> None:
        interval = TaskInterval(attempt.task, host.site.name, host.link, attempt.assigned_at, attempt.started_at, self.now)
        self.result.intervals.append(interval)

    def run_to_end(self, run: int | None = None) -> None:
        """Simulates until ``run`` is finished. If ``run`` is None, simulates until all runs are finished. Stops earlier if no task can end
        any more."""
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
            elif quiet % CHECK_INTERVAL == 0 and not self._pilots_waiting and not any(host.busy for host in self.hosts.values()):
                return


def _cost(task: Task) -> float:
    cost = task.shape.run.cost(task.id & INDEX_MASK)
    return cost if cost > 0 else 1.0


def link_bandwidth(state: State, site: str) -> float:
    forecast = state.forecasts.bandwidth(site)
    return forecast.value if forecast is not None else BANDWIDTH


def _sites(state: State, variation: Variation) -> list[str]:
    names = [LOCAL, "", *state.sites, *(pilot.site for pilot in state.pilots.values()), *(worker.site for worker in state.workers.values())]
    return list(dict.fromkeys([*names, *variation.with_sites, *(site for site, _ in variation.more)]))
