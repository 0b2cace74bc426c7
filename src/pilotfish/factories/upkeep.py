"""What every factory does before it chooses: numbers that a person fixed are kept, and pilots that lost or that nobody needs go."""

from __future__ import annotations

from collections.abc import Container

from pilotfish.core.pilots.factory_interface import FAILED, SUCCEEDED, UNNEEDED, SiteView
from pilotfish.factories.replication import cancel_the_others
from pilotfish.factories.site_history import PROVEN_S
from pilotfish.factories.site_limits import ProposalRound, active_at, fit, is_active, is_queued, queued_at
from pilotfish.model.states import JOINED

GRACE_S = 60.0
"""A pilot must have been unneeded for so long before it is withdrawn, or a pause between two runs would cost its place in the queue."""
AGAIN_S = 5.0
"""After a bad start, the next pilot that a person wants is asked for so much later, and later still after each further one."""
SETTLED_S = 5.0
"""Who has come or become free only just now may be given something in a moment."""
PERIOD_S = 10.0
MANY = 10
"""Of pilots that failed: from here on it is asked less often."""
DEFAULT_PILOTS = 10
"""The size of the pool for factories that keep it at a number, if nobody set one."""


class FactoryUpkeep:
    def __init__(self, grace_s: float = GRACE_S, period_s: float = PERIOD_S) -> None:
        self._grace_s = grace_s
        self._period_s = period_s
        self._spare_since: dict[str, float] = {}
        self._last_wishes_at = float("-inf")

    def perform(self, round_: ProposalRound) -> None:
        cancel_the_others(round_)
        fixed = {view.name: None for view in round_.prospect.sites if view.wanted >= 0 and round_.has_work_for(view)}
        for view in round_.prospect.sites:
            if view.name in fixed:
                _keep_number(round_, view)
        self._withdraw_spare(round_, fixed)
        _send_idle_home(round_, fixed)

    def is_time(self, round_: ProposalRound) -> bool:
        """For factories that look from time to time: not sooner than a period after they last asked for pilots, and less and less often
        where all that they ask for comes to nothing."""
        due = self._last_wishes_at + self._period_s * max(1.0, count_futile(round_) / MANY)
        if round_.needs:
            round_.look_again(due)
        return round_.now >= due

    def note_wishes(self, round_: ProposalRound) -> None:
        self._last_wishes_at = round_.now

    def withdraw_rest(self, round_: ProposalRound, active: int, workers: int) -> None:
        """More may wait than are missing, because some of them never start; but no more than were asked for shall work."""
        for pilot in queued_at(round_.free_sites()):
            if pilot.by_hand:
                continue
            round_.withdraw(pilot.id, f"there are {active} workers, and {workers} shall be", UNNEEDED)

    def _withdraw_spare(self, round_: ProposalRound, fixed: Container[str]) -> None:
        views = [view for view in round_.prospect.sites if view.name not in fixed]
        present = {pilot.id: pilot for view in views for pilot in view.pilots if is_queued(pilot)}
        spare = [pilot for pilot in round_.prospect.demand.spare if pilot in present]
        self._spare_since = {pilot: self._spare_since.get(pilot, round_.now) for pilot in spare}
        for pilot, since in self._spare_since.items():
            if round_.now - since < self._grace_s:
                round_.look_again(since + self._grace_s)
            else:
                waited = round_.now - present[pilot].requested_at
                round_.withdraw(pilot, f"no task has needed it for {round_.now - since:.0f} s; it had waited {waited:.0f} s", UNNEEDED)


def count_futile(round_: ProposalRound) -> int:
    """How many pilots have failed at all sites together since one of them was of use; 0 while one is."""
    views = round_.free_sites()
    if any(round_.now - pilot.requested_at >= PROVEN_S for pilot in active_at(views)):
        return 0
    useful_at = max((event.at for view in views for event in view.history if event.kind == SUCCEEDED), default=0.0)
    return sum(1 for view in views for event in view.history if event.kind == FAILED and event.at > useful_at)


def _send_idle_home(round_: ProposalRound, fixed: Container[str]) -> None:
    """Who has had nothing to do for long costs somebody's cores. And who does nothing because what waits does not fit it must not stand in
    the way of one that it would fit."""
    state = round_.prospect.state
    workers = state.workers
    for view in round_.prospect.sites:
        kept = view.name in fixed or not view.site.idle_s
        in_the_way = _is_full(round_, view, view.name in fixed)
        for pilot in view.pilots:
            agents = [workers[name] for name in pilot.workers]
            if not is_active(pilot) or not agents or any(agent.held or agent.state != JOINED for agent in agents):
                continue
            idle_since = max(agent.progress_at for agent in agents)
            fitting = [shape for shape in state.ready if shape.nodes <= len(agents)]
            of_use = any(agent.suits(shape, round_.now) and not agent.quarantined_until for agent in agents for shape in fitting)
            if of_use:
                continue  # it is about to get something, or cannot be reached just now
            if in_the_way and round_.now < idle_since + SETTLED_S:
                round_.look_again(idle_since + SETTLED_S)
            elif in_the_way:
                round_.withdraw(pilot.id, "what waits does not fit it, and there is no room for another one", UNNEEDED)
                in_the_way = False  # one after the other: the next that is asked for may do for all
            elif kept or pilot.by_hand:
                continue
            elif round_.now < idle_since + view.site.idle_s:
                round_.look_again(idle_since + view.site.idle_s)
            else:
                round_.withdraw(pilot.id, f"it had nothing to do for {view.site.idle_s:g} s", UNNEEDED)


def _is_full(round_: ProposalRound, view: SiteView, is_fixed: bool) -> bool:
    """Is there work for a pilot of this site, as it is described, that cannot be asked for because others are there? Once is enough to ask:
    while one of them leaves, it is not; nor where another pilot would be the same machine again."""
    workers = round_.prospect.state.workers
    if view.site.takes_whole_machines or any(workers[name].state != JOINED for pilot in view.pilots for name in pilot.workers):
        return False
    would_do = [least for least in round_.needs.kinds(view.name) if fit(least, view.site, view.traits) is not None]
    return bool(would_do) and (is_fixed or not any(round_.rooms[view.name].size_for(least) for least in would_do))


def _keep_number(round_: ProposalRound, view: SiteView) -> None:
    """As many as a person wants there: the ones that wait go first when there are too many, and of those the youngest. Those that somebody
    asked for one by one come on top."""
    kept = [pilot for pilot in view.pilots if not pilot.by_hand]
    present = len(kept)
    record = round_.prospect.state.sites.get(view.name)
    again_at = record.last_bad_at + AGAIN_S * record.bad_starts if record is not None and record.bad_starts else 0.0
    if round_.now < again_at:
        round_.look_again(again_at)
        return
    for number in range(present, view.wanted):
        if not round_.wish_whatever(view.name, f"{number} of the {view.wanted} pilots that are wanted there"):
            return
    surplus = present - view.wanted
    if surplus > 0:
        by_use = sorted(kept, key=lambda pilot: (not is_queued(pilot), -pilot.requested_at))
        for pilot in by_use[:surplus]:
            round_.withdraw(pilot.id, f"{view.wanted} pilots are wanted there, not {present}", UNNEEDED)
