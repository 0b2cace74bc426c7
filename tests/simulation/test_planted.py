"""Each planted bug must be found within 300 seeds; see ``planted.py``."""

from __future__ import annotations

import pytest

from pilotfish.sim.experiment import run_seed
from tests.simulation.planted import PLANTED, Planted

MOST_SEEDS = 300


def test_there_are_enough_bugs_to_find() -> None:
    assert len(PLANTED) >= 15


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_bug_is_found(planted: Planted, monkeypatch: pytest.MonkeyPatch, record_property: pytest.FixtureRequest) -> None:
    planted.plant(monkeypatch)
    for seed in range(MOST_SEEDS):
        try:
            run_seed(seed)
        except Exception:  # noqa: BLE001 - whatever it is that the bug breaks, it was noticed
            return
    raise AssertionError(f"{planted.name} was not found in {MOST_SEEDS} seeds")
