"""Ends workers that fell silent, died or left, and requeues their tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pilotfish.core.policy_interface import RetireProposal
from pilotfish.core.state import Task, Worker
from pilotfish.core.tasks import assignment, multi_node
from pilotfish.core.tasks.retry_rules import judge_death, needed_workers, walltime_to_request
from pilotfish.core.workers import site_masters
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import messages as m
from pilotfish.model.site import DIED
from pilotfish.model.states import ACTIVE, JOINED, RUNNING

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

RECONNECT_S = 15.0
"""After a restart of the master, workers get at least this many seconds to reconnect. Agents try to reconnect at least every 5 s."""


def lease_s(machine: Machine, worker: Worker) -> float:
    """Returns the seconds of silence after which a worker counts as lost. A worker that connects only at intervals gets more seconds."""
    return max(machine.settings.lease_s, 3 * worker.poll_s)


def time_to_return_s(machine: Machine, worker: Worker) -> float:
    """Returns the seconds that a worker gets to reconnect after the master was stopped or suspended."""
    return max(RECONNECT_S, lease_s(machine, worker))


def extend_all(machine: Machine) -> None:
    """Gives every worker time to reconnect after the master was suspended."""
    for name, connection in machine.connections.items():
        connection.lease_at = max(connection.lease_at, machine.now + time_to_return_s(machine, machine.state.workers[name]))


def lease_expired(machine: Machine, key: str) -> None:
    worker, connection = machine.state.workers.get(key), machine.connections.get(key)
    if worker is None or connection is None:
        return
    if connection.lease_at > machine.now:
        machine.set_timer(connection.lease_at, lease_expired, key)
        return
    lose_worker(machine, worker, f"has been silent for {machine.settings.lease_s:g} s", died=False)


def quarantine_expired(machine: Machine, key: str) -> None:
    worker = machine.state.workers.get(key)
    if worker is not None and 0 < worker.quarantined_until <= machine.now:
        machine.record(f.WorkerQuarantined(key, 0.0, "its quarantine has ended"))


def release_needed_workers(machine: Machine) -> None:
    """Ends the quarantine of a worker if a waiting task fits this worker, but no worker outside quarantine."""
    for worker in needed_workers(machine.state):
        machine.record(f.WorkerQuarantined(worker.id, 0.0, "tasks wait that fit no other worker"))


def lose_worker(machine: Machine, worker: Worker, reason: str, *, died: bool) -> None:
    """Ends a worker that fell silent, and requeues its tasks. If the walltime of the worker is over, calls ``leave`` instead. ``died``:
    whether it is certain that the worker runs nothing any more.

    The loss is charged to every task that possibly started. Otherwise a task could kill one worker after another. These tasks possibly
    started:

    * The tasks that occupied cores of the worker.
    * The same number of prefetched tasks. A prefetched task starts when another task ends, and the result of the ended task can be lost
      with the worker.
    * Prefetched tasks that the agent reported as running.
    * Prefetched tasks that had an earlier attempt. They probably did not start. But if they were not charged, a task that kills workers
      could stay unnoticed behind short tasks.
    """
    if worker.ends_at is not None and machine.now >= worker.ends_at:
        leave(machine, worker, f"{reason}, and its time was over")
        return
    assignment.stop_hosted_tasks(machine, worker)
    started: list[Task] = list(worker.active)
    untouched: list[Task] = list(worker.delegated)
    places = len(started)
    for place, task in enumerate(worker.ahead):
        (started if place < places or task.attempt > 1 or task.state == RUNNING else untouched).append(task)
    if untouched:
        machine.record(f.TasksReturned(worker.id, [task.id for task in untouched], f"worker {worker.id} {reason}"))
    for task in reversed(started):  # each task returns to the front, so the first task must return last
        # A failure can cancel the run with all its other tasks, if the run reaches its maximum number of failures.
        if worker.has(task):
            machine.fail_attempt(judge_death(machine.state, worker, task, reason, died))
    end_worker(machine, worker, lost=True, reason=reason)


def leave(machine: Machine, worker: Worker, reason: str, cut_off: Sequence[tuple[int, int, float]] = ()) -> None:
    """Ends a worker that leaves. The tasks that it still holds are requeued, and no budget of these tasks is charged.

    ``cut_off``: attempts that were stopped because the walltime of the worker ended. Each entry has the task, the attempt number, and the
    seconds that the attempt ran.
    """
    held = [task.id for task in worker.tasks]
    if held:
        assignment.stop_hosted_tasks(machine, worker)
        pilot = machine.state.pilots.get(worker.pilot)
        pilot_s = pilot.size.walltime_s if pilot else 0.0
        current = [(number, ran_s) for number, attempt, ran_s in cut_off if site_masters.find_current(machine, worker, number, attempt)]
        current += multi_node.cut_off(worker, machine.now)
        least_s = {number: needed for number, ran_s in current if (needed := walltime_to_request(worker, pilot_s, ran_s))}
        machine.record(f.TasksReturned(worker.id, held, f"worker {worker.id} left: {reason}", least_s))
    end_worker(machine, worker, lost=False, reason=reason)


def end_worker(machine: Machine, worker: Worker, *, lost: bool, reason: str) -> None:
    """Removes a worker that holds no tasks, and retires its agent if the agent is connected."""
    machine.record(f.WorkerEnded(worker.id, lost, reason))
    machine.caches.forget(worker.id)
    site_masters.worker_ended(machine, worker)
    connection = machine.connections.pop(worker.id, None)
    if connection is not None and connection.link is not None:
        machine.agent_links.pop(connection.link, None)
        machine.send(connection.link, m.Retire(reason))
        machine.effects.append(e.HangUp(connection.link))
    pilot = machine.state.pilots.get(worker.pilot)
    if pilot is not None and pilot.state <= ACTIVE and pilot.joined and not pilot.workers:
        machine.end_pilot(pilot.id, reason, DIED if lost else "")


def drain(machine: Machine, worker: Worker, reason: str) -> None:
    """Lets a worker finish its running tasks and leave."""
    if worker.state == JOINED:
        machine.record(f.WorkerDraining(worker.id, reason))
        ask_to_drain(machine, worker)


def retire(machine: Machine, proposal: RetireProposal) -> bool:
    """Drains a worker that a policy wants to retire. Returns False if the proposal is refused."""
    worker = proposal.worker
    if machine.state.workers.get(worker.id) is not worker or worker.state != JOINED or not proposal.reason:
        return False
    drain(machine, worker, proposal.reason)
    return True


def ask_to_drain(machine: Machine, worker: Worker) -> None:
    """Asks the agent of a worker to drain. Does nothing while the worker is occupied by a multi-node task that another worker started: the
    agent does not know about this task and would leave too early. After the next heartbeat, this function is called again."""
    if not multi_node.hosts_other_task(worker):
        machine.send_to_worker(worker.id, m.Drain(worker.reason))
