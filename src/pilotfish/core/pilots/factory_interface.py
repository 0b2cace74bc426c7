"""Defines what a factory sees and may propose: sites with their pilots and history, and the waiting work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.core.state import State
from pilotfish.model.backend_traits import UNKNOWN_TRAITS, BackendTraits
from pilotfish.model.site import EXPIRED, FAILED, JOINED, RELEASED, SUBMITTED, SUCCEEDED, WITHDRAWN, PilotSize, Site, SiteEvent

__all__ = ["EXPIRED", "FAILED", "JOINED", "RELEASED", "SUBMITTED", "SUCCEEDED", "WITHDRAWN", "SiteEvent"]

OUTRUN, RELIEVED, OVERDUE, UNNEEDED = "outrun", "relieved", "overdue", "unneeded"
"""Causes of withdrawing a queued pilot.

Outrun: its replica, requested later, joined first. Relieved: it is a replica, and the pilot that had waited longer joined first. Overdue:
it waited too long. Unneeded: there is no more work for it, or a user wants fewer pilots.
"""


@dataclass(slots=True)
class SiteView:
    """One usable site: neither paused nor held."""

    name: str
    site: Site
    pilots: list[Pilot]
    """Its pilots that are requested, submitted or active."""
    history: Sequence[SiteEvent] = ()
    """Its latest events, oldest first."""
    wanted: int = -1
    """Number of pilots that a user asked for; -1: as many as are worthwhile."""
    lost_s: float = 0.0
    """Seconds of the walltime that a pilot there cannot use."""
    traits: BackendTraits = UNKNOWN_TRAITS


@dataclass(slots=True)
class Demand:
    """Waiting work for which no present or coming worker has room.

    ``sizes``: pilots that would take all of it, the most useful first. Each is the minimum that a pilot needs to take some waiting task.
    """

    cores: float = 0.0
    tasks: int = 0
    sizes: list[PilotSize] = field(default_factory=list)
    spare: list[str] = field(default_factory=list)
    """Coming pilots that no waiting work needs any more."""
    needed: dict[str, PilotSize] = field(default_factory=dict)
    """Coming pilots that waiting work counts on, with the minimum size of a substitute. A pilot and its replicas count once."""
    needed_at: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For each of these pilots, the sites where a substitute may run. Empty: any."""
    places: list[tuple[str, ...]] = field(default_factory=list)
    """For each entry of ``sizes``, the sites where such a pilot may run. Empty: any."""


@dataclass(slots=True)
class FactoryView:
    state: State
    sites: list[SiteView]
    demand: Demand
    now: float


@dataclass(slots=True)
class PilotProposal:
    """Request one more pilot at a site. ``replaces``: a pilot that has been queued too long; the first to start cancels the other."""

    site: str
    size: PilotSize
    reason: str
    replaces: str = ""


@dataclass(slots=True)
class WithdrawalProposal:
    """Cancel a queued pilot, or drain the worker of an active one. ``cause``: one word, repeated in the event of its end."""

    pilot: str
    reason: str
    cause: str = ""


class Factory(Protocol):
    """Requests pilots at several sites. It may keep state: it receives every event, and after a restart the latest ones again."""

    def on_event(self, event: SiteEvent) -> None: ...

    def propose(self, view: FactoryView) -> Sequence[PilotProposal | WithdrawalProposal]: ...

    def standing(self, view: SiteView, now: float) -> dict[str, object]:
        """How it rates a site (fitness, score or set, if it has these), as a row for users."""

    def next_look_at(self, view: FactoryView) -> float | None:
        """Time of the next call even if nothing happens; None if there is none."""
