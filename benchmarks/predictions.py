"""How good are predictions? Bands and medians of ``predict``, and the order of ``whatif``, against simulated worlds that go on."""

from __future__ import annotations

import argparse
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks.harness import Options, describe_machine, layout, write_json
from pilotfish.model.ids import INDEX_MASK
from pilotfish.model.settings import PoolSettings
from pilotfish.policies.registry import POLICIES
from pilotfish.sim.foresight import foresee
from pilotfish.sim.forked import Forked
from pilotfish.sim.hosts import Host
from pilotfish.sim.moment import AS_IT_IS, Moment, Variation
from pilotfish.sim.past import Past
from pilotfish.sim.rehearsal import Rehearsal
from pilotfish.sim.workload import Place, Work

WORKLOADS = 200
MOMENTS = (0.1, 0.5, 0.9)
"""Parts of the tasks that have ended when it is asked."""
REPLICAS = 24
LEAST_TASKS, MOST_TASKS = 60, 300
DIFFERENT = 0.05
"""Pairs of options that are nearer to each other, in truth, are not ranked."""
POLICY_NAMES = ("workqueue", "near", "auto")


def draw_work(dice: random.Random, cores: int) -> tuple[Work, list[str]]:
    """Some classes of tasks, each with a unit and a way to scatter; costs that are told; perhaps files, perhaps a DAG."""
    count = min(MOST_TASKS, max(LEAST_TASKS, round(cores * dice.uniform(4.0, 12.0))))
    traits = []
    units = {f"class{number}": dice.uniform(5.0, 40.0) for number in range(dice.randint(1, 3))}
    scatter = {name: dice.choice([0.05, 0.2, 0.4, 0.8]) for name in units}
    bimodal = {name: dice.random() < 0.3 for name in units}
    kinds = [dice.choice(list(units)) for _ in range(count)]
    costs = [dice.uniform(0.5, 5.0) for _ in range(count)] if dice.random() < 0.5 else [1.0] * count
    seconds = []
    for kind, cost in zip(kinds, costs, strict=True):
        mode = (4.0 if dice.random() < 0.2 else 0.7) if bimodal[kind] else 1.0
        seconds.append(cost * units[kind] * mode * dice.lognormvariate(0.0, 0.1 if bimodal[kind] else scatter[kind]))
    traits += ["bimodal"] if any(bimodal.values()) else []
    work = Work(seconds, costs, kinds)
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
    return work, traits


