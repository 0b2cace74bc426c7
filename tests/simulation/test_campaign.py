"""The campaign: the shipped machines under tens of thousands of injected faults. A failing seed replays with ``run_seed(SEED)``."""

from __future__ import annotations

import os

import pytest

from pilotfish.sim.experiment import run_seed

CHUNKS = 8
FAULTS_PER_CHUNK = 12_500
FIXED_SEEDS_PER_CHUNK = 100
"""After these, fresh seeds follow until the chunk has had its faults."""
MOST_SEEDS = 1_000


def test_the_campaign_injects_at_least_a_hundred_thousand_faults() -> None:
    assert CHUNKS * FAULTS_PER_CHUNK >= 100_000


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_nothing_is_lost_and_nothing_counts_twice(chunk: int) -> None:
    fresh = int.from_bytes(os.urandom(6), "big")
    faults = 0
    for number in range(MOST_SEEDS):
        seed = chunk * FIXED_SEEDS_PER_CHUNK + number if number < FIXED_SEEDS_PER_CHUNK else fresh + number
        try:
            faults += sum(run_seed(seed).faults.values())
        except Exception as problem:
            raise AssertionError(f"seed {seed}: {problem}") from problem
        if faults >= FAULTS_PER_CHUNK and number >= FIXED_SEEDS_PER_CHUNK:
            return
    raise AssertionError(f"{faults} faults in {MOST_SEEDS} seeds: the campaign has gone soft")
