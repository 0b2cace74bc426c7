"""How a policy that serves workers as they become free may be told which task had better go where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

from pilotfish.core.proposals import Outlook
from pilotfish.core.state import Shape, Task, Worker
from pilotfish.policies.nearness import prefer


class Matching(NamedTuple):
    """``preferred``: for workers, by id, tasks that they should have before others; one task is named for one worker.
    ``governed``: shapes of which nothing else is to be given away just now."""

    preferred: dict[str, list[Task]]
    governed: dict[Shape, None] = {}


class Matcher(Protocol):
    keeps_back: ClassVar[bool]
    """Whether it governs tasks, so that some wait although there is room."""

    def match(self, outlook: Outlook, roomy: Sequence[Worker], shapes: Sequence[Shape]) -> Matching:
        """For workers that have room, of tasks of these shapes, which are all of the same priority."""

    def next_look_at(self, outlook: Outlook) -> float | None:
        """When to ask again even if nothing happens."""

    def why(self, task: Task) -> str:
        """What it has in mind with a ready task, for people; empty: nothing in particular."""

    def mood(self) -> str:
        """How it decides just now, and why, for people; empty: as always."""


class AnyToAny:
    """Whoever comes first gets what is first."""

    keeps_back: ClassVar[bool] = False

    def match(self, outlook: Outlook, roomy: Sequence[Worker], shapes: Sequence[Shape]) -> Matching:
        return Matching({})

    def next_look_at(self, outlook: Outlook) -> float | None:
        return None

    def why(self, task: Task) -> str:
        return ""

    def mood(self) -> str:
        return ""


class Nearest(AnyToAny):
    """Tasks go to workers that have their inputs, or that they rank higher, if one of these is free."""

    def match(self, outlook: Outlook, roomy: Sequence[Worker], shapes: Sequence[Shape]) -> Matching:
        return Matching(prefer(outlook, roomy, shapes))
