"""Finds out whether there is no place that can run the calls of a run, because no place has the version of Python that pickled them.

A *place* is this machine, a site, or all workers that belong to no site. A pickled function can only be loaded by a Python of the same
minor version. Workers report their version when they join. A site remembers the versions of its earlier workers, so these versions are
known even while the site has no worker.
"""

from __future__ import annotations

from collections.abc import Sequence

from pilotfish.core.state import State
from pilotfish.model.site import LOCAL
from pilotfish.model.states import DRAINING

HERE = "this machine"


def places_with_other_python(state: State, python: str, sites: Sequence[str]) -> dict[str, str]:
    """Returns the places where the run is allowed to run, each with its Python versions as text. Does so only if none of these places has
    the version ``python``.

    Returns an empty dict if a place has this version, if the version of a place is not known yet, or if there is no place. ``sites``: the
    sites that the run is allowed to use; if empty, all places are allowed.
    """
    known: dict[str, dict[str, None]] = {}
    for worker in state.workers.values():
        if worker.state < DRAINING:
            known.setdefault(worker.site, {})[worker.python] = None
    used = [name for name, record in state.sites.items() if name in sites or record.wanted is not None]
    for name in [*used, LOCAL] if state.local_cores > 0 else used:
        record = state.sites.get(name)
        known.setdefault(name, {}).update(dict.fromkeys(record.pythons if record is not None else ()))
        if name != LOCAL and record is not None and not record.pythons:
            known[name] = {}  # the site was changed after its workers started, for example to get a different Python
    allowed = {place: versions for place, versions in known.items() if not sites or place in sites}
    if any(not versions or not versions.keys().isdisjoint(("", python)) for versions in allowed.values()):
        return {}
    return {_show(place): " and ".join(versions) for place, versions in allowed.items()}


def has_worker_with_python(state: State, python: str, sites: Sequence[str]) -> bool:
    """Returns whether one of the workers that the run is allowed to use has this version. ``sites``: see ``places_with_other_python``."""
    usable = (worker for worker in state.workers.values() if worker.state < DRAINING and (not sites or worker.site in sites))
    return any(worker.python == python for worker in usable)


def describe(places: dict[str, str]) -> str:
    return ", ".join(f"{place} has Python {versions}" for place, versions in places.items())


def other_python_fix(python: str) -> str:
    return (
        f"start workers with Python {python} (for a site: pilotfish site set NAME python=python{python}), or send functions that need "
        'nothing from outside as source: run.options(form="source")'
    )


def _show(place: str) -> str:
    return HERE if place == LOCAL else f"site {place}" if place else "a worker of no site"
