"""Simulates pools to predict. The distributions are known here and hidden from the prediction."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from pilotfish import plugins
from pilotfish.core.machine import Turn
from pilotfish.core.state import State, Worker
from pilotfish.model.ids import INDEX_MASK
from pilotfish.model.settings import PoolSettings
from pilotfish.sim.light_world import LightWorld
from pilotfish.sim.projections.pool_snapshot import AS_IT_IS, AttemptHistory, PoolSnapshot, Variation
from pilotfish.sim.projections.projection import Projection
from pilotfish.sim.workload import SimulatedSite, Workload

LEAST_TASKS, MOST_TASKS = 60, 300
POLICY_NAMES = ("workqueue", "near", "auto")
TRIES = 10_000


@dataclass(frozen=True, slots=True)
class Law:
    """Distribution of the seconds of one task class for cost 1: lognormal around ``unit_s``, or bimodal with one in five much longer."""

    unit_s: float
    scatter: float
    bimodal: bool

    def draw(self, rng: random.Random) -> float:
        mode = (4.0 if rng.random() < 0.2 else 0.7) if self.bimodal else 1.0
        return self.unit_s * mode * rng.lognormvariate(0.0, 0.1 if self.bimodal else self.scatter)

    def draw_beyond(self, rng: random.Random, least: float) -> float:
        """Draws a duration of at least ``least`` seconds."""
        return next((drawn for drawn in (self.draw(rng) for _ in range(TRIES)) if drawn >= least), least)


def draw_work(rng: random.Random, cores: int) -> tuple[Workload, dict[str, Law], list[str]]:
    """Draws task classes with their distributions, costs as hints, and sometimes files or a DAG."""
    count = min(MOST_TASKS, max(LEAST_TASKS, round(cores * rng.uniform(4.0, 12.0))))
    traits = []
    laws = {
        f"class{number}": Law(rng.uniform(5.0, 40.0), rng.choice([0.05, 0.2, 0.4, 0.8]), rng.random() < 0.3)
        for number in range(rng.randint(1, 3))
    }
    kinds = [rng.choice(list(laws)) for _ in range(count)]
    costs = [rng.uniform(0.5, 5.0) for _ in range(count)] if rng.random() < 0.5 else [1.0] * count
    work = Workload([cost * laws[kind].draw(rng) for kind, cost in zip(kinds, costs, strict=True)], costs, kinds)
    traits += ["bimodal"] if any(law.bimodal for law in laws.values()) else []
    if rng.random() < 0.35:
        traits.append("files")
        work.files = {f"{rng.getrandbits(256):064x}": int(10 ** rng.uniform(6.5, 8.5)) for _ in range(rng.randint(3, 20))}
        work.needs = [tuple(rng.sample(list(work.files), rng.randint(0, 2))) for _ in range(count)]
    if rng.random() < 0.3:
        traits.append("dag")
        width = rng.randint(8, 40)
        work.after = [
            tuple(sorted({max(0, task - rng.randint(width // 2, width)) for _ in range(2)})) if task >= width else ()
            for task in range(count)
        ]
    return work, laws, traits


def draw_places(rng: random.Random) -> tuple[list[SimulatedSite], list[str]]:
    sites, traits = [], []
    for number in range(rng.randint(1, 3)):
        waits = rng.random() < 0.3 and number > 0
        traits += ["waits"] if waits else []
        sites.append(
            SimulatedSite(
                f"site{number}",
                rng.randint(2, 8),
                cores=rng.choice([1, 1, 2]),
                speed=rng.uniform(0.5, 2.0),
                spread=rng.choice([0.0, 0.2, 0.4]),
                bandwidth=10 ** rng.uniform(6.3, 8.0),
                launch_s=rng.choice([0.0, 0.1, 1.0]),
                wait_s=rng.uniform(30.0, 200.0) if waits else 0.0,
                wait_spread=0.5,
            )
        )
    return sites, traits


class World(LightWorld):
    """The simulated truth, and the facts that it produces."""

    heartbeat_s = 5.0

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"workload {seed}")
        sites, more = draw_places(rng)
        work, self.laws, traits = draw_work(rng, sum(site.hosts * site.cores for site in sites))
        self.policy_name = rng.choice(POLICY_NAMES)
        self.traits = sorted({*traits, *more})
        super().__init__(sites, work, plugins.load("policies", self.policy_name)(), seed)
        if rng.random() < 0.5:
            self._recall(rng)
        self.past = AttemptHistory()

    def _recall(self, rng: random.Random) -> None:
        """Adds earlier queue waits of the sites to the forecasts."""
        for site in self.sites.values():
            for _ in range(5 if site.wait_s else 0):
                self.machine.state.forecasts.waited(site.name, site.wait_s * rng.lognormvariate(0.0, site.wait_spread))

    def _perform(self, turn: Turn) -> None:
        for fact in turn.facts:
            self.past.observe(self.machine.state, fact, self.now)
        super()._perform(turn)

    def snapshot(self) -> PoolSnapshot:
        return PoolSnapshot.of(self.machine.state, self.past, PoolSettings(policy=self.policy_name), self.now)


class Sage(Projection):
    """A projection with all distributions known: true hosts, links and queues, and new samples for unfinished tasks.

    This is the best possible prediction.
    """

    def __init__(self, world: World, snapshot: PoolSnapshot, variation: Variation, luck: int) -> None:
        self._world = world
        self._luck = luck
        super().__init__(snapshot, variation, luck)

    def _site(self, state: State, name: str, snapshot: PoolSnapshot) -> SimulatedSite:
        known, true = super()._site(state, name, snapshot), self._world.sites.get(name)
        return replace(true, files=known.files) if true is not None else known

    def _draw_slowness(self, worker: Worker) -> float:
        connection = self._world.machine.connections[worker.id]
        assert connection.link is not None
        return 1.0 / self._world.hosts[connection.link].speed

    def _draw_durations(self) -> None:
        state, laws = self.machine.state, self._world.laws
        started_at = {task: state.workers[worker] for worker, task in self._snapshot.started_at}
        for run in state.runs.values():
            for task in run.tasks:
                law = laws[self._world.work.kinds[task.id & INDEX_MASK]]
                rng = random.Random(f"{self._luck} {task.id}")
                worker = started_at.get(task.id)
                self._durations[task.id] = law.draw(rng) if worker is None else law.draw_beyond(rng, self._elapsed(worker, task))

    def _draw_wait(self, pilot: str, site: str, elapsed: float) -> float:
        there, rng = self._world.sites[site], random.Random(f"{self._luck} {pilot}")
        waits = (there.wait_s * rng.lognormvariate(0.0, there.wait_spread) for _ in range(TRIES))
        return next((wait_s for wait_s in waits if wait_s >= elapsed), elapsed) - elapsed if there.wait_s else 0.0

    def _join_pilot(self, name: str) -> None:
        before = len(self.hosts)
        super()._join_pilot(name)
        for host in list(self.hosts.values())[before:]:
            site, rng = self._world.sites[host.site.name], random.Random(f"{self._luck} {name}")
            host.speed = self.variation.speeds.get(site.name, 1.0) * site.speed * rng.lognormvariate(0.0, site.spread)

    def end_s(self) -> float:
        """Returns the seconds from the snapshot to the end."""
        self.start()
        self.run_to_end()
        return float("inf") if self.machine.state.unfinished else self.now - self.snapshot_at


class Fate(Sage):
    """The true result of a variation: tasks have their true durations."""

    def _draw_durations(self) -> None:
        work = self._world.work
        for run in self.machine.state.runs.values():
            for task in run.tasks:
                self._durations[task.id] = work.seconds[task.id & INDEX_MASK] / work.costs[task.id & INDEX_MASK]


def draw_options(rng: random.Random, world: World) -> list[Variation]:
    sites = list(world.sites)
    choices = [Variation(f"+{n} {site}", more=((site, n),)) for site in sites for n in (2, 6)]
    choices += [Variation(f"-site {site}", without_sites=(site,)) for site in sites[1:]]
    choices += [Variation(f"speed {site}=2", speeds={site: 2.0}) for site in sites]
    choices += [Variation(f"policy={name}", policy=name) for name in POLICY_NAMES if name != world.policy_name]
    return rng.sample([AS_IT_IS, *choices], 2)
