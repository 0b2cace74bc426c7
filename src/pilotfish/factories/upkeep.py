"""Keeps fixed numbers of pilots and releases pilots that are not needed.

Every factory does these two things before it chooses sites for new pilots. This module also contains the base class of all factories.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from pilotfish.core.pilots.factory_interface import (
    FAILED,
    SUCCEEDED,
    UNNEEDED,
    FactoryView,
    PilotProposal,
    SiteEvent,
    SiteView,
    WithdrawalProposal,
)
from pilotfish.factories.replication import PilotAssessment, cancel_losers
from pilotfish.factories.site_history import PROVEN_S
from pilotfish.factories.site_limits import ProposalRound, active_at, fit, is_active, is_queued, queued_at
from pilotfish.model.states import JOINED

GRACE_S = 60.0
"""A queued pilot is withdrawn after it was not needed for this many seconds. So during a short pause between two runs, it keeps its place
in the queue."""
AGAIN_S = 5.0
"""Delay after bad starts at a site with a fixed number of pilots. The site gets its next pilot after this many seconds, times the number of
bad starts in a row."""
SETTLED_S = 5.0
"""A worker counts as idle when this many seconds have passed since it joined or became free. Before that, a task is possibly on its way."""
PERIOD_S = 10.0
SLOW_DOWN_AFTER = 10
"""If more pilots than this number have failed since the last success, pilots are requested less often."""
DEFAULT_PILOTS = 10
"""Default number of pilots in the pool, for factories that keep this number fixed."""


class BaseFactory:
    """Base class of all factories. ``propose`` keeps fixed numbers, releases pilots, and then calls ``_fill_up`` of the subclass."""

    def __init__(self, grace_s: float = GRACE_S, period_s: float = PERIOD_S) -> None:
        self._grace_s = grace_s
        self._period_s = period_s
        self._spare_since: dict[str, float] = {}
        self._last_request_at = float("-inf")
        self._look_times: list[float] = []

    def on_event(self, event: SiteEvent) -> None:
        """Ignores the event, because the factory view contains the latest events. A subclass can override this method."""

    def propose(self, view: FactoryView) -> Sequence[PilotProposal | WithdrawalProposal]:
        round_ = ProposalRound(view)
        cancel_losers(round_)
        fixed = {site.name: None for site in view.sites if site.wanted >= 0 and round_.has_work_for(site)}
        for site in view.sites:
            if site.name in fixed:
                _keep_number(round_, site)
        self._withdraw_spare(round_, fixed)
        _release_idle(round_, fixed)
        self._fill_up(round_)
        self._look_times = round_.look_times
        return round_.proposals

    def standing(self, view: SiteView, now: float) -> dict[str, object]:
        return {}

    def next_look_at(self, view: FactoryView) -> float | None:
        return min((at for at in self._look_times if at > view.now), default=None)

    def _fill_up(self, round_: ProposalRound) -> None:
        raise NotImplementedError

    def _is_time(self, round_: ProposalRound) -> bool:
        """Returns True if one period has passed since the last request. If more than SLOW_DOWN_AFTER pilots have failed since the last
        success, the period grows in proportion to the number of failed pilots."""
        due = self._last_request_at + self._period_s * max(1.0, count_failures(round_) / SLOW_DOWN_AFTER)
        if round_.needs:
            round_.look_again(due)
        return round_.now >= due

    def _withdraw_rest(self, round_: ProposalRound, active: int, workers: int) -> None:
        """Withdraws the pilots that are still queued, because the pool has enough workers. Factories request more pilots than needed,
        because some pilots never start. Pilots that a user requested stay queued."""
        for pilot in queued_at(round_.free_sites()):
            if not pilot.by_user:
                round_.withdraw(pilot.id, f"there are {active} workers, and {workers} shall be", UNNEEDED)

    def _withdraw_spare(self, round_: ProposalRound, fixed: Container[str]) -> None:
        views = [view for view in round_.view.sites if view.name not in fixed]
        present = {pilot.id: pilot for view in views for pilot in view.pilots if is_queued(pilot)}
        spare = [pilot for pilot in round_.view.demand.spare if pilot in present]
        self._spare_since = {pilot: self._spare_since.get(pilot, round_.now) for pilot in spare}
        for pilot, since in self._spare_since.items():
            if round_.now - since < self._grace_s:
                round_.look_again(since + self._grace_s)
            else:
                waited = round_.now - present[pilot].requested_at
                round_.withdraw(pilot, f"no task has needed it for {round_.now - since:.0f} s; it had waited {waited:.0f} s", UNNEEDED)

    def _request_pilots(
        self,
        round_: ProposalRound,
        pilots: PilotAssessment,
        count: int,
        choose: Callable[[list[SiteView]], tuple[str, str]],
        progress: Callable[[int], str],
    ) -> None:
        """Requests up to ``count`` pilots. If no site can get a new pilot for waiting work, requests replicas of overdue pilots. ``choose``
        returns the name of a site and a text: why this site was chosen. ``progress`` gets the number of pilots requested so far, and also
        returns a text. The reason of a request consists of these two texts."""
        requested, overdue = 0, list(pilots.overdue)
        while requested < count:
            if open_sites := round_.open_sites():
                name, how = choose(open_sites)
                round_.request(name, f"{progress(requested)}; {how}")
            elif overdue:
                group = overdue.pop(0)
                if not (others := round_.sites_for_replica(group)):
                    continue
                name, how = choose(others)
                round_.request_replica(name, group[0], f"{progress(requested)}; {group[0].id} waits for too long; {how}")
            else:
                break
            requested += 1
            self._last_request_at = round_.now


def count_failures(round_: ProposalRound) -> int:
    """Returns the number of pilots that failed since the last success, over all sites; 0 if a running pilot proves that a site works."""
    views = round_.free_sites()
    if any(round_.now - pilot.requested_at >= PROVEN_S for pilot in active_at(views)):
        return 0
    useful_at = max((event.at for view in views for event in view.history if event.kind == SUCCEEDED), default=0.0)
    return sum(1 for view in views for event in view.history if event.kind == FAILED and event.at > useful_at)


def _release_idle(round_: ProposalRound, fixed: Container[str]) -> None:
    """Releases idle pilots that fit no ready task, in two cases:

    * A pilot has been idle for ``idle_s`` of its site. Pilots that a user requested stay, and so do all pilots at sites with a fixed number
      of pilots.
    * Waiting work needs a new pilot at the site, and the site is full. One idle pilot is then released.
    """
    state = round_.view.state
    workers = state.workers
    for view in round_.view.sites:
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
                continue  # a task will be assigned soon, or the worker is unreachable for a moment
            if in_the_way and round_.now < idle_since + SETTLED_S:
                round_.look_again(idle_since + SETTLED_S)
            elif in_the_way:
                round_.withdraw(pilot.id, "what waits does not fit it, and there is no room for another one", UNNEEDED)
                in_the_way = False  # only one is released, because the new pilot can possibly serve all waiting tasks
            elif kept or pilot.by_user:
                continue
            elif round_.now < idle_since + view.site.idle_s:
                round_.look_again(idle_since + view.site.idle_s)
            else:
                round_.withdraw(pilot.id, f"it had nothing to do for {view.site.idle_s:g} s", UNNEEDED)


def _is_full(round_: ProposalRound, view: SiteView, is_fixed: bool) -> bool:
    """Returns True if waiting work needs a new pilot at this site, but the present pilots leave no room for a new pilot. In two cases, the
    result is always False. A worker of the site is leaving. Or pilots of the site take whole machines, so that a new pilot would get the
    same machine."""
    workers = round_.view.state.workers
    if view.site.takes_whole_machines or any(workers[name].state != JOINED for pilot in view.pilots for name in pilot.workers):
        return False
    would_do = [least for least in round_.needs.kinds(view.name) if fit(least, view.site, view.traits) is not None]
    return bool(would_do) and (is_fixed or not any(round_.rooms[view.name].size_for(least) for least in would_do))


def _keep_number(round_: ProposalRound, view: SiteView) -> None:
    """Requests or withdraws pilots of a site until the site has the number of pilots that a user fixed. Pilots from ``pilotfish pilots
    add`` do not count. If there are too many pilots, queued pilots are withdrawn before active pilots, and younger pilots before older
    pilots."""
    kept = [pilot for pilot in view.pilots if not pilot.by_user]
    present = len(kept)
    record = round_.view.state.sites.get(view.name)
    again_at = record.last_bad_at + AGAIN_S * record.bad_starts if record is not None and record.bad_starts else 0.0
    if round_.now < again_at:
        round_.look_again(again_at)
        return
    for number in range(present, view.wanted):
        if not round_.request_any_size(view.name, f"{number} of the {view.wanted} pilots that are wanted there"):
            return
    surplus = present - view.wanted
    if surplus > 0:
        by_use = sorted(kept, key=lambda pilot: (not is_queued(pilot), -pilot.requested_at))
        for pilot in by_use[:surplus]:
            round_.withdraw(pilot.id, f"{view.wanted} pilots are wanted there, not {present}", UNNEEDED)
