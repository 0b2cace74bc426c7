"""Tests the engines themselves: users' jobs run, daemons die and restart, and nothing is left after a stop."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engines import people, places, processes, requirements
from tests.engines.daemons import Engine
from tests.engines.gridengine import GridEngine
from tests.engines.htcondor import HTCondor
from tests.engines.openssh import OpenSSH
from tests.engines.people import Person
from tests.engines.slurm import Slurm

Start = Callable[[Engine], Engine]
ENDLESS = "exec sleep 100000"
ROOT = Path(__file__).parents[2]


def submit(engine: Engine, person: Person, script: str, *options: str) -> str:
    """Submit a shell script with the system's own command; output goes to out.txt. Return the job id."""
    (person.home / "out.txt").unlink(missing_ok=True)
    (person.home / "job.sh").write_text(f"#!/bin/sh\n{script}\n")
    (person.home / "job.sh").chmod(0o755)
    command, stdin = {
        "slurm": (["sbatch", "--parsable", "--output=out.txt", *options, "job.sh"], ""),
        "gridengine": (["qsub", "-terse", "-cwd", "-j", "y", "-o", "out.txt", *options, "job.sh"], ""),
        "htcondor": (["condor_submit", "-terse"], "executable = job.sh\noutput = out.txt\nlog = log.txt\nqueue\n"),
    }[engine.needs]
    said = person.run(*command, stdin=stdin, environment=engine.environment)
    assert said.returncode == 0, said
    return said.stdout.split()[0].split(".")[0]


