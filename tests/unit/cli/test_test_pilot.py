"""The test pilot of doctor SITE: what comes of it is told, and it never stays."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pilotfish.cli.site_commands import test_pilot
from pilotfish.cli.terminal.check_results import BAD, DOUBTFUL, GOOD
from pilotfish.errors import PilotfishError
from tests.support.fake_session import FakeMaster
from tests.unit.cli.conftest import CommandLine
from tests.unit.cli.test_site import row
from tests.unit.cli.test_site_check import findings, programs, put

__all__ = ["programs"]
WITHDRAWN = ("pilots_withdraw", {"pilots": ["hpc-1"], "reason": "it was only a test"})


def waits(
    master: FakeMaster, said: str, *commands: str, site: dict[str, Any] | None = None, job: str = "7", seen: dict[str, Any] | None = None
) -> None:
    """The test pilot waits, and the master knows so much of it."""
    master.seen = seen
    master.sites = [site or row()]
    master.pilots = [{"pilot": "hpc-1", "job": job, "state": "submitted"}]
    master.reasons = [{"code": "pending", "text": f"pilot hpc-1 {said}".replace(" :", ":"), "commands": list(commands)}]


def queued(master: FakeMaster, reason: str, *commands: str, site: dict[str, Any] | None = None) -> None:
    """Its queue says why, and the master says that in words of its own."""
    waits(master, f"(job 7) waits, for: {reason}", *commands, site=site, seen={"runs": False, "reason": reason})


def test_a_test_pilot_that_joins_is_sent_home(pilotfish: CommandLine, programs: Path, master: FakeMaster) -> None:
    pilotfish("site", "set", "hpc", "python=/opt/py/bin/python3")
    waits(master, "is being submitted", job="")
    master.workers = [{"worker": "hpc-1.n1.77", "pilot": "hpc-1", "info": {"hostname": "n1", "executable": "/opt/py//bin/python3"}}]
    found = findings(pilotfish)["test pilot"]
    assert found["state"] == GOOD and "hpc-1 started on n1, reached the master after" in found["text"]
    assert WITHDRAWN in master.asked and master.pilots == []
    master.workers[0]["info"] |= {"executable": "/usr/bin/python3", "python": "3.9.1"}
    found = findings(pilotfish)["test pilot"]
    assert "on n1 (with Python 3.9.1 /usr/bin/python3, not /opt/py/bin/python3), reached" in found["text"]


@pytest.mark.parametrize(
    ("reason", "commands", "state", "fix"),
    [
        (
            "Resources",
            ["pilotfish site set hpc queue=QUEUE", "pilotfish pilots add hpc 1"],
            DOUBTFUL,
            "Wait longer: pilotfish doctor hpc --timeout 1h; or: pilotfish site set hpc queue=QUEUE",
        ),
        ("Priority", ["pilotfish sites"], DOUBTFUL, "Wait longer: pilotfish doctor hpc --timeout 1h"),
        (
            "PartitionTimeLimit",
            ["pilotfish site set hpc walltime=DURATION", "pilotfish pilots add hpc 1"],
            BAD,
            "pilotfish site set hpc walltime=DURATION; then try again: pilotfish doctor hpc",
        ),
        (
            "Job is in hold state",
            ["pilotfish site set hpc queue=QUEUE", "pilotfish pilots add hpc 1"],
            BAD,
            "See how it is submitted: pilotfish site show hpc --dry-run; then try again: pilotfish doctor hpc",
        ),
        (
            "JobHeldUser",
            ["pilotfish site exec hpc -- scontrol release 7"],
            BAD,
            "See how it is submitted: pilotfish site show hpc --dry-run; then try again: pilotfish doctor hpc",
        ),
    ],
)
def test_a_test_pilot_that_waits_is_judged_by_the_reason_of_its_queue_and_withdrawn(
    pilotfish: CommandLine, programs: Path, master: FakeMaster, reason: str, commands: list[str], state: str, fix: str
) -> None:
    """Whatever other pilots of the site do: they may have been sent with other settings."""
    queued(master, reason, *commands, site=row(active=2))
    found = findings(pilotfish, "--timeout", "0")["test pilot"]
    assert (found["state"], found["cure"]) == (state, fix)
    assert found["text"].startswith(f"hpc-1 (job 7) waits, for: {reason}; it had no worker after ")
    assert WITHDRAWN in master.asked
    queued(master, reason, *commands)
    last = pilotfish("doctor", "hpc", "--timeout", "0").out.splitlines()[-1]
    unknown = "No check failed, but it is unknown whether pilots work at hpc."
    assert last == (unknown if state == DOUBTFUL else "1 thing to fix.")


def test_nobody_waits_longer_for_what_does_not_pass(
    pilotfish: CommandLine, programs: Path, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_pilot, "PERMANENT_AFTER_S", 0.1)
    queued(master, "PartitionConfig")
    assert findings(pilotfish, "--timeout", "1h")["test pilot"]["state"] == BAD


def test_a_queue_that_the_master_has_not_asked_yet_is_asked_from_here(pilotfish: CommandLine, programs: Path, master: FakeMaster) -> None:
    put(programs, "squeue", "case $* in *--jobs=*) echo '7|PENDING|PartitionTimeLimit';; esac")
    waits(master, "(job 7)", "pilotfish sites")
    found = findings(pilotfish, "--timeout", "0")["test pilot"]
    assert found["state"] == BAD and found["text"].startswith("hpc-1 (job 7): PartitionTimeLimit;")
    assert found["cure"].startswith("pilotfish site set hpc walltime=DURATION;")


def test_an_agent_that_does_not_come_is_bad_when_it_is_late(
    pilotfish: CommandLine, programs: Path, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, seen = "(job 7) is at it, and its agent is not", {"runs": True, "reason": ""}
    waits(master, said, seen=seen)
    assert findings(pilotfish, "--timeout", "0")["test pilot"]["state"] == DOUBTFUL
    monkeypatch.setattr(test_pilot, "LATE_S", 0.0)
    waits(master, said, "pilotfish doctor hpc", "pilotfish site set hpc address=HOST", "pilotfish pilots add hpc 1", seen=seen)
    found = findings(pilotfish, "--timeout", "0")["test pilot"]
    assert found["state"] == BAD
    assert found["cure"] == "pilotfish site set hpc address=HOST; then try again: pilotfish doctor hpc"


@pytest.mark.parametrize(
    ("code", "commands", "state", "fix"),
    [
        ("site-trouble", ["pilotfish site login hpc", "pilotfish doctor hpc"], BAD, "pilotfish site login hpc"),
        ("site-trouble", ["pilotfish doctor hpc"], BAD, "pilotfish site log hpc"),
        ("batch-limit", ["pilotfish site set hpc queue=QUEUE"], DOUBTFUL, "pilotfish site set hpc queue=QUEUE"),
    ],
)
def test_a_site_that_does_not_answer_the_master_is_told(
    pilotfish: CommandLine, programs: Path, master: FakeMaster, code: str, commands: list[str], state: str, fix: str
) -> None:
    site = row(trouble="it is down", reason={"code": code, "text": "it stands so", "commands": commands})
    waits(master, "is being submitted", site=site, job="")
    found = findings(pilotfish, "--timeout", "0")["test pilot"]
    assert (found["state"], found["cure"]) == (state, fix)
    assert found["text"].startswith("hpc-1 could not be submitted for ") and "it is down; it was withdrawn" in found["text"]


def test_a_test_pilot_that_is_gone_without_a_cause_says_nothing_about_the_site(
    pilotfish: CommandLine, programs: Path, master: FakeMaster
) -> None:
    master.sites = [row(active=2)]
    found = findings(pilotfish)["test pilot"]
    assert found["state"] == DOUBTFUL and "a user may have cancelled it" in found["text"]


def test_a_test_pilot_that_worked_and_is_gone_already_is_well(pilotfish: CommandLine, programs: Path, master: FakeMaster) -> None:
    master.sites = [row()]
    master.ends["hpc-1"] = {"kind": "succeeded", "cause": "succeeded", "reason": "ended"}
    found = findings(pilotfish)["test pilot"]
    assert found["state"] == GOOD and "hpc-1 started, reached the master, and was released" in found["text"]


def test_what_befell_other_pilots_of_the_site_is_not_laid_to_the_test_pilot(
    pilotfish: CommandLine, programs: Path, master: FakeMaster
) -> None:
    answers = [[row(failures={})], [row(failures={"died": 1}, last_bad="was killed")]]
    master._ask_sites = lambda: answers.pop(0)  # type: ignore[method-assign]
    master.ends["hpc-1"] = {"kind": "withdrawn", "cause": "unneeded", "reason": "cancelled"}
    found = findings(pilotfish)["test pilot"]
    assert found["state"] == DOUBTFUL and "a user may have cancelled it" in found["text"]


def fails(master: FakeMaster, words: str, cause: str = "refused") -> None:
    master.sites = [row()]
    master.ends["hpc-1"] = {"kind": "expired" if cause == "expired" else "failed", "cause": cause, "reason": words}


@pytest.mark.parametrize(
    ("words", "cause", "fix"),
    [
        ("was refused: invalid partition", "refused", "pilotfish site set hpc queue=QUEUE"),
        ("was refused: such a thing", "refused", "See what it is asked: pilotfish site show hpc --dry-run; and change it:"),
        ("ended: no python3 of 3.8 or later", "bootstrap", "pilotfish site set hpc python=/path/to/python3"),
        ("ended before its agent joined", "expired", "It needs more time: pilotfish site set hpc walltime=1h"),
        ("ended: it fell over", "died", "See what would be run there: pilotfish site show hpc --dry-run"),
    ],
)
def test_a_test_pilot_that_fails_is_told_with_its_cause(
    pilotfish: CommandLine, programs: Path, master: FakeMaster, words: str, cause: str, fix: str
) -> None:
    fails(master, words, cause)
    found = findings(pilotfish)["test pilot"]
    assert (found["state"], found["text"]) == (BAD, f"it {words}")
    assert found["cure"].startswith(fix)


def test_a_master_with_other_variables_than_this_shell_is_found_out(
    pilotfish: CommandLine, programs: Path, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is ours here, which was started without this one."""
    real = master._ask_status
    master._ask_status = lambda: {**real(), "pid": os.getpid()}  # type: ignore[method-assign]
    monkeypatch.setenv("SLURM_CONF", "/else/where")
    put(programs, "sacct", "exit 0")  # a real one looks for its cluster
    fails(master, "was refused: no such cluster")
    fix = findings(pilotfish)["test pilot"]["cure"]
    assert fix.startswith("The master was started with another SLURM_CONF than this shell has.")
    assert 'pilotfish site set hpc "environment.SLURM_CONF=$SLURM_CONF"' in fix and fix.endswith("pilotfish stop")
    assert "/else/where" not in fix
    fails(master, "was refused: no such cluster")
    pilotfish("site", "set", "hpc", "environment.SLURM_CONF=/else/where")
    assert "The master" not in findings(pilotfish)["test pilot"]["cure"], "it is told to both"


