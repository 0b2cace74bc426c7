"""How many tasks a site's master is lent: what can begin there at once, some for the next half minute, and all that can run there alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pilotfish.core.proposals import Loan, Outlook, Recall
from pilotfish.core.replicas import within_reach
from pilotfish.core.state import UNIT, Shape, Task, Worker
from pilotfish.model.task import CORES

LEAST = 4
AHEAD_S = 30.0
"""Beyond what can begin at once, a site has tasks for about so long."""
MOST_BOUND = 2000


def lend(outlook: Outlook, shapes: Sequence[Shape]) -> list[Loan]:
    """Oldest tasks first, those that at least one worker of the site could run. Those that were cut off by a pilot's end are not lent:
    how much time they need is for us to see to. What cannot begin at once is shared out by size: no site hoards what another could run."""
    taken: dict[Task, None] = {}
    loans: dict[Worker, list[Task]] = {}
    for speaker, _ in outlook.sites:
        loans[speaker] = list(_bound(outlook, speaker, taken))
        taken.update(dict.fromkeys(loans[speaker]))
    for wants in (_can_begin, _share):  # first what can begin anywhere, then what will have to wait
        for speaker, subjects in outlook.sites:
            wanted = wants(outlook, subjects, shapes) - sum(not task.contents for task in (*speaker.lent, *loans[speaker]))
            for shape in shapes:
                if wanted > 0 and not shape.least_s and any(worker.suits(shape, outlook.now) for worker in subjects):
                    found = list(_first(outlook, shape, wanted, taken, speaker.site))
                    taken.update(dict.fromkeys(found))
                    loans[speaker] += found
                    wanted -= len(found)
    return [Loan(speaker, tasks) for speaker, tasks in loans.items() if tasks]


def _can_begin(outlook: Outlook, subjects: list[Worker], shapes: Sequence[Shape]) -> int:
    return sum(worker.free.get(CORES, 0) // UNIT for worker in subjects)


def _share(outlook: Outlook, subjects: list[Worker], shapes: Sequence[Shape]) -> int:
    """With what it may have for later: its part of all that is ready, by size."""
    everywhere = sum(_slots(worker) for _, others in outlook.sites for worker in others) + sum(map(_slots, outlook.workers))
    slots = sum(map(_slots, subjects))
    share = -(-sum(len(shape.queue) for shape in shapes) * slots // everywhere)
    return _can_begin(outlook, subjects, shapes) + min(max(LEAST, int(slots * _waves(shapes))), share)


def _bound(outlook: Outlook, speaker: Worker, taken: dict[Task, None]) -> Iterable[Task]:
    """Tasks that can run at this site alone, because what they need was kept there: the more of them its master knows, the better it can
    choose, and nobody else goes short."""
    found: dict[Task, None] = {}
    room = MOST_BOUND - len(speaker.lent)
    for shape in outlook.state.ready:
        if shape.least_s or shape.run.paused:
            continue
        for record, tasks in shape.wanting.items():
            if record.home or record.path or not record.holders:
                continue
            for task in tasks:
                if len(found) >= room:
                    return found
                if task not in taken and within_reach(outlook.state, task, speaker.site):
                    found[task] = None
    return found


def _waves(shapes: Sequence[Shape]) -> float:
    """How often all slots could be filled again within the time ahead, once at most; not at all while nobody knows how long tasks take."""
    known = [shape.mean_us / 1e6 for shape in shapes if shape.samples]
    return min(1.0, AHEAD_S / max(min(known), 1e-3)) if known else 0.0


def _slots(worker: Worker) -> int:
    return max(1, worker.capacity.get(CORES, 0) // UNIT)


def _first(outlook: Outlook, shape: Shape, count: int, taken: dict[Task, None], site: str) -> Iterable[Task]:
    for task in shape.queue:
        if count <= 0:
            return
        if task not in taken and (not task.contents or within_reach(outlook.state, task, site)):
            count -= 1
            yield task


def call_back(outlook: Outlook) -> Recall | None:
    """Half of what one site's master has and cannot give to anybody, if there is nothing else to do for others that are idle."""
    if outlook.state.ready or not outlook.sites:
        return None
    full, _ = max(outlook.sites, key=lambda site: len(site[0].lent))
    others = [
        *outlook.workers,
        *(worker for speaker, subjects in outlook.sites if speaker is not full and not speaker.lent for worker in subjects),
    ]
    for worker in others:
        if worker.held:
            continue
        # Once is enough: what comes back a second time would do so for ever.
        back = [task for task in full.lent if task.attempt == 1 and worker.suits(task.shape, outlook.now)]
        back = [task for task in back if within_reach(outlook.state, task, worker.site)]
        if back:
            return Recall(full, back[len(back) // 2 :])
    return None
