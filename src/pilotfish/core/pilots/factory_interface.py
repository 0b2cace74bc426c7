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
"""Why a pilot was withdrawn while it waited. Outrun: one that was asked for later, in its stead, joined first. Relieved: one that had
waited longer joined after all. Overdue: it waited for too long. Unneeded: there was no work for it any more, or a person wants fewer."""


@dataclass(slots=True)
class SiteView:
    """One site that may be used: neither paused nor held."""

    name: str
    site: Site
    pilots: list[Pilot]
    """Those that are there: requested, submitted or active."""
    history: Sequence[SiteEvent] = ()
    """The latest of its events, oldest first."""
    wanted: int = -1
    """So many pilots shall be kept there, because a person said so; -1: as many as pay."""
    lost_s: float = 0.0
    """So much of its time a pilot there cannot use."""
    traits: BackendTraits = UNKNOWN_TRAITS
    """What the backend of the site can do."""


@dataclass(slots=True)
class Demand:
    """The work that waits and that no worker, present or on its way, has room for. ``sizes``: pilots that would take all of it, the most
    useful first; each says the least that a pilot must have, so that some waiting task fits it."""

    cores: float = 0.0
    tasks: int = 0
    sizes: list[PilotSize] = field(default_factory=list)
    spare: list[str] = field(default_factory=list)
    """Pilots on their way that no waiting work needs any more."""
    awaited: dict[str, PilotSize] = field(default_factory=dict)
    """Pilots on their way that waiting work counts on: the least that another must have to take its place. A pilot and those that were
    asked for in its stead count once."""
    awaited_at: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For each of these, the sites that would do. None: any."""
    places: list[tuple[str, ...]] = field(default_factory=list)
    """For each of the sizes, the sites that would do. Empty: any."""


@dataclass(slots=True)
class FactoryView:
    state: State
    sites: list[SiteView]
    demand: Demand
    now: float


@dataclass(slots=True)
class PilotProposal:
    """One more pilot at a site. ``replaces``: a queued pilot that has waited too long; whichever starts first cancels the other."""

    site: str
    size: PilotSize
    reason: str
    replaces: str = ""


@dataclass(slots=True)
class WithdrawalProposal:
    """Cancel a pilot that waits at its site, or have the worker of an active one finish and go. ``cause``: one word, which the event says
    again when it is done."""

    pilot: str
    reason: str
    cause: str = ""


class Factory(Protocol):
    """A strategy over several sites. It may remember: it hears every event, and after a restart the latest ones again."""

    def hear(self, event: SiteEvent) -> None: ...

    def propose(self, prospect: FactoryView) -> Sequence[PilotProposal | WithdrawalProposal]: ...

    def standing(self, view: SiteView, now: float) -> dict[str, object]:
        """What it thinks of a site, for people: its fitness, score or set, if it has such."""

    def next_look_at(self, prospect: FactoryView) -> float | None:
        """When to ask again even if nothing happens."""
