"""Keeps the pool at N pilots, in turn or at random. It does not learn from the past."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pilotfish.core.pilots.factory_interface import (
    SUBMITTED,
    FactoryView,
    PilotProposal,
    SiteEvent,
    SiteView,
    WithdrawalProposal,
)
from pilotfish.factories.replication import sort_out
from pilotfish.factories.site_limits import ProposalRound
from pilotfish.factories.upkeep import DEFAULT_PILOTS, PERIOD_S, FactoryUpkeep

TURNS, RANDOM = "turns", "random"


class SimpleFactory:
    def __init__(
        self, workers: int, dice: random.Random, where: str = TURNS, period_s: float = PERIOD_S, patience_s: float = 3600.0
    ) -> None:
        if where not in (TURNS, RANDOM):
            raise ValueError(f"where is {where!r}; it must be {TURNS!r} or {RANDOM!r}")
        self._workers = workers
        self._dice = dice
        self._where = where
        self._patience_s = patience_s
        self._duties = FactoryUpkeep(period_s=period_s)
        self._last_site = ""
        self._moments: list[float] = []

    def hear(self, event: SiteEvent) -> None:
        if event.kind == SUBMITTED:
            self._last_site = event.site

    def propose(self, prospect: FactoryView) -> Sequence[PilotProposal | WithdrawalProposal]:
        round_ = ProposalRound(prospect)
        self._duties.perform(round_)
        if self._duties.is_time(round_) and self._fill_up(round_):
            self._duties.note_wishes(round_)
        self._moments = round_.moments
        return round_.proposals

    def standing(self, view: SiteView, now: float) -> dict[str, object]:
        return {}

    def next_look_at(self, prospect: FactoryView) -> float | None:
        return min((moment for moment in self._moments if moment > prospect.now), default=None)

    def _fill_up(self, round_: ProposalRound) -> bool:
        outlook = sort_out(round_, self._patience_s)
        if outlook.active >= self._workers:
            self._duties.withdraw_rest(round_, outlook.active, self._workers)
        wished = 0
        hopeless = list(outlook.hopeless)
        while outlook.hopeful + wished < self._workers:
            so_far = f"{outlook.active} workers and {outlook.pending + wished} on their way of {self._workers}"
            if open_sites := round_.open_sites():
                view, how = self._choose(open_sites, round_)
                round_.wish(view.name, f"{so_far}; {how}")
            elif hopeless:
                members = hopeless.pop(0)
                if not (others := round_.sites_instead(members)):
                    continue
                view, how = self._choose(others, round_)
                round_.wish_instead(view.name, members[0], f"{so_far}; {members[0].id} waits for too long; {how}")
            else:
                break
            self._last_site = view.name
            wished += 1
        return bool(wished)

    def _choose(self, sites: list[SiteView], round_: ProposalRound) -> tuple[SiteView, str]:
        if self._where == RANDOM:
            return self._dice.choice(sites), f"drawn among {len(sites)} sites"
        names = [view.name for view in round_.prospect.sites]
        start = names.index(self._last_site) + 1 if self._last_site in names else 0
        by_turns = sorted(sites, key=lambda view: (names.index(view.name) - start) % len(names))
        return by_turns[0], "its turn"


def make_simple(pilots: int, dice: random.Random) -> SimpleFactory:
    return SimpleFactory(pilots or DEFAULT_PILOTS, dice)
