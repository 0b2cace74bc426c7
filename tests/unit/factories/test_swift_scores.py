"""Swift's formulas, each against figures worked out by hand."""

from __future__ import annotations

import math

import pytest

from pilotfish.factories.swift import (
    SwiftSettings,
    max_jobs,
    queue_time_throttle,
    submission_time_bias,
    submission_time_delta,
    submission_time_factor,
    t_score,
)

SETTINGS = SwiftSettings(success_factor=0.1, max_submission_s=20.0, base_submission_s=0.1)


def test_the_factor_of_the_submission_time_spreads_one_success_over_the_time_allowed() -> None:
    assert submission_time_factor(SETTINGS) == pytest.approx(-0.1 / 19.9)


def test_the_bias_of_the_submission_time_is_the_base_time_times_the_factor_with_its_sign_changed() -> None:
    assert submission_time_bias(SETTINGS) == pytest.approx(0.1 * 0.1 / 19.9)


@pytest.mark.parametrize(("milliseconds", "delta"), [(100, 0.0), (20_000, -0.1), (10_050, -0.05), (39_900, -0.2)])
def test_a_submission_costs_nothing_at_the_base_time_and_one_success_at_the_greatest(milliseconds: float, delta: float) -> None:
    assert submission_time_delta(SETTINGS, milliseconds) == pytest.approx(delta)


def test_the_bounded_score_is_one_for_nothing_and_stays_between_its_caps() -> None:
    assert t_score(SETTINGS, 0) == 1
    assert t_score(SETTINGS, 1e12) == pytest.approx(100)
    assert t_score(SETTINGS, -1e12) == pytest.approx(1 / 100)


def test_the_bounded_score_at_the_bend_of_the_arctangent_is_the_root_of_the_cap() -> None:
    assert t_score(SETTINGS, 5.0) == pytest.approx(10.0)
    assert t_score(SETTINGS, -5.0) == pytest.approx(0.1)


def test_the_bounded_score_is_the_formula() -> None:
    settings = SwiftSettings(b=1.5, c=0.3, score_high_cap=50)
    assert t_score(settings, 2.0) == pytest.approx(math.e ** (1.5 * math.log(50) / math.pi * math.atan(0.6)))


def test_the_bounded_score_grows_with_the_score() -> None:
    scores = [t_score(SETTINGS, score) for score in (-9, -1, 0, 0.5, 3, 80)]
    assert scores == sorted(scores) and len(set(scores)) == len(scores)


@pytest.mark.parametrize(("score", "jobs"), [(0.0, 3.0), (5.0, 21.0), (-5.0, 1.2)])
def test_the_most_jobs_at_a_site_are_one_and_the_throttle_times_the_bounded_score(score: float, jobs: float) -> None:
    assert max_jobs(SwiftSettings(job_throttle=2.0), score) == pytest.approx(jobs)


def test_too_long_a_wait_is_the_average_and_a_margin() -> None:
    settings = SwiftSettings(queue_time_margin_s=60, first_queue_time_s=500)
    assert queue_time_throttle(settings, [10, 20, 60]) == 90
    assert queue_time_throttle(settings, []) == 560


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="'nearest'"):
        SwiftSettings(choice="nearest")
    with pytest.raises(ValueError, match="max_submission_s is 1"):
        SwiftSettings(max_submission_s=1, base_submission_s=2)
