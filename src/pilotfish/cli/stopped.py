"""What is known of a pool that somebody stopped. For that nobody has to start its master again."""

from __future__ import annotations

import time
from typing import Any

from pilotfish.cli.render import clean, duration, plural
from pilotfish.live.daemon import is_served
from pilotfish.live.home import pool_home
from pilotfish.live.stopping import Stop, read_stop

AHEAD = ("waiting", "ready", "assigned", "running")
NAMED_RUNS = 3


def last_stop(pool: str) -> Stop | None:
    """None if nobody stopped the pool, or its work was wanted again since."""
    return read_stop(pool_home(pool).directory)


def status_at_stop(pool: str, stop: Stop | None) -> dict[str, Any] | None:
    """How a pool stood when it was stopped, as its master would say it; None if the master has to be asked."""
    if stop is None or stop.runs is None or is_served(pool_home(pool).directory):
        return None
    runs = [{**row, "rate_per_s": 0.0, "eta_s": None} for row in stop.runs]
    return {"pool": pool, "pid": None, "workers": {}, "cores": 0, "runs": runs, "warnings": [], "pilots": []}


def sentence(pool: str, stop: Stop, runs: list[dict[str, Any]] | None = None) -> str:
    """When it was stopped, what is left to do, and how to go on."""
    told = f"The pool {clean(pool)} was stopped {duration(max(1.0, round(time.time() - stop.at)))} ago"
    left = [row for row in runs or stop.runs or () if row["state"] != "done"]
    if not left:
        return f"{told}."
    count = sum(row["counts"].get(state, 0) for row in left for state in AHEAD)
    numbers = [str(row["run"]) for row in left]
    where = f"run {numbers[0]}" if len(left) == 1 else f"runs {', '.join(numbers)}" if len(left) <= NAMED_RUNS else plural(len(left), "run")
    what = f"{plural(count, 'task')} unfinished in {where}" if count else f"{where} unfinished"
    return f"{told} with {what}. Go on: pilotfish attach {numbers[-1]}"
