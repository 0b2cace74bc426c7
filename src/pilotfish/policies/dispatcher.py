"""Assigns ready tasks to free workers. A matcher chooses which task goes to which worker.

If the matcher names no worker for a task, the task is assigned in queue order (see ``queue_order`` and ``task_order``): each worker with
room gets the first tasks of the queue that fit. The matcher can exclude task shapes from this rule (see ``Matching.governed``).

Short tasks are prefetched: a worker gets tasks before it has room for them, so that it does not wait for the master between two tasks. For
each slot, a worker prefetches tasks for about ``PolicyView.ahead_s`` seconds of work, or for ``Worker.poll_s`` seconds if this is longer.
This is at least one task and at most ``MAX_AHEAD_PER_SLOT`` tasks. If the tasks of a shape take more than one second on average, they are
not prefetched. Prefetched tasks are recalled on two conditions: no task of their worker has ended for one second, and an idle worker can
run them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pilotfish.core.policy_interface import AssignmentProposal, CopyProposal, DelegationProposal, PolicyView, RecallProposal
from pilotfish.core.state import Task, TaskShape, Worker
from pilotfish.core.tasks import multi_node
from pilotfish.core.tasks.fair_share import cores_of
from pilotfish.model.states import ASSIGNED
from pilotfish.model.task import CORES, UNIT
from pilotfish.policies.matcher_interface import Matcher, Matching
from pilotfish.policies.matchers import FirstComeMatcher, LocalityMatcher
from pilotfish.policies.moldable import MoldableCores
from pilotfish.policies.multi_node_placement import RESERVE_AFTER_S, MultiNodePlacement
from pilotfish.policies.offered_tasks import OfferedTasks, fits
from pilotfish.policies.queue_order import QueueOrder
from pilotfish.policies.site_delegation import delegate, recall_delegated
from pilotfish.policies.speculation import Speculation, forecast
from pilotfish.policies.task_order import CriticalPathOrder, TaskOrder, submission_order

WorkerProposal = AssignmentProposal | DelegationProposal | RecallProposal

OVERHEAD_US = 20.0
"""Overhead of a Python call in microseconds. A shorter task counts as if it took this long."""
MAX_AHEAD_PER_SLOT = 256
LONG_US = 1_000_000
"""Tasks of a shape are prefetched only if their mean time is at most this many microseconds."""
STALE_S = 1.0
"""If no task of a worker has ended for this many seconds, the prefetched tasks of the worker can be recalled."""


class Dispatcher:
    def __init__(self, matcher: Matcher, speculation: Speculation | None = None, order: TaskOrder | None = None) -> None:
        self.matcher = matcher
        self._passed_over: dict[TaskShape, float] = {}
        """For each shape with ready tasks that fit no worker: the time since when no worker has had room for them."""
        self._reserved: dict[str, None] = {}
        """Ids of the workers that the previous call of ``propose`` kept free for shapes in ``_passed_over``."""
        self._recall_at = 0.0
        self._order = order or CriticalPathOrder().of
        self.speculation = speculation or Speculation()
        self._multi_node = MultiNodePlacement()
        self._moldable = MoldableCores()

    def propose(self, view: PolicyView) -> list[WorkerProposal | CopyProposal]:
        proposals: list[WorkerProposal] = []
        self._place(view, proposals)
        if view.state.prefetching_workers:
            for worker in _workers_to_recall_from(view, proposals):
                if worker.progress_at + STALE_S <= view.now:
                    proposals.append(RecallProposal(worker, [task for task in worker.ahead if task.state == ASSIGNED]))
        if view.sites and view.now >= self._recall_at:
            recall = recall_delegated(view)
            if recall is not None:
                self._recall_at = view.now + STALE_S
                proposals.append(recall)
        return [*proposals, *self.speculation.propose(view, proposals)]

    def _place(self, view: PolicyView, proposals: list[WorkerProposal]) -> None:
        state = view.state
        if not state.ready and not state.suspects:
            self._passed_over, self._reserved = {}, {}
            self._multi_node.forget()
            return
        excluded = _place_suspects(view, proposals) if state.suspects else {}
        queue_order = QueueOrder(state, view.now)
        offers = [OfferedTasks(shape, self._order(state, shape, view.now)) for shape in queue_order.shapes]
        offers, kept_free = self._place_multi_node(view, offers, excluded, queue_order, proposals)
        delegations = delegate(view, [offer.shape for offer in offers]) if view.sites else []
        proposals.extend(delegations)
        taken = {task: None for delegation in delegations for task in delegation.tasks}
        if not offers:
            self._passed_over, self._reserved = {}, {}
            return
        roomy = _with_room(view, offers, excluded)
        self._moldable.begin(roomy)
        reserved = self._reserve(view, roomy, offers, excluded | dict.fromkeys(kept_free) if kept_free else excluded)
        for name, shape in kept_free.items():
            reserved[name] = [offer for offer in offers if offer.shape.priority > shape.priority]
        open_to_all = [worker for worker in roomy if worker.id not in reserved] if reserved else roomy
        preferred, governed = self._match(view, open_to_all, queue_order)
        for tasks in preferred.values():
            taken.update(dict.fromkeys(tasks))
        ungoverned = [offer for offer in offers if offer.shape not in governed] if governed else offers
        short = []
        for offer in offers:
            offer.taken = taken
            if offer.shape.samples > 0 and offer.shape.mean_us <= LONG_US and offer.shape not in governed:
                short.append(offer)
        # A worker without room can only prefetch tasks, so it matters only if there are short tasks.
        candidates = [worker for worker in view.workers if not worker.runs_suspect and worker.id not in excluded] if short else roomy
        assignments = [
            _fill(view, worker, reserved.get(worker.id, ungoverned), preferred.get(worker.id, ()), queue_order, self._moldable)
            for worker in candidates
        ]
        if view.sites:
            undelegable = [offer for offer in offers if offer.shape.least_s]
            if undelegable:
                assignments += [_fill(view, worker, undelegable, (), queue_order, self._moldable) for worker in view.served_workers]
        elif short:
            # Prefetching comes last: a task must not wait at a worker while a different worker has room for it.
            for proposal in assignments:
                if proposal.worker.id not in reserved:
                    _add_ahead(view, proposal, short, offers, queue_order)
        proposals.extend(proposal for proposal in assignments if proposal.tasks)

    def _match(self, view: PolicyView, roomy: list[Worker], queue_order: QueueOrder) -> Matching:
        shapes = [shape for shape in queue_order.leading if shape.nodes == 1]
        matching = self.matcher.match(view, roomy, shapes, queue_order.contested)
        preferred = {worker.id: _fitting(view, worker, named) for worker in roomy if (named := matching.preferred.get(worker.id))}
        return Matching(queue_order.limit_to_share(preferred, roomy) if queue_order.contested else preferred, matching.governed)

    def next_look_at(self, view: PolicyView) -> float | None:
        """Returns the next time at which ``propose`` must be called even if nothing happens, or None. At this time, prefetched tasks or
        tasks without a worker must be checked again."""
        times = [since + RESERVE_AFTER_S for since in self._passed_over.values()]
        if view.state.prefetching_workers:
            times += [worker.progress_at + STALE_S for worker in _workers_to_recall_from(view)]
        for part in (self.speculation, self.matcher, self._multi_node):
            again_at = part.next_look_at(view)
            if again_at is not None:
                times.append(again_at)
        return min([time for time in times if time > view.now], default=None) if times else None

    def why(self, task: Task) -> str:
        return self.matcher.why(task)

    def describe(self) -> str:
        return self.matcher.describe()

    def _place_multi_node(
        self,
        view: PolicyView,
        offers: list[OfferedTasks],
        excluded: dict[str, None],
        queue_order: QueueOrder,
        proposals: list[WorkerProposal],
    ) -> tuple[list[OfferedTasks], dict[str, TaskShape]]:
        """Places multi-node tasks. Returns the offers of single-node tasks, and a dict of the workers that are kept free. The dict maps the
        id of such a worker to the shape of the multi-node task for which the worker is kept free."""
        multi_node_offers = [offer for offer in offers if offer.shape.nodes > 1]
        if not multi_node_offers:
            self._multi_node.forget()
            return offers, {}
        other_offers = [offer for offer in offers if offer.shape.nodes == 1]
        placements = self._multi_node.propose(view, multi_node_offers, other_offers, excluded | self._reserved, queue_order)
        proposals.extend(placements.proposals)
        excluded |= placements.used
        return other_offers, placements.kept

    def _reserve(
        self, view: PolicyView, roomy: list[Worker], offers: list[OfferedTasks], excluded: dict[str, None]
    ) -> dict[str, list[OfferedTasks]]:
        """Keeps workers free for large tasks, because a stream of small tasks could delay a large task for ever. One worker is kept free
        for a shape if no worker has had room for this shape during ``RESERVE_AFTER_S`` seconds. Returns, for the id of each kept worker,
        the offers from which this worker can still get tasks: the offer of the large tasks, and all offers before it in the queue."""
        passed_over, self._passed_over = self._passed_over, {}
        reserved: dict[str, list[OfferedTasks]] = {}
        for index, offer in enumerate(offers):
            shape = offer.shape
            if _has_room_for(view, shape, roomy, reserved):
                continue
            since = self._passed_over[shape] = passed_over.get(shape, view.now)
            if since + RESERVE_AFTER_S > view.now:
                continue
            unreserved = (worker for worker in view.workers if worker.id not in reserved and worker.id not in excluded)
            able = [worker for worker in unreserved if not worker.runs_suspect and worker.suits(shape, view.now)]
            if able:
                reserved[min(able, key=lambda worker: worker.held).id] = offers[: index + 1]
        self._reserved = dict.fromkeys(reserved)
        return reserved


def _place_suspects(view: PolicyView, proposals: list[WorkerProposal]) -> dict[str, None]:
    """Places suspect tasks. A task is suspect if it possibly kills its worker. So it runs alone: it is placed at an empty worker, which
    gets no other task. If no suitable worker is empty, the least loaded suitable worker gets no new tasks until it is empty. At most one
    worker at a time is kept free in this way. Returns the ids of the workers that get no other task."""
    workers = [worker for worker in (*view.workers, *view.served_workers) if not worker.runs_suspect]
    used: dict[str, None] = {}
    kept_for: Task | None = None
    empty = sum(1 for worker in workers if not worker.held)
    for task in view.state.suspects:
        if task.shape.run.paused:
            continue
        if kept_for is not None and len(used) > empty:
            break
        able = [worker for worker in workers if worker.id not in used and worker.suits(task.shape, view.now)]
        empty_worker = next((worker for worker in able if not worker.held), None)
        if empty_worker is not None:
            used[empty_worker.id] = None
            proposals.append(AssignmentProposal(empty_worker, [task]))
        elif able and kept_for is None:
            kept_for = task
            used[min(able, key=lambda worker: worker.held).id] = None
    return used


def _fill(
    view: PolicyView,
    worker: Worker,
    offers: list[OfferedTasks],
    preferred: Sequence[Task],
    queue_order: QueueOrder,
    moldable: MoldableCores,
) -> AssignmentProposal:
    """Proposes to assign tasks to a worker: first the preferred tasks that fit, then tasks of the offers that fit."""
    free = dict(worker.free)
    proposal = AssignmentProposal(worker, list(preferred))
    if preferred:
        _take_preferred(view, proposal, free, queue_order, moldable)
    for offer in queue_order.in_order(offers):
        shape = offer.shape
        has_room = offer.left and fits(free, shape.needs) and worker.suits(shape, view.now)
        while has_room:
            task = offer.take(view, worker)
            if task is None:
                break
            needs = shape.needs
            if shape.cores_max:
                needs = moldable.grant(view.state, task, offer.left + 1, free.get(CORES, 0))
                proposal.cores[task.id] = dict(needs).get(CORES, 0) / UNIT
            for name, amount in needs:
                free[name] -= amount
            proposal.tasks.append(task)
            if queue_order.contested:
                queue_order.note_given(shape, needs)
                break
            has_room = fits(free, shape.needs)
    return proposal


def _fitting(view: PolicyView, worker: Worker, named: Sequence[Task]) -> list[Task]:
    """Returns those tasks of ``named`` that fit at the worker together. A task that does not fit in addition to the tasks before it is left
    out. ``named``: the tasks that the matcher chose for this worker."""
    free, fitting = dict(worker.free), []
    for task in named:
        shape = task.shape
        if fits(free, shape.needs) and worker.suits(shape, view.now):
            fitting.append(task)
            for name, amount in shape.needs:
                free[name] -= amount
    return fitting


def _take_preferred(
    view: PolicyView, proposal: AssignmentProposal, free: dict[str, int], queue_order: QueueOrder, moldable: MoldableCores
) -> None:
    for task in proposal.tasks:
        for name, amount in task.shape.needs:
            free[name] -= amount
        queue_order.note_given(task.shape, task.shape.needs)
    for task in proposal.tasks:
        if task.shape.cores_max:
            least = cores_of(task.shape.needs)
            granted = cores_of(moldable.grant(view.state, task, len(task.shape.queue), free.get(CORES, 0) + least))
            proposal.cores[task.id] = granted / UNIT
            free[CORES] = free.get(CORES, 0) + least - granted


def _add_ahead(
    view: PolicyView, proposal: AssignmentProposal, offers: list[OfferedTasks], all_offers: list[OfferedTasks], queue_order: QueueOrder
) -> None:
    """Adds short tasks that the worker prefetches. They must have the same shape as all other tasks of the worker. With different shapes,
    master and agent could disagree about which task starts next. Tasks are added only while their offer is the first in the queue.
    ``offers``: the offers of short tasks. ``all_offers``: the offers of all tasks."""
    worker = proposal.worker
    held = next(iter(worker.active), None) or (proposal.tasks[0] if proposal.tasks else None)
    if held is None or (view.state.multi_node_workers and multi_node.hosts_other_task(worker)):
        return
    if worker.held and view.now - worker.progress_at >= max(STALE_S, worker.poll_s):
        return  # the running tasks take long, so prefetched tasks would only be recalled
    shape = held.shape
    offer = next((offer for offer in offers if offer.shape is shape and offer.left), None)
    if offer is None or not queue_order.is_first(offer, all_offers):
        return
    room = _max_ahead(view, worker, shape)
    if len(worker.ahead) > room // 2 or not _is_uniform(worker, proposal, shape):
        return
    while len(worker.ahead) + proposal.ahead < room:
        task = offer.take(view, worker)
        if task is None:
            break
        proposal.tasks.append(task)
        proposal.ahead += 1
        if queue_order.contested:
            queue_order.note_given(shape, shape.needs)
            if not queue_order.is_first(offer, all_offers):
                break


def _with_room(view: PolicyView, offers: list[OfferedTasks], excluded: Collection[str]) -> list[Worker]:
    """Returns the workers that have room for a task of at least one offer."""
    workers = view.roomy
    for offer in offers:
        if not cores_of(offer.shape.needs):
            workers = view.workers
    found = []
    for worker in workers:
        if worker.id in excluded or worker.runs_suspect:
            continue
        for offer in offers:
            if worker.fits(offer.shape.needs):
                found.append(worker)
                break
    return found


def _has_room_for(view: PolicyView, shape: TaskShape, roomy: list[Worker], reserved: Collection[str]) -> bool:
    for worker in roomy:  # noqa: SIM110 - a generator would cost more than the loop
        if worker.fits(shape.needs) and worker.id not in reserved and worker.suits(shape, view.now):
            return True
    return False


def _is_uniform(worker: Worker, proposal: AssignmentProposal, shape: TaskShape) -> bool:
    if shape.cores_max or shape.nodes > 1 or worker.ends_at is not None:
        return False
    held = (*worker.active, *proposal.tasks) if len(worker.active) < 64 else (*proposal.tasks, next(iter(worker.active)))
    return all(task.shape is shape for task in held) and (not worker.ahead or next(reversed(worker.ahead)).shape is shape)


def _max_ahead(view: PolicyView, worker: Worker, shape: TaskShape) -> int:
    """Returns how many prefetched tasks of this shape the worker can have."""
    slots = min(worker.capacity.get(name, 0) // amount for name, amount in shape.needs) if shape.needs else 1
    mean_s = max(shape.mean_us, OVERHEAD_US) / 1e6
    window = max(view.ahead_s, worker.poll_s)
    return slots * max(1, min(MAX_AHEAD_PER_SLOT, int(window / mean_s)))


def _workers_to_recall_from(view: PolicyView, proposals: Sequence[WorkerProposal] = ()) -> Iterator[Worker]:
    """Yields workers with prefetched tasks that could start at once at an idle worker. Skips workers from which tasks were already
    recalled."""
    waiting = [worker for worker in view.state.prefetching_workers if worker.ahead and not worker.recalled]
    if not waiting:
        return
    used = {proposal.worker for proposal in proposals}
    idle = [worker for worker in view.roomy if not worker.active and worker not in used]
    suited: dict[TaskShape, bool] = {}
    for worker in waiting if idle else ():
        shape = next(iter(worker.ahead)).shape  # all prefetched tasks of a worker have the same shape (_is_uniform)
        if shape not in suited:
            suited[shape] = any(other.suits(shape, view.now) for other in idle)
        if suited[shape]:
            yield worker


def workqueue() -> Dispatcher:
    """Returns a policy that assigns each task to the first free worker, in the order of submission."""
    return Dispatcher(FirstComeMatcher(), order=submission_order)


def stealing() -> Dispatcher:
    """Returns a policy that copies a running task to an idle worker if the copy will probably end clearly earlier than the first attempt.
    The module ``speculation`` describes all conditions."""
    return Dispatcher(LocalityMatcher(), Speculation(stealing=True, expected_seconds=forecast))
