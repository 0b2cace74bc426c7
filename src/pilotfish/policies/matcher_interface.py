"""Defines what a matcher sees and answers. The dispatcher knows matchers only by this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pilotfish.core.policy_interface import PolicyView
from pilotfish.core.state import Task, TaskShape, Worker


class Matching(NamedTuple):
    """``preferred``: by worker id, the tasks that this worker gets before others; each task is named for one worker only. Tasks that do not
    fit there are ignored.
    ``governed``: shapes of which no other task may be assigned in this round."""

    preferred: dict[str, list[Task]]
    governed: dict[TaskShape, None] = {}


class Matcher(Protocol):
    """Chooses which of the first tasks in the queue go to which worker. The dispatcher assigns all other tasks in queue order."""

    def match(self, view: PolicyView, roomy: Sequence[Worker], shapes: Sequence[TaskShape], contested: bool) -> Matching:
        """Match tasks of ``shapes``, which are equally early in the queue, with workers that have room.

        ``contested``: several shares or a late run compete. A matcher then governs no shape, because it cannot know which share comes
        next.
        """

    def next_look_at(self, view: PolicyView) -> float | None:
        """When to ask again even if nothing happens."""

    def why(self, task: Task) -> str:
        """The plan for a ready task, as text for users; empty if there is none."""

    def describe(self) -> str:
        """How the matcher decides now, and why, as text for users; empty if it never changes."""
