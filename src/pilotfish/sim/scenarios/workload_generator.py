"""Generates the workload of one seed: equal tasks, a family of workflows, a workflow instance, a task list, or the published APST sweep."""

from __future__ import annotations

import difflib
import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256

from pilotfish.applications.wfcommons import Workflow, read_workflow
from pilotfish.errors import BadInput
from pilotfish.sim.light_world import TaskInterval
from pilotfish.sim.scenarios.apst_sweep import FILES, SCENARIOS, sweep
from pilotfish.sim.scenarios.distributions import Distribution, parse_draw
from pilotfish.sim.scenarios.field_reader import FieldReader, nearest, shown
from pilotfish.sim.scenarios.workflow_families import FAMILIES, LEAST, family
from pilotfish.sim.workload import Workload

WORK_KEYS = ("tasks", "seconds", "cores", "hints", "from")
SHARINGS = ("groups", "all", "none")
APST = "apst"
MOST_TASKS = 10_000_000
MOST_CORES = 4096
MOST_ERROR = 10.0
LEAST_FACTOR = 0.05
ONE_SECOND = Distribution()
HINTS_FIX = 'write true, false, or by how much the hints are wrong: hints = "30 %"'
FROM_FIX = (
    f'write a family and a number of tasks, such as "montage:1000" ({", ".join(FAMILIES)}),'
    f' "{APST}:a", a JSON file of WfCommons, a .dag file of DAGMan, or a task list'
)

Lister = Callable[[str], Workload]
"""Reads a task list; the ``seconds`` of its result are costs."""


@dataclass(slots=True, frozen=True)
class FileGroup:
    """Equal files. ``shared``: one file per group of consecutive tasks, all files for all tasks, or one file per task."""

    size: int
    count: int = 1
    shared: str = "groups"


@dataclass(frozen=True)
class WorkloadPlan:
    """Generates workloads. ``given``: a workload equal for all seeds, except that ``seconds`` gives the time of cost 1."""

    tasks: int = 0
    seconds: Distribution = ONE_SECOND
    cores: int = 1
    hints: float | None = None
    """Relative error of the tasks' costs; None: tasks have no costs."""
    kinds: tuple[FileGroup, ...] = ()
    family: str = ""
    apst: str = ""
    given: Workload | None = field(default=None, compare=False)

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """Digests of files that may be staged in advance."""
        if self.apst:
            return FILES
        if self.given is not None:
            return tuple(self.given.files)
        return tuple(_digest(number) for number in range(sum(kind.count for kind in self.kinds if kind.shared != "none")))

    @cached_property
    def most_cores(self) -> int:
        return max(self.given.cores, default=1) if self.given is not None else self.cores

    def work(self, seed: int) -> Workload:
        dice = random.Random(f"work {seed}")
        if self.family:
            work = work_of(family(self.family, self.tasks, seed))
        elif self.apst:
            work = sweep(seed, 1.0)
            work.seconds = [seconds * self.seconds.of(dice) for seconds in work.seconds]
        elif self.given is not None:
            work = replace(self.given, seconds=[seconds * self.seconds.of(dice) for seconds in self.given.seconds])
        else:
            work = Workload([self.seconds.of(dice) for _ in range(self.tasks)], cores=[self.cores] * self.tasks if self.cores > 1 else [])
            _add_files(work, self.kinds)
        known = work.costs or work.seconds
        work.costs = [] if self.hints is None else [cost * wrong(self.hints, dice) for cost in known]
        return work


def wrong(error: float, dice: random.Random) -> float:
    """Returns a random factor between 1 - error and 1 + error."""
    return max(LEAST_FACTOR, 1 + dice.uniform(-error, error)) if error else 1.0


def _digest(number: int) -> str:
    return sha256(b"file %d" % number).hexdigest()


