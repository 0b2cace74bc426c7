"""The Gantt planner, against the nested loops of the paper, and what holds for any plan."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish.policies.planning import heuristics
from pilotfish.policies.planning.chart import Floats, GanttChart, Integers, Placement, PlannedTransfer, TaskBatch, batches_of
from pilotfish.policies.planning.heuristics import HEURISTICS, Heuristic

INF = float("inf")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Placements and transfers in the order in which they were made; by batch, how many tasks have no place."""

    placements: list[Placement]
    transfers: list[PlannedTransfer]
    left: list[int]


def schedule(batches: Sequence[TaskBatch], placements: list[Placement]) -> Schedule:
    placed = Counter(placement.batch for placement in placements)
    transfers = [transfer for placement in placements for transfer in placement.transfers]
    return Schedule(placements, transfers, [len(batch.seconds) - placed[number] for number, batch in enumerate(batches)])


def plan(chart: GanttChart, batches: Sequence[TaskBatch], heuristic: Heuristic, now: float, horizon_s: float = INF) -> Schedule:
    return schedule(batches, heuristics.plan(chart, batches, heuristic, now, horizon_s))


@dataclass
class Reference:
    """Appendix A with its nested loops: every task at every host, again for every step."""

    chart: GanttChart
    batches: list[TaskBatch]
    heuristic: Heuristic
    now: float
    lanes: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    made: Schedule = field(default_factory=lambda: Schedule([], [], []))

    def __post_init__(self) -> None:
        for lane, (worker, free) in enumerate(zip(numbers(self.chart.lane_worker), floats(self.chart.lane_free_s), strict=True)):
            self.lanes.setdefault(int(worker), []).append((max(free, self.now), lane))
        self.arrival = np.array(self.chart.arrival_s, dtype=float).reshape(-1, len(floats(self.chart.site_latency_s)))
        self.link = [max(free, self.now) for free in floats(self.chart.site_link_free_s)]
        self.sites, self.slowness = numbers(self.chart.worker_site), floats(self.chart.worker_slowness)

    def run(self) -> Schedule:
        waiting = [(number, index) for number, batch in enumerate(self.batches) for index in range(len(batch.seconds))]
        while waiting:
            best = max(waiting, key=lambda task: (*self.metric(task), -task[0], -task[1]))
            if self.metric(best)[0] == -INF:
                break
            self.place(*best)
            waiting.remove(best)
        self.made.left.extend(sum(number == task[0] for task in waiting) for number in range(len(self.batches)))
        return self.made

    def metric(self, task: tuple[int, int]) -> tuple[float, float]:
        """What the task is chosen by, the largest first, and what then."""
        offers = list(self.offers(*task))
        ends = sorted(end for end, *_ in offers)
        if not ends:
            return -INF, 0.0
        match self.heuristic:
            case "min-min":
                return -ends[0], 0.0
            case "max-min":
                return ends[0], 0.0
            case "sufferage":
                return (ends[1] if len(ends) > 1 else INF) - ends[0], ends[0]
            case "xsufferage":
                by_site: dict[int, float] = {}
                for end, _, worker, *_ in offers:
                    by_site[int(self.sites[worker])] = min(end, by_site.get(int(self.sites[worker]), INF))
                return sorted([*by_site.values(), INF])[1] - ends[0], ends[0]

    def offers(self, number: int, index: int) -> Iterator[tuple[float, float, int, float, int]]:
        """End, start, worker, when lanes are free: the earliest lanes of every worker (0), and those if the first of them were gone (1)."""
        batch = self.batches[number]
        for worker in self.lanes:
            if batch.allowed is not None and not batch.allowed[worker]:
                continue
            site = int(self.sites[worker])
            lanes = sorted(self.lanes[worker])
            for first in range(min(2, len(lanes) - batch.width + 1)):
                free = lanes[first + batch.width - 1][0]
                start = max(free, self.ready(batch.files, site))
                launch = floats(self.chart.site_launch_s)[site]
                yield start + (launch + batch.seconds[index] * self.slowness[worker]), start, worker, free, first

    def ready(self, files: tuple[int, ...], site: int) -> float:
        link, ready = self.link[site], -INF
        for file in files:
            if self.arrival[file, site] == INF:
                link += duration(self.chart, file, site)
                ready = max(ready, link)
            ready = max(ready, self.arrival[file, site] if self.arrival[file, site] < INF else -INF)
        return ready

    def place(self, number: int, index: int) -> None:
        firsts = [offer for offer in self.offers(number, index) if not offer[4]]
        end, start, worker, *_ = min(firsts, key=lambda one: (one[0], self.sites[one[2]], self.slowness[one[2]], -one[3], one[2]))
        site, width = int(self.sites[worker]), self.batches[number].width
        lanes = tuple(lane for free, lane in sorted(self.lanes[worker]) if free <= start)[-width:]
        transfers = []
        for file in self.batches[number].files:
            if self.arrival[file, site] == INF:
                begin = self.link[site]
                self.arrival[file, site] = self.link[site] = begin + duration(self.chart, file, site)
                transfers.append(PlannedTransfer(file, site, begin, self.link[site]))
        self.lanes[worker] = [(end if lane in lanes else free, lane) for free, lane in self.lanes[worker]]
        self.made.placements.append(Placement(number, index, worker, lanes, start, end, tuple(transfers)))
        self.made.transfers.extend(transfers)


