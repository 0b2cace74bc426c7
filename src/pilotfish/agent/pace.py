"""How long an agent waits, and for what."""

from __future__ import annotations

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
