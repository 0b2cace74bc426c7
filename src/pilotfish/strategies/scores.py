"""Swift's numbers: how a site's score moves, what is made of it, and how long a wait is too long. Formulas and settings only."""

from __future__ import annotations

import math
from dataclasses import dataclass

WEIGHTED, BEST = "weighted", "best"

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
