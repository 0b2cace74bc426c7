"""Mean and standard deviation of repeated measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


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
        mean = sum(known) / len(known)
        return MeanAndDeviation(mean, math.sqrt(sum((value - mean) ** 2 for value in known) / max(1, len(known) - 1)), len(known))
