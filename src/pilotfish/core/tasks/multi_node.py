"""Tasks of several nodes: each has the room that it asks for at so many workers of one pilot, all at the same time.

The first of the workers is told, and starts the task, which finds the names of all in a file; the others are told nothing, and only their
room is taken. When the attempt is over, or one of the workers is gone, all of them are free again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pilotfish.core.data import replicas
from pilotfish.core.policy_interface import AssignmentProposal
from pilotfish.core.state import FRESH, State, Task, Worker
from pilotfish.core.tasks.transitions import occupy, take_away
from pilotfish.model import facts as f
from pilotfish.model.states import JOINED, READY


def is_lawful(proposal: AssignmentProposal, now: float) -> bool:
    """One task, as many workers of one pilot as it has nodes, and room for it at each. Whether they can be reached, the machine knows."""
    task, workers = proposal.tasks[0], [proposal.worker, *proposal.beside]
    shape, pilot = task.shape, proposal.worker.pilot
    if len(proposal.tasks) > 1 or proposal.ahead or proposal.cores or task.state != READY or task.suspect or shape.run.paused:
        return False
    if len(dict.fromkeys(workers)) != len(workers) or len(workers) != shape.nodes or not pilot:
        return False
    return all(
        worker.pilot == pilot and worker.fits(shape.needs) and worker.suits(shape, now) and not worker.runs_suspect for worker in workers
    )


def within_reach(state: State, task: Task, site: str) -> bool:
    """As for any other task; but if nowhere within reach of what it needs there are as many workers of one pilot as it has nodes, it may go
    anywhere."""
    if replicas.within_reach(state, task, site):
        return True
    sites = {worker.site: None for worker in state.workers.values()}
    near = [name for name in sites if replicas.within_reach(state, task, name)]
    able = [worker for worker in state.workers.values() if worker.site in near and worker.pilot and worker.suits(task.shape, state.at)]
    together = Counter(worker.pilot for worker in able if worker.state == JOINED and not worker.quarantined_until)
    return max(together.values(), default=0) < task.shape.nodes


def with_hosts(state: State, task: Task) -> dict[str, Any] | None:
    """How to start an attempt at several workers; None for any other. It is said anew for each attempt."""
    workers = state.gangs.get(task)
    if workers is None:
        return None
    hosts = [str(worker.info.get("node") or worker.info.get("hostname") or worker.id) for worker in workers]
    return {**state.spec_of(task).launch, "hosts": hosts}


def beside(worker: Worker) -> Iterator[Task]:
    """Tasks that have its room, but that another worker was told to start."""
    return (task for task in worker.active if task.shape.nodes > 1 and task.worker is not worker)


def is_beside(worker: Worker) -> bool:
    return next(beside(worker), None) is not None


def cut_off(worker: Worker, now: float) -> list[tuple[int, float]]:
    """What had the room of a worker whose time is over, and for how long it ran."""
    if worker.ends_at is None or now < worker.joined_at + FRESH * (worker.ends_at - worker.joined_at):
        return []
    return [(task.id, now - task.worker.started.get(task, now)) for task in beside(worker) if task.worker is not None]


# --- how facts change it ----------------------------------------------------------------------------------------------------------


def formed(state: State, fact: f.TasksAssigned, at: float) -> None:
    for number, names in fact.beside.items():
        task = state.task(number)
        others = [state.workers[name] for name in names]
        for other in others:
            if not other.held:
                other.progress_at = at
            occupy(other, task, task.shape.needs)
        state.gangs[task] = [state.workers[fact.worker], *others]


def disband(state: State, task: Task, at: float) -> None:
    """The attempt is over: no worker has it any more."""
    for worker in state.gangs.pop(task, ()):
        take_away(worker, task, at)
