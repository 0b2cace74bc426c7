"""Keeps a fixed number of pilots. Sites are chosen in turn or at random, without regard to their history."""

from __future__ import annotations

import random

from pilotfish.core.pilots.factory_interface import SUBMITTED, SiteEvent, SiteView
from pilotfish.factories.replication import assess_pilots
from pilotfish.factories.site_limits import ProposalRound
from pilotfish.factories.upkeep import DEFAULT_PILOTS, PERIOD_S, BaseFactory

ROUND_ROBIN, RANDOM = "round-robin", "random"


class SimpleFactory(BaseFactory):
    def __init__(
        self, workers: int, rng: random.Random, where: str = ROUND_ROBIN, period_s: float = PERIOD_S, max_wait_s: float = 3600.0
    ) -> None:
        if where not in (ROUND_ROBIN, RANDOM):
            raise ValueError(f"where is {where!r}; it must be {ROUND_ROBIN!r} or {RANDOM!r}")
        super().__init__(period_s=period_s)
        self._workers = workers
        self._rng = rng
        self._where = where
        self._max_wait_s = max_wait_s
        self._last_site = ""

    def on_event(self, event: SiteEvent) -> None:
        if event.kind == SUBMITTED:
            self._last_site = event.site

    def _fill_up(self, round_: ProposalRound) -> None:
        if not self._is_time(round_):
            return
        pilots = assess_pilots(round_, self._max_wait_s)
        if pilots.active >= self._workers:
            self._withdraw_rest(round_, pilots.active, self._workers)

        def progress(requested: int) -> str:
            return f"{pilots.active} workers and {pilots.pending + requested} on their way of {self._workers}"

        self._request_pilots(round_, pilots, self._workers - pilots.expected, lambda sites: self._choose(sites, round_), progress)

    def _choose(self, sites: list[SiteView], round_: ProposalRound) -> tuple[str, str]:
        if self._where == RANDOM:
            self._last_site, how = self._rng.choice(sites).name, f"drawn among {len(sites)} sites"
        else:
            names = [view.name for view in round_.view.sites]
            start = names.index(self._last_site) + 1 if self._last_site in names else 0
            self._last_site, how = min((view.name for view in sites), key=lambda name: (names.index(name) - start) % len(names)), "its turn"
        return self._last_site, how


def make_simple(pilots: int, rng: random.Random) -> SimpleFactory:
    return SimpleFactory(pilots or DEFAULT_PILOTS, rng)
