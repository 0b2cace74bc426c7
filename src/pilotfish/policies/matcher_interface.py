"""Defines the interface between the dispatcher and a matcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pilotfish.core.policy_interface import PolicyView
from pilotfish.core.state import Task, TaskShape, Worker


class Matching(NamedTuple):
    """The answer of a matcher. ``preferred``: for each worker id, the tasks that this worker gets first. Each task is named for one worker
    only. A task that does not fit its worker is ignored. ``governed``: of these shapes, only preferred tasks may be assigned."""

    preferred: dict[str, list[Task]]
    governed: dict[TaskShape, None] = {}


class Matcher(Protocol):
    """Chooses workers for the first tasks of the queue. The dispatcher assigns all other tasks in queue order."""

    def match(self, view: PolicyView, roomy: Sequence[Worker], shapes: Sequence[TaskShape], contested: bool) -> Matching:
        """Matches tasks with workers that have room. ``shapes`` are equally early in the queue. ``contested``: several shares, or a run
        that may miss its deadline, compete for room. The matcher then governs no shape, because it cannot know which share comes next."""

    def next_look_at(self, view: PolicyView) -> float | None:
        """Returns when to call ``match`` again even if nothing happens; None: only after an event."""

    def why(self, task: Task) -> str:
        """Returns the plan for a ready task as text for users; empty if there is no plan."""

    def describe(self) -> str:
        """Returns how the matcher decides now, and why, as text for users; empty if this never changes."""
