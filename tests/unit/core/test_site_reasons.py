"""Why no worker of a site takes a task: each reason is true, names a way out, and taking that way brings a pilot."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.core.explain import task_reasons
from pilotfish.core.state import Task
from pilotfish.factories.on_demand import DemandFactory
from pilotfish.factories.provisioner import PoolProvisioner
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.site import BOOTSTRAP, EXPIRED, Site
from pilotfish.model.states import ASSIGNED, READY
from pilotfish.model.task import Request, TaskSpec
from tests.support.machine_stage import Stage

GIB = 1 << 30


def stage_with(**sites: Site) -> Stage:
    stage = Stage(provisioner=PoolProvisioner(DemandFactory()))
    describe(stage, **sites)
    for name in sites:
        stage.ask("site_use", site=name)
    return stage


def describe(stage: Stage, **sites: Site) -> None:
    """As if the person had written this, and told the master."""
    stage.tell(i.SitesRead(sites))


def slurm(**about: Any) -> Site:
    return Site(backend="slurm", **about)


def only(stage: Stage, task: Task) -> dict[str, Any]:
    """The reason about the site, which comes first: what is known of workers elsewhere follows."""
    answer = task_reasons.explain_task(stage.machine, task)
    first: dict[str, Any] = answer["reasons"][0]
    assert first["commands"] and first["text"] in answer["sentence"]
    return first


def code(stage: Stage, task: Task) -> str:
    return str(only(stage, task)["code"])


def pilots(stage: Stage, site: str = "pond") -> list[str]:
    stage.wait(2, quietly=False)
    return [pilot.id for pilot in stage.machine.state.pilots.values() if pilot.site == site]


def test_a_site_that_does_not_exist_is_named_and_describing_it_helps() -> None:
    stage = Stage(provisioner=PoolProvisioner(DemandFactory()))
    (task,) = stage.work(sites=("pond",))
    assert code(stage, task) == "no-site" and only(stage, task)["commands"] == ["pilotfish site add pond --backend slurm"]
    describe(stage, pond=slurm())
    stage.ask("site_use", site="pond")
    assert pilots(stage) and code(stage, task) == "pending"


def test_a_site_that_was_removed_does_not_exist_either() -> None:
    stage = stage_with(pond=slurm())
    (task,) = stage.work(sites=("pond",))
    describe(stage)
    assert code(stage, task) == "no-site"


def test_a_run_without_sites_does_not_wait_for_a_site_that_was_removed() -> None:
    stage = stage_with(pond=slurm())
    describe(stage)
    stage.ask("workers_set", local=2)
    (task,) = stage.work()
    assert code(stage, task) == "starting", "its worker on this machine is about to join"


def test_a_paused_site_says_so_and_resuming_it_helps() -> None:
    stage = stage_with(pond=slurm(paused=True))
    (task,) = stage.work()
    assert code(stage, task) == "site-paused" and only(stage, task)["commands"] == ["pilotfish site resume pond"]
    assert not pilots(stage)
    describe(stage, pond=slurm())
    assert pilots(stage) and code(stage, task) == "pending"


def test_a_site_that_is_held_says_what_went_wrong_and_releasing_it_helps() -> None:
    stage = stage_with(pond=slurm(max_pilots=1))
    (task,) = stage.work()
    for number in range(1, 4):
        (pilot,) = pilots(stage)
        stage.tell(i.PilotEndReported(pilot, False, "ended before its agent joined: no python3 on n07", cause=BOOTSTRAP))
        if number < 3:
            assert code(stage, task) == "bootstrap" and "no python3 on n07" in only(stage, task)["text"]
            assert "pilotfish doctor pond" in only(stage, task)["commands"]
        stage.wait(4000)
    reason = only(stage, task)
    assert reason["code"] == "held" and "no python3 on n07" in reason["text"] and not pilots(stage)
    assert reason["commands"] == [
        "pilotfish site set pond python=/path/to/python3",
        "pilotfish doctor pond",
        "pilotfish site resume pond",
    ]
    stage.ask("site_release", site="pond")
    assert pilots(stage) and code(stage, task) == "pending"


def test_a_site_that_this_pool_does_not_use_says_so_and_adding_a_pilot_there_helps() -> None:
    stage = Stage(provisioner=PoolProvisioner(DemandFactory()))
    describe(stage, pond=slurm(cores=2))
    (task,) = stage.work(sites=("pond",))
    assert not pilots(stage)
    assert code(stage, task) == "site-unused" and only(stage, task)["commands"] == ["pilotfish pilots add pond 1"]
    (pilot,) = stage.ask("pilots_add", site="pond", pilots=1)["pilots"]
    assert code(stage, task) == "pending"
    stage.join("w", pilot=pilot, cores=2.0)
    assert task.state == ASSIGNED


def test_a_pilot_that_waits_says_why_in_the_words_of_the_batch_system() -> None:
    stage = stage_with(pond=slurm())
    (task,) = stage.work()
    (pilot,) = pilots(stage)
    assert code(stage, task) == "pending" and "is being submitted" in only(stage, task)["text"]
    stage.tell(i.PilotAccepted(pilot, "4711"))
    assert "4711" in only(stage, task)["text"]
    stage.tell(i.PilotSeen(pilot, False, "ReqNodeNotAvail, Reserved for maintenance"))
    assert "job 4711): ReqNodeNotAvail, Reserved for maintenance" in only(stage, task)["text"]
    assert only(stage, task)["commands"] == ["pilotfish site set pond queue=QUEUE"]
    stage.tell(i.PilotSeen(pilot, True, ""))
    assert "its agent has not joined yet" in only(stage, task)["text"] and only(stage, task)["commands"] == ["pilotfish sites"]
    stage.tell(i.SiteReachability("pond", ""), after_s=60.0)
    assert "pilotfish doctor pond" in only(stage, task)["commands"], "it should have joined by now"
    stage.join("w", pilot=pilot)
    assert task.state == ASSIGNED


def test_a_site_that_does_not_answer_says_so_until_it_does() -> None:
    stage = stage_with(pond=slurm())
    (task,) = stage.work()
    assert pilots(stage)
    stage.tell(i.SiteReachability("pond", "slurm_load_jobs error: Unable to contact slurm controller"))
    reason = only(stage, task)
    assert reason["code"] == "site-trouble" and "Unable to contact slurm controller" in reason["text"]
    assert reason["commands"] == ["pilotfish doctor pond"]
    stage.tell(i.SiteReachability("pond", ""))
    assert code(stage, task) == "pending"


def fill(stage: Stage, cores: float = 1.0) -> None:
    """One pilot is here, and its worker has other things to do; nobody waits."""
    (pilot,) = pilots(stage)
    stage.tell(i.PilotAccepted(pilot, "1"))
    stage.join("w", pilot=pilot, cores=cores)


@pytest.mark.parametrize(
    ("limit", "more", "command"),
    [
        ({"max_pilots": 1}, {"max_pilots": 2}, "max_pilots=2"),
        ({"max_cores": 5}, {"max_cores": 9}, "max_cores=9"),
    ],
)
def test_a_limit_that_is_reached_is_said_and_more_of_it_helps(limit: dict[str, int], more: dict[str, int], command: str) -> None:
    """The worker that is there is too small for the task, and another pilot may not be."""
    stage = stage_with(pond=slurm(**limit))
    stage.work()
    fill(stage)
    before = pilots(stage)
    large = TaskSpec("python", request=Request(4.0))
    (first,) = stage.work(large)
    if "max_cores" in limit:
        (pilot,) = [pilot for pilot in pilots(stage) if pilot not in before]
        stage.join("large", pilot=pilot, cores=4.0, ends_in_s=10.0)
        before = pilots(stage)
    (task,) = stage.work(TaskSpec("python", request=Request(4.0), time_s=20.0))
    assert pilots(stage) == before
    reason = only(stage, task)
    assert reason["code"] == "site-limit" and reason["commands"] == [f"pilotfish site set pond {command}"]
    describe(stage, pond=slurm(**more))
    assert len(pilots(stage)) == len(before) + 1 and code(stage, task) == "pending"
    assert first is not task


def test_a_number_that_a_person_fixed_is_a_limit_too() -> None:
    stage = stage_with(pond=slurm())
    stage.ask("site_use", site="pond", pilots=1)
    stage.work()
    fill(stage)
    (task,) = stage.work(TaskSpec("python", request=Request(4.0)))
    assert len(pilots(stage)) == 1
    reason = only(stage, task)
    assert reason["code"] == "site-limit" and reason["commands"] == ["pilotfish pilots add pond 1"]
    stage.ask("site_use", site="pond", pilots=-1)
    assert len(pilots(stage)) == 2 and code(stage, task) == "pending"


def test_a_site_where_nobody_may_wait_says_so() -> None:
    stage = stage_with(pond=slurm(max_queued=0))
    (task,) = stage.work()
    assert not pilots(stage)
    assert code(stage, task) == "site-limit" and only(stage, task)["commands"] == ["pilotfish site set pond max_queued=1"]
    describe(stage, pond=slurm(max_queued=1))
    assert pilots(stage)


@pytest.mark.parametrize(
    ("site", "request_", "command", "mended"),
    [
        ({"cores": 2}, Request(8.0), "cores=8", {"cores": 8}),
        ({"cores": 2}, Request(2.5), "cores=3", {"cores": 3}),
        ({"memory": GIB}, Request(1.0, memory=4 * GIB), f"memory={4 * GIB}", {"memory": 4 * GIB}),
        ({}, Request(1.0, gpus=2.0), "gpus=2", {"gpus": 2}),
        ({"gpus": 1}, Request(1.0, gpus=1.5), "gpus=2", {"gpus": 2}),
        ({"max_cores": 4}, Request(8.0), "max_cores=8", {"max_cores": 8}),
        ({"max_cores": 4, "cores": 3, "nodes": 2}, Request(1.0), "max_cores=6", {"max_cores": 6, "cores": 3, "nodes": 2}),
    ],
)
def test_a_task_that_is_too_big_says_what_is_missing_and_more_of_it_helps(
    site: dict[str, int], request_: Request, command: str, mended: dict[str, int]
) -> None:
    stage = stage_with(pond=slurm(**site))
    (task,) = stage.work(TaskSpec("python", request=request_))
    assert not pilots(stage)
    reason = only(stage, task)
    assert reason["code"] == "too-big" and reason["commands"] == [f"pilotfish site set pond {command}"]
    describe(stage, pond=slurm(**mended))
    assert pilots(stage) and code(stage, task) == "pending"


def test_a_task_that_is_too_big_for_every_site_has_a_reason_for_each() -> None:
    stage = stage_with(pond=slurm(cores=2), reef=slurm(memory=GIB))
    (task,) = stage.work(TaskSpec("python", request=Request(8.0, memory=4 * GIB)))
    reasons = task_reasons.explain_task(stage.machine, task)["reasons"]
    assert [reason["code"] for reason in reasons[:2]] == ["too-big", "too-big"]
    assert "site pond has 2" in reasons[0]["text"] and "site reef has" in reasons[1]["text"]


def test_what_no_pilot_of_a_site_can_have_is_said() -> None:
    stage = stage_with(pond=slurm())
    (task,) = stage.work(TaskSpec("python", request=Request(1.0, custom={"licence": 1.0})))
    assert not pilots(stage)
    assert code(stage, task) == "too-big" and "1 licence" in only(stage, task)["text"]


@pytest.mark.parametrize(("time_s", "enough"), [(1000.0, "18m"), (600.0, "11m")])
def test_a_walltime_that_is_too_short_says_so_and_a_longer_one_helps(time_s: float, enough: str) -> None:
    """Also if it is too short only because a pilot must start and end within it."""
    stage = stage_with(pond=slurm(walltime_s=600.0))
    (task,) = stage.work(TaskSpec("python", time_s=time_s))
    assert not pilots(stage)
    reason = only(stage, task)
    assert reason["code"] == "walltime" and reason["commands"][0] == f"pilotfish site set pond walltime={enough}"
    describe(stage, pond=slurm(walltime_s=time_s + 60))
    assert pilots(stage) and code(stage, task) == "pending"


def test_tags_that_a_site_does_not_have_are_named_and_giving_them_helps() -> None:
    stage = stage_with(pond=slurm(tags={"disk": "slow"}))
    (task,) = stage.work(TaskSpec("python", tags={"disk": "fast"}))
    (other,) = stage.work(TaskSpec("python", tags={"colour": "red"}))
    assert not pilots(stage)
    assert code(stage, task) == code(stage, other) == "tags" and "disk=fast" in only(stage, task)["text"]
    describe(stage, pond=slurm(tags={"disk": "fast"}))
    assert pilots(stage) and code(stage, task) == "pending"


def test_a_busy_worker_is_no_reason_to_ask_the_site() -> None:
    stage = stage_with(pond=slurm(max_pilots=1))
    stage.work()
    fill(stage)
    (task,) = stage.work()
    assert [reason["code"] for reason in task_reasons.explain_task(stage.machine, task)["reasons"]] == ["busy"]


def test_a_run_that_may_go_anywhere_hears_of_this_machine_as_well() -> None:
    stage = stage_with(pond=slurm(paused=True))
    (task,) = stage.work()
    assert [reason["code"] for reason in task_reasons.explain_task(stage.machine, task)["reasons"]] == ["site-paused", "no-workers"]
    (bound,) = stage.work(sites=("pond",))
    assert [reason["code"] for reason in task_reasons.explain_task(stage.machine, bound)["reasons"]] == ["site-paused"]


def test_a_task_that_outlives_its_pilots_is_not_begun_for_ever_and_longer_pilots_help() -> None:
    stage = stage_with(pond=slurm(walltime_s=600.0))
    (task,) = stage.work(sites=("pond",))
    (pilot,) = pilots(stage)
    link = stage.join("w", pilot=pilot, ends_in_s=575.0)
    assert task.state == ASSIGNED
    stage.tell(i.AgentMessage(link, m.Leave("the time of this pilot is over", [(task.id, 1, 574.0)])))
    stage.tell(i.PilotEndReported(pilot, True, "done", cause=EXPIRED))
    assert not pilots(stage), "no pilot is asked for that is too short again"
    reason = only(stage, task)
    assert reason["code"] == "walltime" and "10 min" in reason["text"] and reason["commands"] == ["pilotfish site set pond walltime=20m"]
    (warning,) = [row for row in task_reasons.warnings(stage.machine) if row.code == "walltime"]
    assert "1 task of run 1" in warning.text and list(warning.commands) == reason["commands"]
    describe(stage, pond=slurm(walltime_s=1200.0))
    assert pilots(stage) and code(stage, task) == "pending"


def test_a_site_whose_pilots_start_slowly_has_less_time_for_tasks() -> None:
    """Otherwise one pilot after the other would come too late for the task that it was asked for."""
    stage = stage_with(pond=slurm(walltime_s=3600.0, max_pilots=1))
    (task,) = stage.work(TaskSpec("python", time_s=3540.0))
    (pilot,) = pilots(stage)
    stage.join("w", pilot=pilot, ends_in_s=3500.0)
    assert task.state == READY
    reason = only(stage, task)
    assert reason["code"] == "walltime" and "1 min 51 s" in reason["text"] and "walltime=62m" in reason["commands"][0]
