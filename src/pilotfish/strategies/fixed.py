"""Keep the pool at the size that was asked for, on this machine, while there is work."""

from __future__ import annotations

from pilotfish.core.proposals import Hold
from pilotfish.core.prospects import PilotWish, PilotWithdrawal
from pilotfish.core.state import UNIT, Run, State, Worker
from pilotfish.model.site import LOCAL, PilotSize
from pilotfish.model.states import DRAINING
from pilotfish.model.task import CORES

SITE = LOCAL
GIVE_UP_AFTER = 3
"""Pilots in a row that end before their agent joined."""


class Fixed:
    def propose(self, state: State, now: float) -> list[PilotWish | PilotWithdrawal | Hold]:
        site = state.sites.get(SITE)
        if not _is_wanted(state) or (site and site.held):
            return []
        if site and site.bad_starts >= GIVE_UP_AFTER:
            return [Hold(SITE, f"{site.bad_starts} local agents in a row ended before they joined; the last one {site.last_bad}")]
        if site and now < self._not_before(state):
            return []
        present = sum(pilot.cores for pilot in state.pilots.values() if pilot.site == SITE)
        missing = state.local_cores - present
        if missing < 0 or (present and _needs_one_large_worker(state)):
            return _release_youngest(state)
        if not missing:
            return []
        return [PilotWish(SITE, PilotSize(missing), f"{state.unfinished} tasks to do, {present:g} of {state.local_cores:g} cores")]

    def standings(self, state: State, now: float) -> dict[str, dict[str, object]]:
        return {}

    def next_look_at(self, state: State, now: float) -> float | None:
        site = state.sites.get(SITE)
        waiting = site is not None and site.bad_starts and not site.held and state.unfinished
        return self._not_before(state) if waiting and now < self._not_before(state) else None

    @staticmethod
    def _not_before(state: State) -> float:
        """After a bad start, wait a little, and longer after each further one."""
        site = state.sites[SITE]
        return site.last_bad_at + 0.5 * 2.0 ** (site.bad_starts - 1) if site.bad_starts else 0.0


def _is_wanted(state: State) -> bool:
    """Does work wait that may be done here, or will it as soon as the client of a run that was just opened has sent it?"""
    if any(_may_come(shape.run) for shape in state.ready) or any(_may_come(task.shape.run) for task in state.suspects):
        return True
    youngest = max((worker.joined_at for worker in (*state.workers.values(), *state.gone_workers.values())), default=0.0)
    return any(not run.closed and not run.tasks and run.opened_at > youngest and _may_come(run) for run in state.runs.values())


def _may_come(run: Run) -> bool:
    return not run.options.sites or SITE in run.options.sites


def _local_workers(state: State) -> list[Worker]:
    return [worker for worker in state.workers.values() if (pilot := state.pilots.get(worker.pilot)) and pilot.site == SITE]


def _needs_one_large_worker(state: State) -> bool:
    """Does a task wait that nobody can take, but a local worker could if it had all cores of the pool?"""
    whole = round(state.local_cores * UNIT)
    local = _local_workers(state)
    if any(worker.capacity.get(CORES, 0) >= whole for worker in local):
        return False
    for shape in (*state.ready, *(task.shape for task in state.suspects)):
        if not _may_come(shape.run):
            continue
        cores = dict(shape.needs).get(CORES, 0)
        able = [worker for worker in state.workers.values() if worker.qualifies(shape)]
        large_enough = any(worker.capacity.get(CORES, 0) >= cores for worker in able)
        if cores <= whole and not large_enough and all(worker.qualifies(shape) for worker in local):
            return True
    return False


def _release_youngest(state: State) -> list[PilotWish | PilotWithdrawal | Hold]:
    """The pool shall be smaller: one worker at a time goes, and comes back smaller if that was too much."""
    workers = _local_workers(state)
    if not workers or any(worker.state == DRAINING for worker in workers):
        return []
    return [PilotWithdrawal(workers[-1].pilot, f"the pool shall have {state.local_cores:g} cores")]
