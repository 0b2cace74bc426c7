"""The policies that a pool can have, by the names that people give them."""

from __future__ import annotations

from collections.abc import Callable

from pilotfish.core.policy_interface import Policy
from pilotfish.policies.dispatcher import Dispatcher
from pilotfish.policies.matchers import FirstComeMatcher, LocalityMatcher
from pilotfish.policies.planning.automatic_matcher import AutomaticMatcher
from pilotfish.policies.planning.planned_matcher import PlannedMatcher
from pilotfish.policies.speculation import Speculation, forecast
from pilotfish.policies.task_order import SubmissionOrder

POLICIES: dict[str, Callable[[], Policy]] = {
    "workqueue": lambda: Dispatcher(FirstComeMatcher(), order=SubmissionOrder()),
    "near": lambda: Dispatcher(LocalityMatcher()),
    "stealing": lambda: Dispatcher(LocalityMatcher(), Speculation(stealing=True, expects=forecast)),
    "min-min": lambda: Dispatcher(PlannedMatcher("min-min")),
    "max-min": lambda: Dispatcher(PlannedMatcher("max-min")),
    "sufferage": lambda: Dispatcher(PlannedMatcher("sufferage")),
    "xsufferage": lambda: Dispatcher(PlannedMatcher("xsufferage")),
    "auto": lambda: Dispatcher(AutomaticMatcher()),
}
