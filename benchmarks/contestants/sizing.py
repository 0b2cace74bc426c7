"""How many tasks to measure: as many as take a few seconds, whoever runs them."""

from __future__ import annotations

from collections.abc import Callable

LONGEST_RUN = 400_000


def sized_run(run: Callable[[int], float], seconds: float) -> tuple[int, float]:
    """Find the n that takes about ``seconds``, then run it: (n, elapsed). The search warms the contestant up as well."""
    count = 16
    elapsed = run(count)
    while elapsed < seconds * 0.7 and count < LONGEST_RUN:
        # Small runs are slower per task than large ones, so the goal is approached in steps.
        growth = min(seconds / elapsed, 8 if elapsed < seconds / 10 else seconds / elapsed)
        count = min(LONGEST_RUN, max(count + 1, int(count * growth)))
        elapsed = run(count)
    return count, elapsed
