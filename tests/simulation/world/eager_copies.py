"""Copies tasks too eagerly to stress the machine: a worker with free cores copies running tasks, slow or not."""

from __future__ import annotations

import random

from pilotfish.core.policy_interface import AssignmentProposal, CopyProposal, DelegationProposal, PolicyView, RecallProposal
from pilotfish.core.state import Task, Worker
from pilotfish.core.tasks.speculative_copies import needs_at
from pilotfish.model.states import RUNNING
from pilotfish.policies.dispatcher import Dispatcher
from pilotfish.policies.matchers import LocalityMatcher
from pilotfish.policies.speculation import idle_workers


class EagerCopies(Dispatcher):
    def __init__(self, eagerness: float, dice: random.Random) -> None:
        super().__init__(LocalityMatcher())
        self._eagerness = eagerness
        self._dice = dice

    def propose(self, view: PolicyView) -> list[AssignmentProposal | DelegationProposal | RecallProposal | CopyProposal]:
        proposals = super().propose(view)
        given = {proposal.worker.id for proposal in proposals}
        copied: dict[Task, None] = {}
        for proposal in proposals:
            if isinstance(proposal, CopyProposal):
                copied.update(dict.fromkeys(proposal.tasks))
        for worker in idle_workers(view, given):
            for task in self._candidates(view, worker):
                if task not in copied and self._dice.random() < self._eagerness:
                    proposals.append(CopyProposal(worker, [task]))
                    copied[task] = None
                    break
        return proposals

    def _candidates(self, view: PolicyView, worker: Worker) -> list[Task]:
        running = [(other, task) for other in view.state.workers.values() if other is not worker for task in other.started]
        return [task for other, task in running if task.worker is other and _may(view, worker, task)]


def _may(view: PolicyView, worker: Worker, task: Task) -> bool:
    run, first = task.shape.run, task.worker
    if task.shape.nodes > 1:
        return False
    if first is None or task.state != RUNNING or task in view.state.copies or run.paused or run.options.speculate is False:
        return False
    if task.failure_counts is not None and task.failure_counts.deaths:
        return False
    return worker.suits(task.shape, view.now) and worker.fits(needs_at(first, task))
