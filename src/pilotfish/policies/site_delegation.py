"""Chooses how many tasks a site master is given in bulk: enough for half a minute, and all that only its site can run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pilotfish.core.data.replicas import can_get_inputs, needs
from pilotfish.core.policy_interface import DelegationProposal, PolicyView, RecallProposal
from pilotfish.core.state import UNIT, Task, TaskShape, Worker
from pilotfish.model.task import CORES

LEAST = 4
AHEAD_S = 30.0
"""Seconds of work that a site gets beyond what can start at once."""
MOST_BOUND = 2000


def lend(outlook: PolicyView, shapes: Sequence[TaskShape]) -> list[DelegationProposal]:
    """Propose the oldest tasks that at least one worker of a site can run. Tasks that were cut off by the end of a pilot are not delegated,
    because the master tracks how much time they need; nor are multi-node tasks. Tasks that cannot start at once are divided by the size
    of the sites, so that no site hoards what another could run."""
    taken: dict[Task, None] = {}
    loans: dict[Worker, list[Task]] = {}
    for speaker, _ in outlook.sites:
        loans[speaker] = list(_bound(outlook, speaker, taken))
        taken.update(dict.fromkeys(loans[speaker]))
    if len(taken) < sum(len(shape.queue) for shape in shapes):
        _lend_unbound(outlook, shapes, taken, loans)
    return [DelegationProposal(speaker, tasks) for speaker, tasks in loans.items() if tasks]


def _lend_unbound(outlook: PolicyView, shapes: Sequence[TaskShape], taken: dict[Task, None], loans: dict[Worker, list[Task]]) -> None:
    wanted = {speaker: _can_begin(subjects) - sum(map(_may_go_anywhere, speaker.delegated)) for speaker, subjects in outlook.sites}
    for more in ({}, _ahead(outlook, shapes)):  # first tasks that can start at once anywhere, then tasks that will wait
        for speaker, subjects in outlook.sites:
            wanted[speaker] += more.get(speaker, 0)
            for shape in shapes:
                if wanted[speaker] > 0 and _may_be_lent(shape) and any(worker.suits(shape, outlook.now) for worker in subjects):
                    found = list(_first(outlook, shape, wanted[speaker], taken, speaker.site))
                    taken.update(dict.fromkeys(found))
                    loans[speaker] += found
                    wanted[speaker] -= len(found)


def _may_be_lent(shape: TaskShape) -> bool:
    return not shape.least_s and shape.nodes == 1


def _can_begin(subjects: list[Worker]) -> int:
    return sum([worker.free.get(CORES, 0) // UNIT for worker in subjects])


def _may_go_anywhere(task: Task) -> bool:
    for record in needs(task):  # noqa: SIM110 - a generator would cost more than the loop
        if not (record.at_master or record.path):
            return False
    return True


def _ahead(outlook: PolicyView, shapes: Sequence[TaskShape]) -> dict[Worker, int]:
    """How many tasks each site may have for later: at most its part, by size, of all ready tasks."""
    slots = {speaker: sum([worker.slots for worker in subjects]) for speaker, subjects in outlook.sites}
    everywhere = sum(slots.values()) + sum([worker.slots for worker in outlook.workers])
    ready = sum(len(shape.queue) for shape in shapes)
    waves = _waves(shapes)
    return {speaker: min(max(LEAST, int(own * waves)), -(-ready * own // everywhere)) for speaker, own in slots.items()}


def _bound(outlook: PolicyView, speaker: Worker, taken: dict[Task, None]) -> Iterable[Task]:
    """Tasks that only this site can run, because their inputs were kept there. Its master chooses better the more of them it knows, and
    no other site misses them."""
    found: dict[Task, None] = {}
    room = MOST_BOUND - len(speaker.delegated)
    for shape in outlook.state.ready:
        if not _may_be_lent(shape) or shape.run.paused:
            continue
        for record, tasks in shape.queue_by_content.items():
            if record.at_master or record.path or not record.holders:
                continue
            for task in tasks:
                if len(found) >= room:
                    return found
                if task not in taken and can_get_inputs(outlook.state, task, speaker.site):
                    found[task] = None
    return found


def _waves(shapes: Sequence[TaskShape]) -> float:
    """How often all slots could be filled again within AHEAD_S, at most once; 0 while task times are unknown."""
    known = [shape.mean_us / 1e6 for shape in shapes if shape.samples]
    return min(1.0, AHEAD_S / max(min(known), 1e-3)) if known else 0.0


def _first(outlook: PolicyView, shape: TaskShape, count: int, taken: dict[Task, None], site: str) -> Iterable[Task]:
    for task in shape.queue:
        if count <= 0:
            return
        if task not in taken and can_get_inputs(outlook.state, task, site):
            count -= 1
            yield task


def call_back(outlook: PolicyView) -> RecallProposal | None:
    """Recall half of what a site master cannot assign, if workers elsewhere are idle and nothing else is ready for them."""
    if outlook.state.ready or not outlook.sites:
        return None
    full, _ = max(outlook.sites, key=lambda site: len(site[0].delegated))
    others = [
        *outlook.workers,
        *(worker for speaker, subjects in outlook.sites if speaker is not full and not speaker.delegated for worker in subjects),
    ]
    for worker in others:
        if worker.held:
            continue
        # Recall a task only once: a task that returns a second time would do so forever.
        back = [task for task in full.delegated if task.attempt == 1 and worker.suits(task.shape, outlook.now)]
        back = [task for task in back if can_get_inputs(outlook.state, task, worker.site)]
        if back:
            return RecallProposal(full, back[len(back) // 2 :])
    return None
