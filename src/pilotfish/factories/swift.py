"""Chooses sites by Swift's scores, with hibernation and replicas.

Candidates are drawn by score, bad sites hibernate, overloaded sites get no more pilots, and long waits get pilot replicas.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pilotfish.core.pilots.factory_interface import FactoryView, PilotProposal, SiteEvent, SiteView, WithdrawalProposal
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.factories.replication import WaitOutlook, groups, sort_out, withdraw_overdue
from pilotfish.factories.site_limits import ProposalRound, active_at, is_queued, queued_at
from pilotfish.factories.swift_scores import BEST, SiteScores, SwiftSettings, max_jobs, t_score
from pilotfish.factories.upkeep import FactoryUpkeep
from pilotfish.model.states import REQUESTED

CANDIDATE, HIBERNATED, OVERLOADED = "candidate", "hibernated", "overloaded"


class SwiftFactory:
    def __init__(self, settings: SwiftSettings, dice: random.Random) -> None:
        self._settings = settings
        self._dice = dice
        self._duties = FactoryUpkeep(period_s=settings.period_s)
        self._standings = SiteScores(settings)
        self._moments: list[float] = []

    def hear(self, event: SiteEvent) -> None:
        self._standings.hear(event)

    def propose(self, prospect: FactoryView) -> Sequence[PilotProposal | WithdrawalProposal]:
        round_ = ProposalRound(prospect)
        self._duties.perform(round_)
        self._judge_present(round_)
        outlook = sort_out(round_, self._standings.throttle(round_.now))
        if self._settings.workers and outlook.active >= self._settings.workers:
            self._duties.withdraw_rest(round_, outlook.active, self._settings.workers)
        elif self._duties.is_time(round_):
            asked: dict[str, int] = {}
            self._fill_up(round_, asked, outlook)
            self._replicate(round_, asked, outlook)
            if asked:
                self._duties.note_wishes(round_)
        self._moments = round_.moments
        return round_.proposals

    def standing(self, view: SiteView, now: float) -> dict[str, object]:
        return {"score": round(self.score(view, now), 3), "set": self.status(view, now)}

    def next_look_at(self, prospect: FactoryView) -> float | None:
        return min((moment for moment in self._moments if moment > prospect.now), default=None)

    # --- state of a site ------------------------------------------------------------------------------------------------------------

    def score(self, view: SiteView, now: float, asked: int = 0) -> float:
        """Score from events, minus the load of submissions and transfers in progress. ``asked``: pilots requested in this proposal."""
        submitting = asked + sum(1 for pilot in view.pilots if pilot.state == REQUESTED)
        load = submitting * self._settings.submission_load_factor + self._standings.load(view.name, now)
        return self._standings.of(view.name).score - load

    def status(self, view: SiteView, now: float, asked: int = 0) -> str:
        if self._standings.of(view.name).hibernated:
            return HIBERNATED
        limit = max_jobs(self._settings, self.score(view, now, asked))
        return OVERLOADED if len(view.pilots) + asked + 1 > limit else CANDIDATE

    # --- one proposal ---------------------------------------------------------------------------------------------------------------

    def _judge_present(self, round_: ProposalRound) -> None:
        for pilot in active_at(round_.free_sites()):
            self._standings.notice_survivor(pilot, round_.now)
        throttle = self._standings.throttle(round_.now)
        for pilot in queued_at(round_.free_sites()):
            self._standings.judge(pilot.site, pilot.id, round_.now - pilot.requested_at, round_.now)
            round_.look_again(pilot.requested_at + throttle + 1.0)

    def _fill_up(self, round_: ProposalRound, asked: dict[str, int], outlook: WaitOutlook) -> None:
        present = outlook.hopeful
        while not self._settings.workers or present < self._settings.workers:
            view = self._choose(round_, round_.open_sites(), asked)
            if view is None:
                return
            round_.wish(view.name, self._explain(view, round_.now, asked.get(view.name, 0)))
            asked[view.name] = asked.get(view.name, 0) + 1
            present += 1

    def _replicate(self, round_: ProposalRound, asked: dict[str, int], outlook: WaitOutlook) -> None:
        limit = self._settings.replication_limit
        for members in self._waiting(round_):
            if len(members) > limit:
                if members in outlook.hopeless:
                    withdraw_overdue(round_, members[-1])
                continue
            view = self._choose(round_, round_.sites_instead(members), asked)
            if view is not None:
                waited = f"{members[0].id} has waited {round_.now - members[0].requested_at:.0f} s at {members[0].site}"
                round_.wish_instead(view.name, members[0], f"{waited}; {self._explain(view, round_.now, asked.get(view.name, 0))}")
                asked[view.name] = asked.get(view.name, 0) + 1

    def _waiting(self, round_: ProposalRound) -> list[list[Pilot]]:
        """Groups in which every pilot has been queued for ``replication_min_queue_s``, the longest wait first."""
        found = []
        free, spare = {view.name for view in round_.free_sites()}, round_.prospect.demand.spare
        for members in groups(round_.prospect).values():
            if all(is_queued(pilot) and pilot.site in free and pilot.id not in spare for pilot in members):
                due = max(pilot.requested_at for pilot in members) + self._settings.replication_min_queue_s
                round_.look_again(due)
                if round_.now >= due:
                    found.append(sorted(members, key=lambda pilot: pilot.requested_at))
        return sorted(found, key=lambda members: members[0].requested_at)

    def _choose(self, round_: ProposalRound, sites: list[SiteView], asked: dict[str, int]) -> SiteView | None:
        candidates = [view for view in sites if self.status(view, round_.now, asked.get(view.name, 0)) == CANDIDATE]
        if not candidates:
            return self._wake_one(round_, sites)
        scores = [self.score(view, round_.now, asked.get(view.name, 0)) for view in candidates]
        if self._settings.choice == BEST:
            return candidates[scores.index(max(scores))]
        return self._dice.choices(candidates, [t_score(self._settings, score) for score in scores])[0]

    def _wake_one(self, round_: ProposalRound, sites: list[SiteView]) -> SiteView | None:
        """Wake the site that has hibernated longest, if its rest is over. Called when no candidate is left."""
        by_name = {view.name: view for view in sites}
        for name in self._standings.asleep():
            if name in by_name:
                rested_at = self._standings.rested_at(name)
                if round_.now < rested_at:
                    round_.look_again(rested_at)
                    continue
                self._standings.wake(name)
                if self.status(by_name[name], round_.now) == CANDIDATE:
                    return by_name[name]
        return None

    def _explain(self, view: SiteView, now: float, asked: int) -> str:
        score = self.score(view, now, asked)
        limit = max_jobs(self._settings, score)
        how = "best" if self._settings.choice == BEST else f"drawn with weight {t_score(self._settings, score):.2f}"
        return f"score {score:.2f}, {how}; {len(view.pilots) + asked} of at most {limit:.1f} pilots are there"


def make_swift(pilots: int, dice: random.Random) -> SwiftFactory:
    return SwiftFactory(SwiftSettings(workers=pilots), dice)
