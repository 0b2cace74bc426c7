"""Finds pilots that wait too long, and cancels the queued pilots of a group when one pilot of the group has started."""

from __future__ import annotations

from dataclasses import dataclass, field

from pilotfish.core.pilots.factory_interface import JOINED, OUTRUN, OVERDUE, RELIEVED, FactoryView, SiteView
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.factories.site_limits import ProposalRound, is_active, is_queued

RECENT_WAITS = 10


def groups(view: FactoryView) -> dict[str, list[Pilot]]:
    """Groups each pilot with its replicas. Returns the groups by the id of their first pilot."""
    found: dict[str, list[Pilot]] = {}
    for site_view in view.sites:
        for pilot in site_view.pilots:
            found.setdefault(pilot.replica_of or pilot.id, []).append(pilot)
    return found


def cancel_losers(round_: ProposalRound) -> None:
    """Cancels the queued pilots of a group if one pilot of the group has started. A group is a pilot and its replicas. The cause is
    ``OUTRUN`` for a pilot that was requested before the started pilot, and ``RELIEVED`` for other pilots."""
    for group in groups(round_.view).values():
        started = [pilot for pilot in group if is_active(pilot)]
        if not started:
            continue
        for pilot in group:
            if is_queued(pilot):
                outrun = pilot.requested_at < started[0].requested_at
                reason = f"{started[0].id} at {started[0].site} started first; this one has waited {round_.now - pilot.requested_at:.0f} s"
                round_.withdraw(pilot.id, reason, OUTRUN if outrun else RELIEVED)


@dataclass(slots=True)
class PilotAssessment:
    """Counts groups of pilots at the sites that a factory may choose. A group is a pilot and its replicas. ``active``: number of groups in
    which a pilot runs."""

    active: int = 0
    expected: int = 0
    """Number of groups in which a pilot runs or is still expected to start."""
    overdue: list[list[Pilot]] = field(default_factory=list)
    """Groups in which every pilot has waited too long, the longest wait first."""
    stalled_sites: dict[str, None] = field(default_factory=dict)
    """Sites where a pilot has waited too long and no pilot runs."""

    @property
    def pending(self) -> int:
        return self.expected - self.active


def assess_pilots(round_: ProposalRound, max_wait_s: float) -> PilotAssessment:
    """Counts the overdue pilots, and the pilots that are still expected to start. Withdraws some of the overdue pilots.

    At a site where no pilot runs, the oldest overdue pilot stays queued, because the site possibly works and only has a long queue. If a
    different site can be tried, the other overdue pilots at the first site are withdrawn.
    """
    pilots = PilotAssessment()
    views = {view.name: view for view in round_.free_sites()}
    late = [pilot for view in views.values() for pilot in _overdue(round_, view, max_wait_s)]
    late_ids = {pilot.id for pilot in late}
    for pilot in sorted(late, key=lambda pilot: pilot.requested_at):
        if pilot.site in pilots.stalled_sites:
            withdraw_overdue(round_, pilot)
        elif not any(is_active(other) for other in views[pilot.site].pilots):
            pilots.stalled_sites[pilot.site] = None
    for group in groups(round_.view).values():
        if not all(pilot.site in views for pilot in group):
            continue
        pilots.active += any(is_active(pilot) for pilot in group)
        if all(pilot.id in late_ids for pilot in group):
            pilots.overdue.append(sorted(group, key=lambda pilot: pilot.requested_at))
        else:
            pilots.expected += 1
    pilots.overdue.sort(key=lambda group: group[0].requested_at)
    return pilots


def withdraw_overdue(round_: ProposalRound, pilot: Pilot) -> None:
    if round_.sites_for_replica([pilot]):
        waited = round_.now - pilot.requested_at
        round_.withdraw(pilot.id, f"it has waited {waited:.0f} s, and there are other sites to try", OVERDUE)


def _overdue(round_: ProposalRound, view: SiteView, max_wait_s: float) -> list[Pilot]:
    """Returns the queued pilots that have waited too long. The limit is longer at sites where earlier waits were long."""
    waits = [event.seconds for event in view.history if event.kind == JOINED][-RECENT_WAITS:]
    max_wait_s = max([max_wait_s, *(2 * wait for wait in waits)])
    waiting = [pilot for pilot in view.pilots if is_queued(pilot) and pilot.id not in round_.view.demand.spare]
    for pilot in waiting:
        round_.look_again(pilot.requested_at + max_wait_s)
    return [pilot for pilot in waiting if round_.now >= pilot.requested_at + max_wait_s]
