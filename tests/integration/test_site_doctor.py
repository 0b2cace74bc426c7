"""Tests ``doctor SITE`` with real masters: its test pilot leaves the queue however doctor ends. Shell scripts act as the queue."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotfish.backends.pilot_script import NO_PYTHON, START
from tests.integration.terminal import PATIENCE_S
from tests.support.remedy_follower import Obedient
from tests.support.scripted_master import eventually

# Each job is a file with its number and waits forever.
PROGRAMS = {
    "sbatch": 'cat >/dev/null; number=$(($(ls "$QUEUE" | wc -l) + 1)); echo "$REASON" > "$QUEUE/$number"; echo $number',
    "squeue": 'cd "$QUEUE" && for job in *; do case $* in *--jobs=*) echo "$job|PENDING|$(cat $job)";; esac; done; exit 0',
    "scancel": 'for job in "$@"; do echo $job >> "$QUEUE.cancelled"; rm -f "$QUEUE/$job"; done',
    "sacct": 'for job in $(cat $QUEUE.cancelled); do echo "$job|CANCELLED by 0|0:0"; done',
}


class Waiter(Obedient):
    """A user with a queue in which nothing ever starts."""

    def __init__(self, directory: Path) -> None:
        self.queue = directory / "queue"
        programs = directory / "programs"
        for place in (self.queue, programs):
            place.mkdir()
        for name, script in PROGRAMS.items():
            known = f"REASON=$(cat {directory}/reason) QUEUE={self.queue}"
            (programs / name).write_text(f"#!/bin/sh\n[ $1 = --version ] && exit 0\n{known}\n{script}\n")
            (programs / name).chmod(0o755)
        super().__init__(directory)
        self.environment["PATH"] = f"{programs}:{self.environment['PATH']}"

    def describe(self, reason: str) -> None:
        """Add the site; all its jobs wait for this reason."""
        (self.directory / "reason").write_text(reason)
        self.do("site", "add", "hpc", "--backend", "slurm", "--poll-interval", "1s")

    def jobs(self) -> list[str]:
        return [path.name for path in self.queue.iterdir()]

    def is_taken_out(self) -> bool:
        return not self.jobs() and (self.directory / "queue.cancelled").exists()


@pytest.fixture
def person() -> Iterator[Waiter]:
    directory = Path(tempfile.mkdtemp(prefix="pilotfish-doctor-"))
    somebody = Waiter(directory)
    yield somebody
    somebody.leave()
    shutil.rmtree(directory)


def test_after_so_much_patience_the_test_pilot_is_taken_out_of_the_queue(person: Waiter) -> None:
    person.describe("Priority")
    said = person.type("doctor", "hpc", "--timeout", "3s")
    assert said.status == 0 and said.err == "" and "\r" not in said.out
    assert "! test pilot: hpc-1 (job 1): Priority; it had no worker after " in said.out
    assert said.out.endswith("No check failed, but it is unknown whether pilots work at hpc.\n")
    eventually(person.is_taken_out, "it is cancelled")


def test_a_reason_that_does_not_pass_ends_the_wait_and_is_bad(person: Waiter) -> None:
    person.describe("PartitionTimeLimit")
    said = person.type("site", "test", "hpc", "--timeout", "10m")
    assert said.status == 1
    assert "✗ test pilot: hpc-1 (job 1): PartitionTimeLimit; " in said.out
    assert "    fix: pilotfish site set hpc walltime=DURATION; then try again: pilotfish doctor hpc\n" in said.out
    eventually(person.is_taken_out, "it is cancelled")


def test_ctrl_c_takes_the_test_pilot_out_of_the_queue_and_the_moving_line_away(person: Waiter) -> None:
    person.describe("Resources")
    terminal = person.sit_down("doctor", "hpc")
    terminal.wait_for("test pilot: hpc-1 (job 1): Resources, ")
    terminal.press_ctrl_c()
    status, seen = terminal.finish()
    assert status == 130
    rest = seen.rpartition("\r\x1b[K")[2]
    assert rest.startswith("! test pilot: hpc-1 (job 1): Resources; ") and "it is unknown whether" in rest
    eventually(person.is_taken_out, "it is cancelled")


def test_sigterm_takes_the_test_pilot_out_of_the_queue(person: Waiter) -> None:
    person.describe("Resources")
    command = [person.command, "doctor", "hpc", "--json"]
    doctor = subprocess.Popen(command, cwd=person.directory, env=person.environment, stdout=subprocess.PIPE, text=True)
    eventually(person.jobs, "the test pilot is submitted")
    doctor.send_signal(signal.SIGTERM)
    out, _ = doctor.communicate(timeout=PATIENCE_S)
    assert doctor.returncode == 128 + signal.SIGTERM and '"test pilot"' in out
    eventually(person.is_taken_out, "it is cancelled")


# --- start.sh -----------------------------------------------------------------------------------------------------------------------------


def start(directory: Path, python: str, path: str) -> subprocess.CompletedProcess[str]:
    agent = directory / "agent.py"
    agent.write_text("import sys; print(sys.executable, *sys.argv[1:])")
    command = ["/bin/sh", "-c", START, "start.sh", "1.json", str(agent), "--cores", "1"]
    environment = {"PATH": path, "PILOTFISH_PYTHON": python}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_a_python_that_was_named_and_does_not_work_is_told_in_the_log_of_the_pilot(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    said = start(tmp_path, "/opt/nope/python3", path)
    assert said.returncode == 0 and said.stdout.endswith(" --credentials 1.json --cores 1\n")
    assert said.stderr.startswith("pilotfish: /opt/nope/python3, which was named, is no Python of 3.8 or later on ")
    for python in ("", sys.executable):
        said = start(tmp_path, python, path)
        assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout == f"{sys.executable} --credentials 1.json --cores 1\n"
    assert NO_PYTHON == 43 and "exit 43" in START
