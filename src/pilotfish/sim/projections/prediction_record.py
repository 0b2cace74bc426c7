"""Records predictions, and calculates from their errors how wide future intervals must be."""

from __future__ import annotations

from contextlib import suppress
from math import ceil, log
from pathlib import Path

import msgspec

from pilotfish.core.state import State
from pilotfish.model.states import CANCELLED
from pilotfish.store.keyring import write_private

MAX_KEPT = 500
"""Maximum number of predictions that are kept. The oldest predictions are dropped."""
MIN_TESTED = 10
"""Minimum number of predictions whose run has finished. With fewer predictions, intervals are not scaled by past errors."""
LATEST = 50
COVERAGE = 0.8
"""Probability that the interval holds the finish time."""
MIN_FACTOR, MAX_FACTOR = 0.5, 4.0
MIN_HALF_WIDTH = 0.02


class Prediction(msgspec.Struct):
    """A prediction for one run. All seconds count from the time ``at``. ``factor``: the factor by which the interval was scaled."""

    at: float
    uid: str
    run: int
    left: int
    median_s: float
    low_s: float
    high_s: float
    factor: float = 1.0
    took_s: float = 0.0
    """Actual seconds until the finish; 0 while the run is not finished."""

    @property
    def held(self) -> bool:
        return self.low_s <= self.took_s <= self.high_s

    @property
    def error(self) -> float:
        """Relative error of the predicted median."""
        return abs(self.median_s - self.took_s) / self.took_s

    @property
    def strain(self) -> float:
        """Error of the median, divided by half of the width of the unscaled interval. Both are on a logarithmic scale. The strain is 1 if
        the actual time was exactly at an end of the interval."""
        off = log(self.took_s / self.median_s)
        edge = self.high_s if off > 0 else self.low_s
        half = abs(log(max(edge, 1e-9) / self.median_s)) / self.factor
        return abs(off) / max(half, MIN_HALF_WIDTH)


class PredictionRecord:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.predictions: list[Prediction] = []
        with suppress(OSError):
            for line in path.read_bytes().splitlines():
                with suppress(msgspec.DecodeError):
                    self.predictions.append(msgspec.json.decode(line, type=Prediction))

    @property
    def tested(self) -> list[Prediction]:
        return [prediction for prediction in self.predictions if prediction.took_s > 0 and prediction.median_s > 0]

    def settle(self, state: State, ended: dict[str, float]) -> None:
        """Stores the actual finish time in the predictions of each finished run. Removes predictions of cancelled or unknown runs."""
        kept = []
        for prediction in self.predictions:
            run = state.runs.get(state.run_uids.get(prediction.uid, -1))
            at = run.ended_at if run is not None else ended.get(prediction.uid, 0.0)
            if not prediction.took_s and ((run is None and not at) or (run is not None and run.counts[CANCELLED])):
                continue
            if not prediction.took_s and at > prediction.at:
                prediction.took_s = at - prediction.at
            kept.append(prediction)
        self.predictions = kept

    def factor(self) -> float:
        """Returns the factor for the width of new intervals, between MIN_FACTOR and MAX_FACTOR. With this factor, 80 % of the past
        intervals would have contained the actual time (a conformal quantile). Returns 1 if fewer than MIN_TESTED predictions can be
        compared with a finished run."""
        strains = sorted(prediction.strain for prediction in self.tested[-LATEST:])
        if len(strains) < MIN_TESTED:
            return 1.0
        return max(MIN_FACTOR, min(MAX_FACTOR, strains[min(len(strains), ceil(COVERAGE * (len(strains) + 1))) - 1]))

    def save(self) -> None:
        write_private(self._path, b"".join(msgspec.json.encode(prediction) + b"\n" for prediction in self.predictions[-MAX_KEPT:]))
