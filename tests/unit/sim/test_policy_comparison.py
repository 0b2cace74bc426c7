"""Many rehearsals: the same figures on any number of cores, and bounds that hold."""

from __future__ import annotations

import os
import signal

import pytest

from pilotfish import plugins
from pilotfish.errors import BadInput, PilotfishError
from pilotfish.sim.process_map import in_parallel
from pilotfish.sim.scenarios.policy_comparison import longest_chain_s, record_trace, simulate, simulate_all
from pilotfish.sim.scenarios.scenario_file import Scenario, ScenarioOptions
from pilotfish.sim.workload import Workload
from tests.unit.sim.test_scenario_file import read


def small(**work: object) -> Scenario:
    return read(
        wanted=ScenarioOptions(
            ["near 4", "far 4 speed=0.5 bandwidth=1MB"], ["3x5MB"], {"tasks": 60, "seconds": "uniform(5, 20)", **work}, ["all"], 2
        )
    )


def test_every_policy_ends_every_task_above_the_bounds() -> None:
    for outcome in simulate_all(small(), 1):
        assert outcome.makespan_s >= max(outcome.area_s, outcome.path_s)
        assert 0 < outcome.used <= 1
        assert set(outcome.sent) == {"near", "far"}


def test_two_processes_find_what_one_finds() -> None:
    def found(cores: int) -> dict[tuple[str, int], float]:
        return {(one.policy, one.seed): one.makespan_s for one in simulate_all(small(), cores)}

    alone = found(1)
    assert len(alone) == 2 * len(plugins.names("policies"))
    assert found(2) == alone


def test_what_happened_is_told_whole() -> None:
    trace = record_trace(small(), "near")
    assert sorted(interval.task for interval in trace.world_result.intervals) == list(range(60))
    transfers = trace.world_result.transfers
    assert all(transfer.requested_at < transfer.arrived_at for coming in transfers.values() for transfer in coming)
    assert {site for site, coming in transfers.items() if coming} == {"near", "far"}
    assert trace.result == simulate(small(), ("near", 0))


def test_stealing_ends_sooner_where_some_hosts_are_slow() -> None:
    scenario = read(wanted=ScenarioOptions(["quick 4", "slow 4 speed=0.1"], [], {"tasks": 24, "seconds": 30}, ["near", "stealing"], 1))
    near, stealing = simulate_all(scenario, 1)
    assert stealing.makespan_s < 0.7 * near.makespan_s


def test_tasks_that_nobody_can_end_are_an_error() -> None:
    scenario = read(wanted=ScenarioOptions(["here 1 walltime=60"], [], {"tasks": 10, "seconds": 50}, ["workqueue"], 1))
    with pytest.raises(BadInput, match="policy workqueue, seed 0: .* tasks were left") as refused:
        list(simulate_all(scenario, 1))
    assert "walltime" in refused.value.hint


def test_an_error_in_another_process_comes_back() -> None:
    scenario = read(wanted=ScenarioOptions(["here 1 walltime=60"], [], {"tasks": 10, "seconds": 50}, ["workqueue"], 2))
    with pytest.raises(BadInput, match="tasks were left"):
        list(simulate_all(scenario, 2))


def test_turns_are_done_once_each() -> None:
    assert sorted(in_parallel(abs, [-3, -1, -2], 2)) == [1, 2, 3]


def test_a_process_that_is_killed_is_an_error_and_no_long_wait() -> None:
    with pytest.raises(PilotfishError, match="killed"):
        list(in_parallel(_die, [1, 2, 3], 2))


def _die(turn: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return turn


def test_the_longest_chain_is_found() -> None:
    assert longest_chain_s(Workload([1.0, 5.0, 2.0], after=[(), (0,), (0, 1)])) == 8.0
    assert longest_chain_s(Workload([1.0, 5.0])) == 5.0
