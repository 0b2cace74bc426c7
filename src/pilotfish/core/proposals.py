"""What policies and strategies see and may propose. The machine checks every proposal; a bad one is refused and counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pilotfish.core.prospects import PilotWish, PilotWithdrawal
from pilotfish.core.state import State, Task, Worker


@dataclass(slots=True)
class Proposal:
    """Give these tasks to this worker; the last ``ahead`` of them are to wait there. ``cores``: grants to moldable tasks."""

    worker: Worker
    tasks: list[Task]
    ahead: int = 0
    cores: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class Loan:
    """Lend these tasks to a site's master, for the workers that it vouches for."""

    worker: Worker
    tasks: list[Task]


@dataclass(slots=True)
class Recall:
    """Ask this worker to hand back tasks that it has not started."""

    worker: Worker
    tasks: list[Task]


@dataclass(slots=True)
class Outlook:
    """What a policy may look at. ``workers``: those that can be reached and may take tasks; ``sites``: masters of sites, each with the
    workers for which it is lent tasks."""

    state: State
    workers: list[Worker]
    now: float
    ahead_s: float
    sites: list[tuple[Worker, list[Worker]]] = field(default_factory=list)

    @property
    def vouched(self) -> list[Worker]:
        """Workers that a site's master gives tasks to, from what it is lent. Only what cannot be lent is given to them by us."""
        return [worker for _, subjects in self.sites for worker in subjects]


class Policy(Protocol):
    def propose(self, outlook: Outlook) -> Sequence[Proposal | Loan | Recall]: ...

    def next_look_at(self, outlook: Outlook) -> float | None:
        """When to ask again even if nothing happens."""


@dataclass(slots=True)
class Hold:
    """No more pilots for this site until a person releases it."""

    site: str
    reason: str


class Strategy(Protocol):
    def propose(self, state: State, now: float) -> Sequence[PilotWish | PilotWithdrawal | Hold]: ...

    def next_look_at(self, state: State, now: float) -> float | None:
        """When to ask again even if nothing happens."""

    def standings(self, state: State, now: float) -> dict[str, dict[str, object]]:
        """What it thinks of each site, for people."""
