"""Tests that the simulation finds bugs: each planted bug must be found within 300 seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.planted import Planted
from tests.simulation.planted_multi_node import PLANTED
from tests.simulation.world.seed_run import try_seed

MOST_SEEDS = 300
SAMPLE = {
    "results-are-not-fenced",
    "the-tasks-of-a-lost-worker-are-forgotten",
    "a-quarantine-has-no-end",
    "a-repeated-submission-counts-twice",
    "acknowledged-before-durable",
    "a-snapshot-leaves-something-out",
    "a-decision-is-not-journaled",
    "dependencies-are-ignored",
    "the-agent-forgets-results-when-it-reconnects",
    "the-agent-believes-an-old-master",
    "with-one-worker-the-other-attempt-is-lost",
    "an-attempt-begins-with-one-content-missing",
    "a-full-disk-is-charged-to-the-task",
    "made-contents-are-not-journaled",
    "nodes-of-two-pilots-are-mixed",
    "a-new-master-does-not-know-who-is-beside",
}
"""Bugs of every family that the first seeds find. ``make test`` plants these, ``make campaign`` the others."""


def each_planted() -> list[Any]:
    return [pytest.param(one, id=one.name, marks=[] if one.name in SAMPLE else [pytest.mark.campaign]) for one in PLANTED]


def test_the_sample_names_planted_bugs() -> None:
    assert {one.name for one in PLANTED} > SAMPLE


@pytest.mark.timeout(600)
@pytest.mark.parametrize("planted", each_planted())
def test_a_planted_bug_is_found(planted: Planted, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]) -> None:
    planted.plant(monkeypatch)
    for seed in range(MOST_SEEDS):
        outcome = try_seed(seed)
        if outcome.failure:
            record_property("figure", f"planted bug {planted.name}: found in seed {seed + 1} of {MOST_SEEDS}")
            return
    pytest.fail(f"{planted.name} was not found in {MOST_SEEDS} seeds")
