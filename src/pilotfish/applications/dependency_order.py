"""Sorts entries topologically. If there is a cycle, reports the cycle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter


class DependencyCycle(Exception):
    """Entries form a cycle. Each entry in ``places`` depends on the entry before it, and the first entry depends on the last entry."""

    def __init__(self, places: list[int]) -> None:
        super().__init__(f"a cycle of {len(places)}")
        self.places = places


def topological_order(parents: Sequence[Iterable[int]]) -> list[int]:
    """Returns the indices of ``parents`` in topological order: the index of an entry comes after the indices of all entries on which the
    entry depends. Raises DependencyCycle if there is no such order.

    ``parents`` has one item per entry: the indices of the entries on which this entry depends.
    """
    # All indices are added before any dependency. In this way, entries that are ready at the same time keep their order.
    sorter = TopologicalSorter[int](dict.fromkeys(range(len(parents)), ()))
    for place, needed in enumerate(parents):
        sorter.add(place, *needed)
    try:
        return list(sorter.static_order())
    except CycleError as cycle:
        raise DependencyCycle(cycle.args[1][:-1]) from None
