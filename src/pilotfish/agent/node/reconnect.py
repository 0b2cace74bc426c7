"""Decides when to dial the master again, and holds the time-outs of the agent.

After a connection that lasted a while the agent dials at once. After failures it waits longer each time, with a random part so that agents
do not dial in step. Pure.
"""

from __future__ import annotations

import random

from .attempts import NEVER

DIAL_TIMEOUT_S = 20.0
REDIAL_FIRST_S = 0.1
MAX_REDIAL_S = 5.0
REDIAL_APART_S = 1.0
"""Minimum seconds between two dials without a wait."""
MAX_REFUSALS = 3
"""Maximum refusals in a row until the agent exits."""
SILENT_HEARTBEATS = 3
"""Heartbeat intervals of silence until the agent disconnects."""
STALL_S = 1.0
"""A turn later than this means that the agent itself was suspended."""
LINGER_S = 0.05
"""Seconds of silence until a polling agent disconnects."""
RESULTS_APART_S = 0.02
"""Seconds between two frames of results while more attempts are queued."""
WARN_S = 60.0
"""Seconds before the end of the walltime at which the agent drains and sends signals, but not before the last ``WARN_SHARE`` of it."""
WARN_SHARE = 0.2
TRANSFER_HEARTBEAT_S = 1.0
"""Seconds between heartbeats during transfers: users may be watching the progress."""
MAX_UNREADABLE = 5
"""Maximum unreadable messages in a row until the agent exits."""


class Reconnect:
    def __init__(self, seed: int, now: float) -> None:
        self.at = now
        """When to dial next."""
        self.last = -NEVER
        self.failures = 0
        self._random = random.Random(seed)

    def plan(self, now: float) -> None:
        """Plan the next dial after a lost connection or failed dial."""
        self.failures += 1
        if self.failures == 1 and now - self.last >= REDIAL_APART_S:
            self.at = now
            return
        wait = min(MAX_REDIAL_S, REDIAL_FIRST_S * 2.0 ** min(self.failures, 10))
        self.at = now + wait * (0.5 + 0.5 * self._random.random())
