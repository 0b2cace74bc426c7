"""Checks that every task ended where it belongs, and that there are no leftovers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilotfish.core.data.stored_results import record_of
from pilotfish.core.machine import Machine
from pilotfish.core.state import Run, Task
from pilotfish.core.tasks.retry_rules import KILLED_BUDGET, KILLED_CAUSES
from pilotfish.model.ids import show_task
from pilotfish.model.states import CANCELLED, DONE, FAILED
from tests.simulation.world.simulated_slot import LOST_A_NODE

if TYPE_CHECKING:
    from tests.simulation.world.fault_world import FaultWorld
    from tests.simulation.world.simulated_client import SimulatedClient

OWN_CAUSES = {
    "ok": (),
    "exit": ("exit",),
    "flaky": ("exit",),
    "memory": ("oom",),
    "crash": ("crash",),
    "poison": ("poison", "worker-lost"),
    "hang": ("time",),
    "version": ("version",),
}


JUST_LINKED_S = 5.0


class WrongEnd(AssertionError):
    """A task has the wrong final state, or there are leftovers: a bug."""


def check_end(world: FaultWorld, machine: Machine) -> None:
    for run in machine.state.runs.values():
        for task in run.tasks:
            _check_task(world, run, task)
    for person in world.people:
        _check_view(world, machine, person)
    _check_nodes(world, machine)
    world.report.counts["tasks"] += sum(len(run.tasks) for run in machine.state.runs.values())
    if len(machine._timers) > 10 * (len(machine.state.workers) + len(machine.state.runs) + world.fault_count):
        raise WrongEnd(f"{len(machine._timers)} timers are left")
    if machine.refused_proposals:
        raise WrongEnd(f"{machine.refused_proposals} proposals of the policy were refused")


def _check_task(world: FaultWorld, run: Run, task: Task) -> None:
    oracle = world.oracle
    name = show_task(task.id)
    behaviour = world.workloads.behaviour_of(task.id)
    if task.state not in (DONE, FAILED, CANCELLED):
        raise WrongEnd(f"task {name} is not final")
    if (task.state == DONE) != (oracle.applied.get(task.id, 0) == 1):
        raise WrongEnd(f"{task}: {oracle.applied.get(task.id, 0)} results were applied")
    if task.state == CANCELLED or task.state == DONE:
        return
    assert task.failure is not None
    cause = task.failure.cause
    if cause == "dependency" or (behaviour is not None and cause in OWN_CAUSES[behaviour.kind]):
        return
    spec = run.specs[task.spec]
    if cause == "missing-input" and task.failure.blame == "site" and any(not (record.at_master or record.path) for record in task.contents):
        return  # it had no holder at that time, as far as the master knew
    if cause == "missing-input" and task.failure.blame == "user" and oracle.custody.was_withdrawn(task.id):
        return
    if cause not in KILLED_CAUSES and task.failure.blame in ("worker", "site") and oracle.lost(task.id) > spec.losses:
        return
    if cause in KILLED_CAUSES and oracle.charges[task.id, "crashes"] > max(KILLED_BUDGET, spec.retries):
        return
    if cause == "poison" and oracle.charges[task.id, "deaths"] >= 3:
        world.report.counts["innocents convicted"] += 1
        return
    if cause == "exit" and task.failure.message == LOST_A_NODE:
        return  # MultiNodeChecks has verified that the true cause could not be known
    if cause == "exit" and task.failure.message == "everything fails here":
        world.report.counts["failed by a black hole"] += 1
        return
    if cause == "time" and spec.time_s:
        return
    charges = {budget: count for (number, budget), count in oracle.charges.items() if number == task.id}
    raise WrongEnd(f"{task} failed by {task.failure}, but it is {behaviour}; it was charged with {charges}")


def _check_view(world: FaultWorld, machine: Machine, person: SimulatedClient) -> None:
    """Checks that the results reported to a client equal the journal."""
    if not person.run:
        return
    run = machine.state.runs[person.run]
    if len(run.tasks) < person.accepted_ever:
        raise WrongEnd(f"{person.plan.uid}: {person.accepted_ever} accepted, {len(run.tasks)} known")
    for index, told in person.told_ever.items():
        task = run.tasks[index]
        if task.id in world.oracle.reruns:
            record = record_of(run, index)
            if record not in (world.oracle.rerun_keys[task.id], b""):
                raise WrongEnd(
                    f"{task} was rerun and has the record {record.hex()}, the client sent {world.oracle.rerun_keys[task.id].hex()}"
                )
            continue  # it may have been rerun after the client had left
        known = (task.state, task.failure.cause if task.failure else "", world.payloads.get(task.output))
        if told != known and (told[:2] != known[:2] or known[2] or not person.outputs_taken):
            raise WrongEnd(f"{person.plan.uid} was told {told} of {task}, the journal says {known}")
    if len(person.view) != len(run.tasks) and not person.left_early:
        raise WrongEnd(f"{person.plan.uid} was told of {len(person.view)} tasks, there are {len(run.tasks)}")


def _check_nodes(world: FaultWorld, machine: Machine) -> None:
    """Checks that no node runs or keeps anything of finished tasks."""
    for node in world.nodes.values():
        connection = machine.connections.get(node.worker)
        if not node.alive or node.hung or connection is None or connection.link is None or node.trouble_until > world.now - 30.0:
            continue
        if node.linked_at > world.now - JUST_LINKED_S:
            continue  # the answer to its hello may be in transfer
        if node.machine.attempts.live or node.machine.results.kept:
            raise WrongEnd(f"{node.worker} still holds {list(node.machine.attempts.live)} and results {list(node.machine.results.kept)}")
