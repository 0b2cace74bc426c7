"""Generates a workload for each seed.

The tasks of a workload come from one of these sources: a distribution of task times, a family of workflows, a given workflow, a task list,
or the published APST sweep.
"""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256

from pilotfish import errors
from pilotfish.applications.wfcommons import Workflow, read_workflow
from pilotfish.errors import BadInput, Correction
from pilotfish.model.quantities import parse_seconds
from pilotfish.sim.scenarios.apst_sweep import FILES, SCENARIOS, sweep
from pilotfish.sim.scenarios.field_reader import FieldReader, nearest, shown
from pilotfish.sim.scenarios.workflow_families import FAMILIES, MIN_TASKS, family
from pilotfish.sim.workload import Workload

FORMS = {
    "uniform": "uniform(least, most)",
    "normal": "normal(mean, deviation)",
    "lognormal": "lognormal(mean, sigma)",
    "exponential": "exponential(mean)",
}
FIX = f'write a number of seconds, "1m30s", or one of {", ".join(FORMS.values())}'
MAX_SIGMA = 5.0
MIN_PART = 0.01
"""Values that are drawn from a normal distribution are at least this fraction of its mean, because durations must be positive."""
_CALL = re.compile(r"\s*([A-Za-z-]+)\s*\(([^()]*)\)\s*")


@dataclass(slots=True, frozen=True)
class Distribution:
    """A distribution of durations. ``form``: "constant", or a key of FORMS."""

    form: str = "constant"
    first: float = 1.0
    second: float = 0.0

    def draw(self, rng: random.Random) -> float:
        if self.form == "uniform":
            return rng.uniform(self.first, self.second)
        if self.form == "normal":
            return max(MIN_PART * self.first, rng.gauss(self.first, self.second))
        if self.form == "lognormal":
            return rng.lognormvariate(math.log(self.first) - self.second**2 / 2, self.second)
        if self.form == "exponential":
            return rng.expovariate(1 / self.first)
        return self.first


def parse_distribution(value: object, field: str) -> Distribution:
    """Parses a number or a distribution. ``field``: the name of the field in error messages."""
    call = _CALL.fullmatch(value) if isinstance(value, str) else None
    if call is None:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise BadInput(f"{field} = {value!r} is not a time", FIX)
        return Distribution(first=_positive(value, field, value))
    form, parts = call[1].lower(), [part.strip() for part in call[2].split(",")]
    if form not in FORMS:
        near = errors.nearest(form, FORMS)
        raise BadInput(
            f"{field} = {value!r}: there is no distribution {form}",
            Correction(f"did you mean {FORMS[near]}?", form, near) if near else FIX,
        )
    wanted = FORMS[form].count(",") + 1
    if len(parts) != wanted or not all(parts):
        raise BadInput(
            f"{field} = {value!r} has {len([part for part in parts if part])} numbers instead of {wanted}", f"write {FORMS[form]}"
        )
    first = _positive(parts[0], field, value)
    if form == "exponential":
        return Distribution(form, first)
    second = _sigma(parts[1], field, value) if form == "lognormal" else parse_seconds(parts[1], field)
    if form == "uniform" and second < first:
        raise BadInput(f"{field} = {value!r} ends below its start", f"write {FORMS[form]}")
    return Distribution(form, first, second)


def _positive(text: str | int | float, field: str, value: object) -> float:
    seconds = parse_seconds(text, field)
    if seconds <= 0:
        raise BadInput(f"{field} = {value!r}: a task takes more than 0 s", FIX)
    return seconds


def _sigma(text: str, field: str, value: object) -> float:
    """Parses the standard deviation of the logarithms, a number without a unit."""
    try:
        sigma = float(text)
    except ValueError:
        sigma = -1.0
    if not 0 <= sigma <= MAX_SIGMA:
        raise BadInput(
            f"{field} = {value!r}: sigma is a number from 0 to {MAX_SIGMA:g}, not {text}", "0.5 is an ordinary spread, 1 a wide one"
        )
    return sigma


