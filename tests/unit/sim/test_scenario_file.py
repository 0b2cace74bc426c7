"""What people may write about a simulation, and what they are told if it cannot be used."""

from __future__ import annotations

import random
import tomllib
from typing import Any

import pytest

from pilotfish.errors import BadInput
from pilotfish.sim.scenarios.scenario_file import Scenario, ScenarioOptions, read_scenario
from pilotfish.sim.scenarios.workload_generator import FileGroup, WorkloadPlan, parse_distribution
from pilotfish.sim.workload import Workload

HERE = ScenarioOptions(sites=["here 4"], work={"tasks": 10})


def a_list(path: str) -> Workload:
    return Workload([1.0, 2.0], kinds=["a", "b"], after=[(), (0,)])


def read(text: str = "", wanted: ScenarioOptions | None = None) -> Scenario:
    return read_scenario(tomllib.loads(text), "grid.toml: " if text else "", wanted or ScenarioOptions(), a_list)


def test_a_file_says_everything() -> None:
    scenario = read("""
        policies = ["workqueue", "xsufferage"]
        seeds = 3
        [work]
        tasks = 12
        seconds = "uniform(10, 20)"
        hints = "30 %"
        [[file]]
        size = "20 MB"
        count = 3
        [[file]]
        size = "1 kB"
        shared = "all"
        [[site]]
        name = "near"
        hosts = 8
        cores = 4
        files = "all"
        [[site]]
        name = "far"
        hosts = 16
        speed = 0.5
        bandwidth = "16 Mbit/s"
        wait = "10m"
        files = [1, 4]
        """)
    near, far = scenario.sites
    assert (near.hosts, near.cores, len(near.files)) == (8, 4, 4)
    assert (far.speed, far.bandwidth, far.wait_s, far.files) == (0.5, 2e6, 600.0, (near.files[0], near.files[3]))
    assert scenario.policies == ("workqueue", "xsufferage") and scenario.seeds == 3
    work = scenario.work.work(0)
    assert len(work) == 12 and all(10 <= seconds <= 20 for seconds in work.seconds)
    assert [len(set(needs)) for needs in work.needs] == [2] * 12
    assert len(set(work.needs)) == 3, "three groups, each with its file and the one of all"
    assert any(cost != seconds for cost, seconds in zip(work.costs, work.seconds, strict=True))


def test_options_say_the_same_in_short() -> None:
    scenario = read(
        wanted=ScenarioOptions(
            sites=["near 32", "far 16x4 speed=0.5 bandwidth=2MB wait=10m files=1,2"],
            files=["6x20M", "1k:none"],
            work={"tasks": 60, "seconds": "lognormal(60, 0.5)"},
            policies=["all"],
        )
    )
    near, far = scenario.sites
    assert (near.name, near.hosts, near.cores) == ("near", 32, 1)
    assert (far.cores, far.speed, far.bandwidth, far.wait_s, len(far.files)) == (4, 0.5, 2e6, 600.0, 2)
    assert scenario.work.file_groups == (FileGroup(20 * 1024**2, 6), FileGroup(1024, 1, "none"))
    assert len(scenario.policies) == 8
    work = scenario.work.work(0)
    assert len(work.files) == 6 + 60 and not work.costs


def test_options_count_instead_of_the_file() -> None:
    text = '[work]\ntasks = 5\nseconds = 2\n[[site]]\nname = "a"\nhosts = 1'
    scenario = read(text, ScenarioOptions(sites=["b 2"], work={"tasks": 7}, policies=["near"], seeds=1))
    assert [site.name for site in scenario.sites] == ["b"]
    assert scenario.work.work(0).seconds == [2.0] * 7
    assert (scenario.policies, scenario.seeds) == (("near",), 1)


def test_the_published_experiment_brings_its_sites_along() -> None:
    scenario = read(wanted=ScenarioOptions(work={"from": "apst:c", "seconds": 2}))
    assert [site.hosts for site in scenario.sites] == [32, 8, 16]
    assert len(scenario.sites[2].files) == 3
    assert len(scenario.work.work(1)) == 1200


def test_a_family_an_instance_and_a_list_are_work() -> None:
    family = read(wanted=ScenarioOptions(sites=["here 4"], work={"from": "montage:150"}))
    assert any(family.work.work(0).after)
    listed = read(wanted=ScenarioOptions(sites=["here 4"], work={"from": __file__, "seconds": 10}))
    assert listed.work.work(0).seconds == [10.0, 20.0]
    assert listed.work.work(0).costs == [1.0, 2.0]


def test_each_seed_draws_other_work_and_the_same_again() -> None:
    plan = WorkloadPlan(20, parse_distribution("exponential(60)", "seconds"))
    assert plan.work(1).seconds == plan.work(1).seconds != plan.work(2).seconds


