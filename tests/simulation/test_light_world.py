"""Tests the light world: its hosts, links and disks, and that the real machine decides."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from benchmarks.workflows import least_s, order_violations
from pilotfish import plugins
from pilotfish.sim.light_world import LightWorld
from pilotfish.sim.scenarios.apst_sweep import apst_sites, sweep
from pilotfish.sim.scenarios.workflow_families import family
from pilotfish.sim.scenarios.workload_generator import work_of
from pilotfish.sim.shared_link import STREAMS, SharedLink, SiteDisk
from pilotfish.sim.workload import SimulatedSite, Workload


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = 0

    def after(self, seconds: float, act: Callable[..., None], *arguments: object) -> None:
        self._count += 1
        self._events.append((self.now + seconds, self._count, act, arguments))

    def run(self) -> None:
        while self._events:
            event = min(self._events)
            self._events.remove(event)
            self.now = event[0]
            event[2](*event[3])


def test_transfers_share_a_link_equally_and_together_use_all_of_it() -> None:
    clock = Clock()
    ends: dict[str, float] = {}
    link = SharedLink(clock, bandwidth=100.0, latency_s=0.0)
    link.send(100.0, lambda: ends.update(small=clock.now))
    link.send(300.0, lambda: ends.update(large=clock.now))
    clock.run()
    assert ends == {"small": pytest.approx(2.0), "large": pytest.approx(4.0)}
    moved, busy_s = link.measure()
    assert moved == pytest.approx(400) and busy_s == pytest.approx(4.0) and not link.busy


def test_only_so_many_transfers_go_at_a_time_and_latencies_overlap() -> None:
    clock = Clock()
    ends: list[float] = []
    link = SharedLink(clock, bandwidth=100.0, latency_s=1.0)
    for _ in range(STREAMS + 1):
        link.send(100.0, lambda: ends.append(clock.now))
    clock.run()
    assert ends == [pytest.approx(1 + STREAMS)] * STREAMS + [pytest.approx(1 + STREAMS + 1)]


def test_a_file_comes_once_however_many_ask_for_it() -> None:
    clock = Clock()
    got: list[str] = []
    link = SharedLink(clock, bandwidth=10.0, latency_s=0.0)
    disk = SiteDisk(link, ("here",))
    assert not disk.fetch("here", 100, lambda: got.append("here"))
    assert disk.fetch("there", 100, lambda: got.append("first"))
    assert not disk.fetch("there", 100, lambda: got.append("second"))
    clock.run()
    assert got == ["here", "first", "second"] and disk.has("there")
    assert link.measure()[0] == pytest.approx(100)


@pytest.mark.parametrize("name", plugins.names("policies"))
def test_all_tasks_end_once_and_no_host_runs_more_than_it_has_cores_for(name: str) -> None:
    work = sweep(1, unit_s=1.0, tasks=120)
    result = LightWorld(apst_sites("a", hosts=(6, 2, 3)), work, plugins.load("policies", name)(), 1, record_intervals=True).run()
    ended = sorted(interval.task for interval in result.intervals)
    assert sorted(set(ended)) == list(range(120))
    assert len(ended) == 120 or name == "stealing"
    by_host: dict[int, list[tuple[float, float]]] = {}
    for interval in result.intervals:
        by_host.setdefault(interval.host, []).append((interval.started_at, interval.ended_at))
    for spans in by_host.values():
        spans.sort()
        assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(spans))
    assert result.makespan_s >= max(interval.ended_at for interval in result.intervals)


def test_the_same_seed_gives_the_same_play() -> None:
    def play() -> float:
        return LightWorld(apst_sites("b", hosts=(4, 2, 2)), sweep(3, 1.0, 60), plugins.load("policies", "xsufferage")(), 3).run().makespan_s

    assert play() == play()


def test_a_plan_beats_self_scheduling_where_large_files_are_shared_and_ties_where_they_are_everywhere() -> None:
    """Repeats the published experiment at a third of its size."""

    def seconds(scenario: str, policy: str) -> float:
        work = sweep(1, unit_s=1.5, tasks=402)
        return (
            LightWorld(apst_sites(scenario, bandwidth=30e6, hosts=(11, 3, 5)), work, plugins.load("policies", policy)(), 1).run().makespan_s
        )

    assert seconds("a", "workqueue") > 1.3 * seconds("a", "xsufferage")
    assert seconds("a", "auto") < 1.1 * seconds("a", "xsufferage")
    assert seconds("d", "auto") < 1.05 * seconds("d", "workqueue")


def test_pilots_that_wait_and_pilots_whose_time_is_over_lose_nothing() -> None:
    work = Workload([7.0] * 60)
    patient = SimulatedSite("batch", 4, wait_s=30.0, wait_spread=0.5)
    short = SimulatedSite("short", 2, walltime_s=20.0)
    result = LightWorld([patient, short], work, plugins.load("policies", "near")(), 2, record_intervals=True).run()
    assert sorted(interval.task for interval in result.intervals) == list(range(60))
    assert all(interval.ended_at <= 20.0 + 1e-6 for interval in result.intervals if interval.site == "short")


@pytest.mark.parametrize("name", plugins.names("policies"))
def test_work_that_nobody_can_run_is_said_to_be_that(name: str) -> None:
    with pytest.raises(RuntimeError, match="1 tasks were left"):
        LightWorld([SimulatedSite("small", 2)], Workload([1.0, 1.0], cores=[1, 2]), plugins.load("policies", name)()).run()


@pytest.mark.parametrize("name", ["montage", "epigenomics", "cycles", "1000genome", "seismology"])
@pytest.mark.parametrize("policy", ["workqueue", "near", "xsufferage"])
def test_every_order_of_a_workflow_is_lawful_and_no_shorter_than_its_bounds(name: str, policy: str) -> None:
    workflow = family(name, 150, 1)
    result = LightWorld([SimulatedSite("p", 8)], work_of(workflow), plugins.load("policies", policy)(), record_intervals=True).run()
    assert not order_violations(workflow, result.intervals)
    assert result.makespan_s >= least_s(workflow, 8)


def test_the_longest_chain_goes_first_where_it_is_known() -> None:
    workflow = family("cycles", 400, 1)
    work = work_of(workflow)
    work.costs, work.kinds = list(work.seconds), ["task"] * len(work)
    ranked, listed = (
        LightWorld([SimulatedSite("p", 32)], work, plugins.load("policies", name)()).run().makespan_s for name in ("near", "workqueue")
    )
    assert ranked < listed
