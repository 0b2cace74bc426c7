"""Defines the interface between the dispatcher and a matcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pilotfish.core.policy_interface import PolicyView
from pilotfish.core.state import Task, TaskShape, Worker


class Matching(NamedTuple):
    """The choice of a matcher.

    * ``preferred``: for each worker id, the tasks that this worker gets before other tasks. A task is named for at most one worker. If a
      task does not fit at this worker, the dispatcher ignores the preference.
    * ``governed``: shapes whose remaining tasks wait. Of a governed shape, each worker that was passed to ``match`` gets only the tasks
      that ``preferred`` names for this worker.
    """

    preferred: dict[str, list[Task]]
    governed: dict[TaskShape, None] = {}


class Matcher(Protocol):
    """Chooses workers for the first tasks of the queue. The dispatcher assigns all other tasks in queue order."""

    def match(self, view: PolicyView, roomy: Sequence[Worker], shapes: Sequence[TaskShape], contested: bool) -> Matching:
        """Chooses tasks for the workers in ``roomy``.

        * ``roomy``: the workers that have room for at least one ready task.
        * ``shapes``: the shapes at the head of the queue, which are all equally early.
        * ``contested``: True if several shares compete for room, or if a run may miss its deadline. In this case, the matching must have no
          ``governed`` shapes, because the next free room may belong to another share.
        """

    def next_look_at(self, view: PolicyView) -> float | None:
        """Returns the time at which ``match`` must be called again even if nothing happens; None: it is called only after an event."""

    def why(self, task: Task) -> str:
        """Returns the plan for a ready task as text for users; empty if there is no plan."""

    def describe(self) -> str:
        """Returns a text for users: how the matcher decides now, and why. Empty if the matcher always decides in the same way."""
