"""Simulates a finished run again under a different policy.

The simulation uses the measured time of each task, divided by the slowness of its worker. It also uses the times at which tasks were
submitted, the dependencies, and the times at which workers were present. The speeds of links come from forecasts, and each site has one
shared disk. No task fails, and the pool has no other runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, cycle

import msgspec

from pilotfish import plugins
from pilotfish.core.pilots.factory_interface import PilotProposal
from pilotfish.core.state import Run, State, Worker
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.contents import Content
from pilotfish.model.ids import INDEX_MASK, run_of
from pilotfish.model.site import PilotSize
from pilotfish.model.states import WORKER_STATES
from pilotfish.model.task import CORES, UNIT
from pilotfish.sim.light_world import CLIENT_LINK, FIRST_LINK, LightWorld, OneTimeProvisioner
from pilotfish.sim.projections.projection import link_bandwidth
from pilotfish.sim.workload import SimulatedSite, Workload

ENDED_STATES = [name for name in WORKER_STATES if name in ("left", "lost")]
MIN_S = 1e-6


@dataclass(slots=True)
class RunHistory:
    """Data about one run. The state of the pool does not keep these data, so they are collected from the facts."""

    run: int
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """For each submission: its time and number of tasks."""
    dependencies: dict[int, list[int]] = field(default_factory=dict)
    ran: dict[int, tuple[str, str]] = field(default_factory=dict)
    """For each task: the worker and the site that ran it."""

    def observe(self, state: State, fact: f.Fact, at: float) -> None:
        if type(fact) is f.TasksDone:
            worker = state.workers.get(fact.worker)
            for task in fact.tasks:
                if run_of(task) == self.run:
                    self.ran[task & INDEX_MASK] = fact.worker, worker.site if worker is not None else ""
        elif type(fact) is f.TasksAdded and fact.run == self.run:
            self.arrivals.append((at, len(fact.specs)))
            for deps in (fact.deps, fact.after_any):
                for index, needed in deps.items():
                    self.dependencies[index] = [*self.dependencies.get(index, ()), *needed]


@dataclass(slots=True, frozen=True)
class WorkerStay:
    """A worker and the period in which it was present, in seconds from the start of the run."""

    worker: Worker
    from_s: float
    until_s: float | None
    slowness: float
    cores: float


def max_cores(present: Sequence[WorkerStay]) -> float:
    """Returns the largest number of cores that were present at the same time."""
    comings = [(stay.from_s, stay.cores) for stay in present]
    goings = [(stay.until_s, -stay.cores) for stay in present if stay.until_s is not None]
    return max(accumulate(cores for _, cores in sorted([*comings, *goings])))


def similar_stays(present: Sequence[WorkerStay], cores: float) -> list[WorkerStay]:
    """Returns workers that are similar to those in ``present``, have ``cores`` cores in total, and are present during the whole run."""
    found: list[WorkerStay] = []
    for stay in cycle(present):
        if cores <= 0:
            break
        found.append(replace(stay, from_s=0.0, until_s=None, cores=min(cores, stay.cores or 1.0)))
        cores -= found[-1].cores
    return found


def worker_stays(state: State, run: Run) -> list[WorkerStay]:
    found = []
    for worker in (*state.ended_workers.values(), *state.workers.values()):
        left = next((at for at, what in reversed(worker.history) if what in ENDED_STATES), None)
        if (left is None or left > run.opened_at) and worker.joined_at < run.ended_at:
            # A worker that was present at the end of the run stays in the simulation.
            until_s = left - run.opened_at if left is not None and left < run.ended_at else None
            slowness = state.forecasts.slowness(worker.id, worker.site)
            cores = worker.capacity.get(CORES, 0) / UNIT
            found.append(WorkerStay(worker, max(0.0, worker.joined_at - run.opened_at), until_s, slowness, cores))
    return found


class RunReplay(LightWorld):
    heartbeat_s = 5.0

    def __init__(self, state: State, run: Run, history: RunHistory, policy: str, present: Sequence[WorkerStay]) -> None:
        slowness = {stay.worker.id: stay.slowness for stay in present}
        seconds = []
        for index, wall_us in enumerate(run.wall_us):
            worker, site = history.ran.get(index, ("", ""))
            worker_slowness = slowness.get(worker) or (state.forecasts.slowness(worker, site) if worker else 1.0)
            seconds.append(max(MIN_S, wall_us / 1e6 / worker_slowness))
        sites = dict.fromkeys(stay.worker.site for stay in present)
        simulated_sites = [SimulatedSite(name, 0, bandwidth=link_bandwidth(state, name)) for name in sites]
        super().__init__(simulated_sites, Workload(seconds), plugins.load("policies", policy)())
        pilots = [PilotProposal(stay.worker.site, PilotSize(stay.cores), "it was there") for stay in present]
        self.machine.provisioner = OneTimeProvisioner(pilots)
        self._run = run
        self._history = history
        self._present = present
        self._not_started = list(present)

    def _start_pilot(self, effect: e.SubmitPilot) -> None:
        stay = self._not_started.pop(0)
        self.deliver(i.PilotAccepted(effect.pilot, effect.pilot))
        self.after(stay.from_s, self._arrive, effect.pilot, stay)

    def _arrive(self, pilot: str, stay: WorkerStay) -> None:
        worker = stay.worker
        capacity = {**{name: amount / UNIT for name, amount in worker.capacity.items()}, CORES: stay.cores}
        hello = m.Hello(f"{worker.id}+{FIRST_LINK + len(self.hosts)}", pilot, capacity, worker.tags, {}, None, 0.0, [])
        host = self._join_host(worker.site, 1.0 / stay.slowness, hello)
        if stay.until_s is not None:
            self.after(max(0.0, stay.until_s - stay.from_s), host.leave)

    def _submit(self) -> None:
        run = self._run
        self.deliver(i.ClientMessage(CLIENT_LINK, m.Open("replay", run.options), []))
        specs = [msgspec.structs.replace(spec, contents=tuple(map(_as_available, spec.contents))) for spec in run.specs]
        self.deliver(i.ClientMessage(CLIENT_LINK, m.Submit(1, 0, 0, specs, [0] * len(specs), []), [b""] * len(specs)))
        known = sum(count for _, count in self._history.arrivals)
        batches = [(run.opened_at, len(run.tasks) - known)] if known < len(run.tasks) else []
        first = 0
        # No decision is possible before the first worker has joined, so tasks arrive after this time.
        earliest_s = min(stay.from_s for stay in self._present) + self.turn_s
        for at, count in [*batches, *self._history.arrivals]:
            self.after(max(earliest_s, at - run.opened_at), self._add, first, count)
            first += count

    def _add(self, first: int, count: int) -> None:
        run, dependencies = self._run, self._history.dependencies
        indices = range(first, first + count)
        deps = {index - first: dependencies[index] for index in indices if index in dependencies}
        contents = {
            index - first: tuple(_as_available(record.content) for record in run.tasks[index].contents)
            for index in indices
            if run.tasks[index].contents
        }
        costs = [run.cost(index) for index in indices] if run.costs else []
        tasks = [(run.tasks[index].spec, 0) for index in indices]
        submit = m.Submit(1, first, len(run.specs), [], [], tasks, deps, contents=contents, costs=costs)
        self.deliver(i.ClientMessage(CLIENT_LINK, submit, [b""] * count))
        if first + count == len(run.tasks):
            self.deliver(i.ClientMessage(CLIENT_LINK, m.Close(1), []))

    def makespan_s(self) -> float | None:
        """Simulates the run and returns its makespan. Returns None if the simulated run did not finish."""
        self.start()
        self.advance(left=-1)
        runs = self.machine.state.runs
        return runs[1].ended_at if 1 in runs and runs[1].ended_at else None


def _as_available(content: Content) -> Content:
    """Marks a content as available from the start, because the tasks of a replay do not produce it."""
    return content if content.path else msgspec.structs.replace(content, path=content.digest)