def job_processes(person: Person) -> list[int]:
    return [pid for pid in processes.of_user(person.uid) if b"100000" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def wait_for_output(person: Person, wanted: str) -> None:
    out = person.home / "out.txt"
    processes.wait_until(lambda: out.exists() and wanted in out.read_text(), f"{wanted!r} in the job's output")


def wait_until_empty(engine: Engine) -> None:
    processes.wait_until(lambda: not engine.leftovers(), "an empty queue")


def assert_job_runs(engine: Engine, person: Person) -> None:
    submit(engine, person, "id -un; /usr/bin/python3 -c 'print(6 * 7)'")
    wait_for_output(person, "42")
    assert person.name in (person.home / "out.txt").read_text()
    wait_until_empty(engine)


def assert_job_outlives_its_daemon_and_nothing_its_engine(engine: Engine, person: Person) -> None:
    job = submit(engine, person, ENDLESS)
    processes.wait_until(lambda: len(job_processes(person)) == 1, "a running job")
    running = job_processes(person)
    engine.kill_daemon()
    assert not is_spoken_to(engine)
    engine.restart_daemon()
    assert engine.leftovers() == [job]
    assert job_processes(person) == running
    assert processes.belonging_to(engine.place)
    engine.stop()
    assert not processes.belonging_to(engine.place)
    assert not job_processes(person)
    assert not engine.place.exists()
    assert not [port for port in engine.ports if processes.is_listening(port)]


def is_spoken_to(engine: Engine) -> bool:
    if isinstance(engine, Slurm):
        return processes.is_listening(engine.ports[0])  # its commands would wait for ten seconds
    try:
        engine.leftovers()
    except processes.EngineFailed:
        return False
    return True


def test_slurm_runs_the_job_of_an_ordinary_person(slurm: Slurm, person: Person) -> None:
    assert_job_runs(slurm, person)


def test_a_slurm_job_outlives_the_controller_and_nothing_is_left_after_the_end(start_engine: Start, person: Person) -> None:
    assert_job_outlives_its_daemon_and_nothing_its_engine(start_engine(Slurm(nodes=1)), person)


def test_two_clusters_know_nothing_of_each_other(slurm: Slurm, second_slurm: Slurm, person: Person) -> None:
    job = submit(second_slurm, person, "echo $SLURM_CLUSTER_NAME; " + ENDLESS)
    wait_for_output(person, "lake")
    assert second_slurm.leftovers() == [job]
    assert slurm.leftovers() == []
    assert_job_runs(slurm, person)
    second_slurm.ask("scancel", job)
    wait_until_empty(second_slurm)


def test_a_slurm_job_is_spread_over_nodes(slurm: Slurm, person: Person) -> None:
    submit(slurm, person, "echo $SLURM_JOB_NODELIST", "--nodes=2", "--exclusive")
    wait_for_output(person, "n[1-2]")
    wait_until_empty(slurm)


def test_processes_live_on_when_the_slurmd_of_their_node_dies(slurm: Slurm, person: Person) -> None:
    job = submit(slurm, person, ENDLESS, "--nodelist=n2", "--requeue")
    processes.wait_until(lambda: bool(job_processes(person)), "a running job")
    slurm.kill_node(2)
    slurm.ask("scontrol", "update", "nodename=n2", "state=down", "reason=test")  # the controller itself would notice after half a minute
    processes.wait_until(lambda: slurm_state(slurm, job) == "PENDING", "the job waiting again under its id")
    assert job_processes(person)
    slurm.ask("scontrol", "update", "nodename=n2", "state=resume")
    slurm.restart_node(2)
    slurm.ask("scancel", job)
    wait_until_empty(slurm)
    processes.wait_until(lambda: not job_processes(person), "the job's end")


def test_an_urgent_slurm_job_throws_another_one_out(slurm: Slurm, person: Person) -> None:
    patient = submit(slurm, person, ENDLESS, "--nodes=2", "--exclusive")
    processes.wait_until(lambda: slurm_state(slurm, patient) == "RUNNING", "the first job running")
    urgent = submit(slurm, person, ENDLESS, "--nodes=2", "--exclusive", "--partition=urgent")
    processes.wait_until(lambda: slurm_state(slurm, urgent) == "RUNNING", "the urgent job running")
    assert slurm_state(slurm, patient) == "PENDING"
    slurm.ask("scancel", patient, urgent)
    wait_until_empty(slurm)


def slurm_state(slurm: Slurm, job: str) -> str:
    return slurm.ask("squeue", "--noheader", f"--jobs={job}", "--format=%T").strip()


def test_grid_engine_runs_the_job_of_an_ordinary_person(gridengine: GridEngine, person: Person) -> None:
    assert_job_runs(gridengine, person)


def test_a_grid_engine_job_outlives_the_qmaster_and_nothing_is_left_after_the_end(start_engine: Start, person: Person) -> None:
    assert_job_outlives_its_daemon_and_nothing_its_engine(start_engine(GridEngine()), person)


def test_condor_runs_the_job_of_an_ordinary_person(htcondor: HTCondor, person: Person) -> None:
    assert_job_runs(htcondor, person)


def test_a_condor_job_outlives_the_schedd_and_nothing_is_left_after_the_end(start_engine: Start, person: Person) -> None:
    assert_job_outlives_its_daemon_and_nothing_its_engine(start_engine(HTCondor()), person)


def test_users_log_in_through_openssh(openssh: OpenSSH, person: Person) -> None:
    theirs = person.run(*openssh.client(person.name), "login-node", "id -un; pwd")
    assert theirs.stdout.split() == [person.name, str(person.home)], theirs
    ours = subprocess.run([*openssh.client("root"), f"{person.name}@elsewhere", "id -un"], capture_output=True, text=True)
    assert ours.stdout == f"{person.name}\n", ours


def test_open_sessions_continue_when_sshd_dies(openssh: OpenSSH, person: Person) -> None:
    with subprocess.Popen(
        [*openssh.client("root"), "here", "echo in; cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as session:
        assert session.stdout and session.stdin
        assert session.stdout.readline() == "in\n"
        openssh.kill_daemon()
        assert person.run(*openssh.client(person.name), "here", "true").returncode == 255
        print("still here", file=session.stdin, flush=True)
        assert session.stdout.readline() == "still here\n"
        openssh.restart_daemon()
        assert person.run(*openssh.client(person.name), "here", "true").returncode == 0


def test_openssh_leaves_nothing_behind(start_engine: Callable[[OpenSSH], OpenSSH]) -> None:
    """Neither sessions of the last server nor those from before its restart remain."""
    openssh = start_engine(OpenSSH(accounts=("root",)))
    with someone_inside(openssh) as first:
        openssh.kill_daemon()
        openssh.restart_daemon()
        with someone_inside(openssh) as second:
            assert processes.is_alive(first) and processes.is_alive(second)
            openssh.stop()
            assert not processes.is_alive(first) and not processes.is_alive(second)
    assert not openssh.place.exists() and not processes.is_listening(openssh.ports[0])


@contextmanager
def someone_inside(openssh: OpenSSH) -> Iterator[int]:
    """Yield the id of a process that runs there without end."""
    with subprocess.Popen([*openssh.client("root"), "here", "echo $$; " + ENDLESS], stdout=subprocess.PIPE) as session:
        assert session.stdout
        yield int(session.stdout.readline())


def test_what_a_killed_session_left_is_cleared_away_by_the_next(person: Person) -> None:
    """Processes, directory and user are removed."""
    script = """if True:
        import os, signal
        from tests.engines import people
        from tests.engines.openssh import OpenSSH
        person, engine = people.new_person(), OpenSSH()
        engine.start()
        print(person.name, person.home.parent, engine.place, engine.ports[0], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    said = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    name, home, place, port = said.stdout.split()
    assert processes.is_listening(int(port))
    places.clear_away_after_the_dead()
    people.dismiss_those_of_the_dead()
    assert not processes.is_listening(int(port))
    assert not Path(home).exists() and not Path(place).exists()
    assert subprocess.run(["id", name], capture_output=True).returncode == 1


def test_the_tests_of_an_engine_run_in_one_process(request: pytest.FixtureRequest, openssh: OpenSSH) -> None:
    """Otherwise each process would start each engine. pytest-xdist marks members of a group in their ids."""
    if not request.config.getoption("loadgroup", False):  # pytest-xdist sets it in its workers
        pytest.skip("tests are not distributed by groups")
    assert request.node.nodeid.endswith("@openssh")


def test_a_missing_engine_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(requirements.PROGRAMS, "slurm", ("slurmctld-of-nowhere",))
    said = requirements.what_is_missing("slurm")
    assert said.startswith("slurmctld-of-nowhere cannot be found: install the packages slurm-wlm and munge (as root, .ci/engines does it)")
    assert said.endswith("or set PILOTFISH_ENGINES=none to leave these tests out")


def test_engines_that_are_not_wanted_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTFISH_ENGINES", "none")
    assert requirements.are_left_out()
