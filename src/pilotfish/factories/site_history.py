"""Summarises the recent pilots of a site: how many succeeded, how long they waited, and whether pilots fail there now."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pilotfish.core.pilots.factory_interface import EXPIRED, FAILED, JOINED, OUTRUN, OVERDUE, RELEASED, SUCCEEDED, WITHDRAWN, SiteView
from pilotfish.factories.site_limits import is_active, is_queued

PROVEN_S = 300.0
"""If a pilot has run this many seconds, its site works, even if the pilot fails later."""


@dataclass(slots=True)
class SiteHistory:
    queued: int = 0
    running: int = 0
    succeeded: int = 0
    """Pilots that ended without error, or that joined and ran until the end of their walltime."""
    failed: int = 0
    """Pilots that failed, or were withdrawn because they waited too long."""
    waits: list[float] = field(default_factory=list)
    """Queue waits of pilots that joined, in seconds. The latest wait is the last."""
    fresh: int = 0
    """Queued pilots that were requested less than ``PROVEN_S`` seconds ago."""
    stale_at: float = 0.0
    """Time at which the first of the ``fresh`` pilots is no longer fresh."""
    longest_wait: float = 0.0
    """Longest wait of a pilot that is still queued, in seconds."""
    setbacks: int = 0
    """Number of failures in a row, without two kinds of failures: failures during a back-off, and failures of pilots that had run for
    ``PROVEN_S`` seconds."""
    last_setback_at: float = 0.0
    not_before: float = 0.0
    proven: bool = False
    """Whether a pilot succeeded or ran for ``PROVEN_S`` seconds."""

    @property
    def all(self) -> int:
        return self.queued + self.running + self.succeeded + self.failed


@dataclass(slots=True, frozen=True)
class BackOff:
    """Delay after failures: ``first_s`` after the first failure, doubled with each further failure, at most ``max_s``."""

    first_s: float = 30.0
    max_s: float = 3600.0

    def delay(self, setbacks: int) -> float:
        return float(min(self.max_s, self.first_s * 2.0 ** min(setbacks - 1, 30)))


def read_record(view: SiteView, now: float, window_s: float, back_off: BackOff | None = None) -> SiteHistory:
    """Summarises the present pilots of a site, and its events of the last ``window_s`` seconds."""
    record = SiteHistory()
    back_off = back_off or BackOff()
    joined: dict[str, float] = {}
    for event in view.history:
        if event.kind == JOINED:
            joined[event.pilot] = event.at
        if event.at < now - window_s:
            continue
        if event.kind == JOINED:
            record.waits.append(event.seconds)
        elif event.kind == SUCCEEDED or (event.kind == EXPIRED and event.pilot in joined):
            record.succeeded += 1
            record.proven = True
            record.setbacks, record.not_before = 0, 0.0
        elif event.kind in (FAILED, EXPIRED):
            record.failed += 1
            if event.at - joined.get(event.pilot, event.at) < PROVEN_S:
                _note_setback(record, event.at, back_off)
            else:
                record.proven = True
        elif event.kind == RELEASED:
            record.setbacks, record.not_before = 0, 0.0
        elif event.kind == WITHDRAWN and event.cause in (OUTRUN, OVERDUE):
            record.failed += 1
    _count_present(record, view, joined, now)
    return record


def _note_setback(record: SiteHistory, at: float, back_off: BackOff) -> None:
    if at >= record.not_before:
        record.setbacks += 1
        record.last_setback_at = at
        record.not_before = at + back_off.delay(record.setbacks)


def _count_present(record: SiteHistory, view: SiteView, joined: dict[str, float], now: float) -> None:
    for pilot in view.pilots:
        if is_queued(pilot):
            record.queued += 1
            record.longest_wait = max(record.longest_wait, now - pilot.requested_at)
            if now - pilot.requested_at < PROVEN_S:
                record.fresh += 1
                record.stale_at = min(record.stale_at or math.inf, pilot.requested_at + PROVEN_S)
        elif is_active(pilot):
            record.running += 1
            started_at = joined.get(pilot.id, pilot.requested_at)
            if now - started_at >= PROVEN_S:
                record.proven = True
            if now - started_at >= PROVEN_S and started_at >= record.last_setback_at:
                record.setbacks, record.not_before = 0, 0.0
