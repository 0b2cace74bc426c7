"""The factories by the names that a person may choose from."""

from __future__ import annotations

import random
from collections.abc import Callable

from pilotfish.core.prospects import Factory
from pilotfish.strategies.demand import DemandSettings, OnDemand
from pilotfish.strategies.heuristic import Heuristic, HeuristicSettings
from pilotfish.strategies.hybrid import Hybrid
from pilotfish.strategies.scores import SwiftSettings
from pilotfish.strategies.simple import Simple
from pilotfish.strategies.swift import Swift

SOME_PILOTS = 10
"""For factories that keep a pool at a size, if nobody said which."""

FACTORIES: dict[str, Callable[[int, random.Random], Factory]] = {
    "demand": lambda pilots, dice: OnDemand(DemandSettings(workers=pilots)),
    "simple": lambda pilots, dice: Simple(pilots or SOME_PILOTS, dice),
    "heuristic": lambda pilots, dice: Heuristic(HeuristicSettings(workers=pilots or SOME_PILOTS), dice),
    "hybrid": lambda pilots, dice: Hybrid(HeuristicSettings(workers=pilots or SOME_PILOTS), dice),
    "swift": lambda pilots, dice: Swift(SwiftSettings(workers=pilots), dice),
}
