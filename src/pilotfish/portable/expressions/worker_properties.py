"""Defines the worker properties that expressions can use. Master and agent use the same properties."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping

from .evaluation import Expression

INFO = ("hostname", "system", "machine", "python", "cpu")


def worker_properties(
    worker: str, site: str, capacity: Mapping[str, float], tags: Mapping[str, str], info: Mapping[str, Any]
) -> Dict[str, Any]:
    """Returns the properties of a worker. A tag is the property ``tags.NAME``, and also ``NAME`` if no other property has that name."""
    properties: Dict[str, Any] = dict(tags)
    properties.update(("tags." + name, value) for name, value in tags.items())
    properties.update((name, info[name]) for name in INFO if name in info)
    properties.update(cores=0.0, memory=0.0, gpus=0.0)
    properties.update(capacity)
    properties.update(worker=worker, site=site)
    return properties


def lacks_quotes(name: str, requirement: Expression, workers: Iterable[Mapping[str, Any]]) -> bool:
    """Returns True if ``name`` in a requirement is probably a text without its quotes. Either of two signs is enough: a property of a
    worker has ``name`` as its value, or a clause of the requirement contains ``name`` and a property whose values are texts."""
    beside = {other for clause in requirement.clauses if name in clause.names for other in clause.names}
    texts = [(other, value) for properties in workers for other, value in properties.items() if isinstance(value, str)]
    return any(other in beside or value.lower() == name.lower() for other, value in texts)
