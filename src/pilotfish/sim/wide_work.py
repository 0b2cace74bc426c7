"""Tasks of several nodes in the simulated world: pilots that have as many, and people that ask for them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from pilotfish.model.task import TaskSpec
from pilotfish.sim.workloads import PersonPlan

if TYPE_CHECKING:
    from pilotfish.sim.scenario import Scenario, SiteShape

SHARE = 0.35
"""Of all scenarios, so many have tasks of several nodes as well."""
NODES = 2
KINDS = ("ok", "exit", "flaky", "crash", "poison", "version")
"""What such a task may do. Others belong to specs of their own."""
FEW_LOSSES = (0, 1, 10, 10)
"""Each node that it loses may be the one that it fells: it is never convicted, only given up after so many."""


def draw_wide_work(scenario: Scenario) -> bool:
    """Give some scenarios tasks of several nodes, where pilots can have these. The dice are others than those of the scenario, so that
    the rest of it is as it would be without. The first site does everything, so that all of them can end."""
    dice = random.Random(f"gangs {scenario.seed}")
    if scenario.fixed_strategy or dice.random() >= SHARE:
        return False
    first = scenario.sites[0]
    first.nodes, first.count = dice.choice((2, 2, 3)), dice.choice((1, 1, first.count))
    for site in scenario.sites[1:]:
        if not site.guest and not site.poll_s:  # agents that call now and then are hardly ever there at the same time
            site.nodes = dice.choice((1, 1, 2, 3))
    for plan in scenario.people:
        if dice.random() < 0.7 or plan is scenario.people[0]:
            _draw_wide_tasks(dice, plan, first)
    return True


def _draw_wide_tasks(dice: random.Random, plan: PersonPlan, site: SiteShape) -> None:
    """Some of the tasks want several nodes, and are otherwise as they were; or take longer, so that more happens to them."""
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
