"""Occupies and frees the workers of tasks that run on several nodes.

A multi-node task occupies room at several workers of one pilot at the same time. The first worker starts the task, and a file tells the
task the names of all hosts. The agents of the other workers do not know about the task. Only the master records that the room at these
workers is occupied. When the attempt ends or a worker is lost, the room at all workers of the task is free again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pilotfish.core.data import replicas
from pilotfish.core.policy_interface import AssignmentProposal
from pilotfish.core.state import FRESH_FRACTION, State, Task, Worker
from pilotfish.core.tasks.transitions import occupy, take_away
from pilotfish.model import facts as f
from pilotfish.model.states import JOINED, READY


def is_lawful(proposal: AssignmentProposal, now: float) -> bool:
    """Returns whether the proposal is allowed. It must have exactly one task, which is ready, and one worker for each node. The workers
    must be suitable, have room and belong to one pilot. The caller checks that the workers are connected."""
    task, workers = proposal.tasks[0], [proposal.worker, *proposal.other_workers]
    shape, pilot = task.shape, proposal.worker.pilot
    if len(proposal.tasks) > 1 or proposal.ahead or proposal.cores or task.state != READY or task.suspect or shape.run.paused:
        return False
    if len(dict.fromkeys(workers)) != len(workers) or len(workers) != shape.nodes or not pilot:
        return False
    return all(
        worker.pilot == pilot and worker.fits(shape.needs) and worker.suits(shape, now) and not worker.runs_suspect for worker in workers
    )


def can_get_inputs(state: State, task: Task, site: str) -> bool:
    """Returns whether the inputs of a multi-node task allow it to run at a site. The result is True if the site can get the inputs. The
    result is also True if every site that can get the inputs has too few workers of one pilot."""
    if replicas.can_get_inputs(state, task, site):
        return True
    sites = {worker.site: None for worker in state.workers.values()}
    near = [name for name in sites if replicas.can_get_inputs(state, task, name)]
    able = [worker for worker in state.workers.values() if worker.site in near and worker.pilot and worker.suits(task.shape, state.at)]
    together = Counter(worker.pilot for worker in able if worker.state == JOINED and not worker.quarantined_until)
    return max(together.values(), default=0) < task.shape.nodes


def with_hosts(state: State, task: Task) -> dict[str, Any] | None:
    """Returns the launch description of a multi-node attempt with its hosts; None for any other task."""
    workers = state.multi_node_workers.get(task)
    if workers is None:
        return None
    hosts = [worker.node or worker.id for worker in workers]
    return {**state.spec_of(task).launch, "hosts": hosts}


def hosted_tasks(worker: Worker) -> Iterator[Task]:
    """Returns the multi-node tasks that occupy this worker and that another worker started."""
    return (task for task in worker.active if task.shape.nodes > 1 and task.worker is not worker)


def hosts_other_task(worker: Worker) -> bool:
    return next(hosted_tasks(worker), None) is not None


def cut_off(worker: Worker, now: float) -> list[tuple[int, float]]:
    """Returns the multi-node tasks that occupy this worker and that another worker started, each with the seconds that it ran. If less than
    FRESH_FRACTION of the walltime of this worker has passed, the end of the walltime did not cut off the tasks, and the list is empty."""
    if worker.ends_at is None or now < worker.joined_at + FRESH_FRACTION * (worker.ends_at - worker.joined_at):
        return []
    return [(task.id, now - task.worker.started.get(task, now)) for task in hosted_tasks(worker) if task.worker is not None]


# --- how facts change it ----------------------------------------------------------------------------------------------------------


def occupy_nodes(state: State, fact: f.TasksAssigned, at: float) -> None:
    for number, names in fact.other_workers.items():
        task = state.task(number)
        others = [state.workers[name] for name in names]
        for other in others:
            if not other.held:
                other.progress_at = at
            occupy(other, task, task.shape.needs)
        state.multi_node_workers[task] = [state.workers[fact.worker], *others]


def free_nodes(state: State, task: Task, at: float) -> None:
    """Frees all workers of an attempt that has ended."""
    for worker in state.multi_node_workers.pop(task, ()):
        take_away(worker, task, at)
