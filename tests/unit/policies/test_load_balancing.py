"""Sizes of chunks: what the model says, what is learnt, and what nobody may break."""

from __future__ import annotations

import math
import random
from itertools import combinations

import pytest

from experiments import uplinks
from experiments.uplinks import ONE_PORT, PARALLEL, Uplink, best_ratio, self_scheduled, weight
from pilotfish.policies.load_balancing import (
    SMALL_BYTES,
    CapacityEstimates,
    ChunkMeasurement,
    LinearFit,
    LoadModel,
    RatioSearch,
    WorkerCapacity,
    compute_transfer_ratios,
    equal_parts,
    heterogeneity,
    plan,
    time_of,
    whole_units,
)

NOTHING_MOVES = LoadModel()
NAN = float("nan")


def drawn(dice: random.Random, count: int) -> list[WorkerCapacity]:
    return [
        WorkerCapacity(
            f"w{number}", dice.uniform(1, 10), dice.choice([math.inf, dice.uniform(10, 1000)]), dice.choice([0.0, dice.uniform(0, 20)])
        )
        for number in range(count)
    ]


def ends(sizes: tuple[float, ...], workers: list[WorkerCapacity], application: LoadModel) -> list[float]:
    return [time_of([size], [worker], application) for size, worker in zip(sizes, workers, strict=True) if size > 0]


# --- plans ----------------------------------------------------------------------------------------------------------------------------


def test_without_communication_sizes_follow_speeds() -> None:
    found = plan([WorkerCapacity("slow", 1), WorkerCapacity("fast", 3)], NOTHING_MOVES, 100)
    assert list(found.sizes) == [25, 75]
    assert found.time_s == 25


def test_weights_are_those_of_the_paper() -> None:
    worker = WorkerCapacity("w", speed=8.0, bandwidth=2.0)
    (mu,) = compute_transfer_ratios([worker])
    assert mu == 4
    assert weight(worker, 0.5) == pytest.approx(8.0 / (1 + 0.5 * mu))


@pytest.mark.parametrize("seed", range(30))
def test_all_who_take_part_end_together_and_the_load_is_done(seed: int) -> None:
    dice = random.Random(seed)
    workers, application = drawn(dice, dice.randint(1, 12)), LoadModel(dice.uniform(0, 50), dice.uniform(0, 100), dice.uniform(0, 2))
    found = plan(workers, application, 1000)
    assert sum(found.sizes) == pytest.approx(1000)
    assert min(found.sizes) >= 0
    assert ends(found.sizes, workers, application) == pytest.approx([found.time_s] * sum(size > 0 for size in found.sizes))


@pytest.mark.parametrize("link", [PARALLEL, ONE_PORT, Uplink(200.0)])
@pytest.mark.parametrize("seed", range(10))
def test_no_subset_does_better_than_the_one_that_is_chosen(seed: int, link: Uplink) -> None:
    dice = random.Random(seed)
    workers, application = drawn(dice, 6), LoadModel(dice.uniform(0, 30))
    found = plan(workers, application, 60)
    shared = uplinks.plan(workers, application, 60, link)
    assert sum(shared.sizes) == pytest.approx(60)
    assert uplinks.time_of(shared.sizes, workers, application, link) == pytest.approx(shared.time_s)
    assert shared.time_s >= found.time_s * (1 - 1e-9)
    if link is PARALLEL:
        for count in range(1, 6):
            for chosen in combinations(workers, count):
                assert plan(chosen, application, 60).time_s >= found.time_s * (1 - 1e-9)


def test_a_worker_whose_latency_is_longer_than_the_work_is_left_out() -> None:
    near, far = WorkerCapacity("near", 10), WorkerCapacity("far", 1000, latency_s=30)
    assert plan([near, far], NOTHING_MOVES, 100).sizes == (100, 0)
    assert plan([near, far], NOTHING_MOVES, 1000).sizes[1] > 0


def test_by_one_port_a_worker_that_takes_long_to_serve_is_left_out() -> None:
    quick, narrow = WorkerCapacity("quick", 1.0, 1e6), WorkerCapacity("narrow", 1e6, 0.01)
    sizes = uplinks.plan([narrow, quick], LoadModel(1.0), 10, ONE_PORT).sizes
    assert sizes[1] > 9
    assert uplinks.plan([WorkerCapacity("late", 1.0, 1e5, 100.0), quick], LoadModel(1.0), 10, ONE_PORT).sizes == pytest.approx((0, 10))


def test_a_narrow_link_of_the_master_takes_fewer_workers() -> None:
    workers = [WorkerCapacity(f"w{number}", 1.0, 100.0, latency_s=1.0) for number in range(16)]
    application = LoadModel(10.0, chunk_bytes=100.0)
    used = [sum(size > 0 for size in uplinks.plan(workers, application, 100, Uplink(bandwidth)).sizes) for bandwidth in (math.inf, 100.0)]
    assert used[0] == 16
    assert used[1] < 16


