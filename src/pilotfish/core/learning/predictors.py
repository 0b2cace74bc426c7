"""Predicts the next value of a quantity. Several simple predictors compete. The predictor with the smallest recent error gives the
prediction, as in the Network Weather Service (NWS).

Transfers over a link are predicted from the seconds per byte of earlier transfers. To save time, new observations are only stored at first.
The predictors read the stored observations when a prediction is needed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import Any, NamedTuple

WINDOW = 31
GAINS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 0.9)
NAMES = (
    "last value",
    "running mean",
    "mean of 5",
    "mean of 15",
    "mean of 31",
    "median of 5",
    "median of 31",
    "trimmed mean of 31",
    *(f"smoothing by {gain}" for gain in GAINS),
    "autoregression over 31",
)
ERROR_DECAY = 0.95
"""Factor by which the past error of a predictor is multiplied at each new observation."""
MAX_RATIOS = 64
MAX_PENDING = 64
MIN_S = 1e-6
SMALLEST, LARGEST = 1e-12, 1e15
"""Bounds of an observation, so that squares and quotients stay finite."""


class Forecast(NamedTuple):
    """A predicted value. ``error``: median relative error of recent forecasts. ``predictor``: name of the predictor; empty for a guess."""

    value: float
    error: float
    predictor: str
    samples: int


class Series:
    """A series of positive values, such as durations and rates. Zero counts as ``SMALLEST``. Negative and non-finite values are ignored."""

    def __init__(self) -> None:
        self.samples = 0
        """Number of all observations, including those that were later replaced by a mean."""
        self._ratios: deque[float] = deque(maxlen=MAX_RATIOS)
        self._pending: list[float] = []
        self._means = 0
        """Number of pending values that are means of several observations. These means come first."""
        self._forecast: Forecast | None = None
        self._forget()

    def _forget(self) -> None:
        self._taken = 0
        self._mean = 0.0
        self._window: list[float] = []
        self._order: list[float] = []
        self._smoothed: list[float] = []
        self._predictions: list[float] = []
        self._errors = [0.0] * len(NAMES)

    def observe(self, value: float) -> None:
        pending = self._pending
        if SMALLEST <= value <= LARGEST:
            pending.append(value)
        elif 0.0 <= value < SMALLEST:
            pending.append(SMALLEST)
        elif LARGEST < value < float("inf"):
            pending.append(LARGEST)
        if len(pending) > MAX_PENDING:
            self._condense()

    def forecast(self) -> Forecast | None:
        """Returns the forecast of the next value; None before the first observation."""
        if self._pending:
            self._process_pending()
        if self._forecast is None and self._predictions:
            best = self._best()
            self._forecast = Forecast(self._predictions[best], self._error(), NAMES[best], self.samples)
        return self._forecast

    def ratios(self) -> list[float]:
        """Returns ratios of recent values to their forecasts."""
        self._process_pending()
        return list(self._ratios)

    def relearn(self, values: Iterable[float]) -> None:
        """Replaces all observations by the corrected ``values``. The stored ratios of values to forecasts stay."""
        self._process_pending()
        self._forget()
        for value in values:
            self._take(min(max(value, SMALLEST), LARGEST))
        self._forecast = None

    def row(self) -> list[Any]:
        numbers = [self.samples, self._taken, self._mean, self._means]
        return [numbers, list(self._window), list(self._smoothed), list(self._errors), list(self._ratios), list(self._pending)]

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Series:
        series = cls()
        numbers, window, smoothed, errors, ratios, pending = row
        series.samples, series._taken, series._mean, series._means = numbers
        series._window, series._order = list(window), sorted(window)
        series._smoothed, series._errors, series._pending = list(smoothed), list(errors), list(pending)
        series._ratios.extend(ratios)
        if window:
            series._predict()
        return series

    def _condense(self) -> None:
        """Halves the number of values that wait for the next query, by replacing each neighbouring pair by its mean."""
        pending = self._pending
        self.samples += len(pending) // 2
        odd = pending[len(pending) // 2 * 2 :]
        pending[:] = [(one + other) / 2 for one, other in zip(pending[::2], pending[1::2], strict=False)]
        self._means = len(pending)
        pending += odd

    def _process_pending(self) -> None:
        """Processes the pending values in order. Compares each value with its forecast. Means from ``_condense`` are not compared."""
        pending = self._pending
        if not pending:
            return
        for place, value in enumerate(pending):
            if self._predictions and place >= self._means:
                self._ratios.append(value / self._predictions[self._best()])
            self._take(value)
        self.samples += len(pending)
        self._means = 0
        pending.clear()
        self._forecast = None

    def _take(self, value: float) -> None:
        if self._predictions:
            self._errors = [
                error * ERROR_DECAY + (predicted - value if predicted > value else value - predicted)
                for error, predicted in zip(self._errors, self._predictions, strict=True)
            ]
            self._smoothed = [smoothed + gain * (value - smoothed) for smoothed, gain in zip(self._smoothed, GAINS, strict=True)]
        else:
            self._smoothed = [value] * len(GAINS)
        self._taken += 1
        self._mean += (value - self._mean) / self._taken
        window, order = self._window, self._order
        window.append(value)
        insort(order, value)
        if len(window) > WINDOW:
            del order[bisect_left(order, window.pop(0))]
        self._predict()

    def _predict(self) -> None:
        window, order = self._window, self._order
        count = len(window)
        last = window[-1]
        of_5, of_15 = window[-5:], window[-15:]
        middle = sorted(of_5)[len(of_5) // 2]
        mean = sum(window) / count
        cut = count // 5
        trimmed = order[cut : count - cut]
        self._predictions = [
            last,
            self._mean,
            sum(of_5) / len(of_5),
            sum(of_15) / len(of_15),
            mean,
            middle,
            order[count // 2],
            sum(trimmed) / len(trimmed),
            *self._smoothed,
            max(order[0], mean + _autocorrelation(window, mean) * (last - mean)),
        ]

    def _best(self) -> int:
        errors = self._errors
        return errors.index(min(errors))

    def _error(self) -> float:
        wrong = sorted([abs(ratio - 1.0) for ratio in self._ratios])
        return wrong[len(wrong) // 2] if wrong else 1.0


def _autocorrelation(values: list[float], mean: float) -> float:
    away = [value - mean for value in values]
    squares = sum(map(mul, away, away)) - away[-1] * away[-1]
    return max(-1.0, min(1.0, sum(map(mul, away, away[1:])) / squares)) if squares > 0.0 else 0.0


def quantile(ordered: list[float], q: float) -> float:
    """Returns a quantile of ascending values, with linear interpolation; 1 if there are no values."""
    if not ordered:
        return 1.0
    place = max(0.0, min(1.0, q)) * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(slots=True, eq=False)
class LinkSeries:
    """Transfers over one link: ``seconds = (size + head) / bandwidth``. ``head``: bytes that could be sent during the latency."""

    series: Series = field(default_factory=Series)
    """Seconds per byte. The head is added to the bytes of each transfer."""
    _head: float = 1.0
    _last: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _pending: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def observe(self, size: float, seconds: float) -> None:
        if 0.0 <= size <= LARGEST and 0.0 <= seconds <= LARGEST:
            self._pending.append((size, max(seconds, MIN_S)))

    def forecast(self, size: float) -> Forecast | None:
        """Forecasts the seconds to transfer ``size`` bytes."""
        if self._pending:
            self._process_pending()
        forecast = self.series.forecast()
        return forecast and forecast._replace(value=(size + self._head) * forecast.value)

    def row(self) -> list[Any]:
        return [self._head, [list(pair) for pair in self._last], [list(pair) for pair in self._pending], self.series.row()]

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> LinkSeries:
        link = cls()
        link._head, last, pending, series = row
        link.series = Series.from_row(series)
        link._last.extend((size, seconds) for size, seconds in last)
        link._pending.extend((size, seconds) for size, seconds in pending)
        return link

    def _process_pending(self) -> None:
        fitted = 0
        for place, (size, seconds) in enumerate(self._pending, 1):
            self.series.observe(seconds / (size + self._head))
            self._last.append((size, seconds))
            if place == len(self._pending) or (place - fitted) * 4 > len(self._last):
                fitted = place
                self._fit()
        self._pending.clear()

    def _fit(self) -> None:
        head = _head(self._last)
        if abs(head - self._head) > 0.1 * self._head:
            self._head = head
            self.series.relearn([seconds / (size + head) for size, seconds in self._last])


def _head(transfers: Sequence[tuple[float, float]]) -> float:
    """Computes the head (see ``LinkSeries``) by least squares of relative errors. Returns 1 if there are fewer than four transfers, or if
    their sizes are too similar to show the latency."""
    least, most = min(size for size, _ in transfers), max(size for size, _ in transfers)
    if len(transfers) < 4 or most < 4 * max(least, 1.0):
        return 1.0
    ones = sizes = squares = counts = times = 0.0
    for size, seconds in transfers:
        one, share = 1 / seconds, size / seconds
        ones += one * one
        sizes += one * share
        squares += share * share
        counts += one
        times += share
    determinant = ones * squares - sizes * sizes
    latency, per_byte = counts * squares - times * sizes, ones * times - sizes * counts
    if determinant <= 0.0 or latency <= 0.0:
        return 1.0
    return max(1.0, latency / max(per_byte, latency / (100 * most)))
