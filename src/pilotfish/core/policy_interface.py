"""Defines what a policy sees and what it can propose. The machine checks every proposal. It refuses and counts invalid proposals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from pilotfish.core.pilots.factory_interface import PilotProposal, WithdrawalProposal
from pilotfish.core.policy_events import PolicyEvent
from pilotfish.core.state import State, Task, Worker


@dataclass(slots=True)
class AssignmentProposal:
    """Assign tasks to a worker. The last ``ahead`` tasks are prefetched: they wait at the worker until cores are free.

    ``cores``: the cores that each moldable task gets, by task id. ``other_workers``: for a multi-node task, its workers without ``worker``.
    """

    worker: Worker
    tasks: list[Task]
    ahead: int = 0
    cores: dict[int, float] = field(default_factory=dict)
    other_workers: list[Worker] = field(default_factory=list)


@dataclass(slots=True)
class DelegationProposal:
    """Delegate tasks to a site master, for the workers that it serves."""

    worker: Worker
    tasks: list[Task]


@dataclass(slots=True)
class RecallProposal:
    """Ask a worker to return tasks that it has not started."""

    worker: Worker
    tasks: list[Task]


@dataclass(slots=True)
class CopyProposal:
    """Start speculative copies of tasks that run at other workers. The first result counts."""

    worker: Worker
    tasks: list[Task]


@dataclass(slots=True)
class RetireProposal:
    """Let this worker finish its tasks and leave. ``reason`` is shown to users and must not be empty."""

    worker: Worker
    reason: str


Proposal = AssignmentProposal | DelegationProposal | RecallProposal | CopyProposal | RetireProposal

SiteMasterGroups = list[tuple[Worker, list[Worker]]]
"""Site masters, each with the workers that it serves."""
Divide = Callable[[list[Worker]], tuple[SiteMasterGroups, list[Worker]]]


class PolicyView:
    """The part of the state that a policy may read.

    ``workers``: connected workers that can get tasks and that no site master serves. ``roomy``: those of these workers that have free
    cores. Each list is computed when a policy first reads it, because computing it for ten thousand workers takes time.
    """

    def __init__(self, state: State, now: float, ahead_s: float, able: Callable[[Worker], bool], divide: Divide | None = None) -> None:
        self.state = state
        self.now = now
        self.ahead_s = ahead_s
        self._able = able
        self._divide = divide
        self._roomy: list[Worker] | None = None

    @cached_property
    def _divided(self) -> tuple[SiteMasterGroups, list[Worker]]:
        able = [worker for worker in self.state.workers.values() if self._able(worker)]
        return self._divide(able) if self._divide is not None else ([], able)

    @property
    def workers(self) -> list[Worker]:
        return self._divided[1]

    @property
    def sites(self) -> SiteMasterGroups:
        return self._divided[0] if self._divide is not None else []

    @property
    def roomy(self) -> list[Worker]:
        if self._roomy is None:  # a cached property would be slow up to Python 3.11, and this code runs in every turn
            self._roomy = [worker for worker in self.state.roomy if self._able(worker)]
            if self.sites:
                own = dict.fromkeys(self.workers)
                self._roomy = [worker for worker in self._roomy if worker in own]
        return self._roomy

    @property
    def served_workers(self) -> list[Worker]:
        """Returns the workers that a site master serves. These workers get tasks directly only if the tasks cannot be delegated."""
        return [worker for _, served in self.sites for worker in served]


class Policy(Protocol):
    """Decides which task goes to which worker. A policy that also has ``on_events`` is a ``ListeningPolicy``."""

    def propose(self, view: PolicyView) -> Sequence[Proposal]: ...

    def next_look_at(self, view: PolicyView) -> float | None:
        """Returns the time at which to call ``propose`` again, even if nothing happens; None: only an event causes the next call."""

    def why(self, task: Task) -> str:
        """Returns what the policy plans for a ready task, as text for users; empty if there is no plan."""

    def describe(self) -> str:
        """Returns, as text for users, how the policy decides now and why; empty if the policy always decides in the same way."""


class ListeningPolicy(Policy, Protocol):
    def on_events(self, events: Sequence[PolicyEvent]) -> None:
        """Receives events in the order in which they happened. In a turn, this method can be called twice: before ``propose`` with the
        events so far, and after ``propose`` with the events that followed, such as the assignments that were proposed. After a restart of
        the master, earlier events are not repeated. The policy must then read the state instead."""


@dataclass(slots=True)
class HoldProposal:
    """Submit no more pilots to this site. The hold ends when a user resumes the site, the site is changed, or the master restarts."""

    site: str
    reason: str


class Provisioner(Protocol):
    def propose(self, state: State, now: float) -> Sequence[PilotProposal | WithdrawalProposal | HoldProposal]: ...

    def next_look_at(self, state: State, now: float) -> float | None:
        """Returns the time at which to call ``propose`` again, even if nothing happens; None: only an event causes the next call."""

    def standings(self, state: State, now: float) -> dict[str, dict[str, object]]:
        """Returns how the factory rates each site, as rows for users."""
