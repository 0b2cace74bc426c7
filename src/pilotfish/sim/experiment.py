"""One seed, one world."""

from __future__ import annotations

from pilotfish.sim.scenario import draw_scenario
from pilotfish.sim.world import Report, World


def run_seed(seed: int, most_faults: int = 0) -> Report:
    """Simulate the world of this seed to its end. Raises where something happened that must not."""
    return World(draw_scenario(seed, most_faults)).run()
