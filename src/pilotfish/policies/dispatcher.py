"""Assigns ready tasks to free workers; matchers choose which.

The oldest ready task of the highest priority goes to the first worker where it fits, unless the matcher prefers another one. Tasks known to
be short are also sent ahead, so that a worker does not wait for the master between two of them: ``ahead_s`` of work, or one task if that is
more, and none that takes a second or longer. Tasks that wait at a worker that turns out slow are recalled for an idle one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pilotfish.core.policy_interface import AssignmentProposal, CopyProposal, DelegationProposal, PolicyView, RecallProposal
from pilotfish.core.state import UNIT, Needs, Task, TaskShape, Worker
from pilotfish.core.tasks import multi_node
from pilotfish.core.tasks.fair_share import cores_of
from pilotfish.model.states import ASSIGNED
from pilotfish.model.task import CORES
from pilotfish.policies.matcher_interface import Matcher, Matching
from pilotfish.policies.moldable import MoldableCores
from pilotfish.policies.multi_node_placement import MultiNodePlacement
from pilotfish.policies.offered_tasks import OfferedTasks
from pilotfish.policies.queue_order import QueueOrder
from pilotfish.policies.site_delegation import call_back, lend
from pilotfish.policies.speculation import Speculation
from pilotfish.policies.task_order import CriticalPathOrder, TaskOrder

OVERHEAD_US = 20.0
"""Overhead of a call in microseconds; no task counts as shorter."""
MAX_AHEAD_PER_SLOT = 256
LONG_US = 1_000_000
"""Microseconds from which a task is never sent ahead."""
PATIENCE_S = 5.0
"""Seconds until a worker is kept free for a task that fits none now."""
STALE_S = 1.0
"""Seconds without an ended task after which tasks that wait at a worker may be recalled."""


class Dispatcher:
    def __init__(self, matcher: Matcher, duplication: Speculation | None = None, order: TaskOrder | None = None) -> None:
        self.matcher = matcher
        self._passed_over: dict[TaskShape, float] = {}
        """By shape: since when no worker has had room for its ready tasks."""
        self._reserved: dict[str, None] = {}
        """Workers that were kept free for these shapes in the last round."""
        self._call_back_at = 0.0
        self._order = order or CriticalPathOrder()
        self.duplication = duplication or Speculation()
        self._gathering = MultiNodePlacement()
        self._molding = MoldableCores()

    def propose(self, outlook: PolicyView) -> list[AssignmentProposal | DelegationProposal | RecallProposal | CopyProposal]:
        proposals: list[AssignmentProposal | DelegationProposal | RecallProposal] = []
        self._place(outlook, proposals)
        if outlook.state.prefetching_workers:
            for worker in _held_up(outlook, proposals):
                if worker.progress_at + STALE_S <= outlook.now:
                    proposals.append(RecallProposal(worker, [task for task in worker.ahead if task.state == ASSIGNED]))
        if outlook.sites and outlook.now >= self._call_back_at:
            loans = call_back(outlook)
            if loans is not None:
                self._call_back_at = outlook.now + STALE_S
                proposals.append(loans)
        return [*proposals, *self.duplication.propose(outlook, proposals)]

    def _place(self, outlook: PolicyView, proposals: list[AssignmentProposal | DelegationProposal | RecallProposal]) -> None:
        state = outlook.state
        if not state.ready and not state.suspects:
            self._passed_over, self._reserved = {}, {}
            self._gathering.forget()
            return
        kept: dict[str, None] = {}
        if state.suspects:
            kept = _place_suspects(outlook, proposals)
        turns = QueueOrder(state, outlook.now)
        supplies = [OfferedTasks(shape, self._order.of(state, shape, outlook.now)) for shape in turns.shapes]
        supplies, promised = self._gather(outlook, supplies, kept, turns, proposals)
        spoken_for = _lend(outlook, supplies, proposals) if outlook.sites else {}
        if not supplies:
            self._passed_over, self._reserved = {}, {}
            return
        roomy = _with_room(outlook, supplies, kept)
        self._molding.begin(roomy)
        reserved = self._reserve(outlook, roomy, supplies, kept | dict.fromkeys(promised) if promised else kept)
        for name, shape in promised.items():
            reserved[name] = [supply for supply in supplies if supply.shape.priority > shape.priority]
        open_to_all = [worker for worker in roomy if worker.id not in reserved] if reserved else roomy
        preferred, governed = self._match(outlook, open_to_all, turns)
        for tasks in preferred.values():
            spoken_for.update(dict.fromkeys(tasks))
        given = [supply for supply in supplies if supply.shape not in governed] if governed else supplies
        short = []
        for supply in supplies:
            supply.spoken_for = spoken_for
            if _is_short(supply.shape) and supply.shape not in governed:
                short.append(supply)
        # Full workers matter only for tasks short enough to be sent ahead.
        chosen = [worker for worker in outlook.workers if not worker.runs_suspect and worker.id not in kept] if short else roomy
        fillings, mold = [], self._molding
        for worker in chosen:
            name = worker.id
            fillings.append(_fill(outlook, worker, reserved.get(name, given), preferred.get(name, ()), turns, mold))
        if outlook.sites:
            odd = [supply for supply in supplies if supply.shape.least_s]
            if odd:
                fillings += [_fill(outlook, worker, odd, (), turns, mold) for worker in outlook.served_workers]
        elif short:
            # After all other assignments: a task must not wait at one worker while another has room for it.
            for proposal in fillings:
                if proposal.worker.id not in reserved:
                    _add_ahead(outlook, proposal, short, supplies, turns)
        for proposal in fillings:
            if proposal.tasks:
                proposals.append(proposal)

    def _match(self, outlook: PolicyView, roomy: list[Worker], turns: QueueOrder) -> Matching:
        shapes = [shape for shape in turns.leading if shape.nodes == 1]
        preferred, governed = self.matcher.match(outlook, roomy, shapes, turns.contested)
        return Matching(turns.moderate(preferred, roomy), governed) if turns.contested else Matching(preferred, governed)

    def next_look_at(self, outlook: PolicyView) -> float | None:
        """When to check again tasks that wait at one worker while another is idle, and tasks that no worker has room for."""
        moments = [since + PATIENCE_S for since in self._passed_over.values()]
        if outlook.state.prefetching_workers:
            moments += [worker.progress_at + STALE_S for worker in _held_up(outlook)]
        for other in (self.duplication, self.matcher, self._gathering):
            again_at = other.next_look_at(outlook)
            if again_at is not None:
                moments.append(again_at)
        return min([moment for moment in moments if moment > outlook.now], default=None) if moments else None

    def why(self, task: Task) -> str:
        return self.matcher.why(task)

    def describe(self) -> str:
        return self.matcher.describe()

    def _gather(
        self,
        outlook: PolicyView,
        supplies: list[OfferedTasks],
        kept: dict[str, None],
        turns: QueueOrder,
        proposals: list[AssignmentProposal | DelegationProposal | RecallProposal],
    ) -> tuple[list[OfferedTasks], dict[str, TaskShape]]:
        """Place multi-node tasks. Returns the other tasks, and the workers that are kept free, by id."""
        wanting = [supply for supply in supplies if supply.shape.nodes > 1]
        if not wanting:
            self._gathering.forget()
            return supplies, {}
        others = [supply for supply in supplies if supply.shape.nodes == 1]
        gathered = self._gathering.gather(outlook, wanting, others, kept | self._reserved, turns)
        proposals.extend(gathered.proposals)
        kept |= gathered.used
        return others, gathered.kept

    def _reserve(
        self, outlook: PolicyView, roomy: list[Worker], supplies: list[OfferedTasks], kept: dict[str, None]
    ) -> dict[str, list[OfferedTasks]]:
        """Keep a worker free for a large task that has waited long: it would starve behind a stream of small ones."""
        passed_over, self._passed_over = self._passed_over, {}
        reserved: dict[str, list[OfferedTasks]] = {}
        for place, supply in enumerate(supplies):
            shape = supply.shape
            if _has_place(outlook, shape, roomy, reserved):
                continue
            since = self._passed_over[shape] = passed_over.get(shape, outlook.now)
            if since + PATIENCE_S > outlook.now:
                continue
            free_to_ask = (worker for worker in outlook.workers if worker.id not in reserved and worker.id not in kept)
            able = [worker for worker in free_to_ask if not worker.runs_suspect and worker.suits(shape, outlook.now)]
            if able:
                reserved[min(able, key=lambda worker: worker.held).id] = supplies[: place + 1]
        self._reserved = dict.fromkeys(reserved)
        return reserved


def _lend(
    outlook: PolicyView, supplies: list[OfferedTasks], proposals: list[AssignmentProposal | DelegationProposal | RecallProposal]
) -> dict[Task, None]:
    """Delegate tasks to site masters. Returns these tasks, which other workers do not get."""
    loans = lend(outlook, [supply.shape for supply in supplies])
    proposals.extend(loans)
    return {task: None for loan in loans for task in loan.tasks}


def _place_suspects(outlook: PolicyView, proposals: list[AssignmentProposal | DelegationProposal | RecallProposal]) -> dict[str, None]:
    """Place suspect tasks, each alone at a worker. Returns workers that get nothing else; one is kept free for the first that has none."""
    workers = [worker for worker in (*outlook.workers, *outlook.served_workers) if not worker.runs_suspect]
    used: dict[str, None] = {}
    kept_for: Task | None = None
    empty = sum(1 for worker in workers if not worker.held)
    for task in outlook.state.suspects:
        if task.shape.run.paused:
            continue
        if kept_for is not None and len(used) > empty:
            break
        able = [worker for worker in workers if worker.id not in used and worker.suits(task.shape, outlook.now)]
        place = next((worker for worker in able if not worker.held), None)
        if place is not None:
            used[place.id] = None
            proposals.append(AssignmentProposal(place, [task]))
        elif able and kept_for is None:
            kept_for = task
            used[min(able, key=lambda worker: worker.held).id] = None
    return used


def _fill(
    outlook: PolicyView, worker: Worker, supplies: list[OfferedTasks], preferred: Sequence[Task], turns: QueueOrder, molding: MoldableCores
) -> AssignmentProposal:
    """Give the worker what fits now, preferred tasks first."""
    free = dict(worker.free)
    proposal = AssignmentProposal(worker, list(preferred))
    if preferred:
        _take_preferred(outlook, proposal, free, turns, molding)
    for supply in turns.offer(supplies):
        shape = supply.shape
        has_room = supply.left and _fits(free, shape.needs) and worker.suits(shape, outlook.now)
        while has_room:
            task = supply.take(outlook, worker)
            if task is None:
                break
            needs = shape.needs
            if shape.cores_max:
                needs = molding.grant(outlook.state, task, supply.left + 1, free.get(CORES, 0))
                proposal.cores[task.id] = dict(needs).get(CORES, 0) / UNIT
            for name, amount in needs:
                free[name] -= amount
            proposal.tasks.append(task)
            if turns.contested:
                turns.gave(shape, needs)
                break
            has_room = _fits(free, shape.needs)
    return proposal


def _take_preferred(
    outlook: PolicyView, proposal: AssignmentProposal, free: dict[str, int], turns: QueueOrder, molding: MoldableCores
) -> None:
    for near in proposal.tasks:
        for name, amount in near.shape.needs:
            free[name] -= amount
        turns.gave(near.shape, near.shape.needs)
    for near in proposal.tasks:
        if near.shape.cores_max:
            least = cores_of(near.shape.needs)
            granted = cores_of(molding.grant(outlook.state, near, len(near.shape.queue), free.get(CORES, 0) + least))
            proposal.cores[near.id] = granted / UNIT
            free[CORES] = free.get(CORES, 0) + least - granted


def _fits(free: dict[str, int], needs: Needs) -> bool:
    for name, amount in needs:  # noqa: SIM110 - a generator would cost more than the loop
        if free.get(name, 0) < amount:
            return False
    return True


def _add_ahead(
    outlook: PolicyView, proposal: AssignmentProposal, supplies: list[OfferedTasks], others: list[OfferedTasks], turns: QueueOrder
) -> None:
    """Send short tasks ahead. They must be like all tasks of the worker, so that master and agent agree on what starts next.

    ``others``: tasks that may be earlier in the queue, even if none of them is sent ahead."""
    worker = proposal.worker
    held = next(iter(worker.active), None) or (proposal.tasks[0] if proposal.tasks else None)
    if held is None or (outlook.state.multi_node_workers and multi_node.hosts_other_task(worker)):
        return
    if worker.held and outlook.now - worker.progress_at >= max(STALE_S, worker.poll_s):
        return  # running tasks take long: tasks sent ahead would only wait and be recalled
    shape = held.shape
    supply = next((supply for supply in supplies if supply.shape is shape and supply.left), None)
    if supply is None or not turns.is_first(supply, others):
        return
    room = _depth(outlook, worker, shape)
    if len(worker.ahead) > room // 2 or not _uniform(worker, proposal, shape):
        return
    while len(worker.ahead) + proposal.ahead < room:
        task = supply.take(outlook, worker)
        if task is None:
            break
        proposal.tasks.append(task)
        proposal.ahead += 1
        if turns.contested:
            turns.gave(shape, shape.needs)
            if not turns.is_first(supply, others):
                break


def _with_room(outlook: PolicyView, supplies: list[OfferedTasks], kept: Collection[str]) -> list[Worker]:
    """Workers where one of these tasks fits."""
    among = outlook.roomy
    for supply in supplies:
        if not cores_of(supply.shape.needs):
            among = outlook.workers
    found = []
    for worker in among:
        if worker.id in kept or worker.runs_suspect:
            continue
        for supply in supplies:
            if worker.fits(supply.shape.needs):
                found.append(worker)
                break
    return found


def _has_place(outlook: PolicyView, shape: TaskShape, roomy: list[Worker], reserved: Collection[str]) -> bool:
    for worker in roomy:  # noqa: SIM110 - a generator would cost more than the loop
        if worker.fits(shape.needs) and worker.id not in reserved and worker.suits(shape, outlook.now):
            return True
    return False


def _is_short(shape: TaskShape) -> bool:
    return shape.samples > 0 and shape.mean_us <= LONG_US


def _uniform(worker: Worker, proposal: AssignmentProposal, shape: TaskShape) -> bool:
    if shape.cores_max or shape.nodes > 1 or worker.ends_at is not None:
        return False
    held = (*worker.active, *proposal.tasks) if len(worker.active) < 64 else (*proposal.tasks, next(iter(worker.active)))
    return all(task.shape is shape for task in held) and (not worker.ahead or next(reversed(worker.ahead)).shape is shape)


def _depth(outlook: PolicyView, worker: Worker, shape: TaskShape) -> int:
    """How many tasks of this shape may wait at the worker."""
    slots = min(worker.capacity.get(name, 0) // amount for name, amount in shape.needs) if shape.needs else 1
    mean_s = max(shape.mean_us, OVERHEAD_US) / 1e6
    window = max(outlook.ahead_s, worker.poll_s)
    return slots * max(1, min(MAX_AHEAD_PER_SLOT, int(window / mean_s)))


def _held_up(outlook: PolicyView, proposals: Sequence[AssignmentProposal | DelegationProposal | RecallProposal] = ()) -> Iterator[Worker]:
    """Workers where tasks wait that could start at once at an idle worker, and that were not recalled yet."""
    waiting = [worker for worker in outlook.state.prefetching_workers if worker.ahead and not worker.recalled]
    if not waiting:
        return
    given = {proposal.worker for proposal in proposals}
    idle = [worker for worker in outlook.roomy if not worker.active and worker not in given]
    suited: dict[TaskShape, bool] = {}
    for worker in waiting if idle else ():
        shape = next(iter(worker.ahead)).shape  # tasks that wait at one worker are all alike, see _uniform
        if shape not in suited:
            suited[shape] = any(other.suits(shape, outlook.now) for other in idle)
        if suited[shape]:
            yield worker
