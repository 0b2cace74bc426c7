"""What a courier works with: the pilots in its care, and the way to their site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pilotfish.backends.exchange import Exchange
from pilotfish.live.orders import Placed
from pilotfish.model.site import PilotSize


class Reach(Protocol):
    """How commands and files get to the site."""

    async def ask(self, exchange: Exchange[Any], submission: bool = False) -> Any:
        """Run its command there and read the answer; Unclear and Refused are raised."""

    async def place(self, tag: str, pilots: Sequence[str], size: PilotSize) -> Placed:
        """Where the files of an order shall lie; Unclear if that cannot be said now."""

    async def stage(self, placed: Placed) -> None:
        """Put the files of an order where its pilots find them; Unclear if that cannot be done now."""

    async def last_words(self, placed: Placed, number: int) -> str:
        """The end of what a pilot wrote; empty if there is none."""

    async def clear(self, placed: Placed) -> None:
        """Remove the files of an order."""


@dataclass(slots=True)
class Charge:
    """One pilot in our care."""

    pilot: str
    placed: Placed | None
    number: int
    job: str = ""
    cancelled: bool = False
    told: bool = False
    """The site has heard that it is cancelled."""
    misses: int = 0
    lingers: int = 0
    """So often was it seen since it was cancelled."""
    seen: tuple[bool, str] | None = None
