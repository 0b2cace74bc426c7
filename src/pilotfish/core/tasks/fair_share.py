"""How much of the pool each share has had: core-seconds, of which half is forgiven every hour.

Runs of one share stand in one line. What a share takes while nobody else waits costs it nothing: nobody is held back for having used what
nobody wanted. What it takes while others wait is added up as time passes, by the cores that its tasks occupy: an account changes while a
task runs, not when it ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pilotfish.model.task import CORES

if TYPE_CHECKING:
    from pilotfish.core.state import Needs, Run, State, TaskShape

HALF_LIFE_S = 3600.0
UNIT = 10_000
"""As in ``state.py``: cores are counted in ten-thousandths."""
UNKNOWN_S = 1.0
"""Tasks of which none has ended are taken to last so long."""


class ShareAccount:
    """What one share has had and has."""

    __slots__ = ("name", "occupied", "runs", "used", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = 1.0
        self.used = 0.0
        """Core-seconds, in which older ones count less."""
        self.occupied = 0
        """What its tasks occupy now, in ten-thousandths of cores."""
        self.runs = 0


def join(state: State, run: Run) -> None:
    """From now on the run's tasks are charged to the share that it names."""
    name = run.options.share
    account = state.shares.get(name)
    if account is None:
        account = state.shares[name] = ShareAccount(name)
    account.runs += 1
    account.occupied += run.occupied
    account.weight = run.options.weight or account.weight
    run.account = account


def leave(state: State, run: Run, account: ShareAccount) -> None:
    """A share without runs is forgotten."""
    account.runs -= 1
    account.occupied -= run.occupied
    if not account.runs:
        del state.shares[account.name]


def cores_of(needs: Needs) -> int:
    """Cores come first among needs, see ``Request.amounts``."""
    return needs[0][1] if needs and needs[0][0] == CORES else 0


def occupied(run: Run, needs: Needs) -> None:
    cores = cores_of(needs)
    run.occupied += cores
    run.account.occupied += cores


def freed(run: Run, needs: Needs) -> None:
    cores = cores_of(needs)
    run.occupied -= cores
    run.account.occupied -= cores


def settle(state: State, at: float) -> None:
    """Charge each share for what it has occupied since the last time, before anything changes."""
    elapsed, state.settled_at = at - state.settled_at, at
    waiting = {shape.run.account: None for shape in state.ready if not shape.run.paused} if len(state.shares) > 1 else {}
    for account in state.shares.values():
        if account.used:
            account.used *= 0.5 ** (elapsed / HALF_LIFE_S)
        if account.occupied and len(waiting) > (account in waiting):
            account.used += account.occupied / UNIT * elapsed


def typical_s(shapes: Iterable[TaskShape]) -> dict[ShareAccount, float]:
    """How long tasks take, by share, over all shapes that are given."""
    known: dict[ShareAccount, tuple[float, int]] = {}
    for shape in shapes:
        total, samples = known.get(shape.run.account, (0.0, 0))
        known[shape.run.account] = total + shape.mean_us * shape.samples, samples + shape.samples
    return {account: total / samples / 1e6 if samples else UNKNOWN_S for account, (total, samples) in known.items()}


def standing(account: ShareAccount, typical: float) -> float:
    """Whoever has the least is next: what it has had, and what its running tasks will have had at their ends, by weight."""
    return (account.used + account.occupied / UNIT * typical) / account.weight
