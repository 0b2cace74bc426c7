"""Reads the state of a pool from its journal, without a master. The commands predict, whatif and replay use this state."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pilotfish.client.pools import is_served, similar_pool
from pilotfish.client.session import NoPool
from pilotfish.config import home, read_settings
from pilotfish.core.apply import apply
from pilotfish.core.state import State
from pilotfish.errors import JournalError
from pilotfish.model import facts as f
from pilotfish.model.settings import PoolSettings
from pilotfish.model.states import ENDING
from pilotfish.store.journal.journal_reader import open_read_only
from pilotfish.store.pool_directory import pool_home
from pilotfish.store.state_storage import OnFact, replay

if TYPE_CHECKING:
    from pilotfish.sim.projections.pool_snapshot import PoolSnapshot

MAX_TRIES = 5
"""Maximum number of attempts to read the journal. An attempt fails if the master removes a file of the journal during the attempt."""
STOPPED = "the pool is stopped"


@dataclass(slots=True)
class OfflinePool:
    """State of a pool, read from its journal. ``served``: whether a master runs. If a master runs, the real state continues to change."""

    directory: Path
    state: State
    settings: PoolSettings
    served: bool
    now: float
    ended: dict[str, float] = field(default_factory=dict)
    """End times of runs, by the uid of the run. Only runs that ended since the beginning of the journal are in it."""

    @classmethod
    def read(cls, pool: str, make_listener: Callable[[], OnFact] = lambda: lambda state, fact, at: None) -> OfflinePool:
        """Replays the journal of a pool, and starts again after an error, up to MAX_TRIES times. Each replay passes all facts to a new
        listener."""
        place = pool_home(pool)
        if not place.journal.is_dir():
            raise NoPool(f"there is no pool {pool!r} yet", similar_pool(pool) or "Start one: pilotfish run -- COMMAND")
        # An incomplete record at the end of the journal is no damage: possibly the running master is just writing this record.
        logging.getLogger("pilotfish.journal").setLevel(logging.CRITICAL)
        for tries in range(MAX_TRIES):
            try:
                state = replay(open_read_only(place.journal), make_listener())
                break
            except (JournalError, FileNotFoundError):
                if tries == MAX_TRIES - 1:
                    raise
        settings = read_settings(home() / "config.toml")
        return cls(place.directory, state, settings, is_served(place.directory), max(time.time(), state.at))

    @classmethod
    def snapshot(cls, pool: str) -> tuple[OfflinePool, PoolSnapshot]:
        """Returns the pool and a snapshot from which the simulator continues."""
        from pilotfish.sim.projections.pool_snapshot import AttemptHistory, PoolSnapshot

        histories: list[AttemptHistory] = []

        def make_listener() -> OnFact:
            histories.append(AttemptHistory())
            return histories[-1].observe

        found = cls.read(pool, make_listener)
        if not found.served:
            _remove_workers(found.state)
        found.ended = histories[-1].run_ends
        return found, PoolSnapshot.of(found.state, histories[-1], found.settings, found.now)


def _remove_workers(state: State) -> None:
    """Ends all workers and pilots in the state of a stopped pool, because the next master will find none of them."""
    for worker in list(state.workers.values()):
        held = [task.id for task in worker.tasks]
        if held:
            apply(state, f.TasksReturned(worker.id, held, STOPPED), state.at)
        apply(state, f.WorkerEnded(worker.id, False, STOPPED), state.at)
    for pilot in list(state.pilots.values()):
        if pilot.state < ENDING:
            apply(state, f.PilotEnding(pilot.id, STOPPED, ""), state.at)
        apply(state, f.PilotEnded(pilot.id, True, STOPPED, ""), state.at)
