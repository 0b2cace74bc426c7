"""Conditions for the start of a task, and the record of the task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pilotfish.errors import BadInput
from pilotfish.model.contents import Content, ExpectedFile
from pilotfish.model.task import MAX_COST, MIN_COST


class LastChange(NamedTuple):
    """Time at which a file changed."""

    at: float
    file: str


NO_CHANGE = LastChange(0.0, "")


class TaskNeeds(NamedTuple):
    """The data about a task that the master needs in addition to the spec and the payload. ``after``: indices of earlier tasks that must
    succeed before the task starts. ``contents``: inputs in addition to the inputs of the spec."""

    after: Sequence[int] = ()
    contents: tuple[Content, ...] = ()
    cost: float = 1.0
    """Expected duration relative to the other tasks of its task class."""
    future_files: tuple[ExpectedFile, ...] = ()
    """Files that earlier tasks of the run will produce."""
    after_any: Sequence[int] = ()
    """Indices of earlier tasks that must have ended, with any result, before the task starts."""
    key: bytes = b""
    """Record of the task. The master uses it to find an equal earlier task. If it is empty, the result of the task is never reused. See
    ``task_keys``."""
    reuse: bool = False
    """Whether the task can get the result of an earlier task with the same key."""
    last_change: LastChange = NO_CHANGE
    """Last change of a file that the command names. The result of an earlier task counts only if the earlier task ended after this
    change."""
    program_change: LastChange = NO_CHANGE
    """Last change of a program file that the task reads when it starts. The result of an earlier task counts only if the earlier task
    started after this change. If it started before, it possibly read a content that differs from the content in its key."""

    @property
    def dependencies(self) -> int:
        return len(self.after) + len(self.after_any) + len(self.contents) + len(self.future_files)


def read_cost(cost: float) -> float:
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not MIN_COST <= cost <= MAX_COST:
        raise BadInput(
            f"cost: {cost!r} is not a number from {MIN_COST:g} to {MAX_COST:g}", "write its run time relative to the other tasks"
        )
    return float(cost)


NO_NEEDS = TaskNeeds()