def floats(values: object) -> Floats:
    return np.asarray(values, dtype=np.float64)


def numbers(values: object) -> Integers:
    return np.asarray(values, dtype=np.int64)


def duration(chart: GanttChart, file: int, site: int) -> float:
    return float(floats(chart.site_latency_s)[site] + floats(chart.file_bytes)[file] / floats(chart.site_bandwidth)[site])


def make_chart(dice: random.Random, exact: bool) -> GanttChart:
    """Small; with times that add up without rounding, or with any."""

    def amount(least: float, max_placements: float) -> float:
        return dice.randint(int(least * 8), int(max_placements * 8)) / 8 if exact else dice.uniform(least, max_placements)

    sites, files = dice.randint(1, 4), dice.randint(0, 5)
    workers = dice.randint(1, 8)
    lane_worker = [worker for worker in range(workers) for _ in range(dice.randint(1, 3))]
    return GanttChart(
        lane_worker=lane_worker,
        lane_free_s=[dice.choice([0.0, amount(0, 30)]) for _ in lane_worker],
        worker_site=[dice.randrange(sites) for _ in range(workers)],
        worker_slowness=[amount(0.5, 3) if dice.random() < 0.6 else 1.0 for _ in range(workers)],
        site_link_free_s=[amount(0, 20) for _ in range(sites)],
        site_bandwidth=[2.0 ** dice.randint(0, 4) if exact else amount(1, 16) for _ in range(sites)],
        site_latency_s=[amount(0, 1) for _ in range(sites)],
        site_launch_s=[amount(0, 1) for _ in range(sites)],
        file_bytes=[float(dice.randint(0, 100)) for _ in range(files)],
        arrival_s=[[dice.choice([0.0, amount(0, 40), INF, INF]) for _ in range(sites)] for _ in range(files)],
    )


def make_batches(dice: random.Random, chart: GanttChart, exact: bool, masks: bool) -> list[TaskBatch]:
    batches = []
    files = len(floats(chart.file_bytes))
    sites = numbers(chart.worker_site)
    allowed = [None, np.array([dice.random() < 0.7 for _ in sites]) if masks else sites != 0]
    for _ in range(dice.randint(1, 7)):
        seconds = dice.randint(1, 160) / 8 if exact else dice.uniform(0.1, 20)
        wanted = tuple(dice.sample(range(files), dice.randint(0, min(3, files))))
        batches.append(TaskBatch([seconds] * dice.randint(0, 6), wanted, dice.choice([1, 1, 1, 2, 3]), dice.choice(allowed)))
    return batches


@pytest.mark.parametrize("heuristic", HEURISTICS)
def test_a_plan_is_that_of_the_nested_loops(heuristic: Heuristic) -> None:
    for seed in range(120):
        dice = random.Random(seed)
        chart = make_chart(dice, exact=True)
        batches = make_batches(dice, chart, exact=True, masks=False)
        assert plan(chart, batches, heuristic, now=5.0) == Reference(chart, batches, heuristic, 5.0).run(), f"seed {seed}"


@pytest.mark.parametrize("heuristic", HEURISTICS)
def test_rounding_does_not_make_a_plan_longer(heuristic: Heuristic) -> None:
    for seed in range(60):
        dice = random.Random(seed)
        chart = make_chart(dice, exact=False)
        batches = make_batches(dice, chart, exact=False, masks=False)
        made, expected = plan(chart, batches, heuristic, now=5.0), Reference(chart, batches, heuristic, 5.0).run()
        assert made.left == expected.left
        assert makespan(made) == pytest.approx(makespan(expected), rel=0.01), f"seed {seed}"


def makespan(made: Schedule) -> float:
    return max((placement.end_s for placement in made.placements), default=0.0)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), heuristic=st.sampled_from(HEURISTICS), exact=st.booleans(), candidates=st.sampled_from([1, 3, 256]))
