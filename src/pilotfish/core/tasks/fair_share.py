"""Charges core-seconds to shares with a half-life of one hour.

Runs of one share are served as one. A share is charged only while other shares wait: using an idle pool is free. It is charged as time
passes, by the cores that its tasks occupy, so that its usage changes while a task runs and not when it ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pilotfish.model.task import CORES

if TYPE_CHECKING:
    from pilotfish.core.state import Needs, Run, State, TaskShape

HALF_LIFE_S = 3600.0
UNIT = 10_000
"""Units per core, as in ``state.py``."""
UNKNOWN_S = 1.0
"""Assumed seconds of a task while none of its share has ended."""


@dataclass(slots=True, eq=False)
class ShareAccount:
    """Past usage and present cores of a share."""

    name: str
    weight: float = 1.0
    used: float = 0.0
    """Core-seconds used; older ones count less."""
    occupied: int = 0
    """Cores that its tasks occupy now, in units of 1/10000."""
    runs: int = 0


def join(state: State, run: Run) -> None:
    """Charge the run's tasks to the share that it names."""
    name = run.options.share
    account = state.shares.setdefault(name, ShareAccount(name))
    account.runs += 1
    account.occupied += run.occupied
    account.weight = run.options.weight or account.weight
    run.account = account


def leave(state: State, run: Run, account: ShareAccount) -> None:
    """Remove a run from a share; a share without runs is deleted."""
    account.runs -= 1
    account.occupied -= run.occupied
    if not account.runs:
        del state.shares[account.name]


def cores_of(needs: Needs) -> int:
    """Cores in the needs of a task. They come first (see ``Request.amounts``)."""
    return needs[0][1] if needs and needs[0][0] == CORES else 0


def add_occupied(run: Run, cores: int) -> None:
    """Note that tasks of the run occupy more cores; fewer if negative."""
    run.occupied += cores
    run.account.occupied += cores


def settle(state: State, at: float) -> None:
    """Charge each share for the cores that it occupied since the last call."""
    elapsed, state.settled_at = at - state.settled_at, at
    waiting = {shape.run.account: None for shape in state.ready if not shape.run.paused} if len(state.shares) > 1 else {}
    for account in state.shares.values():
        if account.used:
            account.used *= 0.5 ** (elapsed / HALF_LIFE_S)
        if account.occupied and len(waiting) > (account in waiting):
            account.used += account.occupied / UNIT * elapsed


def typical_s(shapes: Iterable[TaskShape]) -> dict[ShareAccount, float]:
    """Mean seconds of a task, by share, over these shapes."""
    known: dict[ShareAccount, tuple[float, int]] = {}
    for shape in shapes:
        total, samples = known.get(shape.run.account, (0.0, 0))
        known[shape.run.account] = total + shape.mean_us * shape.samples, samples + shape.samples
    return {account: total / samples / 1e6 if samples else UNKNOWN_S for account, (total, samples) in known.items()}


def weighted_usage(account: ShareAccount, typical: float) -> float:
    """Usage by weight, including what running tasks will still use. The share with the least comes first."""
    return (account.used + account.occupied / UNIT * typical) / account.weight
