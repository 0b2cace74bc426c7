"""Draws durations from observed and censored ones.

Tasks that still run are censored observations: they take longer than so far (Kaplan and Meier). Each sample of a prediction reweights the
observations at random (the Bayesian bootstrap), so few observations give widely spread samples. A part of the draws follows a fitted
lognormal distribution, because durations outside the observed range are possible. This part shrinks as observations accumulate; its
spread is wide for few observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

SMOOTHING = 0.3
"""Width of the noise around an observed value, relative to the spread, for one observation; smaller for many."""
UNSEEN = 4.0
"""Weight of unobserved durations, as a number of observations."""
SPREAD, SPREAD_WEIGHT = 0.8, 4.0
"""Prior standard deviation of log durations, and its weight as a number of observations."""
MAX_SPREAD = 1.5
"""Maximum standard deviation of log durations. With more, some samples take years."""
LONGER = 1.3
"""Factor on the longest observation, for tasks that run longer than all observed ones."""
MIN_S = 1e-9
MAX_PROBABILITY = 1.0 - 1e-9


class DurationSamples:
    def __init__(self, seen: Sequence[float], running: Sequence[float], rng: np.random.Generator) -> None:
        """``running``: elapsed seconds of unfinished tasks. At least one of ``seen`` and ``running`` must not be empty."""
        values = np.maximum(np.array([*seen, *running], dtype=float), MIN_S)
        over = np.array([True] * len(seen) + [False] * len(running))
        order = np.argsort(values, kind="stable")
        values, over = values[order], over[order]
        weights = rng.exponential(size=len(values)) + MIN_S
        at_risk = np.cumsum(weights[::-1])[::-1]
        left = np.cumprod(np.where(over, 1.0 - weights / at_risk, 1.0))
        left[left < MIN_S] = 0.0
        self._values: NDArray[np.float64] = np.append(values, values[-1] * LONGER)
        self._below: NDArray[np.float64] = np.append(1.0 - left, 1.0)
        """Cumulative probability at each value."""
        count = max(1, len(seen))
        logs, masses = np.log(self._values), np.diff(self._below, prepend=0.0)
        middle = float(np.sum(masses * logs))
        squares = count * float(np.sum(masses * (logs - middle) ** 2)) + SPREAD_WEIGHT * SPREAD**2
        spread = min(MAX_SPREAD, sqrt(squares / float(rng.chisquare(count + SPREAD_WEIGHT))))
        self._law = NormalDist(middle + float(rng.normal(0.0, spread / sqrt(count))), spread)
        """Distribution of log durations."""
        self._unseen = UNSEEN / (UNSEEN + count)
        self._blur = SMOOTHING * spread * count**-0.2

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        indices = np.searchsorted(self._below, rng.random(count), side="right")
        blur = np.exp(rng.normal(-(self._blur**2) / 2, self._blur, count))
        known = self._values[np.minimum(indices, len(self._values) - 1)] * blur
        unknown = np.exp(rng.normal(self._law.mean, self._law.stdev, count))
        drawn: NDArray[np.float64] = np.where(rng.random(count) < self._unseen, unknown, known)
        return drawn

    def draw_beyond(self, rng: np.random.Generator, least: float) -> float:
        """Draws one duration, given that it is at least ``least``."""
        which, chance, blur = rng.random(), float(rng.random()), exp(float(rng.normal(0.0, self._blur)))
        index = int(np.searchsorted(self._values, least, side="right"))
        below = float(self._below[index - 1]) if index else 0.0
        below_by_law = self._law.cdf(log(max(least, MIN_S)))
        seen, unseen = (1.0 - self._unseen) * (1.0 - below), self._unseen * (1.0 - below_by_law)
        if which * (seen + unseen) < unseen or index >= len(self._values):
            probability = below_by_law + chance * (1.0 - below_by_law)
            return max(least, exp(self._law.inv_cdf(min(max(probability, MIN_S), MAX_PROBABILITY))))
        found = int(np.searchsorted(self._below, below + chance * (1.0 - below), side="right"))
        return max(least, float(self._values[min(found, len(self._values) - 1)]) * blur)