def test_any_plan_can_be_carried_out(seed: int, heuristic: Heuristic, exact: bool, candidates: int) -> None:
    dice = random.Random(seed)
    chart = make_chart(dice, exact)
    batches = make_batches(dice, chart, exact, masks=True)
    now = dice.choice([0.0, 10.0])
    with patch.object(heuristics, "MAX_CANDIDATES", candidates):
        made = plan(chart, batches, heuristic, now)
        assert made == plan(chart, batches, heuristic, now)
    assert_links_hold(chart, made, now)
    assert_lanes_hold(chart, made, now)
    for placement in made.placements:
        assert_files_are_there(chart, batches[placement.batch], placement, made)
    for number, batch in enumerate(batches):
        placed = [placement.index for placement in made.placements if placement.batch == number]
        assert placed == list(range(len(placed)))
        assert len(placed) + made.left[number] == len(batch.seconds)
        assert not made.left[number] or not fits_anywhere(chart, batch)


def assert_links_hold(chart: GanttChart, made: Schedule, now: float) -> None:
    assert [transfer for placement in made.placements for transfer in placement.transfers] == made.transfers
    assert len({(transfer.file, transfer.site) for transfer in made.transfers}) == len(made.transfers)
    free = np.maximum(floats(chart.site_link_free_s), now)
    for transfer in made.transfers:
        assert floats(chart.arrival_s)[transfer.file, transfer.site] == INF
        assert transfer.start_s >= free[transfer.site]
        assert transfer.end_s == pytest.approx(transfer.start_s + duration(chart, transfer.file, transfer.site))
        free[transfer.site] = transfer.end_s


def assert_lanes_hold(chart: GanttChart, made: Schedule, now: float) -> None:
    free = np.maximum(floats(chart.lane_free_s), now)
    for placement in made.placements:
        lanes = list(placement.lanes)
        assert len(set(lanes)) == len(lanes)
        assert set(numbers(chart.lane_worker)[lanes].tolist()) == {placement.worker}
        assert placement.start_s >= free[lanes].max()
        free[lanes] = placement.end_s


def assert_files_are_there(chart: GanttChart, batch: TaskBatch, placement: Placement, made: Schedule) -> None:
    site = int(numbers(chart.worker_site)[placement.worker])
    sent = {transfer.file: transfer.end_s for transfer in made.transfers if transfer.site == site}
    for file in batch.files:
        assert placement.start_s >= min(floats(chart.arrival_s)[file, site], sent.get(file, INF))
    assert len(placement.lanes) == batch.width
    assert batch.allowed is None or batch.allowed[placement.worker]
    seconds = batch.seconds[placement.index] * floats(chart.worker_slowness)[placement.worker]
    assert placement.end_s == pytest.approx(placement.start_s + floats(chart.site_launch_s)[site] + seconds)


def fits_anywhere(chart: GanttChart, batch: TaskBatch) -> bool:
    lanes = np.bincount(numbers(chart.lane_worker), minlength=len(numbers(chart.worker_site)))
    return bool(((lanes >= batch.width) & (True if batch.allowed is None else batch.allowed)).any())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), heuristic=st.sampled_from(HEURISTICS), horizon_s=st.floats(0, 100))
def test_a_plan_ends_when_nothing_could_start_before_the_horizon(seed: int, heuristic: Heuristic, horizon_s: float) -> None:
    dice = random.Random(seed)
    chart = make_chart(dice, exact=True)
    batches = make_batches(dice, chart, exact=True, masks=True)
    whole, made = plan(chart, batches, heuristic, 5.0), plan(chart, batches, heuristic, 5.0, horizon_s)
    assert made.placements == whole.placements[: len(made.placements)]
    for steps in range(len(made.placements) + 1):
        so_far = schedule(batches, whole.placements[:steps])
        assert could_start(chart, batches, so_far, 5.0 + horizon_s) == (steps < len(made.placements))


def could_start(chart: GanttChart, batches: list[TaskBatch], made: Schedule, limit: float) -> bool:
    after = Reference(chart, batches, "min-min", 5.0)
    for transfer in made.transfers:
        after.arrival[transfer.file, transfer.site] = after.link[transfer.site] = transfer.end_s
    for done in made.placements:
        after.lanes[done.worker] = [(done.end_s if lane in done.lanes else free, lane) for free, lane in after.lanes[done.worker]]
    heads = [(number, len(batch.seconds) - made.left[number]) for number, batch in enumerate(batches) if made.left[number]]
    return any(start < limit for head in heads for _, start, *_ in after.offers(*head))


def apst(heuristic: Heuristic, prestaged: tuple[tuple[int, int], ...] = ()) -> Schedule:
    """Six simulations of 200 tasks that share a file each; three clusters, the nearest has a link 20 and 40 times as fast as the others."""
    dice = random.Random(1)
    arrival = np.full((6, 3), INF)
    for file, site in prestaged:
        arrival[file, site] = 0.0
    chart = GanttChart(
        lane_worker=range(56),
        lane_free_s=np.zeros(56),
        worker_site=[0] * 32 + [1] * 8 + [2] * 16,
        worker_slowness=np.ones(56),
        site_link_free_s=np.zeros(3),
        site_bandwidth=[10e6, 10e6 / 20, 10e6 / 40],
        site_latency_s=[0.1] * 3,
        site_launch_s=[0.1] * 3,
        file_bytes=[1e6, 1e6, 20e6, 20e6, 100e6, 100e6],
        arrival_s=arrival,
    )
    return plan(chart, batches_of([(task % 6,) for task in range(1200)], [dice.uniform(1, 20) for _ in range(1200)]), heuristic, now=0.0)