@pytest.mark.parametrize(
    ("text", "mean"),
    [("90", 90), ("1m30s", 90), ("uniform(60, 2m)", 90), ("normal(90, 10)", 90), ("lognormal(90, 0.5)", 90), ("exponential(90)", 90)],
)
def test_a_distribution_has_the_mean_that_was_written(text: str, mean: float) -> None:
    rng, draw = random.Random(1), parse_distribution(text, "seconds")
    assert sum(draw.draw(rng) for _ in range(20_000)) / 20_000 == pytest.approx(mean, rel=0.05)


@pytest.mark.parametrize(
    ("work", "message", "hint"),
    [
        ({"tasks": 0}, "--tasks = 0", "from 1 to"),
        ({"tasks": 5, "seconds": "lognorm(60, 1)"}, "no distribution lognorm", "lognormal(mean, sigma)"),
        ({"tasks": 5, "seconds": "normal(60)"}, "1 numbers instead of 2", "normal(mean, deviation)"),
        ({"tasks": 5, "seconds": "uniform(5, 1)"}, "ends below its start", "uniform"),
        ({"tasks": 5, "seconds": "lognormal(60, wide)"}, "sigma", "0.5"),
        ({"tasks": 5, "seconds": "-3"}, "'-3'", "number of seconds"),
        ({"tasks": 5, "seconds": 0}, "more than 0 s", "seconds"),
        ({"tasks": 5, "hints": "much"}, "--hints = 'much'", '"30 %"'),
        ({"tasks": 5, "cores": 8}, "needs 8 cores", "hosts of 8 cores"),
        ({"from": "montag:100"}, "--from = 'montag:100'", "montage"),
        ({"from": "montage:5"}, "'5' is not a number of tasks", "from 100"),
        ({"from": "apst:e"}, "no scenario 'e'", "a, b, c, d"),
        ({"from": "montage:200", "tasks": 5}, "--tasks = 5 is not wanted", "leave one"),
        ({"from": "montage:200", "seconds": 5}, "--seconds = 5 is not wanted", "leave it out"),
        ({}, "there is no work", "--tasks 1000"),
    ],
)
def test_work_that_cannot_be_used_is_refused_by_name(work: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(BadInput) as refused:
        read(wanted=ScenarioOptions(sites=["here 4"], work=work))
    assert message in str(refused.value)
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("site", "message", "hint"),
    [
        ("far", "--site 'far' is not a site", "name, hosts"),
        ("far many", "--site 'far many' is not a site", "name, hosts"),
        ("far 0", "--site far: hosts = 0", "from 1"),
        ("far 4 sped=2", "--site far: sped", "did you mean speed?"),
        ("far 4 speed", "'speed' has no value", "speed=0.5"),
        ("far 4 speed=quick", "--site far: speed = 'quick' is not a number", "speed = 1"),
        ("far 4 bandwidth=fast", "--site far: bandwidth = 'fast' is not a bandwidth", "Mbit/s"),
        ("far 4 wait=10x", "--site far: wait", "10 min"),
        ("far 4 files=1", "there is no file 1", "no files"),
        ("far/4 4", "cannot be the name of a site", "letters"),
    ],
)
def test_a_site_that_cannot_be_used_is_refused_by_name(site: str, message: str, hint: str) -> None:
    with pytest.raises(BadInput) as refused:
        read(wanted=ScenarioOptions(sites=[site], work={"tasks": 5}))
    assert message in str(refused.value)
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("sites = 1", "grid.toml: sites", "did you mean site?"),
        ("policies = ['xsuferage']", "no policy 'xsuferage'", "did you mean xsufferage?"),
        ("policies = []", "not a list of policies", "workqueue"),
        ("seeds = 'many'", "grid.toml: seeds = 'many' is not a whole number", "seeds = 5"),
        ("work = 3", "grid.toml: work = 3 is not a table", "name = value"),
        ("[work]\ntask = 3", "grid.toml: work.task", "did you mean tasks?"),
        ("[[file]]\ncount = 3", "grid.toml: file 1: size is missing", "20 MB"),
        ("[[file]]\nsize = 3\nshared = 'group'", "shared = 'group'", "did you mean groups?"),
        ("[[site]]\nname = 'far'", "grid.toml: site far: hosts is missing", "hosts = 8"),
        ("[[site]]\nname = 'a'\nhosts = 1\n[[site]]\nname = 'a'\nhosts = 1", "two sites are called a", "name of its own"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_field(text: str, message: str, hint: str) -> None:
    wanted = ScenarioOptions(sites=[] if "[[site]]" in text else ["here 4"], work=None if "work" in text else {"tasks": 5})
    with pytest.raises(BadInput) as refused:
        read(text, wanted)
    assert message in str(refused.value)
    assert hint in refused.value.hint


def test_without_a_site_there_is_nothing_to_simulate() -> None:
    with pytest.raises(BadInput, match="there is no site"):
        read(wanted=ScenarioOptions(work={"tasks": 5}))
