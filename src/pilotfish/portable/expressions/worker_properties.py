"""Lists the worker properties that expressions may name: the same in the master and in the agent."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping

from .evaluation import Expression

INFO = ("hostname", "system", "machine", "python", "cpu")


def worker_properties(
    worker: str, site: str, capacity: Mapping[str, float], tags: Mapping[str, str], info: Mapping[str, Any]
) -> Dict[str, Any]:
    """The properties of a worker. Tags are available by name, and as ``tags.NAME`` if the name is taken."""
    properties: Dict[str, Any] = dict(tags)
    properties.update(("tags." + name, value) for name, value in tags.items())
    properties.update((name, info[name]) for name in INFO if name in info)
    properties.update(cores=0.0, memory=0.0, gpus=0.0)
    properties.update(capacity)
    properties.update(worker=worker, site=site)
    return properties


def lacks_quotes(name: str, requirement: Expression, workers: Iterable[Mapping[str, Any]]) -> bool:
    """Whether an unknown name was probably meant as a text: some property has this value, or a property with texts is beside it."""
    beside = {other for clause in requirement.clauses if name in clause.names for other in clause.names}
    texts = [(other, value) for properties in workers for other, value in properties.items() if isinstance(value, str)]
    return any(other in beside or value.lower() == name.lower() for other, value in texts)
