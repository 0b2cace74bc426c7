"""Runs the world of one seed."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from types import TracebackType

from tests.simulation.world.fault_scenario import draw_scenario
from tests.simulation.world.fault_world import FaultWorld, WorldReport


@dataclass(slots=True)
class SeedOutcome:
    """Result of one seed. ``failure`` is empty on success."""

    seed: int
    report: WorldReport
    failure: str = ""
    details: str = ""
    story: list[str] = field(default_factory=list)


class _Witness:
    """Records any exception in its block, be it a violated invariant or a crash, and lets the caller continue."""

    def __init__(self, outcome: SeedOutcome) -> None:
        self._outcome = outcome

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        self._outcome.failure = f"{type(error).__name__}: {error}"
        self._outcome.details = "".join(traceback.format_exception(error))
        return True


def try_seed(seed: int, *, traced: bool = False) -> SeedOutcome:
    """Simulates the world of a seed to its end and reports any failure."""
    world = FaultWorld(draw_scenario(seed))
    outcome = SeedOutcome(seed, world.report)
    if traced:
        world.trace = outcome.story
    with _Witness(outcome):
        world.run()
    return outcome
