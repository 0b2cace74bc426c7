"""What to type, found in the words of batch systems: as they were recorded from the systems themselves."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pilotfish import plugins
from pilotfish.core.explain import remedies, task_reasons
from pilotfish.factories.heuristic import HeuristicFactory, HeuristicSettings
from pilotfish.factories.on_demand import DemandFactory
from pilotfish.factories.provisioner import PoolProvisioner
from pilotfish.factories.swift import SwiftFactory, SwiftSettings
from pilotfish.model import inputs as i
from pilotfish.model.settings import PoolSettings
from pilotfish.model.site import BATCH_LIMIT, BOOTSTRAP, Site
from pilotfish.model.task import Request, TaskSpec
from tests.support.machine_stage import Stage
from tests.unit.core.test_site_reasons import code, describe, only, pilots, slurm, stage_with

SLURM, SGE = Site(backend="slurm"), Site(backend="sge")


@pytest.mark.parametrize(
    ("site", "words", "first"),
    [
        (SLURM, "PartitionTimeLimit", "pilotfish site set x walltime=DURATION"),
        (SLURM, "PartitionDown", "pilotfish site set x queue=QUEUE"),
        (SLURM, "InvalidAccount", "pilotfish site set x account=ACCOUNT"),
        (SLURM, "Resources", "pilotfish site set x queue=QUEUE"),
        (SLURM, "JobHeldUser", "pilotfish site exec x -- scontrol release 7"),
        (SLURM, "AssocMaxJobsLimit", "pilotfish site exec x -- scancel JOB"),
        (SLURM, "QOSMaxJobsPerUserLimit", "pilotfish site exec x -- scancel JOB"),
        (SLURM, "JobHeldAdmin", "pilotfish site set x queue=QUEUE"),
        (SGE, "held", "pilotfish site exec x -- qrls 7"),
        (SGE, "Job is in hold state", "pilotfish site exec x -- qrls 7"),
        (SLURM, "PartitionNodeLimit", "pilotfish site set x nodes=N"),
        (SGE, 'cannot run because it exceeds limit "////" in rule "most/1"', "pilotfish site exec x -- qdel JOB"),
        (Site(backend="kubernetes"), "Unschedulable", "pilotfish sites"),
    ],
)
def test_a_pilot_that_waits_has_a_way_out(site: Site, words: str, first: str) -> None:
    assert remedies.for_wait("x", plugins.traits(site.backend), "7", words)[0] == first


HOPELESS = """PartitionConfig | PartitionNodeLimit | BadConstraints | InvalidAccount | InvalidQOS | QOSMaxCpuPerJobLimit | JobHeldAdmin
    | job requeued in held state | REQUEUE_HOLD | held | Job is in hold state | Eqw: can't chdir | it offers only qf:h_rt=60
    | Can Never Run: ncpus | PSUSP | ErrImagePull: no such image"""
PASSING = """Resources | Priority | QOSMaxJobsPerUserLimit | AssocGrpCpuLimit | ReqNodeNotAvail, UnavailableNodes:n1 | BeginTime | Licenses
    | held: spooling input data files | it offers only hc:slots=0 | Not Running: Insufficient amount of resource: ncpus"""


def test_some_reasons_do_not_pass_by_waiting_and_others_do() -> None:
    assert [words for words in HOPELESS.split("|") if not remedies.is_hopeless(words.strip())] == []
    assert [words for words in PASSING.split("|") if remedies.is_hopeless(words.strip())] == []


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("ended before its agent joined (exit status 43): pilotfish: no python3 of 3.8 or later on n1", "python=/path/to/python3"),
        ("was refused: sbatch: there is no such command on this machine", "via=LOGIN"),
        ("was refused: sbatch: fatal: Could not establish a configuration source", "via=LOGIN"),
        ("was refused: invalid partition specified: nope", "queue=QUEUE"),
        ("was refused: Invalid account or account/partition combination specified", "account=ACCOUNT"),
        ("was refused: Requested node configuration is not available", "cores=N"),
        ("was refused: Memory specification can not be satisfied", "memory=SIZE"),
        ("was refused: Requested time limit is invalid (missing or exceeds some limit)", "walltime=DURATION"),
    ],
)
def test_a_pilot_that_did_not_start_has_a_way_out(words: str, first: str) -> None:
    assert remedies.for_bad_start("x", SLURM, words) == [f"pilotfish site set x {first}", "pilotfish doctor x"]


def test_lines_of_the_person_are_doubted_when_nothing_else_is_known() -> None:
    site = Site(backend="slurm", setup=("module load nothing",))
    assert remedies.for_bad_start("x", site, "ended (exit status 1)") == ["pilotfish site set x setup=", "pilotfish doctor x"]
    assert remedies.for_bad_start("x", Site(backend="slurm", python="/old"), "ended")[0] == "pilotfish site set x python=/path/to/python3"
    assert remedies.for_bad_start("x", SLURM, "ended (exit status 1)") == ["pilotfish doctor x"]


@pytest.mark.parametrize(
    ("site", "change"),
    [
        ({}, "address=HOST"),
        ({"via": "login"}, ""),
        ({"via": "login", "reach": "direct"}, "reach=tunnel"),
        ({"via": "login", "address": "here"}, "reach=tunnel"),
    ],
)
def test_an_agent_that_does_not_come_may_not_know_the_way(site: dict[str, Any], change: str) -> None:
    found = remedies.for_silence("x", Site(backend="slurm", **site))
    more = [f"pilotfish site set x {change}"] if change else []
    assert found == ["pilotfish doctor x", *more]


def test_a_limit_of_the_batch_system_is_told_in_its_own_words() -> None:
    stage = stage_with(pond=slurm())
    (task,) = stage.work()
    assert pilots(stage)
    stage.tell(i.SiteReachability("pond", "AssocMaxSubmitJobLimit", BATCH_LIMIT))
    reason = only(stage, task)
    assert reason["code"] == "batch-limit" and reason["text"].endswith("it reported: AssocMaxSubmitJobLimit")
    assert reason["commands"] == [
        "pilotfish site exec pond -- scancel JOB",
        "pilotfish site set pond queue=QUEUE",
        "pilotfish site log pond",
    ]
    stage.tell(i.SiteReachability("pond", ""))
    assert code(stage, task) == "pending"


def test_a_site_without_a_limit_that_is_away_for_a_while_has_another_queue_perhaps() -> None:
    assert (
        remedies.for_limit("x", plugins.traits("slurm"), "Required partition not available (inactive or drain)")[0]
        == "pilotfish site set x queue=QUEUE"
    )


def test_a_machine_that_turns_out_to_be_too_small_is_taken_once_and_its_size_is_told() -> None:
    stage = stage_with(desk=Site(backend="ssh"))
    (task,) = stage.work(TaskSpec("python", request=Request(64.0)), sites=("desk",))
    (pilot,) = pilots(stage, "desk")
    stage.join("w", pilot=pilot, cores=2.0)
    assert pilots(stage, "desk") == [pilot]
    reason = only(stage, task)
    assert reason["code"] == "too-big" and "64 cores, the largest machine of site desk has 2 cores" in reason["text"]
    assert reason["commands"] == ["pilotfish site set desk cores=64"]
    describe(stage, desk=Site(backend="ssh", cores=64))
    assert len(pilots(stage, "desk")) == 2 and code(stage, task) == "pending"


def test_without_any_place_to_work_the_sites_are_named_that_could_be_used() -> None:
    stage = Stage(provisioner=PoolProvisioner(DemandFactory()))
    (task,) = stage.work()
    assert [reason["code"] for reason in task_reasons.explain_task(stage.machine, task)["reasons"]] == ["no-site", "no-workers"]
    assert only(stage, task)["commands"] == ["pilotfish site add NAME --backend slurm"]
    describe(stage, pond=slurm())
    assert code(stage, task) == "site-unused" and only(stage, task)["commands"] == ["pilotfish pilots add pond 1"]
    stage.ask("pilots_add", site="pond", pilots=1)
    assert code(stage, task) == "pending"


def test_a_pool_that_may_have_no_more_pilots_says_so_and_one_that_is_asked_for_by_hand_comes_on_top() -> None:
    stage = Stage(
        PoolSettings(pilots=1), provisioner=PoolProvisioner(HeuristicFactory(HeuristicSettings(workers=1, surplus=0), random.Random(1)))
    )
    describe(stage, pond=slurm())
    stage.ask("site_use", site="pond")
    stage.work()
    (pilot,) = pilots(stage)
    stage.join("w", pilot=pilot)
    (task,) = stage.work(TaskSpec("python", request=Request(4.0)))
    assert pilots(stage) == [pilot]
    reason = only(stage, task)
    assert reason["code"] == "site-limit" and "pilots = 1 in config.toml" in reason["text"]
    assert reason["commands"] == ["pilotfish pilots add pond 1"]
    stage.ask("pilots_add", site="pond", pilots=1)
    assert len(pilots(stage)) == 2 and code(stage, task) == "pending"


def test_tags_are_given_to_a_site_as_they_are_typed() -> None:
    stage = stage_with(pond=slurm(tags={"os": "linux"}))
    (task,) = stage.work(TaskSpec("python", tags={"os": "linux", "disk": "so fast"}))
    assert only(stage, task)["commands"] == ["pilotfish site set pond 'tags.disk=so fast'"]


def test_pilots_that_somebody_asked_for_one_by_one_come_on_top_of_those_that_are_kept() -> None:
    stage = stage_with(pond=slurm())
    stage.ask("site_use", site="pond", pilots=1)
    stage.work(count=5)
    assert len(pilots(stage)) == 1
    stage.ask("pilots_add", site="pond", pilots=1)
    assert len(pilots(stage)) == 2


@pytest.mark.parametrize("factory", [DemandFactory, lambda: SwiftFactory(SwiftSettings(), random.Random(1))])
def test_a_site_that_a_person_has_tried_again_is_tried_at_once(factory: Any) -> None:
    """However long it was to rest: its past says nothing any more."""
    stage = Stage(provisioner=PoolProvisioner(factory()))
    describe(stage, pond=slurm(max_pilots=1))
    stage.ask("site_use", site="pond")
    stage.work()
    for _ in range(3):
        (pilot,) = pilots(stage)
        stage.tell(i.PilotEndReported(pilot, False, "ended before its agent joined", cause=BOOTSTRAP))
        assert not pilots(stage)
        stage.wait(4000)
    assert stage.machine.state.sites["pond"].held and not pilots(stage)
    stage.ask("site_release", site="pond")
    (pilot,) = pilots(stage)
    stage.tell(i.PilotEndReported(pilot, False, "ended before its agent joined", cause=BOOTSTRAP))
    assert not pilots(stage), "and not again at once, if it was in vain"
