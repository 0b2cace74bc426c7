"""When an agent dials its master: at once after a connection that held for a while; later and later, and never in step with others, after
failures. Pure; ``machine.py`` is the only user."""

from __future__ import annotations

import random

from . import pace
from .work import NEVER


class Redial:
    def __init__(self, seed: int, now: float) -> None:
        self.at = now
        """When to dial next."""
        self.last = -NEVER
        self.failures = 0
        self._random = random.Random(seed)

    def plan(self, now: float) -> None:
        """A connection is gone, or a dial led to nothing."""
        self.failures += 1
        if self.failures == 1 and now - self.last >= pace.REDIAL_APART_S:
            self.at = now
            return
        wait = min(pace.REDIAL_MOST_S, pace.REDIAL_FIRST_S * 2.0 ** min(self.failures, 10))
        self.at = now + wait * (0.5 + 0.5 * self._random.random())
