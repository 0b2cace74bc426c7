"""What a strategy sees: the sites with their pilots and their past, and the work that waits. It answers with wishes, and their reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pilotfish.core.state import Pilot, State
from pilotfish.model.site import PilotSize, Site

SUBMITTED, JOINED, SUCCEEDED, FAILED, EXPIRED, WITHDRAWN = "submitted", "joined", "succeeded", "failed", "expired", "withdrawn"
"""What happens to pilots at a site. Submitted: the site took it, after so many seconds. Joined: its first agent is here, so long after it
was requested. Succeeded: it ended in order after it had joined. Failed: it ended otherwise, or was refused. Expired: its time was over,
which is in order too. Withdrawn: we cancelled it while it waited, after so many seconds."""


@dataclass(slots=True, frozen=True)
class SiteEvent:
    """One thing that happened to one pilot at a site. ``cause`` tells one kind of failure from another."""

    at: float
    site: str
    kind: str
    pilot: str
    seconds: float = 0.0
    cause: str = ""


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


@dataclass(slots=True)
class Demand:
    """The work that waits and that no worker, present or on its way, has room for. ``sizes``: pilots that would take all of it, the most
    useful first; each says the least that a pilot must have, so that some waiting task fits it."""

    cores: float = 0.0
    tasks: int = 0
    sizes: list[PilotSize] = field(default_factory=list)


@dataclass(slots=True)
class Prospect:
    state: State
    sites: list[SiteView]
    demand: Demand
    now: float


@dataclass(slots=True)
class PilotWish:
    """One more pilot at a site. ``replaces``: a queued pilot that has waited too long; whichever starts first cancels the other."""

    site: str
    size: PilotSize
    reason: str
    replaces: str = ""


@dataclass(slots=True)
class PilotWithdrawal:
    """Cancel a pilot that waits at its site, or have the worker of an active one finish and go."""

    pilot: str
    reason: str


class Factory(Protocol):
    """A strategy over several sites. It may remember: it hears every event, and after a restart the latest ones again."""

    def hear(self, event: SiteEvent) -> None: ...

    def propose(self, prospect: Prospect) -> Sequence[PilotWish | PilotWithdrawal]: ...

    def next_look_at(self, prospect: Prospect) -> float | None:
        """When to ask again even if nothing happens."""
