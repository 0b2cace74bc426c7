"""Many thousands of faults, and nothing lost. ``pytest tests/simulation --seed N`` replays one seed."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from pilotfish.sim.experiment import run_seed, try_seed
from pilotfish.sim.scenario import CLIENT_FAULTS, CONSEQUENCES, MASTER_FAULTS, NODE_FAULTS
from tests.simulation.campaign import run_campaign

ENOUGH_FAULTS = 100_000
MOST_INNOCENTS_CONVICTED = 1 / 100
"""Of all tasks, in worlds where a worker dies every second or so: three real deaths, the last one alone, look like poison."""
LEAST_COVERED = 10
STATES_AT_WORKERS = ("idle", "assigned", "running", "ahead", "finished")
STATES_OF_TASKS = ("waiting", "ready", "assigned", "running", "done", "failed", "cancelled")


def test_a_chosen_seed_is_good(request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("--seed")
    if seed is None:
        pytest.skip("no --seed was given")
    outcome = try_seed(seed, traced=True)
    print("\n".join(outcome.story[-200:]))
    assert not outcome.failure, outcome.details


@pytest.mark.timeout(1200)
def test_nothing_is_lost_or_done_twice_in_a_hundred_thousand_faults(record_property: Callable[[str, object], None]) -> None:
    campaign = run_campaign(itertools.count(), ENOUGH_FAULTS)
    counts = ", ".join(f"{count} {name}" for name, count in campaign.counts.items())
    record_property("figure", f"simulation: {campaign.fault_count} faults in {campaign.seeds} seeds: {counts}")
    assert not campaign.failures, campaign.complaint()
    assert campaign.fault_count >= ENOUGH_FAULTS
    assert campaign.counts["innocents convicted"] <= MOST_INNOCENTS_CONVICTED * campaign.counts["tasks"]
    missing = [kind for kind in (*NODE_FAULTS, *MASTER_FAULTS, *CLIENT_FAULTS, *CONSEQUENCES) if campaign.faults[kind] < LEAST_COVERED]
    assert not missing, f"hardly ever injected: {missing}"
    pairs = [
        *itertools.product(NODE_FAULTS, STATES_AT_WORKERS),
        *itertools.product((*MASTER_FAULTS, *CLIENT_FAULTS), STATES_OF_TASKS),
    ]
    uncovered = [pair for pair in pairs if pair not in NEVER_TOGETHER and campaign.coverage[pair] < LEAST_COVERED]
    assert not uncovered, f"faults that hardly ever met tasks in these states: {uncovered}"


NEVER_TOGETHER: tuple[tuple[str, str], ...] = (("black-hole", "ahead"),)
"""A node that fails everything at once has nothing waiting there."""


def test_the_same_seed_tells_the_same_story_in_any_process() -> None:
    """Nothing may depend on hashes, addresses or the order of sets."""
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "pilotfish.sim", "3", "6"]
        digests.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(digests) == 1, digests


REGRESSIONS = {
    "the deadline of the master lay in the past": 4,
    "an agent asked to be called without end": 1,
    "a late hello took back what had just been assigned": 73,
    "a run that had its fill of failures met a dying worker": 5,
    "a pilot that was to end was forgotten over a restart": 20,
    "a quarantine did not end after a restart": 19,
    "the master took its own sleep for the silence of workers": 56,
    "a suspect that fitted nowhere held up the others": 89,
    "a poison that struck at once was never charged": 4,
    "a pilot that ended unseen made suspects of its tasks": 2,
    "the timer of an earlier absence closed a run": 10,
    "a refused submission gave up its payloads twice": 16,
    "a second try shared code that went with the first run": 30,
    "a look at the output of a lost worker was never answered": 70,
}
"""Bugs that simulation found in the real code, each with a seed that finds it again if it is put back (most are in planted.py)."""


@pytest.mark.parametrize(("bug", "seed"), REGRESSIONS.items())
def test_what_was_found_once_stays_mended(bug: str, seed: int) -> None:
    run_seed(seed)
