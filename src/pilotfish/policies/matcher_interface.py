"""Defines the interface between the dispatcher and a matcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pilotfish.core.policy_interface import PolicyView
from pilotfish.core.state import Task, TaskShape, Worker


class Matching(NamedTuple):
    """The choice of a matcher.

    * ``preferred``: for each worker id, the tasks that this worker gets before other tasks. Each task is named for at most one worker. If
      the worker has no room for a task, the dispatcher ignores the preference.
    * ``governed``: task shapes that are assigned by ``preferred`` only. If ``preferred`` names no worker for a task of such a shape, the
      task waits.
    """

    preferred: dict[str, list[Task]]
    governed: dict[TaskShape, None] = {}


class Matcher(Protocol):
    """Chooses workers for the first tasks of the queue. The dispatcher assigns all other tasks in queue order."""

    def match(self, view: PolicyView, roomy: Sequence[Worker], shapes: Sequence[TaskShape], contested: bool) -> Matching:
        """Chooses tasks for the workers in ``roomy``.

        * ``roomy``: the workers with room for at least one ready task.
        * ``shapes``: the shapes at the head of the queue. No order is defined between them.
        * ``contested``: True if several shares compete for room, or if a run is likely to miss its deadline. The matching must then have no
          ``governed`` shapes, because the next free room possibly belongs to a different share.
        """

    def next_look_at(self, view: PolicyView) -> float | None:
        """Returns the time at which ``match`` must be called again even if nothing happens. None means that it is called only after an
        event."""

    def why(self, task: Task) -> str:
        """Returns a text for users about the plan for a ready task. Returns an empty text if there is no plan."""

    def describe(self) -> str:
        """Returns a text for users: how the matcher decides now, and why. Returns an empty text if the matcher always decides in the same
        way."""
