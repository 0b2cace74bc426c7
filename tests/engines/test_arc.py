"""Tests pilots at an ARC computing element, configured by the command line, with the proxy certificate of an ordinary user."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines import processes, scenes
from tests.engines.arc import ARC
from tests.engines.campus import Campus, campus_at
from tests.engines.openssh import OpenSSH
from tests.engines.people import Person

pytestmark = pytest.mark.campaign

SITE = "grid"
SLEEPS = "exec sleep 100000"


def describe(campus: Campus, arc: ARC, *more: str) -> None:
    """Configure the site as a user would whose proxy is on the login node."""
    words = ["--backend", "arc", "--via", f"{campus.person.name}@grid", "--cores", "2", "--python", "/usr/bin/python3"]
    words += ["--reach", "direct", "--poll-interval", "1s", "--option", f"endpoint={arc.endpoint}"]
    words += ["--option", f"ssh_config={campus.openssh.configuration('root')}"]
    words += [word for name, value in arc.environment.items() for word in ("--env", f"{name}={value}")]
    command = Path(sys.executable).parent / "pilotfish"
    said = subprocess.run([command, "site", "add", SITE, *words, *more], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    campus.engines.append(arc)
    assert campus.row(SITE)["backend"] == "arc"


def ask(arc: ARC, action: str, job: str) -> dict[str, str]:
    """Send a request to the element as the user, without the master."""
    words = ["curl", "--silent", "--show-error", "--fail", "--cert", "proxy", "--capath", arc.environment["X509_CERT_DIR"]]
    words += ["-H", "Accept: application/json", "-H", "Content-Type: application/json"]
    words += ["--data-binary", json.dumps({"job": [{"id": job}]}), f"{arc.endpoint}/rest/1.0/jobs?action={action}"]
    said = arc.person.run(*words, environment=arc.environment)
    assert said.returncode == 0, said.stderr
    answer: dict[str, str] = json.loads(said.stdout)["job"]
    return answer


def kill_by_the_element(arc: ARC, job: str) -> None:
    assert ask(arc, "kill", job)["status-code"] == "202"


def kill_its_processes(arc: ARC, job: str) -> None:
    processes.end_all(lambda: processes.mentioning(job))


def test_arc_runs_200_tasks(campus: Campus, arc: ARC) -> None:
    describe(campus, arc)
    scenes.run_200_tasks(campus, SITE)
    jobs = [pilot["job"] for pilot in campus.pilots(SITE)]
    assert len(jobs) == 2 and set(jobs) <= set(arc.leftovers())


@pytest.mark.parametrize("kill", [kill_by_the_element, kill_its_processes])
def test_a_pilot_that_an_outsider_kills_is_replaced(campus: Campus, arc: ARC, kill: Callable[[ARC, str], None]) -> None:
    describe(campus, arc)
    flag = campus.person.home / kill.__name__
    with campus.run(f"{SITE}:1") as run:
        long_one = run.executable(["sh", "-c", f"mkdir {flag} && {SLEEPS}; echo again"])
        futures = [run.executable(["sleep", "0.2"]) for _ in range(12)]
        processes.wait_until(flag.exists, "it runs")
        (pilot,) = campus.pilots(SITE)
        kill(arc, pilot["job"])
        assert long_one.result(timeout=scenes.PATIENCE_S).stdout == b"again\n"
        assert [future.result(timeout=scenes.PATIENCE_S).exit for future in futures] == [0] * 12
        processes.wait_until(lambda: pilot["pilot"] not in [one["pilot"] for one in campus.pilots(SITE)], "the element has told its end")
    assert campus.ask("run", run=run.id)["counts"]["done"] == 13


def test_a_pilot_that_is_no_longer_wanted_is_cancelled(pilotfish_home: Path, openssh: OpenSSH, person: Person, arc: ARC) -> None:
    """The pilot's batch job runs, but has no agent that could be told to leave."""
    with campus_at(pilotfish_home, openssh, person) as campus:
        describe(campus, arc, "--setup", SLEEPS)
        with campus.run(f"{SITE}:1") as run:
            future = run.executable(["true"])
            processes.wait_until(lambda: any(pilot["job"] for pilot in campus.pilots(SITE)), "the element has taken it")
            (pilot,) = campus.pilots(SITE)
            processes.wait_until(lambda: bool(processes.mentioning(pilot["job"])), "its job runs")
            future.cancel()
    processes.wait_until(lambda: ask(arc, "status", pilot["job"])["state"] == "KILLED", "the element says so")
    kill_its_processes(arc, pilot["job"])  # without a batch system, this element signals only the first process
    assert not (arc.place / "session" / pilot["job"] / "1.json").exists(), "the key of the pilot is deleted"


def test_a_computing_element_dies_and_comes_back_under_load(campus: Campus, arc: ARC) -> None:
    describe(campus, arc)
    scenes.let_the_queue_die_and_come_back(campus, SITE, arc)


def test_what_has_ended_at_the_element_leaves_no_key_behind(campus: Campus, arc: ARC) -> None:
    """The element keeps the log of a job for a week. If the pool cancelled the job before its end, the element keeps other files, too."""
    describe(campus, arc)
    with campus.run(f"{SITE}:1") as run:
        assert run.executable(["true"]).result(timeout=processes.PATIENCE_S).exit == 0
        (pilot,) = campus.pilots(SITE)
        assert (arc.place / "session" / pilot["job"] / "1.json").stat().st_mode & 0o077 == 0
        campus.ask("drain", worker=pilot["workers"][0], reason="it is over")
        processes.wait_until(lambda: not arc.leftovers(), "its job has ended")
    session = arc.place / "session" / pilot["job"]
    processes.wait_until(lambda: not (session / "1.json").exists(), "its key is gone")
    assert (session / "1.log").exists()
