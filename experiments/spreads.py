"""Describes repeated measurements by their mean and spread."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pilotfish.sim.scenarios.policy_comparison import mean_and_deviation


@dataclass(slots=True, frozen=True)
class MeanAndDeviation:
    mean: float
    deviation: float
    count: int

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.deviation / math.sqrt(self.count)

    @staticmethod
    def of(values: Iterable[float]) -> MeanAndDeviation:
        known = list(values)
        return MeanAndDeviation(*mean_and_deviation(known), len(known))
