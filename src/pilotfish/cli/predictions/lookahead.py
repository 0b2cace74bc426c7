"""What the commands that look ahead have in common: a pool as its journal tells it, and how moments and bands are said."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from pilotfish.cli.terminal.progress import RunProgress
from pilotfish.cli.terminal.screen import Screen, clean, duration, plural
from pilotfish.client.pools import is_served
from pilotfish.client.session import NoPool
from pilotfish.config import home, read_settings
from pilotfish.core.apply import apply
from pilotfish.core.explain.lookup import LAST, find_run
from pilotfish.core.state import Run, State
from pilotfish.errors import BadInput, JournalError
from pilotfish.model import facts as f
from pilotfish.model.settings import PoolSettings
from pilotfish.model.states import ENDING
from pilotfish.store.journal.journal_reader import look_at
from pilotfish.store.pool_directory import pool_home
from pilotfish.store.state_recovery import Heard, replay

if TYPE_CHECKING:
    from pilotfish.sim.projections.finish_estimate import FinishEstimate
    from pilotfish.sim.projections.pool_snapshot import PoolSnapshot

RECORD = "predictions.jsonl"
TRIES = 5
"""A master that tidies up its journal may take a file away while we read."""
AWAY = "the pool is stopped"
RECORD_CURE = "See how good predictions were: pilotfish predict --record"


@dataclass(slots=True)
class Seen:
    """A pool as its journal has it; ``served``: it has a master, and what runs goes on."""

    directory: Path
    state: State
    settings: PoolSettings
    served: bool
    now: float
    ended: dict[str, float] = field(default_factory=dict)
    """When runs were over, as far as the journal goes back."""


def read_pool(pool: str, listener: Callable[[], Heard]) -> Seen:
    """``listener`` makes one that hears all facts, anew for each try."""
    place = pool_home(pool)
    if not place.journal.is_dir():
        raise NoPool(f"there is no pool {pool!r} yet", "Start one: pilotfish run -- COMMAND")
    # What a master would mend, or is just writing, is no news to whoever only looks.
    logging.getLogger("pilotfish.journal").setLevel(logging.CRITICAL)
    for tries in range(TRIES):
        try:
            state = replay(look_at(place.journal), listener())
            break
        except (JournalError, FileNotFoundError):
            if tries == TRIES - 1:
                raise
    settings = read_settings(home() / "config.toml")
    return Seen(place.directory, state, settings, is_served(place.directory), max(time.time(), state.at))


def read_moment(pool: str) -> tuple[Seen, PoolSnapshot]:
    from pilotfish.sim.projections.attempt_history import AttemptHistory
    from pilotfish.sim.projections.pool_snapshot import PoolSnapshot

    pasts: list[AttemptHistory] = []

    def listener() -> Heard:
        pasts.append(AttemptHistory())
        return pasts[-1].hear

    seen = read_pool(pool, listener)
    if not seen.served:
        _send_everybody_home(seen.state)
    seen.ended = pasts[-1].ended
    return seen, PoolSnapshot.of(seen.state, pasts[-1], seen.settings, seen.now)


def _send_everybody_home(state: State) -> None:
    """Without a master, what it would find when it goes on: nobody."""
    for worker in list(state.workers.values()):
        held = [task.id for task in worker.tasks]
        if held:
            apply(state, f.TasksReturned(worker.id, held, AWAY), state.at)
        apply(state, f.WorkerEnded(worker.id, False, AWAY), state.at)
    for pilot in list(state.pilots.values()):
        if pilot.state < ENDING:
            apply(state, f.PilotEnding(pilot.id, AWAY, ""), state.at)
        apply(state, f.PilotEnded(pilot.id, True, AWAY, ""), state.at)


def find(state: State, wanted: str | None, unfinished: bool = True) -> Run:
    """The run that is meant. Without a name: the newest that has not ended, or that has."""
    if wanted is None or wanted == LAST:
        able = [run for run in state.runs.values() if bool(run.unfinished) == unfinished]
        return max(able, key=lambda run: run.id) if able else find_run(state)
    return find_run(state, wanted)


def find_unfinished(state: State, wanted: str | None, cure: str = RECORD_CURE) -> Run:
    """``cure``: what to do instead with one that has ended; {} is its number."""
    run = find(state, wanted)
    if not run.unfinished:
        raise BadInput(f"run {run.id} has ended", cure.format(run.id))
    if run.paused:
        raise BadInput(f"run {run.id} is paused: it ends when somebody lets it go on", f"pilotfish resume {run.id}")
    return run


def clock(at: float, now: float) -> str:
    """A moment as a person says it: with the day if it is not today, with seconds if it is near."""
    there, here = time.localtime(at), time.localtime(now)
    if there[:3] != here[:3]:
        return time.strftime("%a %d %b %H:%M", there)
    return time.strftime("%H:%M:%S" if at - now < 600 else "%H:%M", there)


def about(seconds: float) -> str:
    return duration(float(f"{seconds:.3g}") if seconds < 60 else round(seconds)) if isfinite(seconds) else "never"


def number(seconds: float) -> float | None:
    """For JSON, which knows no infinity."""
    return round(seconds, 3) if isfinite(seconds) else None


def notes(seen: Seen, run: Run, foresight: FinishEstimate) -> list[str]:
    """What makes an answer worse than it looks."""
    said = [
        f"nothing is known yet of how long {plural(count, 'task')} of {clean(name.partition(' ')[2])} will take: a rough guess"
        for name, count in foresight.guessed.items()
    ]
    if not seen.served:
        said.append("the pool is stopped: this is as if it went on now")
    if not run.closed:
        said.append("the run is still open: more tasks may come")
    if foresight.stuck:
        said.append(f"{plural(foresight.stuck, 'task')} can run nowhere as it is. Why: pilotfish why {run.id}")
    return said


def progress_of(screen: Screen, as_json: bool) -> Callable[[int, int], None]:
    """A bar on the terminal while futures are imagined."""
    shown = RunProgress(screen, time.monotonic)

    def told(done: int, total: int) -> None:
        if screen.is_terminal and not as_json:
            shown.done, shown.total, shown.note = done, total, "futures"
            shown.draw()
            if done == total:
                shown.clear()

    return told
