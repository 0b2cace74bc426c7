"""Which tasks of a task list wait for which: ``after=`` names them, and who needs a file waits for who makes it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from pilotfish.applications.ordering import Circle, in_order
from pilotfish.errors import BadInput
from pilotfish.model.data import Awaited

SHOWN = 6


@dataclass(frozen=True, slots=True)
class Flow:
    """``order``: the tasks of the list, each after those it waits for. ``parents``: for each task in that order, the places of these."""

    order: tuple[int, ...]
    parents: tuple[tuple[int, ...], ...]
    files: frozenset[str]
    """Files that one task makes and another needs."""
    awaited: tuple[tuple[Awaited, ...], ...]
    """For each task in that order: those of them that it needs."""


@dataclass(slots=True)
class Links:
    """What the lines of a list say about each other, collected while it is read."""

    path: str
    _lines: list[int] = field(default_factory=list)
    _ids: dict[str, int] = field(default_factory=dict)
    _after: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _makers: dict[str, list[int]] = field(default_factory=dict)
    _needs: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def note(self, line: int, label: str, after: tuple[str, ...], inputs: Iterable[str], outputs: Iterable[str]) -> None:
        """One more task, in this line."""
        index = len(self._lines)
        self._lines.append(line)
        if label:
            if label in self._ids:
                raise BadInput(
                    f"{self._where(index)}: id={label} is already that of line {self._lines[self._ids[label]]}",
                    "Give each task an id of its own.",
                )
            self._ids[label] = index
        if after:
            self._after[index] = after
        own = [os.path.normpath(name) for name in outputs]
        needed = tuple(name for name in map(os.path.normpath, inputs) if name not in own)
        for name in own:
            self._makers.setdefault(name, []).append(index)
        if needed:
            self._needs[index] = needed

    def flow(self) -> Flow | None:
        """None if no task waits for another."""
        parents: list[dict[int, None]] = [{} for _ in self._lines] if self._after or self._needs else []
        files: dict[tuple[int, str], int] = {}
        for index, labels in self._after.items():
            parents[index].update((self._named(label, index), None) for label in labels)
        for index, names in self._needs.items():
            for name in names:
                makers = self._makers.get(name, ())
                if len(makers) > 1:
                    both = " and ".join(str(self._lines[maker]) for maker in makers[:2])
                    raise BadInput(
                        f"{self._where(index)}: in={name}: lines {both} both make it", "Let each make a file of a name of its own."
                    )
                for maker in makers:
                    parents[index][maker] = None
                    files[index, name] = maker
        return self._ordered(parents, files) if any(parents) else None

    def _ordered(self, parents: list[dict[int, None]], files: dict[tuple[int, str], int]) -> Flow:
        try:
            order = in_order(parents)
        except Circle as circle:
            lines = [self._lines[place] for place in circle.places]
            shown = ", ".join(map(str, lines[:SHOWN])) + (", ..." if len(lines) > SHOWN else "")
            what = f"the tasks of lines {shown} wait for each other" if len(lines) > 1 else f"the task of line {shown} waits for itself"
            raise BadInput(f"{self.path}: {what}", "Break the circle: see their after=, in= and out=.") from None
        places = {index: place for place, index in enumerate(order)}
        awaited: list[list[Awaited]] = [[] for _ in order]
        for (index, name), maker in files.items():
            awaited[places[index]].append(Awaited(places[maker], name, name))
        return Flow(
            tuple(order),
            tuple(tuple(sorted(places[parent] for parent in parents[index])) for index in order),
            frozenset(name for _, name in files),
            tuple(map(tuple, awaited)),
        )

    def _named(self, label: str, index: int) -> int:
        if label not in self._ids:
            raise BadInput(
                f"{self._where(index)}: after={label}: no task has that id", f"Give it to the task that is meant: id={label} PROGRAM ..."
            )
        return self._ids[label]

    def _where(self, index: int) -> str:
        return f"{self.path}, line {self._lines[index]}"
