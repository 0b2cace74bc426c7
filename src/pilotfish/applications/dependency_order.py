"""Sorts things topologically and names a cycle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter


class DependencyCycle(Exception):
    """A dependency cycle. In ``places``, each entry depends on the one before it, and the first on the last."""

    def __init__(self, places: list[int]) -> None:
        super().__init__(f"a cycle of {len(places)}")
        self.places = places


def topological_order(parents: Sequence[Iterable[int]]) -> list[int]:
    """Returns the indices of ``parents`` in topological order; entries without dependencies come first.

    ``parents`` lists the dependencies of each entry.
    """
    # All indices are added first: entries that are ready at the same time then keep their order.
    sorter = TopologicalSorter[int](dict.fromkeys(range(len(parents)), ()))
    for place, needed in enumerate(parents):
        sorter.add(place, *needed)
    try:
        return list(sorter.static_order())
    except CycleError as cycle:
        raise DependencyCycle(cycle.args[1][:-1]) from None