WORK_KEYS = ("tasks", "seconds", "cores", "hints", "from")
SHARINGS = ("groups", "all", "none")
APST = "apst"
MAX_TASKS = 10_000_000
MAX_CORES = 4096
MAX_ERROR = 10.0
MIN_FACTOR = 0.05
ONE_SECOND = Distribution()
HINTS_FIX = 'write true, false, or by how much the hints are wrong: hints = "30 %"'
FROM_FIX = (
    f'write a family and a number of tasks, such as "montage:1000" ({", ".join(FAMILIES)}),'
    f' "{APST}:a", a JSON file of WfCommons, a .dag file of DAGMan, or a task list'
)

TaskListReader = Callable[[str], Workload]
"""A function that reads a task list. In the returned workload, ``seconds`` contains the costs."""


@dataclass(slots=True, frozen=True)
class FileGroup:
    """Files of equal size. The value of ``shared`` decides which tasks read which files:

    - "groups": the tasks are divided into groups of consecutive tasks. All tasks of a group read the same file.
    - "all": all tasks read all files.
    - "none": each task reads ``count`` files of its own.
    """

    size: int
    count: int = 1
    shared: str = "groups"


@dataclass(frozen=True)
class WorkloadPlan:
    """Generates workloads. ``seconds``: distribution of the task times. ``fixed``: tasks that are the same for all seeds. If the tasks come
    from ``fixed`` or ``apst``, they have task times already. ``seconds`` is then the distribution of a factor for these times."""

    tasks: int = 0
    seconds: Distribution = ONE_SECOND
    cores: int = 1
    hints: float | None = None
    """Relative error of the costs of tasks. With None, tasks have no costs."""
    file_groups: tuple[FileGroup, ...] = ()
    family: str = ""
    apst: str = ""
    fixed: Workload | None = field(default=None, compare=False)

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """Digests of the files that can be at a site from the start."""
        if self.apst:
            return FILES
        if self.fixed is not None:
            return tuple(self.fixed.files)
        return tuple(_digest(number) for number in range(sum(kind.count for kind in self.file_groups if kind.shared != "none")))

    @cached_property
    def max_cores(self) -> int:
        return max(self.fixed.cores, default=1) if self.fixed is not None else self.cores

    def work(self, seed: int) -> Workload:
        rng = random.Random(f"work {seed}")
        if self.family:
            work = work_of(family(self.family, self.tasks, seed))
        elif self.apst:
            work = sweep(seed, 1.0)
            work.seconds = [seconds * self.seconds.draw(rng) for seconds in work.seconds]
        elif self.fixed is not None:
            work = replace(self.fixed, seconds=[seconds * self.seconds.draw(rng) for seconds in self.fixed.seconds])
        else:
            work = Workload([self.seconds.draw(rng) for _ in range(self.tasks)], cores=[self.cores] * self.tasks if self.cores > 1 else [])
            _add_files(work, self.file_groups)
        known = work.costs or work.seconds
        work.costs = [] if self.hints is None else [cost * error_factor(self.hints, rng) for cost in known]
        return work


def error_factor(error: float, rng: random.Random) -> float:
    """Returns a random factor between 1 - error and 1 + error, but at least MIN_FACTOR."""
    return max(MIN_FACTOR, 1 + rng.uniform(-error, error)) if error else 1.0


def _digest(number: int) -> str:
    return sha256(b"file %d" % number).hexdigest()


