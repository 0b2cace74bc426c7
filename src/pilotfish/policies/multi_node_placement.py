"""Places multi-node tasks: finds enough workers of one pilot for a task, or keeps workers free for it.

A multi-node task is placed when enough workers of one pilot have room and no other task is before it in the queue. When the task has waited
for ``RESERVE_AFTER_S`` seconds, two rules change. First, tasks before it in the queue no longer prevent the placement. Second, if too few
workers have room, enough workers of one pilot are kept free for it: they get only tasks of higher priority until it is placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pilotfish.core.policy_interface import AssignmentProposal, PolicyView
from pilotfish.core.state import TaskShape, Worker
from pilotfish.core.tasks.multi_node import can_get_inputs
from pilotfish.policies.offered_tasks import OfferedTasks
from pilotfish.policies.queue_order import QueueOrder

RESERVE_AFTER_S = 5.0
"""Workers are kept free for a task that could not be placed for this many seconds."""
SOON_S = 0.01
"""After ``propose`` has placed a multi-node task, the next call comes this many seconds later, because the workers of the task possibly
have room left."""


@dataclass(slots=True)
class Placements:
    """The result of one call of ``propose``. ``used``: ids of the workers that get a multi-node task. They get no other task in this call.
    ``kept``: maps the id of each worker that is kept free to the shape of the task that will use it."""

    proposals: list[AssignmentProposal] = field(default_factory=list)
    used: dict[str, None] = field(default_factory=dict)
    kept: dict[str, TaskShape] = field(default_factory=dict)


class MultiNodePlacement:
    def __init__(self) -> None:
        self._since: dict[TaskShape, float] = {}
        """For each shape: the time since when no task of this shape could be placed."""
        self._kept: dict[TaskShape, list[Worker]] = {}
        self._look_at: float | None = None

    def propose(
        self,
        view: PolicyView,
        offers: Sequence[OfferedTasks],
        other_offers: Sequence[OfferedTasks],
        busy: dict[str, None],
        queue_order: QueueOrder,
    ) -> Placements:
        """Places multi-node tasks (``offers``) or keeps workers free for them. ``other_offers``: all other tasks. ``busy``: ids of workers
        that must not be used."""
        placements = Placements()
        since, self._since = self._since, {}
        kept, self._kept = self._kept, {}
        for offer in offers:
            shape = offer.shape
            waits_since = since.get(shape, view.now)
            pilots = _workers_by_pilot(view, shape, {**busy, **placements.used})
            is_due = waits_since + RESERVE_AFTER_S <= view.now
            if (is_due or queue_order.is_first(offer, [*offers, *other_offers])) and self._place(
                view, offer, pilots, placements, queue_order
            ):
                continue
            self._since[shape] = waits_since
            if is_due:
                workers = _keep_previous(kept.get(shape, []), pilots, placements) or _least_loaded(shape, pilots, placements)
                self._kept[shape] = workers
                placements.kept.update({worker.id: shape for worker in workers})
        times = [time + RESERVE_AFTER_S for time in self._since.values()]
        times += [view.now + SOON_S] if placements.used else []
        self._look_at = min((time for time in times if time > view.now), default=None)
        return placements

    def next_look_at(self, view: PolicyView) -> float | None:
        return self._look_at if self._look_at is not None and self._look_at > view.now else None

    def forget(self) -> None:
        """Forgets all waiting times and all kept workers. Call it when no multi-node task is ready."""
        self._since, self._kept, self._look_at = {}, {}, None

    def _place(
        self, view: PolicyView, offer: OfferedTasks, pilots: dict[str, list[Worker]], placements: Placements, queue_order: QueueOrder
    ) -> bool:
        """Places tasks of one shape if enough workers have room and are not kept free for a different shape. Returns True if a task was
        placed."""
        shape, placed = offer.shape, False
        for workers in pilots.values():
            roomy = [worker for worker in workers if worker.fits(shape.needs) and worker.id not in placements.kept]
            while offer.left and len(roomy) >= shape.nodes:
                # ``take`` checks only one worker, the first worker of the task. So a task does not begin at a worker where it failed.
                given = next(((worker, task) for worker in roomy if (task := offer.take(view, worker)) is not None), None)
                if given is None:
                    break
                first, task = given
                roomy.remove(first)
                other_workers, roomy = roomy[: shape.nodes - 1], roomy[shape.nodes - 1 :]
                placements.proposals.append(AssignmentProposal(first, [task], other_workers=other_workers))
                placements.used.update({worker.id: None for worker in (first, *other_workers)})
                for _ in range(shape.nodes):
                    queue_order.note_given(shape, shape.needs)
                placed = True
        return placed


def _workers_by_pilot(view: PolicyView, shape: TaskShape, busy: dict[str, None]) -> dict[str, list[Worker]]:
    """Returns, for each pilot, the workers that can run a part of a task of this shape, now or when they have room. Leaves out a pilot if
    its site cannot get the inputs of any ready task of this shape."""
    pilots: dict[str, list[Worker]] = {}
    for worker in view.workers:
        if worker.pilot and worker.id not in busy and not worker.runs_suspect and worker.suits(shape, view.now):
            pilots.setdefault(worker.pilot, []).append(worker)
    sites = dict.fromkeys(workers[0].site for workers in pilots.values())
    reachable = [site for site in sites if any(can_get_inputs(view.state, task, site) for task in shape.queue)]
    return {pilot: workers for pilot, workers in pilots.items() if workers[0].site in reachable}


def _keep_previous(workers: list[Worker], pilots: dict[str, list[Worker]], placements: Placements) -> list[Worker]:
    """Returns ``workers``, the previous choice, if all of them can still be used. Otherwise returns []. The choice must not change often,
    because the task could then wait for ever."""
    able = all(worker in pilots.get(worker.pilot, ()) and worker.id not in placements.kept for worker in workers)
    return workers if able else []


def _least_loaded(shape: TaskShape, pilots: dict[str, list[Worker]], placements: Placements) -> list[Worker]:
    """Returns workers for one task of this shape: the least loaded workers of one pilot. Returns [] if no pilot has enough workers."""
    free = [[worker for worker in workers if worker.id not in placements.kept] for workers in pilots.values()]
    found = [sorted(workers, key=lambda worker: worker.held)[: shape.nodes] for workers in free if len(workers) >= shape.nodes]
    return min(found, key=lambda workers: sum(worker.held for worker in workers), default=[])
