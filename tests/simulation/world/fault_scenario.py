"""Draws a scenario from a seed: sites, clients, and the rates of faults.

Each seed switches some kinds of faults off and draws its own rates, sizes and timeouts. If all faults occurred at once, one fault would
hide the effects of another.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import msgspec

from pilotfish.model.settings import PoolSettings
from pilotfish.model.task import RunOptions, TaskSpec
from tests.simulation.world.data_faults import DATA_FAULTS
from tests.simulation.world.simulated_contents import DataPlan, draw_data
from tests.simulation.world.simulated_tasks import GIB, MOST_S, PersonPlan, TaskMix, draw_specs, draw_tasks

NODE_FAULTS = (
    "agent-kill",
    "node-crash",
    "hang",
    "long-hang",
    "endless-hang",
    "slot-kill",
    "supervisor-kill",
    "eviction",
    "preemption",
    "requeue",
    "slow-node",
    "black-hole",
    "link-reset",
    "silent-cut",
    "partition",
    "long-partition",
    "one-way-out",
    "one-way-in",
    "clogged-link",
    "swizzle",
)
MASTER_FAULTS = (
    "master-kill",
    "master-kill-before-append",
    "master-kill-before-sync",
    "master-kill-after-sync",
    "master-kill-amid-effects",
    "master-kill-in-recovery",
    "long-outage",
    "zombie-master",
    "master-stall",
    "long-stall",
    "disk-full",
    "disk-low",
    "slow-disk",
    "clock-jump",
)
CLIENT_FAULTS = ("client-kill", "client-cut", "client-stall")
FAULTS = NODE_FAULTS + MASTER_FAULTS + CLIENT_FAULTS
CONSEQUENCES = ("lost-tail", "torn-tail", "bad-start")
"""Faults that follow from other faults: counted, not scheduled."""
RARE = {
    "endless-hang": 0.15,
    "long-outage": 0.2,
    "long-stall": 0.3,
    "swizzle": 0.3,
    "black-hole": 0.2,
    "long-partition": 0.4,
    "long-hang": 0.4,
    "input-changed": 0.1,
}


@dataclass(slots=True)
class ScenarioSite:
    """A site with nodes of one kind. ``notice_s``: maximum seconds until it notices a lost node. ``guest``: its nodes join by themselves,
    not as pilots, and their end is not reported."""

    name: str
    count: int = 1
    cores: float = 2.0
    memory: int = 4 * GIB
    slowness: float = 1.0
    walltime_s: float = 0.0
    poll_s: float = 0.0
    tags: dict[str, str] = field(default_factory=dict)
    boot_s: float = 1.0
    black_hole: bool = False
    bad_start: float = 0.0
    notice_s: float = 5.0
    guest: bool = False
    nodes: int = 1
    """Nodes per pilot."""


@dataclass(slots=True)
class FaultScenario:
    seed: int
    settings: PoolSettings
    sites: list[ScenarioSite]
    people: list[PersonPlan]
    weights: dict[str, float]
    fault_gap_s: float
    most_faults: int
    delay_s: float = 0.001
    sync_s: float = 0.0005
    batch_s: float = 0.0005
    inline_bytes: int = 1 << 30
    check_every: int = 16
    compare_every: int = 64
    commands_gap_s: float = 0.0
    fixed_strategy: bool = False
    tells_of_own_hang_up: bool = False
    slots_report_late: bool = False
    clients_speak_json: bool = False
    items_per_message: int = 5000
    data: DataPlan | None = None
    wide: bool = False
    """True if some tasks need several nodes."""
    copies: float | None = None
    """How eagerly running tasks are copied to a second worker; 0: only where forecasts favour it; None: no copies."""


def draw_scenario(seed: int, most_faults: int = 0) -> FaultScenario:
    dice = random.Random(f"scenario {seed}")
    weights = _draw_weights(dice)
    gap_s = 10 ** dice.uniform(-0.7, 0.5)
    faults = most_faults or dice.randint(60, 200)
    sites = _draw_sites(dice)
    people = _draw_people(dice, sites, faults * gap_s)
    data = draw_data(seed, people)
    copies = _draw_copies(seed, people)
    if data is not None:
        weights |= _draw_data_weights(seed)
    scenario = FaultScenario(
        seed,
        _draw_settings(dice),
        sites,
        people,
        weights,
        gap_s,
        faults,
        delay_s=dice.choice((0.0002, 0.001, 0.001, 0.02, 0.25)),
        sync_s=dice.choice((0.0002, 0.0005, 0.005)),
        batch_s=dice.choice((0.0, 0.0005, 0.01)),
        inline_bytes=dice.choice((1 << 30, 100)),
        check_every=dice.choice((4, 16, 32)),
        commands_gap_s=dice.choice((0.0, 2.0, 5.0, 30.0)),
        fixed_strategy=dice.random() < 0.15,
        tells_of_own_hang_up=dice.random() < 0.5,
        slots_report_late=dice.random() < 0.4,
        clients_speak_json=dice.random() < 0.2,
        items_per_message=dice.choice((5000, 5000, 7, 1)),
        data=data,
        copies=copies,
    )
    scenario.wide = draw_wide_work(scenario)
    return scenario


def _draw_weights(dice: random.Random) -> dict[str, float]:
    share = dice.choice((0.1, 0.3, 0.6, 1.0))
    chosen = [kind for kind in FAULTS if dice.random() < share] or [dice.choice(FAULTS)]
    return {kind: dice.uniform(0.2, 1.0) * RARE.get(kind, 1.0) for kind in chosen}


def _draw_data_weights(seed: int) -> dict[str, float]:
    dice = random.Random(f"data faults {seed}")
    return {kind: dice.uniform(0.2, 1.0) * RARE.get(kind, 1.0) for kind in DATA_FAULTS if dice.random() < 0.6}


def _draw_copies(seed: int, people: list[PersonPlan]) -> float | None:
    """In some worlds clients allow copies of their tasks, say nothing, or forbid them."""
    dice = random.Random(f"copies {seed}")
    if dice.random() < 0.6:
        return None
    for plan in people:
        plan.options = msgspec.structs.replace(plan.options, speculate=dice.choice((None, True, True, False)))
    return dice.choice((0.0, 0.1, 0.5, 1.0))


def _draw_settings(dice: random.Random) -> PoolSettings:
    beat_s = dice.choice((1.0, 5.0, 5.0))
    return PoolSettings(
        beat_s=beat_s,
        lease_s=4 * beat_s,
        orphan_s=dice.choice((60.0, 120.0, 900.0)),
        linger_s=dice.choice((5.0, 30.0)),
        author_s=dice.choice((5.0, 30.0)),
        idle_s=dice.choice((0.0, 0.0, 0.0, 20.0)),
        ahead_s=dice.choice((0.05, 0.05, 0.5)),
        quarantine_s=dice.choice((20.0, 60.0)),
        quarantine_after=dice.choice((3, 5)),
    )


def _draw_sites(dice: random.Random) -> list[ScenarioSite]:
    """The first site can run every task, so that all runs can finish after the faults."""
    sites = [ScenarioSite("anchor", dice.randint(1, 2), 4.0, 8 * GIB, tags={"disk": "big"})]
    for number in range(dice.randint(1, 3)):
        sites.append(
            ScenarioSite(
                f"site{number}",
                dice.randint(1, 2),
                dice.choice((1.0, 2.0, 4.0)),
                dice.choice((2, 4, 8)) * GIB,
                slowness=dice.choice((1.0, 1.0, 3.0)),
                walltime_s=dice.choice((0.0, 0.0, 0.0, 30.0, 100.0)),
                poll_s=dice.choice((0.0, 0.0, 0.0, 0.0, 2.0, 30.0)),
                boot_s=dice.choice((0.1, 1.0, 10.0)),
                black_hole=dice.random() < 0.05,
                bad_start=dice.choice((0.0, 0.0, 0.2)),
                notice_s=dice.choice((0.1, 5.0, 60.0)),
                guest=dice.random() < 0.25,
            )
        )
    return sites


def _draw_durations(dice: random.Random, span_s: float) -> tuple[float, float]:
    """Draws short tasks, which are prefetched in groups, or long ones, which are likely to run when a fault occurs."""
    if dice.random() < 0.4:
        shortest_s = 10 ** dice.uniform(-3.0, -1.0)
        return shortest_s, shortest_s * dice.choice((2.0, 10.0, 100.0))
    longest_s = min(MOST_S, max(0.5, span_s * dice.uniform(0.05, 0.4)))
    return longest_s / dice.choice((2.0, 10.0, 50.0)), longest_s


def _draw_people(dice: random.Random, sites: list[ScenarioSite], span_s: float) -> list[PersonPlan]:
    shortest_s, longest_s = _draw_durations(dice, span_s)
    kinds = [kind for kind in ("exit", "flaky", "memory", "crash", "poison", "hang", "version") if dice.random() < 0.3]
    mix = TaskMix(
        shortest_s,
        longest_s,
        dice.choice((0.0, 0.05, 0.2)),
        kinds,
        dice.choice((0.0, 0.0, 0.3)),
        dice.choice((0, 200)),
        dice.choice((2.0, 4.0)),
        dice.choice((0.0, 0.05, 0.1)),
        [site.tags for site in sites if site.tags],
    )
    people = []
    for number in range(dice.randint(1, 3)):
        specs = draw_specs(dice, mix)
        count = dice.randint(10, 60)
        batch = count if dice.random() < 0.3 else dice.randint(1, 12)
        options = RunOptions(owned=dice.random() < 0.1, max_failures=dice.choice((0, 0, 0, 3)))
        people.append(
            PersonPlan(
                f"person{number}",
                options,
                specs,
                draw_tasks(dice, mix, specs, count),
                batch,
                think_s=2.0 * span_s * batch / count,
                in_flight=dice.choice((1, 1, 3)),
                closes=dice.random() < 0.8,
                trusts_opened=dice.random() < 0.7,
                commands=dice.choice((0, 0, 3)),
            )
        )
    return people


# Multi-node tasks: pilots with several nodes, and clients that submit such tasks.

SHARE = 0.35
"""Fraction of scenarios with multi-node tasks."""
NODES = 2
KINDS = ("ok", "exit", "flaky", "crash", "poison", "version")
"""Behaviours of multi-node tasks. Other behaviours need specs of their own."""
FEW_LOSSES = (0, 1, 10, 10)
"""Limits on lost workers. Any of its nodes may have caused a loss, so a multi-node task is never blamed; it only fails after this many
losses."""


def draw_wide_work(scenario: FaultScenario) -> bool:
    """Adds multi-node tasks to some scenarios, where pilots can have several nodes.

    It uses its own random numbers, so that the rest of the scenario does not change. The first site can run every task, so that all of
    them can finish.
    """
    dice = random.Random(f"gangs {scenario.seed}")
    if scenario.fixed_strategy or dice.random() >= SHARE:
        return False
    first = scenario.sites[0]
    first.nodes, first.count = dice.choice((2, 2, 3)), dice.choice((1, 1, first.count))
    for site in scenario.sites[1:]:
        if not site.guest and not site.poll_s:  # agents that only poll are hardly ever connected at the same time
            site.nodes = dice.choice((1, 1, 2, 3))
    for plan in scenario.people:
        if dice.random() < 0.7 or plan is scenario.people[0]:
            _draw_wide_tasks(dice, plan, first)
    return True


def _draw_wide_tasks(dice: random.Random, plan: PersonPlan, site: ScenarioSite) -> None:
    """Turns some tasks into multi-node tasks; some also get longer, so that more faults hit them."""
    plain = [spec for spec in plan.specs if spec.name.startswith("spec") and spec.request.cores <= site.cores]
    if not plain:
        return
    share, least_s = dice.choice((0.1, 0.3, 0.8)), dice.choice((0.0, 5.0, 20.0))
    plan.specs.append(_wide(dice, dice.choice(plain)))
    for index, task in enumerate(plan.tasks):
        if task.behaviour.kind in KINDS and dice.random() < share:
            longer = replace(task.behaviour, duration_s=max(task.behaviour.duration_s, least_s * dice.random()))
            plan.tasks[index] = replace(task, spec=len(plan.specs) - 1, behaviour=longer)


def _wide(dice: random.Random, spec: TaskSpec) -> TaskSpec:
    cores = dice.choice((spec.request.cores, 1.0, 2.0, 4.0))
    request = msgspec.structs.replace(spec.request, cores=cores, cores_max=0.0, nodes=NODES)
    return msgspec.structs.replace(spec, name="wide", request=request, losses=dice.choice(FEW_LOSSES))
