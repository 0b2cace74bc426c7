"""Chooses sites by Swift's scores, with hibernation and replicas.

A site is drawn at random, weighted by its score. Sites where pilots fail or wait too long hibernate: they get no pilots for a while.
Overloaded sites get no more pilots. Pilots that wait too long get replicas. The score of a site is computed only from its events. After a
restart, the same events therefore give the same score.
"""

from __future__ import annotations

import math
import random
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
    SiteView,
)
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.factories.replication import PilotAssessment, assess_pilots, groups, withdraw_overdue
from pilotfish.factories.site_history import PROVEN_S
from pilotfish.factories.site_limits import ProposalRound, active_at, is_queued, queued_at
from pilotfish.factories.upkeep import BaseFactory
from pilotfish.model.states import REQUESTED

WEIGHTED, BEST = "weighted", "best"
KEPT_WAITS = 100
FAILURE, LONG_QUEUE = "a failure", "too long a wait"
BACK_WITH, WOKEN_WITH = 1.0, 0.0
"""New score of a site when its hibernation ends. BACK_WITH: a pilot of the site succeeded, or ran long enough to show that the site works.
WOKEN_WITH: no other candidate is left, or a user released the held site."""

FILE_OPERATION, TRANSFER = "file-operation", "transfer"
FILE_OPERATION_DONE, TRANSFER_DONE = "file-operation-done", "transfer-done"
"""Events of file operations and transfers at a site, which a host can report in addition to the events of pilots."""


@dataclass(slots=True, frozen=True)
class SwiftSettings:
    """Parameters, named as in the paper. If the paper gives no value, the default of the Swift program is used."""

    workers: int = 0
    """Maximum number of pilots, without pilot replicas; 0: as many as the work can use."""
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
    """Seconds that are added to the average queue time (``c`` in the paper)."""
    first_queue_time_s: float = 3600.0
    """Assumed average queue time while no queue time is known."""
    min_rest_s: float = 120.0
    """Minimum seconds of hibernation. Each further failure of the site doubles this minimum."""
    max_rest_s: float = 3600.0
    replication_limit: int = 2
    """Maximum replicas of one pilot; 0: no replicas."""
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
    """Returns the score change for a submission that took ``milliseconds``. The change is linear in this time: 0 for ``base_submission_s``
    seconds, and minus ``success_factor`` for ``max_submission_s`` seconds."""
    return submission_time_bias(settings) + submission_time_factor(settings) * milliseconds / 1000


def t_score(settings: SwiftSettings, score: float) -> float:
    """Maps a score to a weight; score 0 gives 1. With the default ``b``, weights are from 1/``score_high_cap`` to ``score_high_cap``."""
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
    hibernations: int = 0
    """Number of hibernations since the last success."""
    file_operations: list[tuple[float, str]] = field(default_factory=list)
    """File operations and transfers in progress: when each began, and its kind."""


