"""Chooses the tasks that are delegated to a site master: tasks that can start at once, some tasks that will wait, and tasks that no other
site can run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from pilotfish.core.data.replicas import can_get_inputs, needs
from pilotfish.core.policy_interface import DelegationProposal, PolicyView, RecallProposal
from pilotfish.core.state import Task, TaskShape, Worker
from pilotfish.model.task import CORES, UNIT

MIN_AHEAD = 4
AHEAD_S = 30.0
"""A site master gets one additional task for each slot that is expected to become free within this many seconds."""
MAX_BOUND = 2000


def delegate(view: PolicyView, shapes: Sequence[TaskShape]) -> list[DelegationProposal]:
    """Proposes which ready tasks are delegated to each site master. Each site master gets only tasks that a worker of its site can run:

    * Tasks with an input that workers have and the master does not have (see ``_bound_tasks``).
    * As many other tasks as can start at once at the site.
    * Some tasks that wait at the site master. If a site has a third of all slots, it gets at most a third of the ready tasks in this way.
      So no site keeps many tasks that a different site can run.

    Multi-node tasks are never delegated. Neither are tasks that were cut off by the end of a pilot, because only the master knows how much
    time each of these tasks needs.
    """
    taken: dict[Task, None] = {}
    delegations: dict[Worker, list[Task]] = {}
    for site_master, _ in view.sites:
        delegations[site_master] = list(_bound_tasks(view, site_master, taken))
        taken.update(dict.fromkeys(delegations[site_master]))
    if len(taken) < sum(len(shape.queue) for shape in shapes):
        _delegate_unbound(view, shapes, taken, delegations)
    return [DelegationProposal(site_master, tasks) for site_master, tasks in delegations.items() if tasks]


def _delegate_unbound(
    view: PolicyView, shapes: Sequence[TaskShape], taken: dict[Task, None], delegations: dict[Worker, list[Task]]
) -> None:
    wanted = {
        site_master: sum([worker.free.get(CORES, 0) // UNIT for worker in workers]) - sum(map(_can_run_anywhere, site_master.delegated))
        for site_master, workers in view.sites
    }
    for more in ({}, _counts_ahead(view, shapes)):  # first round: tasks that can start at once; second round: tasks that will wait
        for site_master, workers in view.sites:
            wanted[site_master] += more.get(site_master, 0)
            for shape in shapes:
                if wanted[site_master] > 0 and _is_delegable(shape) and any(worker.suits(shape, view.now) for worker in workers):
                    able = (task for task in shape.queue if task not in taken and can_get_inputs(view.state, task, site_master.site))
                    found = list(islice(able, wanted[site_master]))
                    taken.update(dict.fromkeys(found))
                    delegations[site_master] += found
                    wanted[site_master] -= len(found)


def _is_delegable(shape: TaskShape) -> bool:
    return not shape.least_s and shape.nodes == 1


def _can_run_anywhere(task: Task) -> bool:
    for record in needs(task):  # noqa: SIM110 - a generator would cost more than the loop
        if not (record.at_master or record.path):
            return False
    return True


def _counts_ahead(view: PolicyView, shapes: Sequence[TaskShape]) -> dict[Worker, int]:
    """Returns, for each site master, how many tasks it gets in addition to the tasks that can start at once. It gets one task for each slot
    that is expected to become free within ``AHEAD_S`` seconds, and at least ``MIN_AHEAD`` tasks. The limit is the site's part of the ready
    tasks, in proportion to the slots of the site."""
    slots = {site_master: sum([worker.slots for worker in workers]) for site_master, workers in view.sites}
    all_slots = sum(slots.values()) + sum([worker.slots for worker in view.workers])
    ready = sum(len(shape.queue) for shape in shapes)
    waves = _waves(shapes)
    return {site_master: min(max(MIN_AHEAD, int(count * waves)), -(-ready * count // all_slots)) for site_master, count in slots.items()}


def _bound_tasks(view: PolicyView, site_master: Worker, taken: dict[Task, None]) -> Iterable[Task]:
    """Returns tasks with an input that workers have and the master does not have, if this site can get all inputs of the task. Usually no
    other site can run such a task. The site master gets up to ``MAX_BOUND`` such tasks, because it assigns tasks better if it knows more of
    them."""
    found: dict[Task, None] = {}
    room = MAX_BOUND - len(site_master.delegated)
    for shape in view.state.ready:
        if not _is_delegable(shape) or shape.run.paused:
            continue
        for record, tasks in shape.queue_by_content.items():
            if record.at_master or record.path or not record.holders:
                continue
            for task in tasks:
                if len(found) >= room:
                    return found
                if task not in taken and can_get_inputs(view.state, task, site_master.site):
                    found[task] = None
    return found


def _waves(shapes: Sequence[TaskShape]) -> float:
    """Returns which fraction of the slots will become free within ``AHEAD_S`` seconds. Returns 0 if task times are unknown."""
    known = [shape.mean_us / 1e6 for shape in shapes if shape.samples]
    return min(1.0, AHEAD_S / max(min(known), 1e-3)) if known else 0.0


def recall_delegated(view: PolicyView) -> RecallProposal | None:
    """Proposes to recall tasks from the site master with the most delegated tasks, for an idle worker elsewhere. The master itself, or a
    site master without tasks, serves this idle worker. Half of the tasks that the idle worker can run are recalled. Returns None if a task
    is ready, or if no such idle worker can run a delegated task."""
    if view.state.ready or not view.sites:
        return None
    full, _ = max(view.sites, key=lambda site: len(site[0].delegated))
    others = [
        *view.workers,
        *(worker for site_master, workers in view.sites if site_master is not full and not site_master.delegated for worker in workers),
    ]
    for worker in others:
        if worker.held:
            continue
        # Only first attempts are recalled, because a task could otherwise be recalled again and again.
        recalled = [task for task in full.delegated if task.attempt == 1 and worker.suits(task.shape, view.now)]
        recalled = [task for task in recalled if can_get_inputs(view.state, task, worker.site)]
        if recalled:
            return RecallProposal(full, recalled[len(recalled) // 2 :])
    return None
