"""Reads and checks the options that every task can have."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypedDict

from msgspec import Struct
from msgspec.structs import asdict

from pilotfish.errors import BadInput, Correction, nearest
from pilotfish.model.quantities import parse_bytes, parse_cores, parse_seconds, show_bytes
from pilotfish.model.task import MEMORY, Request, TaskSpec
from pilotfish.portable.expressions.evaluation import BadExpression, parse
from pilotfish.portable.expressions.syntax import read


class TaskKeywords(TypedDict, total=False):
    """Keyword arguments that every task can have."""

    name: str
    cores: int | float | str | tuple[float, float]
    nodes: int
    memory: int | str
    gpus: int | float
    resources: dict[str, float]
    time: int | float | str | timedelta
    retries: int
    losses: int
    priority: int
    tags: dict[str, str]
    requirement: str
    rank: str
    concurrency_limit: tuple[str, int]
    max_output: int | str


TASK_KEYWORDS = tuple(TaskKeywords.__annotations__)
EXECUTABLE_ONLY = ("inputs", "outputs", "keep", "stdin", "env", "cwd", "sandbox", "shell", "output_cap", "warn_signal")
"""Options of executables. A call can have ``inputs``, but none of the others."""
MAX_COUNT = 1_000_000


class TaskOptions(Struct, frozen=True):
    """Checked task options: a TaskSpec without its kind and launch description."""

    name: str = ""
    request: Request = Request()
    time_s: float = 0.0
    retries: int = 0
    losses: int = 10
    priority: int = 0
    tags: dict[str, str] = {}
    requirement: str = ""
    rank: str = ""
    concurrency_limit: tuple[str, int] = ("", 0)
    names_hosts: bool = False
    """Whether the user gave ``nodes``. If yes, the task gets a host file, even for ``nodes=1``."""
    max_output: int = 0
    """Maximum number of bytes that are stored of stdout. The same maximum applies to stderr. 0 means the default of the pool."""

    def spec(self, kind: str, name: str, launch: dict[str, Any]) -> TaskSpec:
        """Returns the spec of tasks with these options. ``name``: the name of the spec if the options have no name."""
        values = asdict(self)
        if values.pop("names_hosts"):
            launch = {**launch, "hosts": []}
        if max_output := values.pop("max_output"):
            launch = {**launch, "max_output": max_output}
        return TaskSpec(**{**values, "kind": kind, "name": self.name or name, "launch": launch})


DEFAULT_OPTIONS = TaskOptions()


def _whole(keywords: Mapping[str, Any], field: str, default: int, least: int | None) -> int:
    value = keywords.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        raise BadInput(f"{field}: {value!r} is not a whole number" + ("" if least is None else f" from {least} on"), f"write {field}=1")
    if abs(value) > MAX_COUNT:
        raise BadInput(f"{field}: {value} is too large", f"write a number up to {MAX_COUNT}")
    return value


def _text(keywords: Mapping[str, Any], field: str) -> str:
    value = keywords.get(field, "")
    if not isinstance(value, str):
        raise BadInput(f"{field}: {value!r} is not text", f'write {field}="{value}"')
    return value


def _expression(keywords: Mapping[str, Any], field: str, example: str) -> str:
    text = _text(keywords, field)
    try:
        shown = str(parse(text)) if text else ""
    except BadExpression as problem:
        raise BadInput(f"{field}: {problem}", f"write {field}={example!r}") from problem
    if MEMORY in shown:
        _check_sizes(read(shown)[0], field)
    return shown


def _check_sizes(node: Any, field: str) -> None:
    """Raises BadInput if an expression compares the memory with a small number without a unit. ``memory > 8`` probably means 8G."""
    if not isinstance(node, tuple):
        return
    if node[:1] == ("compare",):
        operands = [node[1], *(operand for _, operand in node[2])]
        for value in (operand[2] for operand in operands if operand[0] == "value" and ("name", MEMORY) in operands):
            if value.isdecimal() and 0 < int(value) < MIN_MEMORY:
                right = _with_unit(value)
                raise BadInput(
                    f"{field}: memory is in bytes, so {value} is only {show_bytes(int(value))}", Correction(UNIT_FIX, value, right)
                )
    for part in node:
        _check_sizes(part, field)


def _amount(value: Any, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise BadInput(f"{field}: {value!r} is not an amount", f"write {field}=1")
    return float(value)


def _table(keywords: Mapping[str, Any], field: str, example: str) -> Mapping[str, Any]:
    value = keywords.get(field, {})
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise BadInput(f"{field}: {value!r} is not a table of names", f"write {field}={example}")
    return value


def _concurrency_limit(value: Any) -> tuple[str, int]:
    match value:
        case (str(name), int(most)) if (name and 1 <= most <= MAX_COUNT and not isinstance(most, bool)) or value == ("", 0):
            return name, most
    raise BadInput(f"concurrency_limit: {value!r} is not a name and a number from 1 on", 'write concurrency_limit=("download", 2)')


def check_known(given: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    """Raises BadInput for unknown keywords, so that a misspelt option is not ignored. ``known``: all names that the user can write."""
    for key in given:
        if key not in known and key in EXECUTABLE_ONLY:
            raise BadInput(
                f"{what}: {key!r} is for programs, not for Python calls",
                f"a call gets its data as arguments and returns what it makes; for a program: run.executable(argv, {key}=…)",
            )
        if key not in known:
            near = nearest(key, known)
            raise BadInput(
                f"{what}: there is no option {key!r} (its value was {given[key]!r})",
                f"did you mean {near!r}?" if near else "the options are " + ", ".join(known),
            )


def read_flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"{field}: {value!r} is neither True nor False", f"write {field}=True")
    return value


MIN_MEMORY = 1 << 20
"""Minimum memory of a task in bytes. No program runs with less, so a smaller value probably lacks its unit."""

LARGE_GIGABYTES = 64
"""Limit for a memory without a unit. A number below this limit probably means gigabytes. Any other number probably means megabytes."""

UNIT_FIX = "write it with its unit, such as 2G or 512M"


def _with_unit(value: object) -> str:
    text = str(value)
    return f"{text}{'G' if int(text) < LARGE_GIGABYTES else 'M'}" if text.isdecimal() else "2G"


def _size(value: Any, field: str) -> int:
    """Parses a size. Raises BadInput for a small number without a unit. ``2`` probably means 2G."""
    found = parse_bytes(value, field)
    if 0 < found < MIN_MEMORY and (field == "memory" or (isinstance(value, str) and value.isdigit())):
        raise BadInput(f"{field}: {value!r} is only {show_bytes(found)}", Correction(UNIT_FIX, value, _with_unit(value)))
    return found


def _time_limit(value: Any) -> float:
    found = parse_seconds(value, "time")
    if found == 0 and isinstance(value, str):
        raise BadInput(
            f"time: no task can end within {value!r}", Correction("leave it out for no limit, or write a duration", value, "10m")
        )
    return found


def read_task_options(keywords: Mapping[str, Any], what: str = "task", also: tuple[str, ...] = ()) -> TaskOptions:
    """Checks and returns task options. ``what``: the kind of task, for errors. ``also``: names of other options, which the caller has read
    already. The hint for a misspelt name can suggest one of these names."""
    if not keywords:
        return DEFAULT_OPTIONS
    check_known(keywords, (*also, *TASK_KEYWORDS), what)
    cores, cores_max = parse_cores(keywords.get("cores", 1), "cores")
    nodes = _whole(keywords, "nodes", 1, 1)
    if nodes > 1 and cores_max:
        raise BadInput(f"cores: a task of {nodes} nodes has as many on each", f"write cores={cores_max:g}")
    resources = _table(keywords, "resources", '{"licence": 1}')
    tags = _table(keywords, "tags", '{"site": "home"}')
    for key, value in tags.items():
        if not isinstance(value, str):
            raise BadInput(f"tags[{key!r}]: {value!r} is not text", f'write tags={{{key!r}: "{value}"}}')
    return TaskOptions(
        name=_text(keywords, "name"),
        request=Request(
            cores=cores,
            cores_max=cores_max,
            memory=_size(keywords.get("memory", 0), "memory"),
            gpus=_amount(keywords.get("gpus", 0), "gpus"),
            custom={key: _amount(value, f"resources[{key!r}]") for key, value in sorted(resources.items())},
            nodes=nodes,
        ),
        time_s=_time_limit(keywords.get("time", 0)),
        retries=_whole(keywords, "retries", 0, 0),
        losses=_whole(keywords, "losses", 10, 0),
        priority=_whole(keywords, "priority", 0, None),
        tags=dict(sorted(tags.items())),
        requirement=_expression(keywords, "requirement", 'memory >= 8G and site == "lyon"'),
        rank=_expression(keywords, "rank", "memory"),
        concurrency_limit=_concurrency_limit(keywords.get("concurrency_limit", ("", 0))),
        names_hosts="nodes" in keywords,
        max_output=_size(keywords.get("max_output", 0), "max_output"),
    )
