"""Defines what a policy sees and may propose. The machine checks every proposal; an unlawful one is refused and counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from pilotfish.core.pilots.factory_interface import PilotProposal, WithdrawalProposal
from pilotfish.core.state import State, Task, Worker


@dataclass(slots=True)
class AssignmentProposal:
    """Give these tasks to this worker; the last ``ahead`` of them are to wait there. ``cores``: grants to moldable tasks. ``beside``: the
    other workers of one task of several nodes."""

    worker: Worker
    tasks: list[Task]
    ahead: int = 0
    cores: dict[int, float] = field(default_factory=dict)
    beside: list[Worker] = field(default_factory=list)


@dataclass(slots=True)
class DelegationProposal:
    """Lend these tasks to a site's master, for the workers that it vouches for."""

    worker: Worker
    tasks: list[Task]


@dataclass(slots=True)
class RecallProposal:
    """Ask this worker to hand back tasks that it has not started."""

    worker: Worker
    tasks: list[Task]


@dataclass(slots=True)
class CopyProposal:
    """Let this worker try tasks as well that run elsewhere. The first result counts."""

    worker: Worker
    tasks: list[Task]


Reigns = list[tuple[Worker, list[Worker]]]
"""Masters of sites, each with the workers for which it is lent tasks."""
Divide = Callable[[list[Worker]], tuple[Reigns, list[Worker]]]


class PolicyView:
    """What a policy may look at.

    ``workers``: those that can be reached and may take tasks, but for those that the master of a site sees to; ``roomy``: those of them
    that have cores to spare. Made when they are asked for: of ten thousand workers, most are busy and of no interest."""

    def __init__(self, state: State, now: float, ahead_s: float, able: Callable[[Worker], bool], divide: Divide | None = None) -> None:
        self.state = state
        self.now = now
        self.ahead_s = ahead_s
        self._able = able
        self._divide = divide
        self._roomy: list[Worker] | None = None

    @cached_property
    def _divided(self) -> tuple[Reigns, list[Worker]]:
        able = [worker for worker in self.state.workers.values() if self._able(worker)]
        return self._divide(able) if self._divide is not None else ([], able)

    @property
    def workers(self) -> list[Worker]:
        return self._divided[1]

    @property
    def sites(self) -> Reigns:
        return self._divided[0] if self._divide is not None else []

    @property
    def roomy(self) -> list[Worker]:
        if self._roomy is None:  # asked for in every turn: a cached property, which has a lock up to Python 3.11, would be felt
            self._roomy = [worker for worker in self.state.roomy if self._able(worker)]
            if self.sites:
                own = dict.fromkeys(self.workers)
                self._roomy = [worker for worker in self._roomy if worker in own]
        return self._roomy

    @property
    def vouched(self) -> list[Worker]:
        """Workers that a site's master gives tasks to, from what it is lent. Only what cannot be lent is given to them by us."""
        return [worker for _, subjects in self.sites for worker in subjects]


class Policy(Protocol):
    def propose(self, outlook: PolicyView) -> Sequence[AssignmentProposal | DelegationProposal | RecallProposal | CopyProposal]: ...

    def next_look_at(self, outlook: PolicyView) -> float | None:
        """When to ask again even if nothing happens."""

    def why(self, task: Task) -> str:
        """What it has in mind with a ready task, for people; empty: nothing in particular."""

    def describe(self) -> str:
        """How it decides just now, and why, for people; empty: as always."""


@dataclass(slots=True)
class HoldProposal:
    """No more pilots for this site until a person releases it."""

    site: str
    reason: str


class Provisioner(Protocol):
    def propose(self, state: State, now: float) -> Sequence[PilotProposal | WithdrawalProposal | HoldProposal]: ...

    def next_look_at(self, state: State, now: float) -> float | None:
        """When to ask again even if nothing happens."""

    def standings(self, state: State, now: float) -> dict[str, dict[str, object]]:
        """What it thinks of each site, for people."""
