"""Simulates pools to predict. The distributions are known here and hidden from the prediction."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from pilotfish import plugins
from pilotfish.core.state import State, Worker
from pilotfish.model.ids import INDEX_MASK
from pilotfish.model.settings import PoolSettings
from pilotfish.sim.light_world import LightWorld
from pilotfish.sim.projections.attempt_history import AttemptHistory
from pilotfish.sim.projections.pool_snapshot import AS_IT_IS, PoolSnapshot, Variation
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

    def draw(self, dice: random.Random) -> float:
        mode = (4.0 if dice.random() < 0.2 else 0.7) if self.bimodal else 1.0
        return self.unit_s * mode * dice.lognormvariate(0.0, 0.1 if self.bimodal else self.scatter)

    def draw_beyond(self, dice: random.Random, least: float) -> float:
        """Draws a duration of at least ``least`` seconds."""
        return next((drawn for drawn in (self.draw(dice) for _ in range(TRIES)) if drawn >= least), least)


def draw_work(dice: random.Random, cores: int) -> tuple[Workload, dict[str, Law], list[str]]:
    """Draws task classes with their distributions, costs as hints, and sometimes files or a DAG."""
    count = min(MOST_TASKS, max(LEAST_TASKS, round(cores * dice.uniform(4.0, 12.0))))
    traits = []
    laws = {
        f"class{number}": Law(dice.uniform(5.0, 40.0), dice.choice([0.05, 0.2, 0.4, 0.8]), dice.random() < 0.3)
        for number in range(dice.randint(1, 3))
    }
    kinds = [dice.choice(list(laws)) for _ in range(count)]
    costs = [dice.uniform(0.5, 5.0) for _ in range(count)] if dice.random() < 0.5 else [1.0] * count
    work = Workload([cost * laws[kind].draw(dice) for kind, cost in zip(kinds, costs, strict=True)], costs, kinds)
    traits += ["bimodal"] if any(law.bimodal for law in laws.values()) else []
    if dice.random() < 0.35:
        traits.append("files")
        work.files = {f"{dice.getrandbits(256):064x}": int(10 ** dice.uniform(6.5, 8.5)) for _ in range(dice.randint(3, 20))}
        work.needs = [tuple(dice.sample(list(work.files), dice.randint(0, 2))) for _ in range(count)]
    if dice.random() < 0.3:
        traits.append("dag")
        width = dice.randint(8, 40)
        work.after = [
            tuple(sorted({max(0, task - dice.randint(width // 2, width)) for _ in range(2)})) if task >= width else ()
            for task in range(count)
        ]
    return work, laws, traits


def draw_places(dice: random.Random) -> tuple[list[SimulatedSite], list[str]]:
    places, traits = [], []
    for number in range(dice.randint(1, 3)):
        waits = dice.random() < 0.3 and number > 0
        traits += ["waits"] if waits else []
        places.append(
            SimulatedSite(
                f"site{number}",
                dice.randint(2, 8),
                cores=dice.choice([1, 1, 2]),
                speed=dice.uniform(0.5, 2.0),
                spread=dice.choice([0.0, 0.2, 0.4]),
                bandwidth=10 ** dice.uniform(6.3, 8.0),
                launch_s=dice.choice([0.0, 0.1, 1.0]),
                wait_s=dice.uniform(30.0, 200.0) if waits else 0.0,
                wait_spread=0.5,
            )
        )
    return places, traits


class World(LightWorld):
    """The simulated truth, and the facts that it produces."""

    beat_s = 5.0

    def __init__(self, seed: int) -> None:
        dice = random.Random(f"workload {seed}")
        places, more = draw_places(dice)
        work, self.laws, traits = draw_work(dice, sum(place.hosts * place.cores for place in places))
        self.policy_name = dice.choice(POLICY_NAMES)
        self.traits = sorted({*traits, *more})
        super().__init__(places, work, plugins.load("policies", self.policy_name)(), seed)
        if dice.random() < 0.5:
            self._recall(dice)
        self.past = AttemptHistory()
        self.heard = self.past.hear

    def _recall(self, dice: random.Random) -> None:
        """Adds earlier queue waits of the sites to the forecasts."""
        for place in self.places.values():
            for _ in range(5 if place.wait_s else 0):
                self.machine.state.forecasts.waited(place.name, place.wait_s * dice.lognormvariate(0.0, place.wait_spread))

    def moment(self) -> PoolSnapshot:
        return PoolSnapshot.of(self.machine.state, self.past, PoolSettings(policy=self.policy_name), self.now)


class Sage(Projection):
    """A projection with all distributions known: true hosts, links and queues, and new samples for unfinished tasks.

    This is the best possible prediction.
    """

    def __init__(self, world: World, moment: PoolSnapshot, variation: Variation, luck: int) -> None:
        self._world = world
        self._luck = luck
        super().__init__(moment, variation, luck)

    def _place(self, state: State, name: str, moment: PoolSnapshot) -> SimulatedSite:
        known, true = super()._place(state, name, moment), self._world.places.get(name)
        return replace(true, files=known.files) if true is not None else known

    def _draw_slowness(self, worker: Worker) -> float:
        connection = self._world.machine.connections[worker.id]
        assert connection.link is not None
        return 1.0 / self._world.hosts[connection.link].speed

    def _draw_lengths(self) -> None:
        state, laws = self.machine.state, self._world.laws
        began = {task: state.workers[worker] for worker, task in self._moment.began}
        for run in state.runs.values():
            for task in run.tasks:
                law = laws[self._world.work.kinds[task.id & INDEX_MASK]]
                dice = random.Random(f"{self._luck} {task.id}")
                worker = began.get(task.id)
                self._lengths[task.id] = law.draw(dice) if worker is None else law.draw_beyond(dice, self._so_far(worker, task))

    def _draw_wait(self, pilot: str, site: str, so_far: float) -> float:
        place, dice = self._world.places[site], random.Random(f"{self._luck} {pilot}")
        waits = (place.wait_s * dice.lognormvariate(0.0, place.wait_spread) for _ in range(TRIES))
        return next((wait_s for wait_s in waits if wait_s >= so_far), so_far) - so_far if place.wait_s else 0.0

    def _come(self, name: str) -> None:
        before = len(self.hosts)
        super()._come(name)
        for host in list(self.hosts.values())[before:]:
            place, dice = self._world.places[host.place.name], random.Random(f"{self._luck} {name}")
            host.speed = self.variation.speeds.get(place.name, 1.0) * place.speed * dice.lognormvariate(0.0, place.spread)

    def end_s(self) -> float:
        """Returns the seconds from the snapshot to the end."""
        self.begin()
        self.go_on_to_the_end()
        return float("inf") if self.machine.state.unfinished else self.now - self.forked_at


class Fate(Sage):
    """The true result of a variation: tasks have their true durations."""

    def _draw_lengths(self) -> None:
        work = self._world.work
        for run in self.machine.state.runs.values():
            for task in run.tasks:
                self._lengths[task.id] = work.seconds[task.id & INDEX_MASK] / work.costs[task.id & INDEX_MASK]


def draw_options(dice: random.Random, world: World) -> list[Variation]:
    sites = list(world.places)
    choices = [Variation(f"+{n} {site}", more=((site, n),)) for site in sites for n in (2, 6)]
    choices += [Variation(f"-site {site}", without_sites=(site,)) for site in sites[1:]]
    choices += [Variation(f"speed {site}=2", speeds={site: 2.0}) for site in sites]
    choices += [Variation(f"policy={name}", policy=name) for name in POLICY_NAMES if name != world.policy_name]
    return dice.sample([AS_IT_IS, *choices], 2)