@pytest.mark.parametrize("heuristic", HEURISTICS)
def test_large_files_are_not_sent_over_the_slowest_link(heuristic: Heuristic) -> None:
    made = apst(heuristic)
    assert sum(made.left) == 0
    assert not [transfer for transfer in made.transfers if transfer.site == 2 and transfer.file >= 4]
    assert {transfer.file for transfer in made.transfers if transfer.site == 0} >= {4, 5}


@pytest.mark.parametrize("heuristic", HEURISTICS)
def test_files_that_are_there_are_used_and_not_sent(heuristic: Heuristic) -> None:
    made = apst(heuristic, prestaged=((4, 2), (5, 2)))
    assert not [transfer for transfer in made.transfers if transfer.site == 2 and transfer.file >= 4]
    assert makespan(made) < makespan(apst(heuristic))


@pytest.mark.parametrize("heuristic", ["max-min", "sufferage", "xsufferage"])
def test_long_tasks_go_first_where_hosts_and_files_make_no_difference(heuristic: Heuristic) -> None:
    chart = GanttChart([0, 1], [0.0, 0.0], [0, 0], [1.0, 1.0], [0.0], [1.0], [0.0], [0.0], [], [])
    made = plan(chart, [TaskBatch([1.0, 1.0]), TaskBatch([2.0])], heuristic, now=0.0)
    assert [placement.batch for placement in made.placements] == [1, 0, 0]
    assert makespan(made) == 2.0


def test_tasks_of_a_batch_go_in_its_order_and_need_not_be_equal() -> None:
    chart = GanttChart([0], [0.0], [0], [2.0], [0.0], [1.0], [0.0], [0.5], [], [])
    made = plan(chart, [TaskBatch([3.0, 1.0, 2.0])], "sufferage", now=0.0)
    assert [(placement.index, placement.end_s) for placement in made.placements] == [(0, 6.5), (1, 9.0), (2, 13.5)]


def test_with_too_many_candidates_every_shared_file_is_represented() -> None:
    """A thousand batches need file 0 and one needs file 1, which is large: its transfer starts at once for all that."""
    chart = GanttChart([0, 1], [0.0, 0.0], [0, 0], [1.0, 1.0], [0.0], [1.0], [0.0], [0.0], [0.0, 500.0], [[INF], [INF]])
    batches = [TaskBatch([1.0 + number / 1000], (0,)) for number in range(1000)] + [TaskBatch([1.0, 1.0], (1,))]
    made = plan(chart, batches, "sufferage", now=0.0)
    assert made.transfers[0] == PlannedTransfer(1, 0, 0.0, 500.0)


def test_nothing_is_planned_where_there_is_nobody_or_nothing_to_do() -> None:
    nobody = GanttChart([], [], [], [], [0.0], [1.0], [0.0], [0.0], [], [])
    assert plan(nobody, [TaskBatch([1.0, 1.0])], "sufferage", now=0.0) == Schedule([], [], [2])
    somebody = GanttChart([0], [0.0], [0], [1.0], [0.0], [1.0], [0.0], [0.0], [], [])
    assert plan(somebody, [], "min-min", now=0.0) == Schedule([], [], [])
    assert plan(somebody, [TaskBatch([])], "min-min", now=0.0) == Schedule([], [], [0])


def test_tasks_are_grouped_by_what_they_need_and_about_how_long_they_take() -> None:
    here, there = np.array([True, False]), np.array([False, True])
    files = [(0,), (1,), (0,), (0,), (0,), (0,)]
    batches = batches_of(files, [4.0, 4.0, 4.5, 8.0, 4.0, 4.1], [1, 1, 1, 1, 2, 1], [here, here, here, here, here, there])
    assert [list(batch.tasks) for batch in batches] == [[0, 2], [1], [3], [4], [5]]
    assert [list(batch.seconds) for batch in batches] == [[4.0, 4.5], [4.0], [8.0], [4.0], [4.1]]
    assert [(batch.files, batch.width, batch.allowed is here) for batch in batches[-2:]] == [((0,), 2, True), ((0,), 1, False)]
    assert [list(batch.tasks) for batch in batches_of([()] * 3, [0.0, 1e-9, 1.0])] == [[0, 1], [2]]
    assert batches_of([], []) == []
