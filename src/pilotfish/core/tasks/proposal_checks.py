"""Checks that a policy's proposal is lawful. A policy only proposes: the machine acts on nothing that fails here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilotfish.core.policy_interface import AssignmentProposal, CopyProposal, DelegationProposal, RetireProposal
from pilotfish.core.state import UNIT, Task, Worker
from pilotfish.core.tasks import multi_node, speculative_copies
from pilotfish.model.states import JOINED, READY, RUNNING
from pilotfish.model.task import CORES

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine


def can_take(machine: Machine, worker: Worker) -> bool:
    """Whether a worker may get tasks: it is connected, not draining and not in quarantine."""
    connection = machine.connections.get(worker.id)
    return connection is not None and connection.link is not None and worker.state == JOINED and not worker.quarantined_until


def may_retire(machine: Machine, proposal: RetireProposal) -> bool:
    """Whether the worker is present and not draining, and the proposal gives a reason for users."""
    worker = proposal.worker
    return machine.state.workers.get(worker.id) is worker and worker.state == JOINED and bool(proposal.reason)


def may_assign(machine: Machine, proposal: AssignmentProposal) -> bool:
    """Whether each task is ready and fits the worker, and those that start at once have room together."""
    worker = proposal.worker
    if not can_take(machine, worker) or not proposal.tasks:
        return False
    if worker.runs_suspect or (proposal.tasks[0].suspect and (worker.held or len(proposal.tasks) > 1)):
        return False
    if proposal.other_workers:
        return all(can_take(machine, other) for other in proposal.other_workers) and multi_node.is_lawful(proposal, machine.now)
    count = len(proposal.tasks)
    if count > 1 and len(dict.fromkeys(proposal.tasks)) != count:
        return False
    free, now = dict(worker.free), count - proposal.ahead
    shape = None
    for place, task in enumerate(proposal.tasks):
        if task.state != READY or task.shape.run.paused or (place and task.suspect):
            return False
        if task.shape is not shape:
            shape = task.shape
            if not worker.suits(shape, machine.now) or shape.nodes > 1:
                return False
        if place < now:
            for name, amount in task.shape.needs:
                if name == CORES and task.id in proposal.cores:
                    amount = max(amount, round(proposal.cores[task.id] * UNIT))
                free[name] = free.get(name, 0) - amount
                if free[name] < 0:
                    return False
    return True


def may_copy(machine: Machine, proposal: CopyProposal) -> bool:
    """Whether each task may have a speculative copy, and the copies have room together."""
    worker = proposal.worker
    if not can_take(machine, worker) or worker.runs_suspect:
        return False
    if not proposal.tasks or len(dict.fromkeys(proposal.tasks)) != len(proposal.tasks):
        return False
    free = dict(worker.free)
    for task in proposal.tasks:
        if task.worker is None or not _may_have_copy(machine, worker, task):
            return False
        for name, amount in speculative_copies.needs_at(task.worker, task):
            free[name] = free.get(name, 0) - amount
            if free[name] < 0:
                return False
    return True


def _may_have_copy(machine: Machine, worker: Worker, task: Task) -> bool:
    """Whether the task runs elsewhere, has no copy, and its run allows copies. A task that killed a worker gets none: it could kill two."""
    run = task.shape.run
    if task.shape.nodes > 1:
        return False
    if task.state != RUNNING or task.worker is worker or task in machine.state.copies or run.paused or run.options.speculate is False:
        return False
    return not (task.failure_counts is not None and task.failure_counts.deaths) and worker.suits(task.shape, machine.now)


def may_delegate(machine: Machine, proposal: DelegationProposal) -> bool:
    """Whether the worker is the master of its site, and every task could be assigned to any worker there."""
    if machine.site_masters.of(proposal.worker) is None or not can_take(machine, proposal.worker) or not proposal.tasks:
        return False
    return all(task.state == READY and not task.suspect and not task.shape.run.paused and task.shape.nodes == 1 for task in proposal.tasks)
