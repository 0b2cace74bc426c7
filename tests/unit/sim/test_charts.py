"""Pictures of simulations: well-formed, small, and with all that a reader needs."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks.line_charts import draw_lines
from pilotfish.sim.scenarios.policy_comparison import record_trace
from pilotfish.sim.scenarios.scenario_file import Scenario, ScenarioOptions
from pilotfish.sim.scenarios.svg_charts import MAX_BYTES, WIDTH, draw_bars, draw_gantt, ticks
from pilotfish.sim.scenarios.workload_generator import Distribution, WorkloadPlan
from pilotfish.sim.workload import SimulatedSite
from tests.unit.sim.test_scenario_file import read


def words_of(picture: str) -> str:
    return " ".join(element.text or "" for element in ElementTree.fromstring(picture).iter() if element.tag.endswith("text"))


def test_a_gantt_picture_has_sites_files_links_and_minutes() -> None:
    scenario = read(wanted=ScenarioOptions(sites=["near 4", "far 2x2 bandwidth=1M"], files=["2x5M"], work={"tasks": 40, "seconds": 10}))
    picture = draw_gantt("workqueue & co", scenario.sites, record_trace(scenario, "workqueue"))
    words = words_of(picture)
    for expected in ("workqueue & co", "near", "far", "4 cores", "files come", "file 1, 5.24 MB", "waits for its file", "minutes"):
        assert expected in words
    assert "prefers-color-scheme:dark" in picture


def test_a_long_legend_goes_on_in_the_next_line() -> None:
    scenario = read(wanted=ScenarioOptions(sites=["near 4"], files=["10x5M"], work={"tasks": 40, "seconds": 10}))
    picture = draw_gantt("ten files", scenario.sites, record_trace(scenario, "workqueue"))
    words = [element for element in ElementTree.fromstring(picture).iter() if element.tag.endswith("text")]
    legend = [element for element in words if (element.text or "").startswith(("file ", "waits", "2 others"))]
    assert len(legend) == 10
    assert all(float(element.attrib["x"]) + 5 * len(element.text or "") < WIDTH for element in legend)
    assert len({element.attrib["y"] for element in legend}) == 2


def test_a_picture_of_many_tasks_is_small() -> None:
    scenario = Scenario(
        (SimulatedSite("here", 300), SimulatedSite("there", 100, cores=4)), WorkloadPlan(12_000, Distribution("exponential", 5.0))
    )
    picture = draw_gantt("many", scenario.sites, record_trace(scenario, "workqueue"))
    assert len(picture) <= MAX_BYTES
    assert "of 300" in words_of(picture)


def test_tasks_of_a_workflow_are_coloured_by_what_they_do() -> None:
    scenario = read(wanted=ScenarioOptions(sites=["here 8"], work={"from": "montage:120"}))
    assert "mProject" in words_of(draw_gantt("montage", scenario.sites, record_trace(scenario, "near")))


def test_bars_have_the_means_and_the_bound() -> None:
    words = words_of(draw_bars("two", {"workqueue": [600.0, 660.0], "auto": [300.0, 300.0]}, 200.0))
    for expected in ("two", "workqueue", "auto", "10.5 min", "5 min", "no schedule is shorter"):
        assert expected in words


def test_lines_have_names_and_axes() -> None:
    words = words_of(draw_lines("errors", ("error, %", "gain"), [0, 50, 100], {"min-min": [2, 2, 1], "auto": [2, 2, 1.5]}, 1.0))
    for expected in ("errors", "error, %", "gain", "min-min", "auto", "100"):
        assert expected in words


def test_ticks_are_round_numbers() -> None:
    assert ticks(4.6) == [0, 1, 2, 3, 4]
    assert ticks(0) == [0]
    assert ticks(130) == [0, 50, 100]
