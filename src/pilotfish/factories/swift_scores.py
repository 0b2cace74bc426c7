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
"""The score of a site that comes back because one of its jobs succeeded, and of one that comes back because no other is left."""

FILE_OPERATION, TRANSFER = "file-operation", "transfer"
FILE_OPERATION_DONE, TRANSFER_DONE = "file-operation-done", "transfer-done"
"""Events that a host may tell beside those of pilots: something is being done at the site with files, and it is done."""


@dataclass(slots=True, frozen=True)
class SwiftSettings:
    """The names are those of the paper. What the paper leaves open has the value that the program came with."""

    workers: int = 0
    """So many pilots in all, replicas not counted; 0: as many as the work can use."""
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
    """The average queue time as long as none is known."""
    least_rest_s: float = 120.0
    """A hibernated site gets its new chance after this time at the soonest, and after twice as long each time that it fails again."""
    most_rest_s: float = 3600.0
    replication_limit: int = 2
    """So many replicas of one pilot; 0: none."""
    replication_min_queue_s: float = 900.0
    window_s: float = 4 * 3600.0
    """Queue times that were seen longer ago are forgotten."""
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
    """0 at the base time, and what one success is worth, lost, at the greatest."""
    return submission_time_bias(settings) + submission_time_factor(settings) * milliseconds / 1000


def t_score(settings: SwiftSettings, score: float) -> float:
    """The score, bounded: between 1/scoreHighCap and scoreHighCap for B = 2, and 1 for 0."""
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
    """Why; empty if it is not."""
    since: float = 0.0
    sleeps: int = 0
    """How often it was hibernated since it last did well."""
    moves_of_files: list[tuple[float, str]] = field(default_factory=list)
    """Begun and not done yet."""


class SiteScores:
    """The score of each site, and the sites that are hibernated."""

    def __init__(self, settings: SwiftSettings) -> None:
        self._settings = settings
        self._of: dict[str, SiteScore] = {}
        self._asleep: dict[str, None] = {}
        """First in, first out."""
        self._waits: deque[tuple[float, float]] = deque(maxlen=KEPT_WAITS)
        self._wait_of: dict[str, float] = {}
        self._judged: dict[str, None] = {}

    def of(self, site: str) -> SiteScore:
        return self._of.setdefault(site, SiteScore(self._settings.initial_score))

    def asleep(self) -> list[str]:
        return list(self._asleep)

    def throttle(self, now: float) -> float:
        """queueTimeThrottle: a longer wait than this hibernates a site."""
        return queue_time_throttle(self._settings, [wait for at, wait in self._waits if at >= now - self._settings.window_s])

    def load(self, site: str, now: float) -> float:
        """What is under way with files there weighs on the score until it is done, or until it is so old that its end was missed."""
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
        """Has this pilot waited too long? A site is judged once for each."""
        if pilot not in self._judged and wait > self.throttle(now):
            self._judged[pilot] = None
            self.hibernate(site, LONG_QUEUE, now)

    def hibernate(self, site: str, why: str, at: float) -> None:
        """It joins the end of the queue, unless it is in it. After a time it must have been woken, even if we only hear of it again."""
        standing = self.of(site)
        if not standing.hibernated or at >= self.rested_at(site):
            self._asleep.pop(site, None)
            self._asleep[site] = None
            standing.since = at
            standing.sleeps += 1
        standing.hibernated = why

    def rested_at(self, site: str) -> float:
        """It gets its new chance after an amount of time, and after twice that if it comes to nothing again."""
        standing = self.of(site)
        return standing.since + min(self._settings.most_rest_s, self._settings.least_rest_s * 2.0 ** min(standing.sleeps - 1, 30))

    def wake(self, site: str) -> None:
        self._return(site, WOKEN_WITH)

    def notice_survivor(self, pilot: Pilot, now: float) -> None:
        """One of its pilots works on. Like a job that ends well after another failed, this says that the failure was not the site's."""
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
