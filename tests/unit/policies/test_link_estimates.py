"""What a plan believes of links."""

from __future__ import annotations

import pytest

from pilotfish.policies.planning.link_estimates import BANDWIDTH, LinkEstimates
from tests.support.policy_stage import Idle


def test_a_link_is_believed_to_be_as_quick_as_it_seems_only_after_forecasts_came_true() -> None:
    stage = Idle()
    assert LinkEstimates().bandwidth(stage.view(), "far") == BANDWIDTH
    stage.machine.state.forecasts.transferred("far", 4e6, 2.0)
    assert LinkEstimates().bandwidth(stage.view(), "far") == pytest.approx(1e6, rel=0.01)
    for _ in range(5):
        stage.machine.state.forecasts.transferred("far", 4e6, 2.0)
    assert LinkEstimates().bandwidth(stage.view(), "far") == pytest.approx(2e6, rel=0.01)


def test_a_link_that_is_never_twice_as_quick_counts_for_no_less_than_half() -> None:
    stage = Idle()
    for size in (1e6, 30e6, 1e6, 30e6, 1e6, 30e6):
        stage.machine.state.forecasts.transferred("far", size, 2.0)
    known = stage.machine.state.forecasts.bandwidth("far")
    assert known is not None and LinkEstimates().bandwidth(stage.view(), "far") >= known.value / 2