def test_a_site_that_is_full_has_no_room_for_a_test(pilotfish: CommandLine, programs: Path, master: FakeMaster) -> None:
    master.sites = [row(waiting=4, active=6)]
    found = findings(pilotfish)["test pilot"]
    assert found["state"] == DOUBTFUL and found["cure"] == "pilotfish site set hpc max_pilots=11"
    assert "pilots_add" not in [kind for kind, _ in master.asked]


def test_a_master_that_is_lost_sight_of_is_told(pilotfish: CommandLine, programs: Path, master: FakeMaster) -> None:
    def lose(all: bool = False) -> list[dict[str, Any]]:
        raise PilotfishError("it went away", "look")

    waits(master, "is being submitted", job="")
    master._ask_workers = lose  # type: ignore[method-assign]
    found = findings(pilotfish)["test pilot"]
    assert (found["state"], found["text"], found["cure"]) == (BAD, "hpc-1 could not be followed: it went away", "look")
    assert WITHDRAWN in master.asked


# --- who has had enough -------------------------------------------------------------------------------------------------------------------


def when_it_is_heard(master: FakeMaster, act: Callable[[], None]) -> None:
    """As soon as somebody asks what the pilot waits for."""
    real = master._ask_why

    def answer(subject: str | None = None, **named: Any) -> dict[str, Any]:
        act()
        return real(subject, **named)

    master._ask_why = answer  # type: ignore[method-assign]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_wait_in_order(pilotfish: CommandLine, programs: Path, master: FakeMaster, number: signal.Signals) -> None:
    outside = signal.signal(number, signal.default_int_handler)  # whoever runs these tests may have it ignored, which would be obeyed
    try:
        queued(master, "Resources")
        when_it_is_heard(master, lambda: os.kill(os.getpid(), number))
        said = pilotfish("doctor", "hpc", "--timeout", "1h")
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, outside)
    assert said.status == 128 + number
    assert "hpc-1 (job 7) waits, for: Resources" in said.out and "All checks passed" not in said.out
    assert WITHDRAWN in master.asked


# --- the line that moves ------------------------------------------------------------------------------------------------------------------


class Glass(io.StringIO):
    """A terminal that keeps what was written to it."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_line_says_what_is_waited_for_and_is_taken_away(
    pilotfish: CommandLine, programs: Path, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*words: str) -> str:
        glass = Glass()
        monkeypatch.setattr("sys.stderr", glass)
        queued(master, "Resources\x1b[2J")
        pilotfish("doctor", "hpc", "--timeout", "300ms", *words)
        return glass.getvalue()

    seen = look()
    assert seen.startswith("\r\x1b[Ktest pilot: hpc-1 (job 7) waits, for: Resources\\x1b[2J, 1 s of 300 ms")
    assert seen.endswith("\r\x1b[K")
    assert look("--json") == "", "nothing of it where a program reads"


def test_elsewhere_there_is_no_such_line(pilotfish: CommandLine, programs: Path, master: FakeMaster) -> None:
    queued(master, "Resources")
    said = pilotfish("doctor", "hpc", "--timeout", "300ms")
    assert said.err == "" and "\r" not in said.out and "\x1b" not in said.out
