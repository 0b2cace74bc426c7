"""Learns how long moldable tasks take with each number of cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pilotfish.core.tasks.fair_share import UNIT, cores_of
from pilotfish.model.ids import INDEX_MASK

if TYPE_CHECKING:
    from pilotfish.core.state import State, Task, Worker

Speedup = dict[int, tuple[int, float]]
"""Ten-thousandths of cores: how many tasks ended with so many, and how long one of cost 1 takes."""
MOST_CLASSES = 1_000
REMEMBERED = 20
"""Later ones count as if so many had been before them, so that a change is followed."""


def learn(state: State, worker: Worker, task: Task, wall_s: float) -> None:
    """It has ended well, and its room is not free yet."""
    needs = worker.active.get(task)
    if needs is None:
        return
    run = task.shape.run
    name = run.class_of(task.spec)
    known = state.speedups.pop(name, {})
    state.speedups[name] = known  # as the latest
    if len(state.speedups) > MOST_CLASSES:
        del state.speedups[next(iter(state.speedups))]
    samples, mean_s = known.get(cores_of(needs), (0, 0.0))
    cost = run.cost(task.id & INDEX_MASK) or 1.0
    known[cores_of(needs)] = samples + 1, mean_s + (wall_s / cost - mean_s) / min(samples + 1, REMEMBERED)


def table(state: State) -> list[dict[str, Any]]:
    """For people: one row for each number of cores that was tried."""
    return [
        {"what": f"task {name} on {cores / UNIT:g} core{'s' * (cores != UNIT)}", "forecast": mean_s, "unit": "s", "samples": samples}
        for name, known in state.speedups.items()
        for cores, (samples, mean_s) in sorted(known.items())
    ]