class SiteScores:
    def __init__(self, settings: SwiftSettings) -> None:
        self._settings = settings
        self._by_site: dict[str, SiteScore] = {}
        self.hibernating: dict[str, None] = {}
        """Hibernating sites, in the order in which their hibernation began."""
        self._waits: deque[tuple[float, float]] = deque(maxlen=KEPT_WAITS)
        self._wait_of: dict[str, float] = {}
        self._checked: dict[str, None] = {}

    def of(self, site: str) -> SiteScore:
        return self._by_site.setdefault(site, SiteScore(self._settings.initial_score))

    def throttle(self, now: float) -> float:
        """Returns the maximum queue wait in seconds (queueTimeThrottle in the paper). If a pilot waits longer, its site hibernates."""
        return queue_time_throttle(self._settings, [wait for at, wait in self._waits if at >= now - self._settings.window_s])

    def load(self, site: str, now: float) -> float:
        """Returns the load of file operations and transfers in progress. An operation or transfer counts as ended after ``window_s``
        seconds."""
        factors = {FILE_OPERATION: self._settings.file_operation_load_factor, TRANSFER: self._settings.transfer_load_factor}
        return sum(factors[kind] for at, kind in self.of(site).file_operations if at >= now - self._settings.window_s)

    def on_event(self, event: SiteEvent) -> None:
        site_score = self.of(event.site)
        if event.kind == SUBMITTED:
            site_score.score += min(0.0, submission_time_delta(self._settings, event.seconds * 1000))
        elif event.kind == JOINED:
            self._waits.append((event.at, event.seconds))
            self._wait_of[event.pilot] = event.seconds
            if not site_score.hibernated:
                site_score.score += self._settings.success_factor
        elif event.kind == SUCCEEDED or (event.kind == EXPIRED and event.pilot in self._wait_of):
            self._succeeded(event)
        elif event.kind in (FAILED, EXPIRED):
            self._wait_of.pop(event.pilot, None)
            site_score.score = min(0.0, site_score.score - self._settings.failure_factor)
            self.hibernate(event.site, FAILURE, event.at)
        elif event.kind == RELEASED and site_score.hibernated:
            self.wake(event.site, WOKEN_WITH)
        elif event.kind == WITHDRAWN and event.cause == OUTRUN:
            site_score.score -= self._settings.queue_time_factor
            self.check_wait(event.site, event.pilot, event.seconds, event.at)
        elif event.kind in (FILE_OPERATION, TRANSFER):
            site_score.file_operations.append((event.at, event.kind))
        elif event.kind in (FILE_OPERATION_DONE, TRANSFER_DONE):
            _end_operation(site_score, FILE_OPERATION if event.kind == FILE_OPERATION_DONE else TRANSFER)
        if event.kind in (SUCCEEDED, EXPIRED, FAILED, WITHDRAWN):
            self._checked.pop(event.pilot, None)

    def check_wait(self, site: str, pilot: str, wait: float, now: float) -> None:
        """Hibernates a site if this pilot has waited too long. One pilot causes at most one hibernation."""
        if pilot not in self._checked and wait > self.throttle(now):
            self._checked[pilot] = None
            self.hibernate(site, LONG_QUEUE, now)

    def hibernate(self, site: str, why: str, at: float) -> None:
        """Puts a site at the end of the hibernation queue. A site that already hibernates keeps its place in the queue until its minimum
        hibernation is over."""
        site_score = self.of(site)
        if not site_score.hibernated or at >= self.rested_at(site):
            self.hibernating.pop(site, None)
            self.hibernating[site] = None
            site_score.since = at
            site_score.hibernations += 1
        site_score.hibernated = why

    def rested_at(self, site: str) -> float:
        """Returns the time at which the minimum hibernation of the site ends. If no pilot has succeeded since the last hibernation, the
        minimum is twice as long as the last time, up to ``max_rest_s``."""
        site_score = self.of(site)
        return site_score.since + min(self._settings.max_rest_s, self._settings.min_rest_s * 2.0 ** min(site_score.hibernations - 1, 30))

    def notice_survivor(self, pilot: Pilot, now: float) -> None:
        """Wakes a site that hibernates because of a failure. The condition is that ``pilot`` has run there for at least ``PROVEN_S``
        seconds since the hibernation began, which shows that the site works."""
        site_score = self.of(pilot.site)
        started_at = pilot.requested_at + self._wait_of.get(pilot.id, 0.0)
        if site_score.hibernated == FAILURE and now - max(started_at, site_score.since) >= PROVEN_S:
            self.wake(pilot.site, BACK_WITH)

    def _succeeded(self, event: SiteEvent) -> None:
        site_score = self.of(event.site)
        wait = self._wait_of.pop(event.pilot, 0.0)
        site_score.hibernations = 0
        too_long = wait > self.throttle(event.at)
        if site_score.hibernated and not too_long:
            self.wake(event.site, BACK_WITH)
        elif not site_score.hibernated:
            site_score.score += self._settings.success_factor
        if too_long and not self._settings.replication_limit:
            self.hibernate(event.site, LONG_QUEUE, event.at)

    def wake(self, site: str, score: float) -> None:
        site_score = self.of(site)
        site_score.hibernated = ""
        site_score.score = score
        self.hibernating.pop(site, None)


def _end_operation(site_score: SiteScore, kind: str) -> None:
    for number, (_, begun) in enumerate(site_score.file_operations):
        if begun == kind:
            del site_score.file_operations[number]
            return


CANDIDATE, HIBERNATED, OVERLOADED = "candidate", "hibernated", "overloaded"