def test_workers_of_which_nothing_sensible_is_known_get_nothing() -> None:
    odd = [
        WorkerCapacity("a", NAN),
        WorkerCapacity("b", 0),
        WorkerCapacity("c", -1),
        WorkerCapacity("d", math.inf),
        WorkerCapacity("e", 1, NAN),
        WorkerCapacity("f", 1, 0),
    ]
    odd += [WorkerCapacity("g", 1, 1, NAN), WorkerCapacity("h", 1, 1, math.inf)]
    good = WorkerCapacity("good", 2)
    found = plan([*odd, good], NOTHING_MOVES, 10)
    assert found.sizes == (0,) * len(odd) + (10,)
    assert whole_units(found, [*odd, good], NOTHING_MOVES, 10) == [0] * len(odd) + [10]
    with pytest.raises(ValueError, match="no worker"):
        plan(odd, NOTHING_MOVES, 10)


def test_no_load_is_no_work() -> None:
    found = plan([WorkerCapacity("w", 1)], NOTHING_MOVES, 0)
    assert (found.sizes, found.time_s) == ((0.0,), 0.0)
    assert equal_parts(0, 3) == [0, 0, 0]


@pytest.mark.parametrize("seed", range(20))
def test_whole_units_add_up_and_end_as_soon_as_they_can(seed: int) -> None:
    dice = random.Random(seed)
    workers, load = drawn(dice, 4), dice.randint(1, 12)
    sizes = whole_units(plan(workers, NOTHING_MOVES, load), workers, NOTHING_MOVES, load)
    assert sum(sizes) == load
    assert all(isinstance(size, int) and size >= 0 for size in sizes)
    every = [(a, b, c, load - a - b - c) for a in range(load + 1) for b in range(load + 1 - a) for c in range(load + 1 - a - b)]
    assert time_of(sizes, workers, NOTHING_MOVES) == pytest.approx(min(time_of(one, workers, NOTHING_MOVES) for one in every))


@pytest.mark.parametrize("load", [10**15 + 7, 10**18 + 1])
def test_units_beyond_what_a_float_can_count_add_up(load: int) -> None:
    workers = [WorkerCapacity(f"w{number}", 1 + number / 3) for number in range(7)]
    sizes = whole_units(plan(workers, NOTHING_MOVES, load), workers, NOTHING_MOVES, load)
    assert sum(sizes) == load
    assert min(sizes) > 0


def test_equal_parts_differ_by_one_at_most() -> None:
    assert sorted(equal_parts(10, 4)) == [2, 2, 3, 3]
    assert sum(equal_parts(3, 8)) == 3


def test_self_scheduling_gives_the_next_task_to_whoever_is_idle() -> None:
    workers = [WorkerCapacity("slow", 1), WorkerCapacity("fast", 3)]
    assert self_scheduled(workers, NOTHING_MOVES, 4, 4) == pytest.approx(1.0)
    assert self_scheduled(workers, NOTHING_MOVES, 4, 2) == pytest.approx(2.0)
    assert self_scheduled([WorkerCapacity("a", 1.0, 1.0), WorkerCapacity("b", 1.0, 1.0)], LoadModel(1.0), 2, 2, ONE_PORT) == pytest.approx(
        3.0
    )


# --- figures --------------------------------------------------------------------------------------------------------------------------


def test_phi_is_the_standard_deviation_of_the_normalized_capacities() -> None:
    assert heterogeneity([5, 5, 5]) == 0
    assert heterogeneity([1, 3]) == pytest.approx(math.sqrt(0.5))
    assert heterogeneity([7]) == heterogeneity([]) == 0


def test_an_unknown_bandwidth_counts_as_an_ordinary_one() -> None:
    assert compute_transfer_ratios([WorkerCapacity("a", 2), WorkerCapacity("b", 6)]) == [2, 6]
    assert compute_transfer_ratios([WorkerCapacity("a", 2, 4), WorkerCapacity("b", 6)]) == [0.5, 1.5]


# --- learning -------------------------------------------------------------------------------------------------------------------------


def chunk(worker: str = "w", units: float = 10, compute_s: float = 1.0, transfer_s: float = 0.0, moved: float = 0.0) -> ChunkMeasurement:
    return ChunkMeasurement(worker, units, compute_s, transfer_s, moved)


def test_speed_is_learnt_and_follows_changes_smoothly() -> None:
    estimates = CapacityEstimates(0.5)
    estimates.observe([chunk(units=10, compute_s=1)])
    assert estimates.capacity("w").speed == pytest.approx(10)
    estimates.observe([chunk(units=10, compute_s=3)])
    assert estimates.capacity("w").speed == pytest.approx(5)


def test_bandwidth_and_latency_are_told_apart_when_sizes_differ() -> None:
    estimates = CapacityEstimates()
    for megabytes in (1, 2, 5, 3):
        estimates.observe([chunk(units=megabytes, transfer_s=0.5 + megabytes * 0.1, moved=megabytes * 1e6)])
    found = estimates.capacity("w")
    assert found.latency_s == pytest.approx(0.5)
    assert found.bandwidth == pytest.approx(1e7)
    assert estimates.application().ratio == pytest.approx(1e6)


