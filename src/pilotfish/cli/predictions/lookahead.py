"""Parts that predict, whatif and replay share: they select the run, and format times and notes."""

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


def find(state: State, name: str | None, unfinished: bool = True) -> Run:
    """Find a run by its number or name. Without ``name``, find the newest unfinished run, or the newest finished run if ``unfinished`` is
    False. If there is no such run, find the newest of all runs."""
    if name is None or name == LAST:
        candidates = [run for run in state.runs.values() if bool(run.unfinished) == unfinished]
        return max(candidates, key=lambda run: run.id) if candidates else find_run(state)
    return find_run(state, name)


def find_unfinished(state: State, name: str | None, hint: str) -> Run:
    """Find an unfinished run. Raise BadInput if the run is paused or has ended. ``hint``: hint of the error for an ended run. {} in it
    stands for the number of the run."""
    run = find(state, name)
    if not run.unfinished:
        raise BadInput(f"run {run.id} has ended", hint.format(run.id))
    if run.paused:
        raise BadInput(f"run {run.id} is paused: it has no finish time", f"pilotfish resume {run.id}")
    return run


def clock(at: float, now: float) -> str:
    """Format a time of day. If the time is not today, add the day. If it is less than ten minutes away, add the seconds."""
    there, here = time.localtime(at), time.localtime(now)
    if there[:3] != here[:3]:
        return time.strftime("%a %d %b %H:%M", there)
    return time.strftime("%H:%M:%S" if at - now < 600 else "%H:%M", there)


def about(seconds: float) -> str:
    return duration(float(f"{seconds:.3g}") if seconds < 60 else round(seconds)) if isfinite(seconds) else "never"


def number(seconds: float) -> float | None:
    """Round seconds for JSON. Return None for infinity, because JSON has no infinity."""
    return round(seconds, 3) if isfinite(seconds) else None


def notes(pool: OfflinePool, run: Run, estimate: FinishEstimate) -> list[str]:
    """Return the reasons why the estimate is possibly inaccurate."""
    found = [
        f"the duration of {plural(count, 'task')} of {clean(name.partition(' ')[2])} is a rough guess: none of them has ended"
        for name, count in estimate.guessed.items()
    ]
    if not pool.served:
        found.append("the pool is stopped: the estimate assumes that it resumes now")
    if not run.closed:
        found.append("the run is still open: more tasks may come")
    if estimate.stuck:
        found.append(f"{plural(estimate.stuck, 'task')} can run on no worker. Why: pilotfish why {run.id}")
    return found


def progress_of(screen: Screen, as_json: bool) -> Callable[[int, int], None]:
    """Return a function that shows the progress of the simulation on a terminal."""
    shown = RunProgress(screen, time.monotonic)

    def show(done: int, total: int) -> None:
        if screen.is_terminal and not as_json:
            shown.done, shown.total, shown.note = done, total, "samples"
            shown.draw()
            if done == total:
                shown.clear()

    return show
