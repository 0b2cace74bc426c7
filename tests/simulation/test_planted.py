"""The simulation must be able to find bugs: each of these is put in on purpose and has to be found within 300 seeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.planted import Planted
from tests.simulation.planted_multi_node import PLANTED
from tests.simulation.world.seed_run import try_seed

MOST_SEEDS = 300


@pytest.mark.timeout(600)
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_bug_is_found(planted: Planted, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]) -> None:
    planted.plant(monkeypatch)
    for seed in range(MOST_SEEDS):
        outcome = try_seed(seed)
        if outcome.failure:
            record_property("figure", f"planted bug {planted.name}: found in seed {seed + 1} of {MOST_SEEDS}")
            return
    pytest.fail(f"{planted.name} was not found in {MOST_SEEDS} seeds")
