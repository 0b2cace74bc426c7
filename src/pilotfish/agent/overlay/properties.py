"""What requirements and ranks may ask about a worker: the same names, whether the master or the worker itself evaluates them."""

from __future__ import annotations

from typing import Any, Dict, Mapping

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
