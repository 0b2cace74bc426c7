"""One seed, one world."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from types import TracebackType

from pilotfish.sim.scenario import draw_scenario
from pilotfish.sim.world import Report, World


@dataclass(slots=True)
class Outcome:
    """What became of one seed. ``failure`` is empty when all was well."""

    seed: int
    report: Report
    failure: str = ""
    details: str = ""
    story: list[str] = field(default_factory=list)


class _Witness:
    """Notes whatever goes wrong in its block, be it an invariant or a plain crash of the machine, and lets the caller go on."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        self._outcome.failure = f"{type(error).__name__}: {error}"
        self._outcome.details = "".join(traceback.format_exception(error))
        return True


def try_seed(seed: int, *, traced: bool = False) -> Outcome:
    """Simulate the world of this seed to its end, and tell what went wrong, if anything did."""
    world = World(draw_scenario(seed))
    outcome = Outcome(seed, world.report)
    if traced:
        world.trace = outcome.story
    with _Witness(outcome):
        world.run()
    return outcome
