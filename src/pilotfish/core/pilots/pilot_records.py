"""Defines pilots and the history of sites, which are parts of the state. Only ``core/apply.py`` changes them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pilotfish.model.site import PilotSize, Site, SiteEvent
from pilotfish.model.states import REQUESTED

MAX_EVENTS = 200
"""Maximum events that are kept for each site."""


@dataclass(slots=True)
class Pilot:
    id: str
    site: str
    size: PilotSize
    requested_at: float
    state: int = REQUESTED
    job: str = ""
    reason: str = ""
    joined: int = 0
    """Number of the pilot's agents that have joined. There is one agent on each node."""
    workers: list[str] = field(default_factory=list)
    """Names of the pilot's agents that are workers now."""
    replica_of: str = ""
    by_user: bool = False
    withdrawn: str = ""
    """Cause of the withdrawal, in one word."""

    @property
    def cores(self) -> float:
        return self.size.all_cores


@dataclass(slots=True)
class SiteRecord:
    """A site: its configuration, its use by this pool, and the history of its pilots."""

    bad_starts: int = 0
    """Number of consecutive pilots that ended before an agent joined. Pilots that ended together count as one."""
    last_bad_at: float = 0.0
    last_bad: str = ""
    """Message of the last pilot that ended before an agent joined."""
    held: str = ""
    site: Site | None = None
    wanted: int | None = None
    """Number of pilots to keep while there is work; -1: as many as are worthwhile; None: the pool does not use the site."""
    events: int = 0
    """Total number of events. ``history`` has the latest events."""
    leaving: bool = False
    """Whether the user removed the site and its last pilots are still ending."""
    lost_s: float = 0.0
    """Seconds of walltime that recent pilots could not use for tasks: seconds before the agents joined, and seconds reserved for the
    end."""
    pythons: list[str] = field(default_factory=list)
    """Minor versions of Python of the workers that the site had since the last change of its configuration."""
    history: deque[SiteEvent] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
