"""Computes Swift's score formulas, and moves the score of each site with its events.

Replaying the events rebuilds the scores.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from pilotfish.core.pilots.factory_interface import (
    EXPIRED,
    FAILED,
    JOINED,
    OUTRUN,
    RELEASED,
    SUBMITTED,
    SUCCEEDED,
    WITHDRAWN,
    SiteEvent,
)
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.factories.site_history import PROVEN_S

WEIGHTED, BEST = "weighted", "best"
KEPT_WAITS = 100
FAILURE, LONG_QUEUE = "a failure", "too long a wait"
BACK_WITH, WOKEN_WITH = 1.0, 0.0
"""Score of a site that returns because a job there succeeded, and of one that is woken because no candidate is left."""

FILE_OPERATION, TRANSFER = "file-operation", "transfer"
FILE_OPERATION_DONE, TRANSFER_DONE = "file-operation-done", "transfer-done"
"""Events of file operations and transfers at a site, which a host may report beside those of pilots."""


@dataclass(slots=True, frozen=True)
class SwiftSettings:
    """Parameters, named as in the paper. What the paper leaves open has the default of the Swift program."""

    workers: int = 0
    """Maximum pilots in all, without pilot replicas; 0: as many as the work can use."""
    choice: str = WEIGHTED
    initial_score: float = 0.0
    submission_load_factor: float = 0.2
    file_operation_load_factor: float = 0.01
    transfer_load_factor: float = 0.2
    success_factor: float = 1.0
    failure_factor: float = 5.0
    queue_time_factor: float = 1.0
    score_high_cap: float = 100.0
    b: float = 2.0
    c: float = 0.2
    job_throttle: float = 2.0
    max_submission_s: float = 20.0
    base_submission_s: float = 0.1
    queue_time_margin_s: float = 600.0
    """The ``c`` that is added to the average queue time."""
    first_queue_time_s: float = 3600.0
    """Assumed average queue time while none is known."""
    least_rest_s: float = 120.0
    """Minimum seconds of hibernation; doubled each time that the site fails again."""
    most_rest_s: float = 3600.0
    replication_limit: int = 2
    """Maximum replicas of one pilot; 0: none."""
    replication_min_queue_s: float = 900.0
    window_s: float = 4 * 3600.0
    """Seconds until a queue time is forgotten."""
    period_s: float = 10.0

    def __post_init__(self) -> None:
        if self.choice not in (WEIGHTED, BEST):
            raise ValueError(f"choice is {self.choice!r}; it must be {WEIGHTED!r} or {BEST!r}")
        if self.max_submission_s <= self.base_submission_s:
            raise ValueError(
                f"max_submission_s is {self.max_submission_s:g}; it must be more than base_submission_s, {self.base_submission_s:g}"
            )


def submission_time_factor(settings: SwiftSettings) -> float:
    return -settings.success_factor / (settings.max_submission_s - settings.base_submission_s)


def submission_time_bias(settings: SwiftSettings) -> float:
    return -settings.base_submission_s * submission_time_factor(settings)


def submission_time_delta(settings: SwiftSettings, milliseconds: float) -> float:
    """Change of the score: 0 at the base submission time, minus one success at the maximum."""
    return submission_time_bias(settings) + submission_time_factor(settings) * milliseconds / 1000


def t_score(settings: SwiftSettings, score: float) -> float:
    """Bounded score: between 1/scoreHighCap and scoreHighCap for B = 2; a score of 0 gives 1."""
    return math.exp(settings.b * math.log(settings.score_high_cap) / math.pi * math.atan(settings.c * score))


def max_jobs(settings: SwiftSettings, score: float) -> float:
    return 1 + settings.job_throttle * t_score(settings, score)


def queue_time_throttle(settings: SwiftSettings, waits: list[float]) -> float:
    average = sum(waits) / len(waits) if waits else settings.first_queue_time_s
    return average + settings.queue_time_margin_s


@dataclass(slots=True)
class SiteScore:
    score: float
    hibernated: str = ""
    """Reason of the hibernation; empty if the site does not hibernate."""
    since: float = 0.0
    sleeps: int = 0
    """Number of hibernations since the last success."""
    moves_of_files: list[tuple[float, str]] = field(default_factory=list)
    """File operations and transfers in progress: when each began, and its kind."""


class SiteScores:
    def __init__(self, settings: SwiftSettings) -> None:
        self._settings = settings
        self._of: dict[str, SiteScore] = {}
        self._asleep: dict[str, None] = {}
        """Hibernating sites, first in, first out."""
        self._waits: deque[tuple[float, float]] = deque(maxlen=KEPT_WAITS)
        self._wait_of: dict[str, float] = {}
        self._judged: dict[str, None] = {}

    def of(self, site: str) -> SiteScore:
        return self._of.setdefault(site, SiteScore(self._settings.initial_score))

    def asleep(self) -> list[str]:
        return list(self._asleep)

    def throttle(self, now: float) -> float:
        """queueTimeThrottle: seconds of queue wait that hibernate a site."""
        return queue_time_throttle(self._settings, [wait for at, wait in self._waits if at >= now - self._settings.window_s])

    def load(self, site: str, now: float) -> float:
        """Load of file operations and transfers in progress. One older than the window is ignored: its end was missed."""
        factors = {FILE_OPERATION: self._settings.file_operation_load_factor, TRANSFER: self._settings.transfer_load_factor}
        return sum(factors[kind] for at, kind in self.of(site).moves_of_files if at >= now - self._settings.window_s)

    def hear(self, event: SiteEvent) -> None:
        standing = self.of(event.site)
        if event.kind == SUBMITTED:
            standing.score += min(0.0, submission_time_delta(self._settings, event.seconds * 1000))
        elif event.kind == JOINED:
            self._waits.append((event.at, event.seconds))
            self._wait_of[event.pilot] = event.seconds
            if not standing.hibernated:
                standing.score += self._settings.success_factor
        elif event.kind == SUCCEEDED or (event.kind == EXPIRED and event.pilot in self._wait_of):
            self._succeeded(event)
        elif event.kind in (FAILED, EXPIRED):
            self._wait_of.pop(event.pilot, None)
            standing.score = min(0.0, standing.score - self._settings.failure_factor)
            self.hibernate(event.site, FAILURE, event.at)
        elif event.kind == RELEASED and standing.hibernated:
            self.wake(event.site)
        elif event.kind == WITHDRAWN and event.cause == OUTRUN:
            standing.score -= self._settings.queue_time_factor
            self.judge(event.site, event.pilot, event.seconds, event.at)
        elif event.kind in (FILE_OPERATION, TRANSFER):
            standing.moves_of_files.append((event.at, event.kind))
        elif event.kind in (FILE_OPERATION_DONE, TRANSFER_DONE):
            _end_of_move(standing, FILE_OPERATION if event.kind == FILE_OPERATION_DONE else TRANSFER)
        if event.kind in (SUCCEEDED, EXPIRED, FAILED, WITHDRAWN):
            self._judged.pop(event.pilot, None)

    def judge(self, site: str, pilot: str, wait: float, now: float) -> None:
        """Hibernate a site if this pilot has waited too long; once per pilot."""
        if pilot not in self._judged and wait > self.throttle(now):
            self._judged[pilot] = None
            self.hibernate(site, LONG_QUEUE, now)

    def hibernate(self, site: str, why: str, at: float) -> None:
        """Put a site at the end of the hibernation queue, unless it hibernates and its rest is not over. After the rest it counts as
        woken, even without an event."""
        standing = self.of(site)
        if not standing.hibernated or at >= self.rested_at(site):
            self._asleep.pop(site, None)
            self._asleep[site] = None
            standing.since = at
            standing.sleeps += 1
        standing.hibernated = why

    def rested_at(self, site: str) -> float:
        """End of the rest, which doubles with each hibernation since the last success."""
        standing = self.of(site)
        return standing.since + min(self._settings.most_rest_s, self._settings.least_rest_s * 2.0 ** min(standing.sleeps - 1, 30))

    def wake(self, site: str) -> None:
        self._return(site, WOKEN_WITH)

    def notice_survivor(self, pilot: Pilot, now: float) -> None:
        """Wake a site whose pilot keeps working. Like a success after a failure, it shows that the failure was not the site's."""
        standing = self.of(pilot.site)
        started_at = pilot.requested_at + self._wait_of.get(pilot.id, 0.0)
        if standing.hibernated == FAILURE and now - max(started_at, standing.since) >= PROVEN_S:
            self._return(pilot.site, BACK_WITH)

    def _succeeded(self, event: SiteEvent) -> None:
        standing = self.of(event.site)
        wait = self._wait_of.pop(event.pilot, 0.0)
        standing.sleeps = 0
        too_long = wait > self.throttle(event.at)
        if standing.hibernated and not too_long:
            self._return(event.site, BACK_WITH)
        elif not standing.hibernated:
            standing.score += self._settings.success_factor
        if too_long and not self._settings.replication_limit:
            self.hibernate(event.site, LONG_QUEUE, event.at)

    def _return(self, site: str, score: float) -> None:
        standing = self.of(site)
        standing.hibernated = ""
        standing.score = score
        self._asleep.pop(site, None)


def _end_of_move(standing: SiteScore, kind: str) -> None:
    for number, (_, begun) in enumerate(standing.moves_of_files):
        if begun == kind:
            del standing.moves_of_files[number]
            return
