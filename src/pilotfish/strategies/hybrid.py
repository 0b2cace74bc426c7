"""The hybrid factory: the heuristic one, with the fitness of each site scaled by the rank of its nodes."""

from __future__ import annotations

import random
from collections.abc import Mapping

from pilotfish.core.prospects import SiteView
from pilotfish.strategies.heuristic import Heuristic, HeuristicSettings
from pilotfish.strategies.record import Record


class Hybrid(Heuristic):
    """``ranks``: how fast the nodes of a site are for this work, 1 being ordinary; a site that is not in it has 1. Read anew each time, so
    that whoever measures may go on measuring."""

    def __init__(self, settings: HeuristicSettings, dice: random.Random, ranks: Mapping[str, float]) -> None:
        super().__init__(settings, dice)
        self._ranks = ranks

    def fitness(self, view: SiteView, record: Record) -> float:
        return super().fitness(view, record) * max(0.0, self._ranks.get(view.name, 1.0))
