"""Charges core-seconds to shares. The usage of a share decays with a half-life of one hour.

All runs of a share use one account. A share is charged for the cores that its tasks occupy, but only while tasks of a different share wait.
So a share that uses an otherwise idle pool pays nothing. A running task is charged continuously, not only when it ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pilotfish.model.task import CORES, UNIT

if TYPE_CHECKING:
    from pilotfish.core.state import Needs, Run, State, TaskShape

HALF_LIFE_S = 3600.0
UNKNOWN_S = 1.0
"""Assumed seconds of a task if no task of its share has ended."""


@dataclass(slots=True, eq=False)
class ShareAccount:
    """Past usage and present cores of a share."""

    name: str
    weight: float = 1.0
    used: float = 0.0
    """Core-seconds that were charged. The number decays continuously, with a half-life of HALF_LIFE_S seconds."""
    occupied: int = 0
    """Cores that tasks of the share occupy now, in units of 1/10000."""
    runs: int = 0


def join(state: State, run: Run) -> None:
    """Adds a run to the share that it names, so that this share is charged for the tasks of the run."""
    name = run.options.share
    account = state.shares.setdefault(name, ShareAccount(name))
    account.runs += 1
    account.occupied += run.occupied
    account.weight = run.options.weight or account.weight
    run.account = account


def leave(state: State, run: Run, account: ShareAccount) -> None:
    """Removes a run from a share. A share without runs is deleted."""
    account.runs -= 1
    account.occupied -= run.occupied
    if not account.runs:
        del state.shares[account.name]


def cores_of(needs: Needs) -> int:
    """Returns the cores in the needs of a task. Cores come first in the needs (see ``Request.amounts``)."""
    return needs[0][1] if needs and needs[0][0] == CORES else 0


def add_occupied(run: Run, cores: int) -> None:
    """Adds ``cores`` to the number of cores that the tasks of the run occupy. ``cores`` can be negative."""
    run.occupied += cores
    run.account.occupied += cores


def settle(state: State, at: float) -> None:
    """Charges the shares for the time since the last call. A share is charged for its occupied cores only if a task of a different share
    waits."""
    elapsed, state.settled_at = at - state.settled_at, at
    waiting = {shape.run.account: None for shape in state.ready if not shape.run.paused} if len(state.shares) > 1 else {}
    for account in state.shares.values():
        if account.used:
            account.used *= 0.5 ** (elapsed / HALF_LIFE_S)
        if account.occupied and len(waiting) > (account in waiting):
            account.used += account.occupied / UNIT * elapsed


def typical_s(shapes: Iterable[TaskShape]) -> dict[ShareAccount, float]:
    """Returns for each share the mean seconds of its tasks with these shapes; UNKNOWN_S if no such task has ended."""
    known: dict[ShareAccount, tuple[float, int]] = {}
    for shape in shapes:
        total, samples = known.get(shape.run.account, (0.0, 0))
        known[shape.run.account] = total + shape.mean_us * shape.samples, samples + shape.samples
    return {account: total / samples / 1e6 if samples else UNKNOWN_S for account, (total, samples) in known.items()}


def weighted_usage(account: ShareAccount, typical: float) -> float:
    """Returns the usage of a share divided by its weight. The share with the smallest value comes first. ``typical``: mean seconds of the
    share's tasks. For each core that the share occupies now, these seconds are added to the usage."""
    return (account.used + account.occupied / UNIT * typical) / account.weight