def _add_files(work: Workload, file_groups: tuple[FileGroup, ...]) -> None:
    """Adds files to the tasks. Shared files get the first numbers, in the order of ``file_groups``."""
    shared = [
        (kind, _digest(number)) for number, kind in enumerate(one for one in file_groups if one.shared != "none" for _ in range(one.count))
    ]
    work.files = {digest: kind.size for kind, digest in shared}
    common = tuple(digest for kind, digest in shared if kind.shared == "all")
    groups = [digest for kind, digest in shared if kind.shared == "groups"]
    own = [kind for kind in file_groups if kind.shared == "none" for _ in range(kind.count)]
    if not shared and not own:
        return
    work.needs = []
    for task in range(len(work)):
        of_group = (groups[task * len(groups) // len(work)],) if groups else ()
        of_task = tuple(_digest(len(shared) + task * len(own) + place) for place in range(len(own)))
        work.files.update(zip(of_task, (kind.size for kind in own), strict=True))
        work.needs.append((*common, *of_group, *of_task))


# --- reading --------------------------------------------------------------------------------------------------------------------------


def read_work(fields: FieldReader, file_groups: tuple[FileGroup, ...], read_task_list: TaskListReader) -> WorkloadPlan:
    source = fields.get("from", "")
    if not isinstance(source, str):
        raise fields.refuse("from", " is not a text", FROM_FIX)
    if not source:
        if "tasks" not in fields:
            raise BadInput("there is no work", 'say how many tasks, and how long they take: --tasks 1000 --seconds "lognormal(60, 0.5)"')
        seconds = parse_distribution(fields.get("seconds", 60), fields.label("seconds"))
        tasks, cores = fields.count("tasks", 1, MAX_TASKS), fields.count("cores", 1, MAX_CORES)
        return WorkloadPlan(tasks, seconds, cores, _hints(fields, None), file_groups)
    name, _, rest = source.partition(":")
    for key in ("tasks", "cores"):
        if key in fields:
            raise fields.refuse(key, f" is not wanted: {source} says it", "leave one of them out")
    if file_groups:
        raise BadInput(f"files are not wanted: {source} says which there are", "leave one of them out")
    if name in FAMILIES and rest:
        return WorkloadPlan(_count(fields, rest), family=name, hints=_hints(fields, None, timed=True))
    if name == APST:
        if rest not in SCENARIOS:
            raise fields.refuse("from", f": there is no scenario {rest!r}", f"write {APST}: and one of {', '.join(SCENARIOS)}")
        return WorkloadPlan(
            1200, parse_distribution(fields.get("seconds", 1), fields.label("seconds")), apst=rest, hints=_hints(fields, 0.0)
        )
    return _read_given(fields, source, read_task_list)


def _read_given(fields: FieldReader, source: str, read_task_list: TaskListReader) -> WorkloadPlan:
    if not os.path.exists(source):
        fix = nearest(source.partition(":")[0], [*FAMILIES, APST], FROM_FIX)
        raise fields.refuse("from", ": there is no such file or family", fix)
    if source.endswith(".json"):
        work = work_of(read_workflow(source))
        return WorkloadPlan(len(work), hints=_hints(fields, None, timed=True), fixed=work)
    work = read_task_list(source)
    work.costs = list(work.seconds)
    seconds = parse_distribution(fields.get("seconds", 1), fields.label("seconds"))
    return WorkloadPlan(len(work), seconds, hints=_hints(fields, 0.0), fixed=work)


def _count(fields: FieldReader, text: str) -> int:
    if not text.isdecimal() or not MIN_TASKS <= int(text) <= MAX_TASKS:
        raise fields.refuse("from", f": {text!r} is not a number of tasks", f"choose a number from {MIN_TASKS} to {MAX_TASKS:,}")
    return int(text)


def _hints(fields: FieldReader, default: float | None, timed: bool = False) -> float | None:
    """Reads ``hints``, the relative error of costs. ``timed``: whether the source of the tasks defines their times. If so, the field
    ``seconds`` is refused."""
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
    if not 0 <= error <= MAX_ERROR:
        raise fields.refuse("hints", "", f"choose a part from 0 to {MAX_ERROR:.0%}".replace("%", " %"))
    return error


def work_of(workflow: Workflow) -> Workload:
    """Returns the tasks and dependencies of a workflow. Leaves out its files, as if they were on a disk that all hosts share."""
    tasks = workflow.tasks
    return Workload(
        seconds=[max(task.seconds, 1e-3) for task in tasks],
        kinds=[task.program for task in tasks],
        cores=[task.cores for task in tasks],
        after=[task.parents for task in tasks],
    )
