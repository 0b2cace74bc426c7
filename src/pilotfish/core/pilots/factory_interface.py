"""Defines what a factory sees and can propose."""

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

Outrun: its replica, which was requested later, joined first. Relieved: it is a replica, and the first pilot joined before it. Overdue: it
waited too long. Unneeded: there is no more work for it, or a user wants fewer pilots.
"""


@dataclass(slots=True)
class SiteView:
    """One usable site: neither paused nor held."""

    name: str
    site: Site
    pilots: list[Pilot]
    """Pilots of the site that are requested, submitted or active."""
    history: Sequence[SiteEvent] = ()
    """Latest events of the site, oldest first."""
    wanted: int = -1
    """Number of pilots that a user asked for; -1: as many as are worthwhile."""
    lost_s: float = 0.0
    """Seconds of its walltime that a pilot of the site cannot use."""
    traits: BackendTraits = UNKNOWN_TRAITS


@dataclass(slots=True)
class Demand:
    """Waiting tasks for which no present or coming worker has room.

    ``sizes``: sizes of pilots that would take all these tasks, the most useful first. Each size is the minimum for one of the tasks.
    """

    cores: float = 0.0
    tasks: int = 0
    sizes: list[PilotSize] = field(default_factory=list)
    spare: list[str] = field(default_factory=list)
    """Coming pilots that no waiting task needs any more."""
    needed: dict[str, PilotSize] = field(default_factory=dict)
    """Coming pilots that waiting tasks need, with the minimum size of a substitute. A pilot and its replicas count once."""
    needed_at: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For each pilot in ``needed``, the sites where a substitute may run; empty: any site."""
    places: list[tuple[str, ...]] = field(default_factory=list)
    """For each entry of ``sizes``, the sites where such a pilot may run; empty: any site."""


@dataclass(slots=True)
class FactoryView:
    state: State
    sites: list[SiteView]
    demand: Demand
    now: float


@dataclass(slots=True)
class PilotProposal:
    """Request one more pilot at a site. ``replaces``: a pilot that waits too long. When one of the two starts, the other is cancelled."""

    site: str
    size: PilotSize
    reason: str
    replaces: str = ""


@dataclass(slots=True)
class WithdrawalProposal:
    """Cancel a queued pilot, or drain the workers of an active pilot. ``cause``: one word, which the event of the pilot's end repeats."""

    pilot: str
    reason: str
    cause: str = ""


class Factory(Protocol):
    """Requests pilots at several sites. It can keep state: it receives every event. After a restart, it gets the latest events again."""

    def on_event(self, event: SiteEvent) -> None: ...

    def propose(self, view: FactoryView) -> Sequence[PilotProposal | WithdrawalProposal]: ...

    def standing(self, view: SiteView, now: float) -> dict[str, object]:
        """Returns how the factory rates a site, as a row for users. It can have the keys ``fitness``, ``score`` and ``set``."""

    def next_look_at(self, view: FactoryView) -> float | None:
        """Returns the time of the next call if nothing happens before; None: no call is needed."""
