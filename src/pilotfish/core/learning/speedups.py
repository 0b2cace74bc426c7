"""Learns how long moldable tasks take with each number of cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pilotfish.core.tasks.fair_share import cores_of
from pilotfish.model.ids import INDEX_MASK
from pilotfish.model.task import UNIT

if TYPE_CHECKING:
    from pilotfish.core.state import State, Task, Worker

Speedup = dict[int, tuple[int, float]]
"""For each number of cores, in units of 1/10000: the number of ended tasks, and their mean seconds for cost 1."""
MAX_CLASSES = 1_000
MAX_SAMPLES = 20
"""Maximum number of earlier tasks that count in the mean, so that the mean follows a change."""


def learn(state: State, worker: Worker, task: Task, wall_s: float) -> None:
    """Learns from a task that succeeded. Must be called before the cores of the task are freed, because this function reads the number of
    these cores."""
    needs = worker.active.get(task)
    if needs is None:
        return
    run = task.shape.run
    name = run.class_of(task.spec)
    known = state.speedups.pop(name, {})
    state.speedups[name] = known  # moved to the end, because the dict is sorted by last use
    if len(state.speedups) > MAX_CLASSES:
        del state.speedups[next(iter(state.speedups))]
    samples, mean_s = known.get(cores_of(needs), (0, 0.0))
    cost = run.cost(task.id & INDEX_MASK) or 1.0
    known[cores_of(needs)] = samples + 1, mean_s + (wall_s / cost - mean_s) / min(samples + 1, MAX_SAMPLES)


def table(state: State) -> list[dict[str, Any]]:
    """Returns rows for users: one row for each number of cores that was tried."""
    return [
        {"what": f"task {name} on {cores / UNIT:g} core{'s' * (cores != UNIT)}", "forecast": mean_s, "unit": "s", "samples": samples}
        for name, known in state.speedups.items()
        for cores, (samples, mean_s) in sorted(known.items())
    ]
