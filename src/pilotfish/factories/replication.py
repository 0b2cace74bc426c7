"""Requests a replica of a pilot that waits too long and cancels the loser."""

from __future__ import annotations

from dataclasses import dataclass, field

from pilotfish.core.pilots.factory_interface import JOINED, OUTRUN, OVERDUE, RELIEVED, FactoryView, SiteView
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.factories.site_limits import ProposalRound, is_active, is_queued

RECENT_WAITS = 10


def group_of(pilot: Pilot) -> str:
    """Id shared by a pilot and its replicas."""
    return pilot.replica_of or pilot.id


def groups(prospect: FactoryView) -> dict[str, list[Pilot]]:
    found: dict[str, list[Pilot]] = {}
    for view in prospect.sites:
        for pilot in view.pilots:
            found.setdefault(group_of(pilot), []).append(pilot)
    return found


def cancel_the_others(round_: ProposalRound) -> None:
    """Cancel queued pilots of groups in which one has started. Only a pilot requested before that one was outrun."""
    for members in groups(round_.prospect).values():
        started = [pilot for pilot in members if is_active(pilot)]
        if not started:
            continue
        for pilot in members:
            if is_queued(pilot):
                outrun = pilot.requested_at < started[0].requested_at
                reason = f"{started[0].id} at {started[0].site} started first; this one has waited {round_.now - pilot.requested_at:.0f} s"
                round_.withdraw(pilot.id, reason, OUTRUN if outrun else RELIEVED)


@dataclass(slots=True)
class WaitOutlook:
    """What a factory can expect of the pilots at the sites it may choose."""

    active: int = 0
    hopeful: int = 0
    """Number of groups with a pilot that runs or has not waited too long."""
    hopeless: list[list[Pilot]] = field(default_factory=list)
    """Groups in which every pilot has waited too long, the longest wait first. They are not counted on."""
    silent: dict[str, None] = field(default_factory=dict)
    """Sites where a pilot has waited too long and none runs."""

    @property
    def pending(self) -> int:
        return self.hopeful - self.active


def sort_out(round_: ProposalRound, patience_s: float) -> WaitOutlook:
    """Separate pilots that may still start from those that have waited too long.

    At a site where no pilot of ours runs, only the oldest of the late ones stays queued: the queue may just be long, and one pilot must
    remain to find out. The others are withdrawn if another site can be tried.
    """
    outlook = WaitOutlook()
    views = {view.name: view for view in round_.free_sites()}
    late = [pilot for view in views.values() for pilot in _overdue(round_, view, patience_s)]
    late_ids = {pilot.id for pilot in late}
    for pilot in sorted(late, key=lambda pilot: pilot.requested_at):
        if pilot.site in outlook.silent:
            withdraw_overdue(round_, pilot)
        elif not any(is_active(other) for other in views[pilot.site].pilots):
            outlook.silent[pilot.site] = None
    for members in groups(round_.prospect).values():
        if not all(pilot.site in views for pilot in members):
            continue
        outlook.active += any(is_active(pilot) for pilot in members)
        if all(pilot.id in late_ids for pilot in members):
            outlook.hopeless.append(sorted(members, key=lambda pilot: pilot.requested_at))
        else:
            outlook.hopeful += 1
    outlook.hopeless.sort(key=lambda members: members[0].requested_at)
    return outlook


def withdraw_overdue(round_: ProposalRound, pilot: Pilot) -> None:
    if round_.sites_instead([pilot]):
        waited = round_.now - pilot.requested_at
        round_.withdraw(pilot.id, f"it has waited {waited:.0f} s, and there are other sites to try", OVERDUE)


def _overdue(round_: ProposalRound, view: SiteView, patience_s: float) -> list[Pilot]:
    """Queued pilots that have waited too long. The limit grows with the waits known at the site."""
    waits = [event.seconds for event in view.history if event.kind == JOINED][-RECENT_WAITS:]
    patience = max([patience_s, *(2 * wait for wait in waits)])
    waiting = [pilot for pilot in view.pilots if is_queued(pilot) and pilot.id not in round_.prospect.demand.spare]
    for pilot in waiting:
        round_.look_again(pilot.requested_at + patience)
    return [pilot for pilot in waiting if round_.now >= pilot.requested_at + patience]
