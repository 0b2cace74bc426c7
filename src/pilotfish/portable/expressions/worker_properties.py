"""What requirements and ranks may ask about a worker: the same names, whether the master or the worker itself evaluates them."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping

from .evaluation import Expression

INFO = ("hostname", "system", "machine", "python", "cpu")


def worker_properties(
    worker: str, site: str, capacity: Mapping[str, float], tags: Mapping[str, str], info: Mapping[str, Any]
) -> Dict[str, Any]:
    """Tags go by their own names, and by ``tags.NAME`` where something else has that name."""
    properties: Dict[str, Any] = dict(tags)
    properties.update(("tags." + name, value) for name, value in tags.items())
    properties.update((name, info[name]) for name in INFO if name in info)
    properties.update(cores=0.0, memory=0.0, gpus=0.0)
    properties.update(capacity)
    properties.update(worker=worker, site=site)
    return properties


def lacks_quotes(name: str, requirement: Expression, workers: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a name that is no property was likely meant as a text: some property has this value, or it stands with one that has texts."""
    beside = {other for clause in requirement.clauses if name in clause.names for other in clause.names}
    texts = [(other, value) for properties in workers for other, value in properties.items() if isinstance(value, str)]
    return any(other in beside or value.lower() == name.lower() for other, value in texts)
