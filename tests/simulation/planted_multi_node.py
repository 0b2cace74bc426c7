"""Plants bugs in multi-node tasks, like ``planted.py``."""

from __future__ import annotations

from typing import Any

from pilotfish.core import state_snapshot
from pilotfish.core.machine import Machine
from pilotfish.core.policy_interface import PolicyView
from pilotfish.core.state import State, Task, TaskShape, Worker
from pilotfish.core.tasks import assignment, multi_node
from pilotfish.core.tasks.transitions import take_away
from pilotfish.core.workers import agent_messages
from pilotfish.model.task import Failure
from pilotfish.policies import multi_node_placement
from tests.simulation.planted import Patch, bug
from tests.simulation.planted_copies import PLANTED

__all__ = ["PLANTED"]


@bug
def the_room_of_those_beside_is_not_freed(patch: Patch) -> None:
    """After an attempt, only its first worker gets its resources back."""

    def careless(state: State, task: Task, at: float) -> None:
        for worker in state.multi_node_workers.pop(task, ())[:1]:
            take_away(worker, task, at)

    patch.setattr(multi_node, "free_nodes", careless)


@bug
def a_task_goes_on_with_a_node_less(patch: Patch) -> None:
    """The first worker is not informed that another one is lost."""
    patch.setattr(assignment, "stop_hosted_tasks", lambda *_: None)


@bug
def a_new_master_does_not_know_who_is_beside(patch: Patch) -> None:
    """Multi-node assignments are in the snapshot but not restored."""
    patch.setitem(state_snapshot._RESTORE, "gangs", lambda state, rows: None)


@bug
def hosts_are_those_of_the_first_attempt(patch: Patch) -> None:
    """A worker that knows the spec is not told the nodes of a new attempt."""
    with_hosts = multi_node.with_hosts

    def forgetful(state: State, task: Task) -> dict[str, Any] | None:
        return with_hosts(state, task) if task.attempt == 1 else None

    patch.setattr(multi_node, "with_hosts", forgetful)


@bug
def nodes_of_two_pilots_are_mixed(patch: Patch) -> None:
    """The policy and the machine's validation accept workers of different pilots of one site."""

    def mixed(view: PolicyView, shape: TaskShape, busy: dict[str, None]) -> dict[str, list[Worker]]:
        sites: dict[str, list[Worker]] = {}
        for worker in view.workers:
            if worker.pilot and worker.id not in busy and not worker.runs_suspect and worker.suits(shape, view.now):
                sites.setdefault(worker.site, []).append(worker)
        return sites

    patch.setattr(multi_node_placement, "_workers_by_pilot", mixed)
    patch.setattr(multi_node, "is_lawful", lambda proposal, now: True)


@bug
def a_task_pays_for_the_node_that_it_lost(patch: Patch) -> None:
    """A task that fails because it lost a node is charged for the failure."""

    def unjust(master: Machine, task: Task, failure: Failure) -> Failure:
        return failure

    patch.setattr(agent_messages, "_blame_lost_node", unjust)
