"""Tests the report of a run and the job log."""

from __future__ import annotations

import csv
import io
import json

import pytest

from pilotfish.cli.commands.report_command import make_report
from pilotfish.model.task import Failure
from pilotfish.portable.payload_format import pack
from tests.support.fake_session import FakeMaster
from tests.unit.cli.conftest import CommandLine

RUN = {"run": 4, "state": "done", "opened_at": 1000.0, "started_at": 1002.0, "elapsed_s": 8.0}


def row(worker: str, ended_at: float, wall_s: float, state: str = "done") -> dict[str, object]:
    place = {"worker": worker, "node": f"node-of-{worker}", "site": "lyon"}
    return {**place, "state": state, "ended_at": ended_at, "wall_s": wall_s, "cpu_s": wall_s / 2, "rss_bytes": 100}


def test_the_report_adds_up_the_tasks_of_each_worker_also_of_workers_that_are_gone() -> None:
    rows = [row("a", 1004.0, 3.0), row("b", 1010.0, 2.0, "failed"), row("a", 1008.0, 3.0), row("", 1009.0, 0.0, "cancelled")]
    report = make_report(RUN, rows, {"a": 1.0, "b": 1.0, "unused": 64.0})
    assert (report.tasks, report.elapsed_s, report.first_result_s, report.cores, report.busy) == (3, 10.0, 4.0, 2.0, 8 / 20)
    assert [(share.worker, share.node, share.tasks, share.run_s) for share in report.workers] == [
        ("a", "node-of-a", 2, 6.0),
        ("b", "node-of-b", 1, 2.0),
    ]
    assert report.waited_s == (4 + 10 + 8 - 8) / 3 and report.overhead_s == (20 - 8) / 3
    assert make_report({**RUN, "started_at": 0.0, "elapsed_s": 0.0}, [], {}).tasks == 0


def test_a_rerun_task_waited_since_the_rerun() -> None:
    rows = [row("a", 1006.0, 3.0), row("a", 1500.0, 4.0)]
    report = make_report({**RUN, "reopened_at": 1494.0}, rows, {"a": 1.0})
    assert (report.waited_s, report.first_result_s) == ((6 + 6 - 7) / 2, 6.0)


def test_the_time_of_running_tasks_is_not_overhead() -> None:
    rows = [row("a", 1004.0, 3.0), row("b", 0.0, 5.0, "running"), row("c", 0.0, 0.0, "assigned"), row("", 0.0, 0.0, "ready")]
    report = make_report({**RUN, "state": "running"}, rows, {"a": 1.0, "b": 1.0, "c": 1.0, "unused": 64.0})
    assert (report.tasks, report.running, report.cores, report.busy) == (1, 1, 2.0, 8 / 20)
    assert (report.overhead_s, report.ran_s) == (6.0, 3.0)
    assert [share.worker for share in report.workers] == ["a"]


def test_no_times_are_reported_before_a_task_has_ended(pilotfish: CommandLine, master: FakeMaster) -> None:
    pilotfish("run", "--", "sleep", "100")
    master.runs[1].tasks[0].state = "running"
    assert pilotfish("report").out == "Run 1: 0 tasks ended, 1 running\n"


def test_a_report_can_be_had_later_and_its_job_log_has_the_columns_of_gnu_parallel(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.outcome = lambda argv: (int(argv[1]), b"", {})
    pilotfish("run", "--param", "x=0..2", "--", "echo", "{x}")
    said = pilotfish("report")
    assert said.err == ""
    out = said.out
    assert out.startswith("Run 1: 3 tasks ended\n") and "Where the time went" in out and "WORKER" in out
    assert json.loads(pilotfish("report", "1", "--json").out)["tasks"] == 3
    head, *rows = csv.reader(io.StringIO(pilotfish("results", "1", "--joblog").out))
    assert head == ["Seq", "Host", "Starttime", "JobRuntime", "Send", "Receive", "Exitval", "Signal", "Command"]
    assert [(line[0], line[6], line[7], line[8]) for line in rows] == [(str(n + 1), str(n), "0", f"echo {n}") for n in range(3)]
    assert pilotfish("results", "--joblog", "--csv").status == 2


@pytest.mark.parametrize(
    ("status", "signal", "expected"), [(0, None, ("-1", "0")), (None, None, ("-1", "0")), (3, None, ("3", "0")), (None, 9, ("0", "9"))]
)
def test_the_job_log_never_shows_a_failed_task_as_successful(
    pilotfish: CommandLine, master: FakeMaster, status: int | None, signal: int | None, expected: tuple[str, str]
) -> None:
    pilotfish("run", "--", "echo")
    (task,) = master.runs[1].tasks
    described: dict[str, object] = {"exit": status, "signal": signal, "files": [], "stdout_dropped": 0, "stderr_dropped": 0}
    task.state, task.failure = "failed", Failure("missing-output", "task", "it left no out.dat")
    task.result = pack([json.dumps(described).encode(), b"", b""])
    (row,) = csv.DictReader(io.StringIO(pilotfish("results", "--joblog").out))
    assert (row["Exitval"], row["Signal"]) == expected
