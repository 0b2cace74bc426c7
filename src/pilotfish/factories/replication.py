"""Pilots that stand in for one another: whoever waits for too long gets another elsewhere in its stead, and the first to start wins."""

from __future__ import annotations

from dataclasses import dataclass, field

from pilotfish.core.pilots.factory_interface import JOINED, OUTRUN, OVERDUE, RELIEVED, FactoryView, SiteView
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.factories.site_limits import ProposalRound, is_active, is_queued

RECENT_WAITS = 10


def group_of(pilot: Pilot) -> str:
    """A pilot and all that were asked for in its stead have this in common."""
    return pilot.instead_of or pilot.id


def groups(prospect: FactoryView) -> dict[str, list[Pilot]]:
    found: dict[str, list[Pilot]] = {}
    for view in prospect.sites:
        for pilot in view.pilots:
            found.setdefault(group_of(pilot), []).append(pilot)
    return found


def cancel_the_others(round_: ProposalRound) -> None:
    """Where one of a group has started, the ones that still wait go. Only who had waited longer than it has been outrun."""
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
    """What may be expected of the pilots at the sites that a factory chooses among."""

    active: int = 0
    hopeful: int = 0
    """Groups of which one runs, or has not waited for too long."""
    hopeless: list[list[Pilot]] = field(default_factory=list)
    """Groups that wait for too long, all of them; the longest wait first. They are not counted on any more."""
    silent: dict[str, None] = field(default_factory=dict)
    """Sites where somebody waits for too long and nobody runs."""

    @property
    def pending(self) -> int:
        return self.hopeful - self.active


def sort_out(round_: ProposalRound, patience_s: float) -> WaitOutlook:
    """Tell those that may still start from those that have waited for too long. Where none of ours runs, only the oldest of these keeps its
    place: the queue may just be long, and then somebody must stay to find out. The others go, if there is another site to try."""
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
    """Where waits are known to be long, patience is too."""
    waits = [event.seconds for event in view.history if event.kind == JOINED][-RECENT_WAITS:]
    patience = max([patience_s, *(2 * wait for wait in waits)])
    waiting = [pilot for pilot in view.pilots if is_queued(pilot) and pilot.id not in round_.prospect.demand.spare]
    for pilot in waiting:
        round_.look_again(pilot.requested_at + patience)
    return [pilot for pilot in waiting if round_.now >= pilot.requested_at + patience]
