"""Keeps pilots and the history of sites as parts of the state. Only ``core/apply.py`` changes them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pilotfish.model.site import PilotSize, Site, SiteEvent
from pilotfish.model.states import REQUESTED

KEPT_EVENTS = 200
"""So much of its past is kept of each site."""


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
    """How many of its agents have come so far, one on each of its nodes."""
    workers: list[str] = field(default_factory=list)
    """Those of them that are here."""
    instead_of: str = ""
    by_hand: bool = False
    withdrawn: str = ""
    """Why it was withdrawn, in one word."""

    @property
    def cores(self) -> float:
        return self.size.all_cores


@dataclass(slots=True)
class SiteRecord:
    """A site as its person describes it, how this pool uses it, and what its pilots have taught us."""

    bad_starts: int = 0
    """Pilots in a row that ended without ever joining."""
    last_bad_at: float = 0.0
    last_bad: str = ""
    """What the last of them said."""
    held: str = ""
    site: Site | None = None
    wanted: int | None = None
    """So many pilots shall be there while there is work; -1: as many as pay; None: the pool does not use it."""
    events: int = 0
    """How many there have been; ``history`` has the latest."""
    leaving: bool = False
    """It was taken out, and its last pilots are on their way home."""
    lost_s: float = 0.0
    """So much of their time pilots there have lost, of late, before their agents could use it, or must keep for the end."""
    history: deque[SiteEvent] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))
