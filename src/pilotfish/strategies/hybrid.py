"""The hybrid factory: the heuristic one, with each site's fitness and part of the generic slot scaled by the rank of its nodes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from pilotfish.core.prospects import PilotWish, PilotWithdrawal, Prospect, SiteView
from pilotfish.strategies.heuristic import Heuristic, HeuristicSettings
from pilotfish.strategies.record import Record


class Hybrid(Heuristic):
    """``ranks``: how fast the nodes of a site are for this work, 1 being ordinary; a site that is not in it has 1. Without any, they are
    what the tasks that ended tell of the workers of each site, compared with all others."""

    def __init__(self, settings: HeuristicSettings, dice: random.Random, ranks: Mapping[str, float] | None = None) -> None:
        super().__init__(settings, dice)
        self._ranks = ranks or {}
        self._given = ranks is not None

    def propose(self, prospect: Prospect) -> Sequence[PilotWish | PilotWithdrawal]:
        if not self._given:
            slowness = prospect.state.forecasts.slowness
            self._ranks = {view.name: 1 / slowness("", view.name) for view in prospect.sites}
        return super().propose(prospect)

    def fitness(self, view: SiteView, record: Record) -> float:
        return super().fitness(view, record) * self._rank(view)

    def _explore(self, sites: list[SiteView]) -> SiteView:
        """What is known of the nodes counts also where nothing is known yet of the site."""
        ranks = [self._rank(view) for view in sites]
        return self._dice.choices(sites, ranks)[0] if any(ranks) else super()._explore(sites)

    def _rank(self, view: SiteView) -> float:
        return max(0.0, self._ranks.get(view.name, 1.0))
