"""Prints times, intervals and notes of estimates; selects the run for predict, whatif and replay."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING

from pilotfish.cli.terminal.progress import RunProgress
from pilotfish.cli.terminal.screen import Screen, clean, duration, plural
from pilotfish.core.explain.lookup import LAST, find_run
from pilotfish.core.state import Run, State
from pilotfish.errors import BadInput

if TYPE_CHECKING:
    from pilotfish.client.offline_pool import OfflinePool
    from pilotfish.sim.projections.finish_estimate import FinishEstimate

RECORD = "predictions.jsonl"
RECORD_CURE = "See how good predictions were: pilotfish predict --accuracy"


def find(state: State, wanted: str | None, unfinished: bool = True) -> Run:
    """Find the run. Without a name: the newest unfinished one, or the newest finished one."""
    if wanted is None or wanted == LAST:
        able = [run for run in state.runs.values() if bool(run.unfinished) == unfinished]
        return max(able, key=lambda run: run.id) if able else find_run(state)
    return find_run(state, wanted)


def find_unfinished(state: State, wanted: str | None, cure: str = RECORD_CURE) -> Run:
    """Find an unfinished run. ``cure`` is the hint for a finished one; {} is its number."""
    run = find(state, wanted)
    if not run.unfinished:
        raise BadInput(f"run {run.id} has ended", cure.format(run.id))
    if run.paused:
        raise BadInput(f"run {run.id} is paused: it ends when somebody lets it go on", f"pilotfish resume {run.id}")
    return run


def clock(at: float, now: float) -> str:
    """Format a time, with the day if it is not today and with seconds if it is near."""
    there, here = time.localtime(at), time.localtime(now)
    if there[:3] != here[:3]:
        return time.strftime("%a %d %b %H:%M", there)
    return time.strftime("%H:%M:%S" if at - now < 600 else "%H:%M", there)


def about(seconds: float) -> str:
    return duration(float(f"{seconds:.3g}") if seconds < 60 else round(seconds)) if isfinite(seconds) else "never"


def number(seconds: float) -> float | None:
    """Round for JSON, which has no infinity."""
    return round(seconds, 3) if isfinite(seconds) else None


def notes(pool: OfflinePool, run: Run, foresight: FinishEstimate) -> list[str]:
    """List what makes the estimate less accurate."""
    said = [
        f"nothing is known yet of how long {plural(count, 'task')} of {clean(name.partition(' ')[2])} will take: a rough guess"
        for name, count in foresight.guessed.items()
    ]
    if not pool.served:
        said.append("the pool is stopped: this is as if it went on now")
    if not run.closed:
        said.append("the run is still open: more tasks may come")
    if foresight.stuck:
        said.append(f"{plural(foresight.stuck, 'task')} can run nowhere as it is. Why: pilotfish why {run.id}")
    return said


def progress_of(screen: Screen, as_json: bool) -> Callable[[int, int], None]:
    """Show a progress bar on the terminal while samples are simulated."""
    shown = RunProgress(screen, time.monotonic)

    def told(done: int, total: int) -> None:
        if screen.is_terminal and not as_json:
            shown.done, shown.total, shown.note = done, total, "futures"
            shown.draw()
            if done == total:
                shown.clear()

    return told
