"""One seed, one world."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from types import TracebackType

from tests.simulation.world.fault_scenario import draw_scenario
from tests.simulation.world.fault_world import FaultWorld, WorldReport


@dataclass(slots=True)
class SeedOutcome:
    """What became of one seed. ``failure`` is empty when all was well."""

    seed: int
    report: WorldReport
    failure: str = ""
    details: str = ""
    story: list[str] = field(default_factory=list)


class _Witness:
    """Notes whatever goes wrong in its block, be it an invariant or a plain crash of the machine, and lets the caller go on."""

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
    """Simulate the world of this seed to its end, and tell what went wrong, if anything did."""
    world = FaultWorld(draw_scenario(seed))
    outcome = SeedOutcome(seed, world.report)
    if traced:
        world.trace = outcome.story
    with _Witness(outcome):
        world.run()
    return outcome
