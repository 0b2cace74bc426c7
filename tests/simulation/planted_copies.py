"""Plants bugs in speculative copies, like ``planted.py``."""

from __future__ import annotations

from collections.abc import Iterable

from pilotfish.core import state_snapshot
from pilotfish.core.machine import Machine
from pilotfish.core.state import State, Task, Worker
from pilotfish.core.tasks import assignment, retry_rules, speculative_copies
from pilotfish.core.tasks.transitions import put_back, take_away
from tests.simulation.planted import Patch, bug
from tests.simulation.planted_data import PLANTED

__all__ = ["PLANTED"]


@bug
def who_lost_is_not_told(patch: Patch) -> None:
    """The slower of two attempts runs to its end."""
    kill = assignment.kill

    def forgetful(master: Machine, attempts: Iterable[tuple[Task, Worker, int]]) -> None:
        kill(master, [attempt for attempt in attempts if attempt[0] not in master.state.copies])

    patch.setattr(assignment, "kill", forgetful)


@bug
def the_room_of_who_lost_is_not_freed(patch: Patch) -> None:
    def careless(state: State, worker: Worker, task: Task, at: float) -> None:
        copy = state.copies.pop(task, None)
        if copy is not None and copy.worker is worker:
            task.attempt = copy.attempt

    patch.setattr(speculative_copies, "keep_winner", careless)


@bug
def the_number_of_a_copy_is_used_again(patch: Patch) -> None:
    """Two workers run an attempt with the same number."""
    goes_on = speculative_copies.end_attempt

    def forgetful(state: State, worker: Worker, task: Task, at: float) -> bool:
        number = task.attempt
        if goes_on(state, worker, task, at):
            return True
        task.attempt = number
        return False

    patch.setattr(speculative_copies, "end_attempt", forgetful)


@bug
def a_new_master_does_not_know_of_copies(patch: Patch) -> None:
    """Copies are in the snapshot but not restored."""
    patch.setitem(state_snapshot._RESTORE, "twins", lambda state, rows: None)


@bug
def a_failed_copy_ends_its_task(patch: Patch) -> None:
    """A failed copy fails the task although the other attempt continues."""
    patch.setattr(retry_rules, "_reduced_charge", lambda fact: fact)


@bug
def with_one_worker_the_other_attempt_is_lost(patch: Patch) -> None:
    """The task is queued again although it still runs at another worker."""
    goes_on = speculative_copies.end_attempt

    def hasty(state: State, worker: Worker, task: Task, at: float) -> bool:
        if not goes_on(state, worker, task, at):
            return False
        assert task.worker is not None
        take_away(task.worker, task, at)
        goes_on(state, worker, task, at)
        put_back(state, task)
        return True

    patch.setattr(speculative_copies, "end_attempt", hasty)
