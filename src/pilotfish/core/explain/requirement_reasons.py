"""Explains which part of a requirement no worker meets, and which worker comes nearest."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from pilotfish.core.explain.reasons import Reason, make_reason
from pilotfish.core.state import TaskShape, Worker
from pilotfish.model.quantities import show_bytes
from pilotfish.model.task import MEMORY
from pilotfish.portable.expressions.evaluation import Expression
from pilotfish.portable.expressions.worker_properties import lacks_quotes


def unmet(shape: TaskShape, able: list[Worker]) -> Reason | None:
    """Explain why no worker that is large enough, at an allowed site, meets the requirement; None if one does."""
    sites = shape.run.options.sites
    workers = [worker for worker in able if not sites or worker.site in sites]
    if shape.requirement is None or not workers or any(shape.requirement.holds(worker.properties) for worker in workers):
        return None
    text = f"no worker meets its requirement {shape.requirement}: {_where(shape.requirement, workers)}"
    text += "".join(_meant(name, shape.requirement, workers) for name in shape.requirement.names)
    return make_reason("requirement", text, "ask for less with --require", "pilotfish workers --json  (shows their properties)")


def _meant(name: str, requirement: Expression, workers: list[Worker]) -> str:
    """Suggest the property that an unknown name probably means."""
    known = dict.fromkeys(name for worker in workers for name in worker.properties)
    if name in known:
        return ""
    near = get_close_matches(name, list(known), 1)
    if near:
        return f"; for {name}, did you mean {near[0]}?"
    return f'; a text stands in quotes: "{name}"' if lacks_quotes(name, requirement, [worker.properties for worker in workers]) else ""


def _where(requirement: Expression, workers: list[Worker]) -> str:
    parts = requirement.clauses
    failing = {worker.id: [part for part in parts if not part.holds(worker.properties)] for worker in workers}
    nearest = min(workers, key=lambda worker: len(failing[worker.id]))
    names = dict.fromkeys(name for part in failing[nearest.id] for name in part.names)
    has = ", ".join(_value(name, nearest.properties.get(name)) for name in names)
    if len(workers) == 1:
        return f"the only worker that is here, {nearest.id}, fails {_joined([str(part) for part in failing[nearest.id]])} ({has})"
    told = []
    for part in parts:
        count = sum(not part.holds(worker.properties) for worker in workers)
        if count:
            told.append(f"{part} fails at {'all' if count == len(workers) else f'{count} of'} {len(workers)} workers")
    return f"{_joined(told)}; nearest is {nearest.id} ({has})"


def _joined(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _value(name: str, value: Any) -> str:
    if value is None:
        return f"no {name}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{name} {show_bytes(value) if name == MEMORY else f'{value:g}'}"
    return f'{name} "{value}"'
