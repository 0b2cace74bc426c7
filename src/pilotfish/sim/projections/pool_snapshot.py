"""Captures a pool at one moment as bytes, and variations of it. Many projections, in several processes, can start from one snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pilotfish.core import state_snapshot
from pilotfish.core.apply import apply
from pilotfish.core.learning.predictors import quantile
from pilotfish.core.state import Run, State
from pilotfish.model import facts as f
from pilotfish.model.settings import PoolSettings
from pilotfish.sim.projections.attempt_history import AttemptHistory

ENOUGH = 5
"""Minimum observed starts at a site. The first starts take longer than later ones."""
CLOSED = "as far as is known"
"""Reason recorded for closing an open run. Later submissions by its client cannot be predicted."""


@dataclass(frozen=True, slots=True)
class Variation:
    """A change to the pool for `whatif`. ``more``: additional pilots of sites, or cores of this machine; negative: fewer."""

    text: str = "as it is"
    policy: str = ""
    more: tuple[tuple[str, int], ...] = ()
    with_sites: tuple[str, ...] = ()
    without_sites: tuple[str, ...] = ()
    speeds: dict[str, float] = field(default_factory=dict)
    cores: float | None = None


AS_IT_IS = Variation()


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    now: float
    facts: bytes
    began: dict[tuple[str, int], float]
    """Start times of running attempts, by worker and task."""
    given: dict[tuple[str, int], float]
    """Assignment times of attempts that do not run yet."""
    taken: dict[str, list[tuple[str, str, int, float]]]
    launches: dict[str, float]
    settings: PoolSettings

    @classmethod
    def of(cls, state: State, past: AttemptHistory, settings: PoolSettings, now: float) -> PoolSnapshot:
        began = {
            (worker.id, task.id): at
            for worker in state.workers.values()
            for task in worker.active
            if (at := past.began(worker, task, settings.beat_s)) is not None
        }
        held = ((worker.id, task.id) for worker in state.workers.values() for task in (*worker.active, *worker.ahead))
        given = {key: past.given[key] for key in held if key in past.given and key not in began}
        launches = {site: quantile(sorted(seen), 0.5) for site, seen in past.launches.items() if len(seen) >= ENOUGH}
        taken = {name: list(seen) for name, seen in past.taken.items()}
        return cls(max(now, state.at), f.encode_record(f.TurnRecord(state.at, list(_rows(state)))), began, given, taken, launches, settings)

    def restore(self) -> State:
        state = State()
        record = f.decode_record(self.facts)
        for fact in record.facts:
            apply(state, fact, record.at)
        for run in state.runs.values():
            if not run.closed:
                apply(state, f.RunClosed(run.id, CLOSED), record.at)
        return state


def _rows(state: State) -> Iterator[f.AnyFact]:
    """Yields the state as facts, without finished runs whose files are not needed and without data that only workers read."""
    over = {run.id: None for run in state.runs.values() if _is_past(run)}
    shares = {run.account.name: None for run in state.runs.values() if run.id not in over}
    for fact in state_snapshot.dump(state):
        row = fact.row
        if fact.kind in ("run", "tasks") and row[0] in over:
            continue
        if fact.kind == "shares":
            fact = f.Restored("shares", [row[0], [account for account in row[1] if account[0] in shares]])
        if fact.kind == "tasks":
            for task in row[2]:
                task[3] = task[4] = b""
        yield fact


def _is_past(run: Run) -> bool:
    return run.finished and not run.contents
