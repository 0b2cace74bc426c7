"""Requests cores of this machine, and lets a factory request pilots at other sites."""

from __future__ import annotations

from collections.abc import Sequence

from pilotfish.core.pilots.factory_interface import Factory, PilotProposal, WithdrawalProposal
from pilotfish.core.pilots.unmet_demand import view_for_factory
from pilotfish.core.policy_interface import HoldProposal
from pilotfish.core.state import Run, State, Worker
from pilotfish.model.site import LOCAL, PilotSize
from pilotfish.model.states import DRAINING
from pilotfish.model.task import CORES, UNIT

MIN_INTERVAL_S = 0.5
"""Minimum seconds between two calls of the factory. Sites do not change faster."""
HOLD_AFTER = 3
"""A site is held after this many pilots in a row ended before their agents joined."""


class PoolProvisioner:
    """Keeps the local cores that the user asked for, and lets a factory decide about all other sites."""

    def __init__(self, factory: Factory) -> None:
        self._factory = factory
        self._events_seen: dict[str, int] = {}
        self._next_at = 0.0
        self._next_call_at: float | None = None

    def propose(self, state: State, now: float) -> Sequence[PilotProposal | WithdrawalProposal | HoldProposal]:
        proposals: list[PilotProposal | WithdrawalProposal | HoldProposal] = propose_local(state, now)
        self._next_call_at = None
        if any(record.wanted is not None for record in state.sites.values()):
            if now < self._next_at:
                self._next_call_at = self._next_at
                return proposals
            self._next_at = now + MIN_INTERVAL_S
            holds = _hold_failing(state)
            if holds:
                # The factory is not called in this turn, because it could request a pilot at one of these sites.
                self._next_call_at = self._next_at
                return [*proposals, *holds]
            view = view_for_factory(state, now)
            self._report_events(state)
            proposals += self._factory.propose(view)
            self._next_call_at = self._factory.next_look_at(view)
        return proposals

    def next_look_at(self, state: State, now: float) -> float | None:
        look_times = [at for at in (local_look_at(state, now), self._next_call_at) if at is not None]
        return min(look_times, default=None)

    def standings(self, state: State, now: float) -> dict[str, dict[str, object]]:
        """Returns the factory's rating of each site, by the name of the site. Only sites that the pool uses are included."""
        view = view_for_factory(state, now)
        self._report_events(state)
        return {site_view.name: self._factory.standing(site_view, now) for site_view in view.sites}

    def _report_events(self, state: State) -> None:
        """Reports to the factory the events since the last call. The first call after a restart reports all events in the state."""
        events = []
        for name, record in state.sites.items():
            missed = record.events - self._events_seen.get(name, 0)
            self._events_seen[name] = record.events
            if missed > 0 and name != LOCAL:
                events += list(record.history)[-missed:]
        for event in sorted(events, key=lambda event: event.at):
            self._factory.on_event(event)


def _hold_failing(state: State) -> list[HoldProposal]:
    """Proposes to hold the sites where several pilots in a row ended before their agents joined. Further pilots at such a site would only
    block places in the queue for other users. A user can resume a held site."""
    return [
        HoldProposal(name, f"{record.bad_starts} pilots in a row ended before their agents joined; the last one {record.last_bad}")
        for name, record in state.sites.items()
        if name != LOCAL and record.bad_starts >= HOLD_AFTER and not record.held
    ]


def propose_local(state: State, now: float) -> list[PilotProposal | WithdrawalProposal | HoldProposal]:
    """Returns proposals that keep the requested number of local cores while there is work."""
    site = state.sites.get(LOCAL)
    if not _is_wanted(state) or (site and site.held):
        return []
    if site and site.bad_starts >= HOLD_AFTER:
        return [HoldProposal(LOCAL, f"{site.bad_starts} local agents in a row ended before they joined; the last one {site.last_bad}")]
    if now < _next_start_at(state):
        return []
    present = sum(pilot.cores for pilot in state.pilots.values() if pilot.site == LOCAL)
    missing = state.local_cores - present
    if missing < 0 or (present and _needs_one_large_worker(state)):
        return _release_youngest(state)
    if not missing:
        return []
    return [PilotProposal(LOCAL, PilotSize(missing), f"{state.unfinished} tasks to do, {present:g} of {state.local_cores:g} cores")]


def local_look_at(state: State, now: float) -> float | None:
    site = state.sites.get(LOCAL)
    waits = site is not None and not site.held and state.unfinished and now < _next_start_at(state)
    return _next_start_at(state) if waits else None


def _next_start_at(state: State) -> float:
    """Returns the earliest time at which the next local agent is allowed to start. If agents in a row ended before they joined, the delay
    is 0.5 s, 1 s, 2 s, …"""
    site = state.sites.get(LOCAL)
    return site.last_bad_at + 0.5 * 2.0 ** (site.bad_starts - 1) if site and site.bad_starts else 0.0


def _is_wanted(state: State) -> bool:
    """Returns True if this machine has work: a ready task, or a run that was just opened and will probably get tasks soon."""
    if any(_may_run_here(shape.run) for shape in state.ready) or any(_may_run_here(task.shape.run) for task in state.suspects):
        return True
    youngest = max((worker.joined_at for worker in (*state.workers.values(), *state.ended_workers.values())), default=0.0)
    return any(not run.closed and not run.tasks and run.opened_at > youngest and _may_run_here(run) for run in state.runs.values())


def _may_run_here(run: Run) -> bool:
    return not run.options.sites or LOCAL in run.options.sites


def _local_workers(state: State) -> list[Worker]:
    return [worker for worker in state.workers.values() if (pilot := state.pilots.get(worker.pilot)) and pilot.site == LOCAL]


def _needs_one_large_worker(state: State) -> bool:
    """Returns True if a waiting task fits no worker but would fit a local worker that has all local cores."""
    whole = round(state.local_cores * UNIT)
    local = _local_workers(state)
    if any(worker.capacity.get(CORES, 0) >= whole for worker in local):
        return False
    for shape in (*state.ready, *(task.shape for task in state.suspects)):
        if not _may_run_here(shape.run):
            continue
        cores = dict(shape.needs).get(CORES, 0)
        able = [worker for worker in state.workers.values() if worker.qualifies(shape)]
        large_enough = any(worker.capacity.get(CORES, 0) >= cores for worker in able)
        if cores <= whole and not large_enough and all(worker.qualifies(shape) for worker in local):
            return True
    return False


def _release_youngest(state: State) -> list[PilotProposal | WithdrawalProposal | HoldProposal]:
    """Releases the youngest local worker; only one worker per call. If this frees too many cores, a smaller worker starts later."""
    workers = _local_workers(state)
    if not workers or any(worker.state == DRAINING for worker in workers):
        return []
    return [WithdrawalProposal(workers[-1].pilot, f"the pool shall have {state.local_cores:g} cores")]
