"""Places contents in the simulated world: which tasks need and make them, and where they are."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from pilotfish.model.contents import Content
from pilotfish.model.site import LOCAL
from pilotfish.model.task import TaskSpec
from tests.simulation.world.simulated_tasks import PersonPlan, PlannedTask

if TYPE_CHECKING:
    from tests.simulation.world.fault_scenario import ScenarioSite
    from tests.simulation.world.fault_world import FaultWorld
    from tests.simulation.world.simulated_node import SimulatedNode

SHARE = 0.35
"""Fraction of scenarios with contents."""
MODE = 0o640
"""File mode of all outputs of tasks."""
FEW_LOSSES = 10
"""Maximum allowed losses of a task that needs contents kept at a worker. Such contents may be gone at every attempt, so the task must
give up soon."""

Failure = list[str]


@dataclass(slots=True)
class DataPlan:
    """Contents of a scenario. ``inputs``: files of clients. ``room``: maximum contents in the cache of a node, besides those in use.
    ``cut_share``: fraction of transfers that are interrupted and resumed. ``disk_survives``: probability that the next agent of a site
    finds the cache of an earlier one."""

    inputs: list[Content]
    room: int
    longest_s: float
    cut_share: float
    disk_survives: float


def draw_data(seed: int, people: list[PersonPlan]) -> DataPlan | None:
    """Adds contents to some scenarios. It uses its own random numbers, so that the rest of the scenario does not change."""
    dice = random.Random(f"contents {seed}")
    if dice.random() >= SHARE:
        return None
    inputs = [_content(f"input {number}", f"/data/{number}") for number in range(dice.randint(2, 6))]
    for plan in people:
        plan.specs = [_with_inputs(dice, spec, inputs) for spec in plan.specs]
        _draw_needs(dice, plan, inputs)
    return DataPlan(
        inputs,
        dice.choice((1, 3, 100)),
        dice.choice((0.1, 1.0, 5.0, 20.0)),
        dice.choice((0.0, 0.1, 0.4)),
        dice.choice((0.0, 0.5, 0.9)),
    )


def _with_inputs(dice: random.Random, spec: TaskSpec, inputs: list[Content]) -> TaskSpec:
    spec = msgspec.structs.replace(spec, kind="exec", launch={**spec.launch, "sandbox": True})
    if dice.random() < 0.6:
        return spec
    return msgspec.structs.replace(spec, contents=tuple(dice.sample(inputs, dice.randint(1, 2))))


def _draw_needs(dice: random.Random, plan: PersonPlan, inputs: list[Content]) -> None:
    """Draws inputs for some tasks, outputs for some, and later tasks that need these outputs."""
    for index, task in enumerate(plan.tasks):
        contents = tuple(dice.sample(inputs, dice.randint(1, min(3, len(inputs))))) if dice.random() < 0.4 else ()
        makes = tuple(dice.random() < 0.6 for _ in range(dice.randint(1, 2))) if dice.random() < 0.4 else ()
        uses = _draw_uses(dice, plan, index) if dice.random() < 0.2 else ()
        plan.tasks[index] = replace(task, contents=contents, makes=makes, uses=uses, is_promised=bool(index % 2))


def _draw_uses(dice: random.Random, plan: PersonPlan, index: int) -> tuple[int, ...]:
    task = plan.tasks[index]
    makers = [number for number, earlier in enumerate(plan.tasks[:index]) if earlier.makes]
    if plan.specs[task.spec].losses > FEW_LOSSES:
        makers = [number for number in makers if all(plan.tasks[number].makes)]
    return tuple(sorted(dice.sample(makers, min(len(makers), dice.randint(1, 2)))))


def _content(label: str, path: str = "") -> Content:
    return Content(sha256(label.encode()).hexdigest(), 100_000 + len(label), path, 1 if path else 0, 1 if path else 0)


def made_by(planned: PlannedTask, task: int, attempt: int) -> list[tuple[Content, bool]]:
    """Returns the outputs of an attempt, and whether they are copied to the master. Each attempt makes different ones, as many programs
    do."""
    return [(_content(f"made {task} {attempt} {number}"), home) for number, home in enumerate(planned.makes)]


def name_of(number: int) -> str:
    """Returns the path of an output in the task's directory."""
    return f"out/{number}"


@dataclass(slots=True)
class NodeDisk:
    """The cache of a node. ``held``: contents that must not be evicted."""

    contents: dict[str, int] = field(default_factory=dict)
    held: dict[str, None] = field(default_factory=dict)


def _network(site: ScenarioSite) -> str:
    """Returns the network of a site; nodes of one network reach each other. Guests share one without a name. Nodes on the master's
    machine are reached through the master."""
    return "" if site.guest else site.name


class ContentLibrary:
    """The true locations of contents. ``home``: the master's store; ``removed``: files that clients have changed since submission; disks
    of nodes."""

    def __init__(self, world: FaultWorld) -> None:
        self.world = world
        self.home: dict[str, None] = {}
        self.removed: dict[str, None] = {}
        self._inputs = {content.digest: None for content in world.scenario.data.inputs} if world.scenario.data else {}
        self._disks: dict[str, list[NodeDisk]] = {}

    def disk_for(self, site: ScenarioSite) -> NodeDisk:
        """Returns the cache of a starting agent: one left by an earlier agent of this site, or an empty one."""
        left = self._disks.get(site.name)
        return left.pop(self.world.dice.randrange(len(left))) if left else NodeDisk()

    def leave_disk(self, site: ScenarioSite, disk: NodeDisk) -> None:
        data = self.world.scenario.data
        if data is not None and disk.contents and self.world.dice.random() < data.disk_survives:
            self._disks.setdefault(site.name, []).append(disk)

    def why_absent(self, node: SimulatedNode, digest: str) -> Failure | None:
        """Returns None if this node can get the content from a peer or from the master, otherwise the failure."""
        sites = [_network(other.site) for other in self.world.nodes.values() if other.alive and digest in other.fetcher.disk.contents]
        if _network(node.site) in sites or LOCAL in sites:
            return None
        master = self.world.master
        if master is not None and digest not in master.machine.state.contents:
            return ["missing-input", "site", "no run needs it"]
        if digest in self.removed:
            return ["missing-input", "user", "it was changed after it was submitted"]
        if digest in self.home or digest in self._inputs:
            return None
        return ["missing-input", "site", "it was kept where it was made, and is gone"]
