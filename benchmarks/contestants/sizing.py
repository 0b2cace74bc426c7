"""Chooses the number of tasks so that a measurement takes a few seconds with any contestant."""

from __future__ import annotations

from collections.abc import Callable

LONGEST_RUN = 400_000


def sized_run(run: Callable[[int], float], seconds: float) -> tuple[int, float]:
    """Returns the number of tasks that take about ``seconds``, and their time. The search also warms up the contestant."""
    count = 16
    elapsed = run(count)
    while elapsed < seconds * 0.7 and count < LONGEST_RUN:
        # Small runs are slower per task than large ones, so the goal is approached in steps.
        growth = min(seconds / elapsed, 8 if elapsed < seconds / 10 else seconds / elapsed)
        count = min(LONGEST_RUN, max(count + 1, int(count * growth)))
        elapsed = run(count)
    return count, elapsed
