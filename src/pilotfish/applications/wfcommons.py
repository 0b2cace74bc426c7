"""Reads WfCommons workflow instances (JSON, schema 1.0 to 1.5): task durations, dependencies and files.

An instance is a published record of one real execution of a workflow. The simulator uses instances as workloads. In a real run,
``add_stand_ins`` replaces each task of an instance by a task that only sleeps.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilotfish.applications.dependency_order import DependencyCycle, topological_order
from pilotfish.applications.task_list import TaskList
from pilotfish.errors import BadInput

MAX_BYTES = 1 << 30
FORM = "An instance has workflow.specification.tasks (1.5) or workflow.tasks (1.4 and before): see wfcommons.org/format"


@dataclass(frozen=True, slots=True)
class WorkflowTask:
    """A task of a workflow. ``parents``: indices of the tasks for which it waits. ``inputs`` and ``outputs``: file names."""

    name: str
    program: str
    seconds: float
    parents: tuple[int, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    cores: int = 1


@dataclass(frozen=True, slots=True)
class Workflow:
    """Tasks in topological order, and the sizes of all files in bytes."""

    name: str
    tasks: tuple[WorkflowTask, ...]
    files: Mapping[str, int]


def read_workflow(path: str | os.PathLike[str]) -> Workflow:
    """Reads an instance from a file."""
    shown = os.fspath(path)
    try:
        if os.path.getsize(path) > MAX_BYTES:
            raise BadInput(f"{shown}: it is larger than {MAX_BYTES >> 30} GiB", "Is it an instance of WfCommons?")
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except OSError as error:
        raise BadInput(f"{shown}: {(error.strerror or 'cannot be read').lower()}", "Check the path.") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{shown}: it is not JSON: {str(error)[:100]}", FORM) from None
    return parse_workflow(document, shown)


def parse_workflow(document: Any, where: str = "the instance") -> Workflow:
    """Reads an instance from parsed JSON. Raises BadInput if the instance is not valid."""
    try:
        return _parse(document, where)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise BadInput(f"{where}: it is not an instance of WfCommons: {type(error).__name__}: {str(error)[:100]}", FORM) from None


def _parse(document: Any, where: str) -> Workflow:
    workflow = document["workflow"]
    sizes: dict[str, int] = {}
    if "specification" in workflow:
        described = workflow["specification"]["tasks"]
        executed = {str(row["id"]): row for row in workflow.get("execution", {}).get("tasks", ())}
        for file in workflow["specification"].get("files", ()):
            sizes[str(file["id"])] = _size(file)
        rows = [{**executed.get(str(row.get("id", row["name"])), {}), **row} for row in described]
    else:
        rows = list(workflow.get("tasks") or workflow["jobs"])
    if not rows:
        raise BadInput(f"{where}: it has no tasks", FORM)
    indices: dict[str, int] = {}
    for index, row in enumerate(rows):
        for key in {str(row["name"]), str(row.get("id", row["name"]))}:
            if indices.setdefault(key, index) != index and "id" not in row:
                raise BadInput(f"{where}: two tasks are called {key!r}", "Give each a name of its own.")
    parents = _parents(rows, indices, where)
    try:
        order = topological_order(parents)
    except DependencyCycle as cycle:
        names = ", ".join(str(rows[place]["name"]) for place in cycle.places[:5])
        raise BadInput(f"{where}: these tasks wait for each other: {names}", "Fix the instance.") from None
    places = {index: place for place, index in enumerate(order)}
    tasks = tuple(_task(rows[index], sorted(places[parent] for parent in parents[index]), sizes) for index in order)
    return Workflow(str(document.get("name", "workflow")), tasks, sizes)


def _parents(rows: Sequence[Any], indices: Mapping[str, int], where: str) -> list[dict[int, None]]:
    """Returns the parents of each task. Either ``parents`` of the task names the parent, or ``children`` of the parent names the task."""
    found: list[dict[int, None]] = [{} for _ in rows]

    def known(name: object, row: Any) -> int:
        if str(name) not in indices:
            raise BadInput(f"{where}: task {row['name']!r} names {name!r}, which is no task", "Fix the instance.")
        return indices[str(name)]

    for index, row in enumerate(rows):
        for name in row.get("parents") or ():
            found[index][known(name, row)] = None
        for name in row.get("children") or ():
            found[known(name, row)][index] = None
    return found


def _task(row: Any, parents: Sequence[int], sizes: dict[str, int]) -> WorkflowTask:
    inputs, outputs = [str(name) for name in row.get("inputFiles") or ()], [str(name) for name in row.get("outputFiles") or ()]
    for file in row.get("files") or ():
        name = str(file["name"] if "name" in file else file["id"])
        sizes[name] = _size(file)
        (inputs if file["link"] == "input" else outputs).append(name)
    for name in (*inputs, *outputs):
        sizes.setdefault(name, 0)
    seconds = float(row.get("runtimeInSeconds", row.get("runtime", 0.0)) or 0.0)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{row['name']} ran for {seconds} s")
    cores = float(row.get("coreCount") or row.get("cores") or 1)
    if not 0 < cores <= 1_000_000:
        raise ValueError(f"{row['name']} has {cores} cores")
    command = row.get("command")
    program = str(command.get("program") or "") if isinstance(command, dict) else ""
    program = os.path.basename(program) or str(row.get("category") or row["name"]).split("_ID")[0]
    return WorkflowTask(str(row["name"]), program, seconds, tuple(parents), tuple(inputs), tuple(outputs), max(1, round(cores)))


def _size(file: Mapping[str, Any]) -> int:
    size = float(file.get("sizeInBytes", file.get("size", 0)) or 0)
    if not 0 <= size < math.inf:
        raise ValueError(f"a file of {size} bytes")
    return round(size)


def add_stand_ins(tasks: TaskList, workflow: Workflow, scale: float = 1.0) -> None:
    """Adds one task for each task of a workflow. The added tasks only sleep. They have the dependencies of the workflow, and ``scale``
    times the recorded durations.

    In a run file: ``def run(tasks): add_stand_ins(tasks, read_workflow("instance.json"), 0.01)``.
    """
    indices: list[int] = []
    for task in workflow.tasks:
        after = [indices[parent] for parent in task.parents]
        indices.append(tasks.add(["sleep", f"{task.seconds * scale:.3f}"], after=after, name=task.program, cores=task.cores))
