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
class Recall:
    """Ask this worker to hand back tasks that it has not started."""

    worker: Worker
    tasks: list[Task]


@dataclass(slots=True)
class Outlook:
    """What a policy may look at. ``workers``: those that can be reached and may take tasks."""

    state: State
    workers: list[Worker]
    now: float
    ahead_s: float


class Policy(Protocol):
    def propose(self, outlook: Outlook) -> Sequence[Proposal | Recall]: ...

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
