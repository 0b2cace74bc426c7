"""Tests that ``why`` reports what real batch systems report, and that its suggested commands work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import places, processes
from tests.engines.gridengine import GridEngine, changed
from tests.engines.openssh import OpenSSH
from tests.engines.people import Person
from tests.engines.slurm import Slurm
from tests.support.remedy_follower import Obedient


@pytest.fixture
def root(slurm: Slurm) -> Iterator[Obedient]:
    """A user at a machine of the cluster, where its commands work directly."""
    place = places.new_place("why")
    somebody = Obedient(place, slurm.environment)
    yield somebody
    somebody.leave()
    processes.wait_until(lambda: not slurm.leftovers(), "the queue is empty")
    places.clear_away(place)


def add(root: Obedient, *about: str) -> None:
    root.do("site", "add", "pond", "--backend", "slurm", "--poll-interval", "1s", *about)


def test_no_site_is_described(root: Obedient) -> None:
    """No site was named, or the named one was removed."""
    root.do("run", "--", "true")
    root.do("workers", "--local-cores", "0")
    run = root.begin("--", "true")
    root.obey(root.hear_why(run, "no-site", "no site is configured"), {"NAME": "pond"})
    root.obey(root.hear_why(run, "site-unused", "pond"))
    root.finish(run)
    root.do("site", "set", "pond", "period=1s")
    root.do("site", "pause", "pond")
    bound = root.begin("--site", "pond", "--cores", "2", "--", "true")
    root.do("site", "remove", "pond")
    root.obey(root.hear_why(bound, "no-site", "there is no site pond"))
    root.finish(bound)
    root.do("site", "set", "pond", "period=1s")


def test_a_pilot_is_held(root: Obedient) -> None:
    add(root, "--directive", "--hold")
    run = root.begin("--site", "pond", "--", "true")
    reason = root.hear_why(run, "pending", "JobHeldUser")
    assert reason["commands"][0].startswith("pilotfish site exec pond -- scontrol release ")
    root.obey(reason)
    root.finish(run)


def test_a_queue_does_not_let_pilots_run_for_so_long(root: Obedient) -> None:
    add(root, "--queue", "short")
    run = root.begin("--site", "pond", "--", "true")
    reason = root.hear_why(run, "pending", "PartitionTimeLimit")
    assert reason["commands"][0] == "pilotfish site set pond walltime=DURATION"
    root.obey(reason, {"DURATION": "60s"})
    root.finish(run)


def test_other_people_are_first(root: Obedient, slurm: Slurm) -> None:
    add(root, "--queue", "batch")
    slurm.ask("sbatch", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    try:
        run = root.begin("--site", "pond", "--", "true")
        root.obey(root.hear_why(run, "pending", "): Resources"), {"QUEUE": "urgent"})
        root.finish(run)
    finally:
        slurm.ask("scancel", "--user=root", "--partition=batch")


def test_a_queue_takes_nobody_for_a_while(root: Obedient, slurm: Slurm) -> None:
    add(root, "--queue", "short", "--walltime", "60s")
    slurm.ask("scontrol", "update", "PartitionName=short", "State=DRAIN")
    try:
        run = root.begin("--site", "pond", "--", "true")
        root.obey(root.hear_why(run, "batch-limit", "not available"), {"QUEUE": "batch"})
        root.finish(run)
    finally:
        slurm.ask("scontrol", "update", "PartitionName=short", "State=UP")


def test_a_queue_does_not_exist(root: Obedient) -> None:
    add(root, "--queue", "nowhere")
    run = root.begin("--site", "pond", "--", "true")
    reason = root.hear_why(run, "bootstrap", "invalid partition specified: nowhere")
    assert reason["commands"] == ["pilotfish site set pond queue=QUEUE", "pilotfish doctor pond", "pilotfish site resume pond"]
    root.obey(reason, {"QUEUE": "batch"})
    root.finish(run)


@pytest.fixture
def reef(tmp_path: Path, gridengine: GridEngine, openssh: OpenSSH, person: Person) -> Iterator[Obedient]:
    """A user at another machine."""
    somebody = Obedient(tmp_path)
    variables = [word for name, value in gridengine.environment.items() for word in ("--env", f"{name}={value}")]
    about = ("--via", f"{person.name}@reef", "--reach", "direct", "--poll-interval", "1s", "--python", "/usr/bin/python3")
    somebody.do("site", "add", "reef", "--backend", "sge", *about, *variables, "--option", f"ssh_config={openssh.configuration('root')}")
    yield somebody
    somebody.leave()
    processes.wait_until(lambda: not gridengine.leftovers(), "the queue is empty")


def let_people_have(gridengine: GridEngine, jobs: int) -> None:
    file = gridengine.place / "global"
    file.write_text(changed(gridengine.ask("qconf", "-sconf", "global").partition("\n")[2], max_u_jobs=jobs))
    gridengine.ask("qconf", "-Mconf", str(file))


def test_as_many_jobs_are_there_as_one_may_have(reef: Obedient, gridengine: GridEngine, person: Person) -> None:
    own = person.run("qsub", "-terse", "-b", "y", "-o", "/dev/null", "-j", "y", "sleep", "600", environment=gridengine.environment)
    assert own.returncode == 0, own
    let_people_have(gridengine, 1)
    try:
        run = reef.begin("--site", "reef", "--sandbox", "--", "true")
        reason = reef.hear_why(run, "batch-limit", "only 1 jobs are allowed per user")
        assert "qdel JOB" in reason["commands"][0]
        reef.obey({"commands": reason["commands"][:1]}, {"JOB": own.stdout.strip()})
        reef.finish(run)
    finally:
        let_people_have(gridengine, 0)
        person.run("qdel", own.stdout.strip(), environment=gridengine.environment)