def _add_files(work: Workload, kinds: tuple[FileGroup, ...]) -> None:
    """Adds files to tasks. Shared files come first, numbered in the order of their definition."""
    shared = [(kind, _digest(number)) for number, kind in enumerate(one for one in kinds if one.shared != "none" for _ in range(one.count))]
    work.files = {digest: kind.size for kind, digest in shared}
    everybodys = tuple(digest for kind, digest in shared if kind.shared == "all")
    groups = [digest for kind, digest in shared if kind.shared == "groups"]
    own = [kind for kind in kinds if kind.shared == "none" for _ in range(kind.count)]
    if not shared and not own:
        return
    work.needs = []
    for task in range(len(work)):
        of_group = (groups[task * len(groups) // len(work)],) if groups else ()
        of_task = tuple(_digest(len(shared) + task * len(own) + place) for place in range(len(own)))
        work.files.update(zip(of_task, (kind.size for kind in own), strict=True))
        work.needs.append((*everybodys, *of_group, *of_task))


# --- reading --------------------------------------------------------------------------------------------------------------------------


def read_work(fields: FieldReader, kinds: tuple[FileGroup, ...], lister: Lister) -> WorkloadPlan:
    source = fields.get("from", "")
    if not isinstance(source, str):
        raise fields.refuse("from", " is not a text", FROM_FIX)
    if not source:
        if "tasks" not in fields:
            raise BadInput("there is no work", 'say how many tasks, and how long they take: --tasks 1000 --seconds "lognormal(60, 0.5)"')
        seconds = parse_draw(fields.get("seconds", 60), fields.label("seconds"))
        tasks, cores = fields.count("tasks", 1, MOST_TASKS), fields.count("cores", 1, MOST_CORES)
        return WorkloadPlan(tasks, seconds, cores, _hints(fields, None), kinds)
    name, _, rest = source.partition(":")
    for key in ("tasks", "cores"):
        if key in fields:
            raise fields.refuse(key, f" is not wanted: {source} says it", "leave one of them out")
    if kinds:
        raise BadInput(f"files are not wanted: {source} says which there are", "leave one of them out")
    if name in FAMILIES and rest:
        return WorkloadPlan(_count(fields, rest), family=name, hints=_hints(fields, None, timed=True))
    if name == APST:
        if rest not in SCENARIOS:
            raise fields.refuse("from", f": there is no scenario {rest!r}", f"write {APST}: and one of {', '.join(SCENARIOS)}")
        return WorkloadPlan(1200, parse_draw(fields.get("seconds", 1), fields.label("seconds")), apst=rest, hints=_hints(fields, 0.0))
    return _read_given(fields, source, lister)


def _read_given(fields: FieldReader, source: str, lister: Lister) -> WorkloadPlan:
    if not os.path.exists(source):
        words = [*FAMILIES, APST]
        near = difflib.get_close_matches(source.partition(":")[0], words, 1)
        raise fields.refuse("from", ": there is no such file or family", nearest(source.partition(":")[0], words) if near else FROM_FIX)
    if source.endswith(".json"):
        work = work_of(read_workflow(source))
        return WorkloadPlan(len(work), hints=_hints(fields, None, timed=True), given=work)
    work = lister(source)
    work.costs = list(work.seconds)
    seconds = parse_draw(fields.get("seconds", 1), fields.label("seconds"))
    return WorkloadPlan(len(work), seconds, hints=_hints(fields, 0.0), given=work)


def _count(fields: FieldReader, text: str) -> int:
    if not text.isdecimal() or not LEAST <= int(text) <= MOST_TASKS:
        raise fields.refuse("from", f": {text!r} is not a number of tasks", f"choose a number from {LEAST} to {MOST_TASKS:,}")
    return int(text)


def _hints(fields: FieldReader, default: float | None, timed: bool = False) -> float | None:
    """Reads the relative error of costs. ``timed``: the source already defines task times, so ``seconds`` is refused."""
    if timed and "seconds" in fields:
        raise fields.refuse("seconds", f" is not wanted: {fields.get('from')} says it", "leave it out")
    value = fields.get("hints", default)
    if value is None or value is False or value in ("no", "false"):
        return None
    if value is True or value in ("yes", "true"):
        return 0.0
    text = str(value).strip()
    try:
        error = float(text.rstrip("% ")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise BadInput(f"{fields.label('hints')} = {shown(value)} is not understood", HINTS_FIX) from None
    if not 0 <= error <= MOST_ERROR:
        raise fields.refuse("hints", "", f"choose a part from 0 to {MOST_ERROR:.0%}".replace("%", " %"))
    return error


# Workflows as workloads, and a check of the execution order.


def work_of(workflow: Workflow) -> Workload:
    """Returns tasks and dependencies. Files are left out: outputs are assumed to be on a disk that all hosts share."""
    tasks = workflow.tasks
    return Workload(
        seconds=[max(task.seconds, 1e-3) for task in tasks],
        kinds=[task.program for task in tasks],
        cores=[task.cores for task in tasks],
        after=[task.parents for task in tasks],
    )


def unlawful(workflow: Workflow, stints: Iterable[TaskInterval]) -> list[tuple[int, int]]:
    """Returns pairs of a task and its dependency where the task started before the dependency ended."""
    ran = {stint.task: stint for stint in stints}
    return [(index, parent) for index, task in enumerate(workflow.tasks) for parent in task.parents if ran[index].began < ran[parent].ended]
