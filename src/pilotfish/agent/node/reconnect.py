"""When an agent dials its master: at once after a connection that held for a while; later and later, and never in step with others, after
failures. Pure; ``machine.py`` is the only user.
"""

from __future__ import annotations

import random

from .attempts import NEVER


class Reconnect:
    def __init__(self, seed: int, now: float) -> None:
        self.at = now
        """When to dial next."""
        self.last = -NEVER
        self.failures = 0
        self._random = random.Random(seed)

    def plan(self, now: float) -> None:
        """A connection is gone, or a dial led to nothing."""
        self.failures += 1
        if self.failures == 1 and now - self.last >= REDIAL_APART_S:
            self.at = now
            return
        wait = min(REDIAL_MOST_S, REDIAL_FIRST_S * 2.0 ** min(self.failures, 10))
        self.at = now + wait * (0.5 + 0.5 * self._random.random())


# How long an agent waits, and for what.

DIAL_TIMEOUT_S = 20.0
REDIAL_FIRST_S = 0.1
REDIAL_MOST_S = 5.0
REDIAL_APART_S = 1.0
REFUSALS = 3
SILENT_BEATS = 3
STALL_S = 1.0
LINGER_S = 0.05
RESULTS_APART_S = 0.02
WARN_S = 60.0
"""So long before its end an agent takes no more work, and warns what runs; but not before the last part of its time."""
WARN_SHARE = 0.2
MOVING_BEAT_S = 1.0
"""Somebody may be watching while contents are under way."""
UNREADABLE = 5
"""After so many frames in a row that make no sense an agent gives up."""
