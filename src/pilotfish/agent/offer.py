"""What an agent tells of itself when it joins."""

from __future__ import annotations

from typing import Any, Dict, Optional


class Offer:
    """``ends_at`` (on the machine's clock) is when its node is taken away; None: never."""

    def __init__(self, worker: str, pilot: str, capacity: Dict[str, float]) -> None:
        self.worker = worker
        self.pilot = pilot
        self.capacity = capacity
        self.tags: Dict[str, str] = {}
        self.info: Dict[str, Any] = {}
        self.ends_at: Optional[float] = None
        self.poll_s = 0.0
