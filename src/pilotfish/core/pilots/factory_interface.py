"""Defines what a factory sees and what it can propose."""

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
"""Causes for the withdrawal of a queued pilot. Outrun and relieved: one pilot of a group (a pilot and its replicas) joined, and the others
are withdrawn. Outrun: this pilot was requested before the pilot that joined. Relieved: this pilot was requested after it. Overdue: the
pilot waited too long. Unneeded: there is no more work for the pilot, or a user wants fewer pilots."""


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
    """Seconds of each pilot's walltime that tasks cannot use at this site."""
    traits: BackendTraits = UNKNOWN_TRAITS
    pythons: Sequence[str] = ()
    """Minor versions of Python that workers of the site had; empty if no worker has joined yet."""


@dataclass(slots=True)
class Demand:
    """The waiting tasks, and the pilots that they need in addition to the present workers and the requested pilots.

    ``tasks`` is the number of all ready tasks that fit a usable site. ``cores`` and ``sizes`` do not count tasks for which a connected
    worker or a requested pilot has room. They also do not count short tasks that should run one after another on the same core. ``sizes``
    has the size of the smallest pilot for each remaining task, with at most ``unmet_demand.MAX_SIZES`` entries.
    """

    cores: float = 0.0
    tasks: int = 0
    sizes: list[PilotSize] = field(default_factory=list)
    spare: list[str] = field(default_factory=list)
    """Pilots that have not joined yet and that no waiting task needs any more."""
    needed: dict[str, PilotSize] = field(default_factory=dict)
    """Pilots that have not joined yet and that waiting tasks need. Values: minimum size of a pilot that could serve these tasks instead. A
    pilot and its replicas are needed for the same tasks."""
    needed_at: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For each pilot in ``needed``: the sites where such a pilot is allowed to run; empty: any site."""
    places: list[tuple[str, ...]] = field(default_factory=list)
    """For each entry of ``sizes``: the sites where the waiting task is allowed to run; empty: any site."""


@dataclass(slots=True)
class FactoryView:
    state: State
    sites: list[SiteView]
    demand: Demand
    now: float


@dataclass(slots=True)
class PilotProposal:
    """Request one more pilot at a site. ``replaces``: a pilot that has waited too long, if the new pilot is a replica of that pilot. When
    one of the two pilots starts, the other pilot is cancelled."""

    site: str
    size: PilotSize
    reason: str
    replaces: str = ""


@dataclass(slots=True)
class WithdrawalProposal:
    """Cancel a queued pilot, or drain the workers of an active pilot. ``cause``: one word for the reason, for the history of the site."""

    pilot: str
    reason: str
    cause: str = ""


class Factory(Protocol):
    """Decides which pilots to request at which site. A factory can build up its own state, because ``on_event`` receives every event of
    every site. After a restart of the master, ``on_event`` receives the latest events again, so that the factory can restore this state."""

    def on_event(self, event: SiteEvent) -> None: ...

    def propose(self, view: FactoryView) -> Sequence[PilotProposal | WithdrawalProposal]: ...

    def standing(self, view: SiteView, now: float) -> dict[str, object]:
        """Returns how the factory rates a site, as a row for users. The row can have the keys ``fitness``, ``score`` and ``set``."""

    def next_look_at(self, view: FactoryView) -> float | None:
        """Returns the time at which to call ``propose`` again, even if nothing happens; None: only an event causes the next call."""
