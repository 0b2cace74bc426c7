"""A family of predictors: as good as the best of them on whatever comes, cheap to feed, and the same after a snapshot."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import exp, inf, nan, pi, sin
from random import Random

import pytest

from pilotfish.core.learning.predictors import MAX_PENDING, MAX_RATIOS, NAMES, SMALLEST, WINDOW, LinkSeries, Series, quantile

LENGTH = 400


def autoregressive(dice: Random) -> list[float]:
    values, away = [], 0.0
    for _ in range(LENGTH):
        away = 0.8 * away + dice.gauss(0, 1)
        values.append(max(0.1, 10 + away))
    return values


KINDS: dict[str, Callable[[Random], list[float]]] = {
    "constant": lambda dice: [3.0] * LENGTH,
    "noisy": lambda dice: [10 * max(0.1, dice.gauss(1, 0.1)) for _ in range(LENGTH)],
    "step": lambda dice: [(10 if place < LENGTH / 2 else 30) * dice.gauss(1, 0.05) for place in range(LENGTH)],
    "trend": lambda dice: [(10 + place * 0.1) * dice.gauss(1, 0.02) for place in range(LENGTH)],
    "periodic": lambda dice: [10 + 5 * sin(place * 2 * pi / 24) + dice.gauss(0, 0.3) for place in range(LENGTH)],
    "autoregressive": autoregressive,
    "lognormal": lambda dice: [dice.lognormvariate(0, 1) for _ in range(LENGTH)],
}


def fed(values: list[float]) -> Series:
    series = Series()
    for value in values:
        series.observe(value)
    return series


def ratio_quantile(series: Series, q: float) -> float:
    return quantile(sorted(series.ratios()), q)


def through_json(series: Series) -> Series:
    return Series.from_row(json.loads(json.dumps(series.row())))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_the_family_is_nearly_as_good_as_its_best_member(kind: str, seed: int) -> None:
    series, wrong, alone = Series(), 0.0, dict[str, float]()
    for place, value in enumerate(KINDS[kind](Random(seed))):
        if place >= 5:
            forecast = series.forecast()
            assert forecast is not None
            wrong += abs(forecast.value - value)
            for name, told in zip(NAMES, series._predictions, strict=True):
                alone[name] = alone.get(name, 0.0) + abs(told - value)
        series.observe(value)
    assert wrong <= 1.15 * min(alone.values()) + 1e-9


def test_nothing_is_forecast_before_anything_was_seen() -> None:
    assert Series().forecast() is None
    assert ratio_quantile(Series(), 0.9) == 1.0


def test_one_observation_is_the_forecast_and_its_error_is_not_known_yet() -> None:
    assert fed([7.0]).forecast() == (7.0, 1.0, "last value", 1)


def test_after_a_step_the_forecast_soon_follows() -> None:
    forecast = fed([10.0, 11.0] * 20 + [30.0, 31.0] * 4).forecast()
    assert forecast is not None and forecast.value == pytest.approx(30, rel=0.05)


def test_the_forecast_is_made_once_until_the_next_observation() -> None:
    series = fed([1.0, 2.0])
    assert series.forecast() is series.forecast()
    before = series.forecast()
    series.observe(3.0)
    assert series.forecast() != before


def test_each_value_is_judged_by_what_was_forecast_from_those_before_it() -> None:
    values = KINDS["noisy"](Random(1))[:50]
    slow, ratios = Series(), []
    for value in values:
        forecast = slow.forecast()
        if forecast is not None:
            ratios.append(value / forecast.value)
        slow.observe(value)
    assert fed(values).ratios() == ratios == slow.ratios()


def test_the_error_and_the_bands_are_those_of_the_last_ratios() -> None:
    series = fed(KINDS["lognormal"](Random(2))[:MAX_PENDING])
    ratios = sorted(series.ratios())
    forecast = series.forecast()
    assert forecast is not None
    assert forecast.error == pytest.approx(quantile(sorted(abs(ratio - 1) for ratio in ratios), 0.5), rel=0.1)
    assert ratio_quantile(series, 0) == ratios[0] and ratio_quantile(series, 1) == ratios[-1]
    assert ratios[0] < ratio_quantile(series, 0.1) < ratio_quantile(series, 0.5) < ratio_quantile(series, 0.9) < ratios[-1]


def test_bands_hold_as_often_as_they_say() -> None:
    values, series, held = KINDS["lognormal"](Random(3)), Series(), 0
    for place, value in enumerate(values):
        forecast = series.forecast()
        if place >= 100 and forecast is not None:
            held += ratio_quantile(series, 0.1) <= value / forecast.value <= ratio_quantile(series, 0.9)
        series.observe(value)
    assert 0.7 <= held / (LENGTH - 100) <= 0.9


def test_a_flood_is_condensed_and_the_latest_of_it_counts() -> None:
    dice, series = Random(4), Series()
    for place in range(100_000):
        series.observe((1 if place < 99_000 else 5) * dice.gauss(1, 0.1))
        assert len(series.row()[-1]) <= MAX_PENDING
    forecast = series.forecast()
    assert forecast is not None
    assert forecast.value == pytest.approx(5, rel=0.2) and forecast.samples == 100_000
    assert forecast.error == pytest.approx(0.07, abs=0.04), "means, which scatter less, are no record of how far single values do"


def test_what_is_no_duration_is_ignored_and_zero_is_very_little() -> None:
    series = fed([2.0, nan, inf, -inf, -1.0])
    forecast = series.forecast()
    assert forecast is not None and forecast.value == 2.0 and forecast.samples == 1
    assert fed([0.0]).forecast() == (SMALLEST, 1.0, "last value", 1)
    extreme = fed([1e300, 0.0, 5e-324, 1e-9, 1e14] * 20)
    told = extreme.forecast()
    assert told is not None and 0 < told.value < inf and 0 <= told.error < inf


@pytest.mark.parametrize("count", [0, 1, 2, 5, 30, 40, 64, 65, 200])
@pytest.mark.parametrize("asked", [False, True])
def test_a_snapshot_changes_nothing(count: int, asked: bool) -> None:
    values = KINDS["lognormal"](Random(5))
    series = fed(values[:count])
    if asked:
        series.forecast()
    again = through_json(series)
    assert again.row() == series.row() and again.forecast() == series.forecast()
    for value in values[count : count + 40]:
        series.observe(value)
        again.observe(value)
        assert again.forecast() == series.forecast() and ratio_quantile(again, 0.9) == ratio_quantile(series, 0.9)
    assert len(json.dumps(series.row())) < 40 * (WINDOW + MAX_RATIOS + 30)


def test_what_is_measured_anew_moves_the_forecast_and_keeps_the_record() -> None:
    series = fed([10.0, 12.0, 9.0, 11.0])
    ratios = series.ratios()
    series.relearn([5.0, 6.0, 4.5, 5.5])
    forecast = series.forecast()
    assert forecast is not None and 4.5 <= forecast.value <= 6 and forecast.samples == 4
    assert series.ratios() == ratios


def link_of(latency_s: float, bandwidth: float, sizes: list[float], noise: float = 0.0) -> LinkSeries:
    dice, link = Random(6), LinkSeries()
    for size in sizes:
        link.observe(size, (latency_s + size / bandwidth) * exp(dice.gauss(0, noise)))
    return link


def test_latency_and_bandwidth_of_a_link_are_told_apart() -> None:
    dice = Random(7)
    link = link_of(0.2, 5e6, [10 ** dice.uniform(3, 9) for _ in range(40)], noise=0.1)
    small, large = link.forecast(0), link.forecast(1e9)
    assert small is not None and large is not None
    assert small.value == pytest.approx(0.2, rel=0.15) and large.value == pytest.approx(200, rel=0.15) and large.error < 0.2


def test_transfers_of_one_size_tell_nothing_about_latency() -> None:
    link = link_of(0.2, 5e6, [1e6] * 20)
    nothing, same = link.forecast(0), link.forecast(1e6)
    assert nothing is not None and same is not None
    assert nothing.value < 1e-3 and same.value == pytest.approx(0.4)


def test_files_that_all_take_the_same_time_are_all_latency() -> None:
    link = link_of(0.2, 1e15, [10.0, 1e3, 1e4, 1e2] * 5)
    forecast = link.forecast(10)
    assert forecast is not None and forecast.value == pytest.approx(0.2, rel=0.02)


def test_impossible_transfers_are_ignored() -> None:
    link = LinkSeries()
    for size, seconds in ((-1.0, 1.0), (1.0, -1.0), (nan, 1.0), (1.0, nan), (inf, 1.0)):
        link.observe(size, seconds)
    assert link.forecast(1) is None
    link.observe(0, 0)
    forecast = link.forecast(0)
    assert forecast is not None and forecast.value > 0


def test_a_snapshot_of_a_link_changes_nothing() -> None:
    link = link_of(0.2, 5e6, [10.0**place for place in range(9)], noise=0.2)
    link.forecast(1)
    link.observe(1e6, 0.5)
    again = LinkSeries.from_row(json.loads(json.dumps(link.row())))
    for size in (1e3, 1e6, 1e9):
        assert again.forecast(size) == link.forecast(size)
        link.observe(size, size / 1e6 + 1)
        again.observe(size, size / 1e6 + 1)
        assert again.forecast(size) == link.forecast(size)
