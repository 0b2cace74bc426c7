"""Sorts things topologically and names a cycle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class DependencyCycle(Exception):
    """A dependency cycle. In ``places``, each entry depends on the one before it, and the first on the last."""

    def __init__(self, places: list[int]) -> None:
        super().__init__(f"a cycle of {len(places)}")
        self.places = places


def in_order(parents: Sequence[Iterable[int]]) -> list[int]:
    """Returns the indices of ``parents`` in topological order; entries without dependencies come first.

    ``parents`` lists the dependencies of each entry, none of them twice.
    """
    children: list[list[int]] = [[] for _ in parents]
    missing = [0] * len(parents)
    for place, needed in enumerate(parents):
        for parent in needed:
            children[parent].append(place)
            missing[place] += 1
    ready = [place for place, count in enumerate(missing) if not count]
    for place in ready:  # the loop body appends to it
        for child in children[place]:
            missing[child] -= 1
            if not missing[child]:
                ready.append(child)
    if len(ready) < len(parents):
        raise DependencyCycle(_find_cycle(parents, missing))
    return ready


def _find_cycle(parents: Sequence[Iterable[int]], missing: Sequence[int]) -> list[int]:
    """Follows parents among the entries that never become ready, until one is met twice."""
    seen: dict[int, int] = {}
    walk: list[int] = []
    place = next(place for place, count in enumerate(missing) if count)
    while place not in seen:
        seen[place] = len(walk)
        walk.append(place)
        place = next(parent for parent in parents[place] if missing[parent])
    return walk[seen[place] :][::-1]