class SwiftFactory(BaseFactory):
    def __init__(self, settings: SwiftSettings, rng: random.Random) -> None:
        super().__init__(period_s=settings.period_s)
        self._settings = settings
        self._rng = rng
        self._scores = SiteScores(settings)

    def on_event(self, event: SiteEvent) -> None:
        self._scores.on_event(event)

    def standing(self, view: SiteView, now: float) -> dict[str, object]:
        return {"score": round(self.score(view, now), 3), "set": self.status(view, now)}

    # --- state of a site ------------------------------------------------------------------------------------------------------------

    def score(self, view: SiteView, now: float, requested: int = 0) -> float:
        """Returns the score of a site, minus the load of submissions and transfers at the site. ``requested``: number of pilots that this
        call of ``propose`` has already requested at the site."""
        submitting = requested + sum(1 for pilot in view.pilots if pilot.state == REQUESTED)
        load = submitting * self._settings.submission_load_factor + self._scores.load(view.name, now)
        return self._scores.of(view.name).score - load

    def status(self, view: SiteView, now: float, requested: int = 0) -> str:
        if self._scores.of(view.name).hibernated:
            return HIBERNATED
        limit = max_jobs(self._settings, self.score(view, now, requested))
        return OVERLOADED if len(view.pilots) + requested + 1 > limit else CANDIDATE

    # --- one proposal ---------------------------------------------------------------------------------------------------------------

    def _fill_up(self, round_: ProposalRound) -> None:
        self._check_present(round_)
        pilots = assess_pilots(round_, self._scores.throttle(round_.now))
        if self._settings.workers and pilots.active >= self._settings.workers:
            self._withdraw_rest(round_, pilots.active, self._settings.workers)
        elif self._is_time(round_):
            requested: dict[str, int] = {}
            self._request(round_, requested, pilots)
            self._replicate(round_, requested, pilots)
            if requested:
                self._last_request_at = round_.now

    def _check_present(self, round_: ProposalRound) -> None:
        for pilot in active_at(round_.free_sites()):
            self._scores.notice_survivor(pilot, round_.now)
        throttle = self._scores.throttle(round_.now)
        for pilot in queued_at(round_.free_sites()):
            self._scores.check_wait(pilot.site, pilot.id, round_.now - pilot.requested_at, round_.now)
            round_.look_again(pilot.requested_at + throttle + 1.0)

    def _request(self, round_: ProposalRound, requested: dict[str, int], pilots: PilotAssessment) -> None:
        present = pilots.expected
        while not self._settings.workers or present < self._settings.workers:
            view = self._choose(round_, round_.open_sites(), requested)
            if view is None:
                return
            round_.request(view.name, self._explain(view, round_.now, requested.get(view.name, 0)))
            requested[view.name] = requested.get(view.name, 0) + 1
            present += 1

    def _replicate(self, round_: ProposalRound, requested: dict[str, int], pilots: PilotAssessment) -> None:
        limit = self._settings.replication_limit
        for group in self._waiting(round_):
            if len(group) > limit:
                if group in pilots.overdue:
                    withdraw_overdue(round_, group[-1])
                continue
            view = self._choose(round_, round_.sites_for_replica(group), requested)
            if view is not None:
                waited = f"{group[0].id} has waited {round_.now - group[0].requested_at:.0f} s at {group[0].site}"
                round_.request_replica(view.name, group[0], f"{waited}; {self._explain(view, round_.now, requested.get(view.name, 0))}")
                requested[view.name] = requested.get(view.name, 0) + 1

    def _waiting(self, round_: ProposalRound) -> list[list[Pilot]]:
        """Returns the groups (a pilot and its replicas) in which every pilot has been queued for at least ``replication_min_queue_s``.

        Groups with a spare pilot, or with a pilot at a site with a fixed number of pilots, are left out. The longest wait comes first,
        among the groups and within each group.
        """
        found = []
        free, spare = {view.name for view in round_.free_sites()}, round_.view.demand.spare
        for group in groups(round_.view).values():
            if all(is_queued(pilot) and pilot.site in free and pilot.id not in spare for pilot in group):
                due = max(pilot.requested_at for pilot in group) + self._settings.replication_min_queue_s
                round_.look_again(due)
                if round_.now >= due:
                    found.append(sorted(group, key=lambda pilot: pilot.requested_at))
        return sorted(found, key=lambda group: group[0].requested_at)

    def _choose(self, round_: ProposalRound, sites: list[SiteView], requested: dict[str, int]) -> SiteView | None:
        candidates = [view for view in sites if self.status(view, round_.now, requested.get(view.name, 0)) == CANDIDATE]
        if not candidates:
            return self._wake_one(round_, sites)
        scores = [self.score(view, round_.now, requested.get(view.name, 0)) for view in candidates]
        if self._settings.choice == BEST:
            return candidates[scores.index(max(scores))]
        return self._rng.choices(candidates, [t_score(self._settings, score) for score in scores])[0]

    def _wake_one(self, round_: ProposalRound, sites: list[SiteView]) -> SiteView | None:
        """Wakes hibernating sites in ``sites`` until one of the woken sites is a candidate. Returns this site, or None if no woken site is
        a candidate. Only sites whose minimum hibernation is over are woken, the longest hibernation first. Call this method only if no site
        is a candidate."""
        by_name = {view.name: view for view in sites}
        for name in list(self._scores.hibernating):
            if name in by_name:
                rested_at = self._scores.rested_at(name)
                if round_.now < rested_at:
                    round_.look_again(rested_at)
                    continue
                self._scores.wake(name, WOKEN_WITH)
                if self.status(by_name[name], round_.now) == CANDIDATE:
                    return by_name[name]
        return None

    def _explain(self, view: SiteView, now: float, requested: int) -> str:
        score = self.score(view, now, requested)
        limit = max_jobs(self._settings, score)
        how = "best" if self._settings.choice == BEST else f"drawn with weight {t_score(self._settings, score):.2f}"
        return f"score {score:.2f}, {how}; {len(view.pilots) + requested} of at most {limit:.1f} pilots are there"


def make_swift(pilots: int, rng: random.Random) -> SwiftFactory:
    return SwiftFactory(SwiftSettings(workers=pilots), rng)
