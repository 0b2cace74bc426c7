"""Reads and checks the options that every task can have."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypedDict

from msgspec import Struct
from msgspec.structs import asdict

from pilotfish.errors import BadInput
from pilotfish.model.quantities import parse_bytes, parse_cores, parse_seconds
from pilotfish.model.task import Request, TaskSpec
from pilotfish.portable.expressions.evaluation import BadExpression, parse


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


TASK_KEYWORDS = tuple(TaskKeywords.__annotations__)
EXECUTABLE_ONLY = ("inputs", "outputs", "keep", "stdin", "env", "cwd", "sandbox", "shell", "output_cap", "warn_signal")
"""Options that only executables can have."""
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
    names_hosts: bool = False
    """Whether the user gave ``nodes``, even as 1. The task then gets a host file."""

    def spec(self, kind: str, name: str, launch: dict[str, Any]) -> TaskSpec:
        """Returns the spec of tasks with these options. If the options have no name, the spec has ``name``."""
        values = asdict(self)
        if values.pop("names_hosts"):
            launch = {**launch, "hosts": []}
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
        return str(parse(text)) if text else ""
    except BadExpression as problem:
        raise BadInput(f"{field}: {problem}", f"write {field}={example!r}") from problem


def _amount(value: Any, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise BadInput(f"{field}: {value!r} is not an amount", f"write {field}=1")
    return float(value)


def _table(keywords: Mapping[str, Any], field: str, example: str) -> Mapping[str, Any]:
    value = keywords.get(field, {})
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise BadInput(f"{field}: {value!r} is not a table of names", f"write {field}={example}")
    return value


def check_known(given: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    """Refuses unknown keywords, so that a misspelt option is not ignored."""
    for key in given:
        if key not in known and key in EXECUTABLE_ONLY:
            raise BadInput(
                f"{what}: {key!r} is for programs, not for Python calls",
                f"a call gets its data as arguments and returns what it makes; for a program: run.executable(argv, {key}=…)",
            )
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            raise BadInput(
                f"{what}: there is no option {key!r} (its value was {given[key]!r})",
                f"did you mean {near[0]!r}?" if near else "the options are " + ", ".join(known),
            )


def read_task_options(keywords: Mapping[str, Any], what: str = "task") -> TaskOptions:
    if not keywords:
        return DEFAULT_OPTIONS
    check_known(keywords, TASK_KEYWORDS, what)
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
            memory=parse_bytes(keywords.get("memory", 0), "memory"),
            gpus=_amount(keywords.get("gpus", 0), "gpus"),
            custom={key: _amount(value, f"resources[{key!r}]") for key, value in sorted(resources.items())},
            nodes=nodes,
        ),
        time_s=parse_seconds(keywords.get("time", 0), "time"),
        retries=_whole(keywords, "retries", 0, 0),
        losses=_whole(keywords, "losses", 10, 0),
        priority=_whole(keywords, "priority", 0, None),
        tags=dict(sorted(tags.items())),
        requirement=_expression(keywords, "requirement", 'memory >= 8G and site == "lyon"'),
        rank=_expression(keywords, "rank", "memory"),
        names_hosts="nodes" in keywords,
    )
