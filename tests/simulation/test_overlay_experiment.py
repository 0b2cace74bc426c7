"""Tests the overlay experiment at a small size: claims of the documentation hold, and runs are reproducible."""

from __future__ import annotations

import pytest

from experiments.overlay.__main__ import BEATS, OverlayFigures, kinds, measure, table
from experiments.overlay.overlay_settings import (
    ARCHITECTURES,
    CENTRAL,
    DISTRIBUTED,
    MERGING,
    NO_TABLE,
    SERIAL,
    SPLITTING,
    OverlayRun,
    OverlaySettings,
)

pytestmark = pytest.mark.xdist_group("overlay experiment")  # all tests use one fixture

EXACT = OverlaySettings(message_s=0.0002)
PILOTS, TASKS = 16, 80


def run(architecture: str, workflow: str = SERIAL, pilots: int = PILOTS, tasks: int = TASKS) -> OverlayFigures:
    return measure(OverlayRun(architecture, workflow, pilots, tasks, 1, EXACT, through_json=True))


@pytest.fixture(scope="module")
def results() -> dict[str, OverlayFigures]:
    return {architecture: run(architecture) for architecture in ARCHITECTURES}


def test_a_run_can_be_repeated_exactly(results: dict[str, OverlayFigures]) -> None:
    again = run(DISTRIBUTED)
    assert (again.events, again.turnaround_s, again.requests) == (
        results[DISTRIBUTED].events,
        results[DISTRIBUTED].turnaround_s,
        results[DISTRIBUTED].requests,
    )


def test_members_of_a_site_need_no_heartbeats(results: dict[str, OverlayFigures]) -> None:
    assert results[DISTRIBUTED].requests[BEATS] < 1 < 10 < results[CENTRAL].requests[BEATS]


def test_a_job_costs_the_master_few_requests(results: dict[str, OverlayFigures]) -> None:
    per_job = {kind: count for kind, count in results[DISTRIBUTED].requests.items() if kind not in (BEATS, "hello", "vouch")}
    assert sum(per_job.values()) <= 3


def test_the_next_job_is_known_at_once(results: dict[str, OverlayFigures]) -> None:
    assert results[DISTRIBUTED].matching_s < 0.5
    assert results[CENTRAL].matching_s < 1.0


def test_with_the_table_every_file_is_found_with_a_peer(results: dict[str, OverlayFigures]) -> None:
    assert results[CENTRAL].cache_reads > 0.99
    assert results[DISTRIBUTED].cache_reads > 0.99
    assert results[NO_TABLE].peer_reads == 0
    assert results[NO_TABLE].cache_reads < results[CENTRAL].cache_reads


def test_sites_that_match_by_themselves_are_about_as_quick(results: dict[str, OverlayFigures]) -> None:
    assert results[DISTRIBUTED].turnaround_s < 1.25 * results[CENTRAL].turnaround_s


@pytest.mark.parametrize("workflow", [SPLITTING, MERGING])
def test_every_job_of_the_other_workflows_ends(workflow: str) -> None:
    measured = run(DISTRIBUTED, workflow, 8, 24)
    assert measured.cache_reads > 0.99


def test_the_tables_have_a_row_for_each_architecture(results: dict[str, OverlayFigures]) -> None:
    for text in (table(results.values()), kinds(results.values())):
        assert [line.split(" | ")[1] for line in text.splitlines()[2:]] == list(ARCHITECTURES)
