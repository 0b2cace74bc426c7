"""The policies that a pool can have, by the names that people give them."""

from __future__ import annotations

from collections.abc import Callable

from pilotfish.core.proposals import Policy
from pilotfish.policies.auto import Chooser
from pilotfish.policies.duplication import Duplication, forecast
from pilotfish.policies.fifo import Fifo
from pilotfish.policies.matching import AnyToAny, Nearest
from pilotfish.policies.planning import Planner
from pilotfish.policies.ranked import AsTheyCame

POLICIES: dict[str, Callable[[], Policy]] = {
    "workqueue": lambda: Fifo(AnyToAny(), order=AsTheyCame()),
    "near": lambda: Fifo(Nearest()),
    "stealing": lambda: Fifo(Nearest(), Duplication(stealing=True, expects=forecast)),
    "min-min": lambda: Fifo(Planner("min-min")),
    "max-min": lambda: Fifo(Planner("max-min")),
    "sufferage": lambda: Fifo(Planner("sufferage")),
    "xsufferage": lambda: Fifo(Planner("xsufferage")),
    "auto": lambda: Fifo(Chooser()),
}