def draw_places(dice: random.Random) -> tuple[list[Place], list[str]]:
    places, traits = [], []
    for number in range(dice.randint(1, 3)):
        waits = dice.random() < 0.3 and number > 0
        traits += ["waits"] if waits else []
        places.append(
            Place(
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


class World(Rehearsal):
    """The truth, and what facts tell of it."""

    beat_s = 5.0

    def __init__(self, seed: int) -> None:
        dice = random.Random(f"workload {seed}")
        places, more = draw_places(dice)
        work, traits = draw_work(dice, sum(place.hosts * place.cores for place in places))
        self.policy_name = dice.choice(POLICY_NAMES)
        self.traits = sorted({*traits, *more})
        super().__init__(places, work, POLICIES[self.policy_name](), seed)
        if dice.random() < 0.5:
            self._recall(dice)
        self.past = Past()
        self.heard = self.past.hear

    def _recall(self, dice: random.Random) -> None:
        """The pool has used these sites before, and knows their queues."""
        for place in self.places.values():
            for _ in range(5 if place.wait_s else 0):
                self.machine.state.forecasts.waited(place.name, place.wait_s * dice.lognormvariate(0.0, place.wait_spread))

    def moment(self) -> Moment:
        return Moment.of(self.machine.state, self.past, PoolSettings(policy=self.policy_name), self.now)


class Truth(Forked):
    """What a variation would really do, from a moment of a world of which everything is known."""

    def __init__(self, world: World, moment: Moment, variation: Variation, seed: int) -> None:
        super().__init__(moment, variation, seed)
        names = world.machine.agent_links
        for link, worker in names.items():
            self._slowness[worker] = 1.0 / world.hosts[link].speed
        self.work = world.work
        for task in self._lengths:
            run = self.machine.state.task(task).shape.run
            self._lengths[task] = world.work.seconds[task & INDEX_MASK] / (run.cost(task & INDEX_MASK) or 1.0)
        self.true_places = world.places

    def _come(self, name: str) -> None:
        before = len(self.hosts)
        super()._come(name)
        for host in list(self.hosts.values())[before:]:
            place = self.true_places[host.place.name]
            host.speed = self.variation.speeds.get(place.name, 1.0) * place.speed * random.Random(name).lognormvariate(0.0, place.spread)

    def seconds(self, task: int, host: Host) -> float:
        return self.work.seconds[task & INDEX_MASK] / host.speed


def draw_options(dice: random.Random, world: World) -> list[Variation]:
    sites = list(world.places)
    choices = [Variation(f"+{n} {site}", more=((site, n),)) for site in sites for n in (2, 6)]
    choices += [Variation(f"-site {site}", without_sites=(site,)) for site in sites[1:]]
    choices += [Variation(f"speed {site}=2", speeds={site: 2.0}) for site in sites]
    choices += [Variation(f"policy={name}", policy=name) for name in POLICY_NAMES if name != world.policy_name]
    return dice.sample([AS_IT_IS, *choices], 2)


def predict_all(seed: int) -> list[dict[str, Any]]:
    world = World(seed)
    world.begin()
    total = len(world.work)
    rows = []
    asked = []
    for part in MOMENTS:
        world.go_on(left=max(1, round(total * (1 - part))))
        moment = world.moment()
        foresight = foresee(moment, None, replicas=REPLICAS, cores=1)[0]
        asked.append((part, world.now, foresight))
    world.go_on()
    for part, at, foresight in asked:
        low, high = foresight.band()
        rows.append(
            {
                "seed": seed,
                "part": part,
                "true_s": world.now - at,
                "whole_s": world.now,
                "median_s": foresight.median_s,
                "low_s": low,
                "high_s": high,
                "traits": world.traits,
                "policy": world.policy_name,
                "stuck": foresight.stuck,
            }
        )
    return rows


def rank_two(seed: int) -> dict[str, Any]:
    world = World(seed)
    world.begin()
    world.go_on(left=len(world.work) // 2)
    moment = world.moment()
    options = draw_options(random.Random(f"options {seed}"), world)
    truths = []
    for option in options:
        truth = Truth(world, moment, option, 10_000 + seed)
        truth.begin()
        truth.go_on_to_the_end()
        truths.append(float("inf") if truth.machine.state.unfinished else truth.now - moment.now)
    told = foresee(moment, None, options, replicas=REPLICAS, cores=1)
    return {
        "seed": seed,
        "options": [option.text for option in options],
        "true_s": truths,
        "merit_s": [each.merit_s for each in told],
        "traits": world.traits,
    }


def _rank(rows: list[dict[str, Any]]) -> tuple[int, int]:
    told = [row for row in rows if max(row["true_s"]) > (1 + DIFFERENT) * min(row["true_s"])]
    right = sum((row["true_s"][0] < row["true_s"][1]) == (row["merit_s"][0] < row["merit_s"][1]) for row in told)
    return right, len(told)


def figures(rows: list[dict[str, Any]], part: float) -> dict[str, float]:
    here = [row for row in rows if row["part"] == part]
    inside = sum(row["low_s"] <= row["true_s"] <= row["high_s"] for row in here)
    wrong = sorted(abs(row["median_s"] - row["true_s"]) / row["true_s"] for row in here)
    biases = sorted(row["median_s"] / row["true_s"] for row in here)
    widths = sorted(row["high_s"] / max(row["low_s"], 1e-9) for row in here)
    middle = len(here) // 2
    return {
        "count": len(here),
        "inside": inside / len(here),
        "error": wrong[middle],
        "of_whole": sorted(abs(row["median_s"] - row["true_s"]) / row["whole_s"] for row in here)[middle],
        "bias": biases[middle],
        "width": widths[middle],
        "below": sum(row["true_s"] < row["low_s"] for row in here) / len(here),
    }


def run(workloads: int, options: Options, first: int = 0) -> int:
    seeds = range(first, first + workloads)
    with ProcessPoolExecutor() as pool:
        rows = [row for some in pool.map(predict_all, seeds, chunksize=2) for row in some]
        pairs = list(pool.map(rank_two, seeds, chunksize=2))
    lines = [
        ["tasks ended", "predictions", "inside the 80 % band", "before it", "error of what is left", "of the whole", "bias", "high / low"]
    ]
    for part in MOMENTS:
        told = figures(rows, part)
        lines.append(
            [
                f"{part:.0%}",
                str(told["count"]),
                f"{told['inside']:.0%}",
                f"{told['below']:.0%}",
                f"{told['error']:.1%}",
                f"{told['of_whole']:.1%}",
                f"{told['bias']:.3f}",
                f"{told['width']:.2f}",
            ]
        )
    print(layout(lines))
    right, ranked = _rank(pairs)
    print(f"whatif: {len(pairs)} pairs of options; {ranked} differ by more than {DIFFERENT:.0%} in truth")
    print(f"of these, {right / max(1, ranked):.0%} were ranked rightly")
    write_json(options.out, "predictions", {"machine": describe_machine(), "predictions": rows, "pairs": pairs})
    inside = sum(row["low_s"] <= row["true_s"] <= row["high_s"] for row in rows) / len(rows)
    met = inside >= 0.75 and figures(rows, 0.5)["error"] <= 0.15 and right >= 0.9 * ranked
    print(
        f"goal: bands hold in 75 % ({inside:.0%}), median error at half-way at most 15 %, ranks right in 90 %: {'met' if met else 'missed'}"
    )
    return 1 if options.strict and not met else 0


def main(options: Options) -> int:
    return run(WORKLOADS, options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    Options.add_to(parser)
    parser.add_argument("--workloads", type=int, default=WORKLOADS)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first of them")
    chosen = parser.parse_args()
    sys.exit(run(chosen.workloads, Options.from_namespace(chosen), chosen.first))