def test_a_few_bytes_say_nothing_of_a_bandwidth() -> None:
    estimates = CapacityEstimates()
    estimates.observe([chunk(transfer_s=9.0, moved=100)])
    assert estimates.capacity("w").latency_s == 0, "a first chunk also gets its worker ready"
    estimates.observe([chunk(transfer_s=0.2, moved=100)])
    assert estimates.capacity("w") == WorkerCapacity("w", 10, math.inf, 0.2)
    estimates.observe([chunk("large", transfer_s=2.0, moved=SMALL_BYTES)])
    assert estimates.capacity("large").bandwidth == SMALL_BYTES / 2


def test_what_is_no_number_is_not_learnt() -> None:
    estimates = CapacityEstimates()
    for odd in (NAN, math.inf, -1.0):
        estimates.observe([chunk(compute_s=odd), chunk(transfer_s=odd), chunk(moved=odd), chunk(units=odd)])
        estimates.set_benchmark("w", odd)
    assert not estimates.knows("w")
    assert estimates.capacity("w").usable
    estimates.observe([chunk(compute_s=0.0)])
    assert estimates.capacity("w").usable, "done in no time"


def test_a_new_worker_counts_by_its_benchmark_next_to_those_that_were_measured() -> None:
    estimates = CapacityEstimates()
    estimates.set_benchmark("old", 100)
    estimates.set_benchmark("new", 200)
    assert estimates.capacity("new").speed == 2 * estimates.capacity("old").speed
    estimates.observe([chunk("old", units=5)])
    assert estimates.capacity("new").speed == pytest.approx(10)
    assert estimates.capacity("unknown").speed == pytest.approx(5)


def test_who_held_others_up_is_slower_from_then_on() -> None:
    estimates = CapacityEstimates()
    estimates.observe([chunk(units=10, compute_s=1)])
    estimates.observe_unfinished("w", 10, 9)
    assert estimates.capacity("w").speed == pytest.approx(2)
    estimates.observe_unfinished("w", 10, 0.001)
    assert estimates.capacity("w").speed == pytest.approx(2)


def test_who_is_left_out_is_tried_again_some_time() -> None:
    estimates = CapacityEstimates()
    for worker, transfer_s in (("near", 0.0), ("far", 5.0)) * 2:
        estimates.observe([chunk(worker, units=10, transfer_s=transfer_s)])
    for _ in range(20):
        workers = [estimates.capacity(name) for name in ("near", "far")]
        if plan(workers, estimates.application(), 10).sizes[1]:
            return
        estimates.reduce_slowness(["far"])
    raise AssertionError("it was never tried again")


def test_who_became_so_slow_that_no_unit_is_left_for_it_is_tried_again_too() -> None:
    estimates = CapacityEstimates()
    estimates.observe([chunk("good"), chunk("bad", compute_s=1000.0)])
    for _ in range(50):
        workers = [estimates.capacity(name) for name in ("good", "bad")]
        if whole_units(plan(workers, NOTHING_MOVES, 10), workers, NOTHING_MOVES, 10)[1]:
            return
        estimates.reduce_slowness(["bad"])
    raise AssertionError("it was never tried again")


def test_a_line_never_has_negative_parts() -> None:
    falling, steep = LinearFit(1.0), LinearFit(1.0)
    for x, y in ((1.0, 5.0), (2.0, 4.0), (3.0, 3.0)):
        falling.observe(x, y)
        steep.observe(x, 10 * x - 8)
    assert falling.fit(0.0) == (4.0, 0.0)
    assert steep.fit(0.0)[0] == 0
    assert LinearFit(1.0).fit(0.0) == (0.0, 0.0)


# --- f_c* -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", [PARALLEL, ONE_PORT])
@pytest.mark.parametrize("true", [0.2, 3.0, 40.0])
def test_the_search_finds_the_ratio_that_the_application_has(true: float, link: Uplink) -> None:
    dice = random.Random(1)
    workers = [WorkerCapacity(f"w{number}", dice.uniform(1, 10), dice.uniform(1, 100)) for number in range(16)]
    found = best_ratio(
        lambda ratio: uplinks.time_of(uplinks.plan(workers, LoadModel(ratio), 1000, link).sizes, workers, LoadModel(true), link), 1e-3, 1e3
    )
    assert found == pytest.approx(true, rel=0.1)


def test_a_search_by_iterations_settles_and_then_stays() -> None:
    search = RatioSearch(0.01, 100)
    asked = 0
    while not search.settled:
        search.report(abs(math.log(search.ratio / 2.0)))
        asked += 1
    assert asked < 25
    assert search.ratio == pytest.approx(2.0, rel=0.2)
    search.report(NAN)
    assert search.ratio == pytest.approx(2.0, rel=0.2)


def test_a_search_survives_times_that_are_no_numbers() -> None:
    search = RatioSearch(1, 10)
    for _ in range(100):
        search.report(NAN)
    assert search.settled
    assert 1 <= search.ratio <= 10


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (2.0, 1.0), (1.0, math.inf), (NAN, 1.0)])
def test_a_search_needs_two_bounds(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="between two positive numbers"):
        RatioSearch(*bounds)
