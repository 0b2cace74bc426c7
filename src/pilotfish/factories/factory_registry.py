"""The factories by the names that a person may choose from."""

from __future__ import annotations

import random
from collections.abc import Callable

from pilotfish.core.pilots.factory_interface import Factory
from pilotfish.factories.heuristic import HeuristicFactory, HeuristicSettings, HybridFactory
from pilotfish.factories.on_demand import DemandFactory, DemandSettings
from pilotfish.factories.simple import SimpleFactory
from pilotfish.factories.swift import SwiftFactory
from pilotfish.factories.swift_scores import SwiftSettings

SOME_PILOTS = 10
"""For factories that keep a pool at a size, if nobody said which."""

FACTORIES: dict[str, Callable[[int, random.Random], Factory]] = {
    "demand": lambda pilots, dice: DemandFactory(DemandSettings(workers=pilots)),
    "simple": lambda pilots, dice: SimpleFactory(pilots or SOME_PILOTS, dice),
    "heuristic": lambda pilots, dice: HeuristicFactory(HeuristicSettings(workers=pilots or SOME_PILOTS), dice),
    "hybrid": lambda pilots, dice: HybridFactory(HeuristicSettings(workers=pilots or SOME_PILOTS), dice),
    "swift": lambda pilots, dice: SwiftFactory(SwiftSettings(workers=pilots), dice),
}
