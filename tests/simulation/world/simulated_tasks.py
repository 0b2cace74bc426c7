"""Defines what simulated tasks do, and what clients submit."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pilotfish.model.contents import Content
from pilotfish.model.task import Request, RunOptions, TaskSpec

if TYPE_CHECKING:
    from tests.simulation.world.simulated_slot import Execution

GIB = 1 << 30
MOST_S = 60.0
"""Maximum duration of a simulated task."""


@dataclass(slots=True, frozen=True)
class TaskBehaviour:
    """Behaviour of a task. ``kind``: ok, exit, flaky, memory, crash, poison, hang or version.

    ``bad_times``: number of executions that fail before one succeeds. ``swift``: poison that kills before the start was reported.
    ``fells_node``: poison that kills the whole node, so that nothing is reported.
    """

    kind: str = "ok"
    duration_s: float = 1.0
    bad_times: int = 0
    memory: int = 0
    swift: bool = False
    fells_node: bool = False


@dataclass(slots=True, frozen=True)
class PlannedTask:
    spec: int
    behaviour: TaskBehaviour
    needs: tuple[int, ...]
    padding: int
    contents: tuple[Content, ...] = ()
    """Inputs besides those of its spec."""
    makes: tuple[bool, ...] = ()
    """For each output: whether it is copied to the master."""
    uses: tuple[int, ...] = ()
    """Earlier tasks whose outputs it needs; it can be submitted only after them."""
    is_promised: bool = False
    """True if these outputs are future files, so that it is submitted at once."""


@dataclass(slots=True)
class PersonPlan:
    """Actions of one client: a run of these tasks, submitted in batches, watched or not."""

    uid: str
    options: RunOptions
    specs: list[TaskSpec]
    tasks: list[PlannedTask]
    batch: int
    think_s: float
    in_flight: int
    closes: bool
    trusts_opened: bool
    """True: continues after the last task that the master has; false: sends all unaccepted tasks again."""
    commands: int


class TaskBehaviours:
    """Finds the behaviour of a task by its payload, and counts executions."""

    def __init__(self, people: list[PersonPlan]) -> None:
        self._plans = {plan.uid: plan for plan in people}
        self._executions: dict[int, int] = {}
        self._known: dict[int, TaskBehaviour] = {}

    def behaviour_of(self, task: int) -> TaskBehaviour | None:
        """Returns the behaviour of a task that was started at least once."""
        return self._known.get(task)

    def behaviour(self, payload: bytes) -> TaskBehaviour:
        return self.planned(payload).behaviour

    def planned(self, payload: bytes) -> PlannedTask:
        uid, index, _ = payload.split(b":", 2)
        return self._plans[uid.decode()].tasks[int(index)]

    def count_execution(self, task: int, behaviour: TaskBehaviour) -> None:
        self._known[task] = behaviour
        self._executions[task] = self._executions.get(task, 0) + 1

    def executions(self, task: int) -> int:
        return self._executions.get(task, 0)


def payload_of(plan: PersonPlan, index: int) -> bytes:
    return b"%s:%d:" % (plan.uid.encode(), index) + b"." * plan.tasks[index].padding


def result_of(payload: bytes, execution: Execution) -> bytes:
    """Returns a result that names its execution, for the oracle."""
    return b"%s|%d|%d|%s" % (payload, execution.task, execution.attempt, execution.worker.encode())


# --- random draws -------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class TaskMix:
    """Proportions of task kinds in one scenario."""

    shortest_s: float
    longest_s: float
    bad_share: float
    kinds: list[str]
    deps_share: float
    padding: int
    large_cores: float
    straggler_share: float
    tags: list[dict[str, str]] = field(default_factory=list)


def draw_specs(dice: random.Random, mix: TaskMix) -> list[TaskSpec]:
    specs = []
    for number in range(dice.randint(1, 3)):
        cores = dice.choice((1.0, 1.0, 1.0, 0.5, 2.0, mix.large_cores))
        cores_max = cores + 2.0 if dice.random() < 0.15 else 0.0
        memory = dice.choice((0, 0, GIB))
        specs.append(
            TaskSpec(
                "python",
                f"spec{number}",
                Request(cores, cores_max, memory),
                time_s=36 * max(mix.longest_s, MOST_S) if dice.random() < 0.2 else 0.0,
                retries=dice.choice((0, 0, 1, 3)),
                losses=dice.choice((0, 1, 10, 1000)),
                priority=dice.choice((0, 0, 0, 5, -1)),
                tags=dice.choice(mix.tags) if mix.tags and dice.random() < 0.2 else {},
                code=b"c" * dice.choice((0, 10, 200)),
            )
        )
    if "memory" in mix.kinds:
        specs.append(TaskSpec("python", "hungry", Request(1.0, 0.0, GIB), losses=50))
    if "hang" in mix.kinds:
        specs.append(TaskSpec("python", "limited", Request(1.0), time_s=2.0, retries=dice.choice((0, 1)), losses=50))
    return specs


def draw_tasks(dice: random.Random, mix: TaskMix, specs: list[TaskSpec], count: int) -> list[PlannedTask]:
    plain = [number for number, spec in enumerate(specs) if spec.name.startswith("spec")]
    tasks = []
    for index in range(count):
        duration = mix.shortest_s * (mix.longest_s / mix.shortest_s) ** dice.random()
        if dice.random() < mix.straggler_share:
            duration = max(duration, dice.uniform(5.0, 40.0))
        behaviour, spec = TaskBehaviour("ok", duration), dice.choice(plain)
        if mix.kinds and dice.random() < mix.bad_share:
            behaviour = _draw_bad(dice, dice.choice(mix.kinds), duration)
            named = {"memory": "hungry", "hang": "limited"}.get(behaviour.kind)
            spec = next((number for number, known in enumerate(specs) if known.name == named), spec)
        needs: tuple[int, ...] = ()
        if index and dice.random() < mix.deps_share:
            needs = tuple(sorted({dice.randrange(index) for _ in range(dice.randint(1, 3))}))
        tasks.append(PlannedTask(spec, behaviour, needs, dice.choice((0, mix.padding))))
    return tasks


def _draw_bad(dice: random.Random, kind: str, duration_s: float) -> TaskBehaviour:
    return TaskBehaviour(
        kind,
        duration_s,
        bad_times=dice.choice((1, 1, 2, 9)),
        memory=dice.choice((GIB * 3 // 2, 3 * GIB, 1000 * GIB)),
        swift=dice.random() < 0.5,
        fells_node=dice.random() < 0.3,
    )
