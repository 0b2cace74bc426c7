"""The commands that look and steer, against a fake master."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.cli.conftest import CommandLine
from tests.unit.cli.fake_master import FakeMaster


def two_runs(pilotfish: CommandLine, master: FakeMaster) -> None:
    pilotfish("run", "--name", "first", "--param", "x=1..3", "--", "echo", "{x}")
    master.outcome = lambda argv: (1 if argv[1] == "2" else 0, argv[1].encode(), {})
    pilotfish("run", "--name", "second", "--param", "x=1..3", "--", "echo", "{x}")


def test_status_shows_the_pool_and_its_runs(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    master.warnings = [{"code": "held", "text": "site local is held: no \x1b[2Jspace", "commands": ["pilotfish doctor"]}]
    assert pilotfish("status").out == (
        "pool default · master 4711 up 1 min 1 s · workers: 1 idle · 2 cores\n"
        "\n"
        "RUN  NAME    STATE   TASKS  DONE  FAILED  RUNNING  WAITING  RATE  TO GO  COMMAND\n"
        "  1  first   done        3     3       0        0        0     -      -  --param x=1..3 -- echo {x}\n"
        "  2  second  failed      3     2       1        0        0     -      -  --param x=1..3 -- echo {x}\n"
        "warning: site local is held: no \\x1b[2Jspace\n"
        "  do      pilotfish doctor\n"
    )
    assert [row["name"] for row in json.loads(pilotfish("status", "--json").out)["runs"]] == ["first", "second"]


def test_status_of_an_unfinished_run_tells_its_rate_and_what_is_left(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.stuck = True
    pilotfish("run", "--detach", "--param", "x=1..3", "--", "echo", "{x}")
    words = pilotfish("status").out.splitlines()[-1].split()
    assert " ".join(words) == "1 - waiting 3 0 0 0 3 2.5/s 1 min 30 s --param x=1..3 -- echo {x}"
    pilotfish("pause")
    assert pilotfish("status").out.splitlines()[-1].split()[2] == "paused"


def test_status_before_anything_was_run(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.exists = False
    said = pilotfish("status")
    assert said.status == 0
    assert said.out == "Nothing has been run in the pool default yet. Start: pilotfish run -- COMMAND\n"
    assert json.loads(pilotfish("status", "--json").out)["runs"] == []
    other = pilotfish("tasks")
    assert other.status == 3
    assert "P3101" in other.err


def test_tasks_can_be_filtered_and_listed_for_other_commands(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    assert pilotfish("tasks").out == (
        "TASK  NAME  STATE   TRY  WORKER   TIME    CPU  MEMORY  NOTE\n"
        "2.0   echo  done      1  -       20 ms  10 ms   1 MiB\n"
        "2.1   echo  failed    1  -       20 ms  10 ms   1 MiB  echo ended with exit status 1\n"
        "2.2   echo  done      1  -       20 ms  10 ms   1 MiB\n"
    )
    assert pilotfish("tasks", "second", "--state", "failed", "--ids").out == "2.1\n"
    assert pilotfish("tasks", "1", "--limit", "2").out.splitlines()[-1] == "... 1 more: pilotfish tasks 1 --offset 2"
    assert [row["id"] for row in json.loads(pilotfish("tasks", "first", "--json").out)] == ["1.0", "1.1", "1.2"]
    assert pilotfish("tasks", "1", "--state", "failed").out == "Run 1 has no failed tasks.\n"


def test_a_run_that_does_not_exist_gets_the_nearest_name(pilotfish: CommandLine, master: FakeMaster) -> None:
    assert "there are no runs yet" in pilotfish("tasks").err
    two_runs(pilotfish, master)
    said = pilotfish("tasks", "secnd")
    assert said.status == 2
    assert "Did you mean 'second'?" in said.err
    assert "See the runs there are: pilotfish status" in pilotfish("tasks", "99").err


def test_workers_are_listed(pilotfish: CommandLine, master: FakeMaster) -> None:
    assert pilotfish("workers", "--all").out == (
        "WORKER   STATE  CORES  BUSY  RUNNING  DONE  FAILED  NOTE\n"
        "local-1  idle       2     0        0     3       1\n"
        "local-0  lost       2     0        0     0       0  was killed by signal 9\n"
    )
    assert len(json.loads(pilotfish("workers", "--json").out)) == 1
    assert pilotfish("workers", "--set", "3").out == "From now on 3 cores of this machine work for the pool default.\n"
    assert master.workers_asked == 3


def test_why_tells_reasons_and_what_to_type(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    assert pilotfish("why", "1.2").out == ("task 1.2 is ready: all workers are busy\n  do      pilotfish workers\n")
    assert pilotfish("why").out.startswith("run 2 is ready")
    assert pilotfish("why", "first").out.startswith("run 1 is ready")
    assert pilotfish("why", "local-0").out.startswith("worker local-0 is ready")
    assert json.loads(pilotfish("why", "--json").out)["subject"] == "run 2"


def test_logs_print_what_tasks_wrote(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    assert pilotfish("logs", "1.0") == (0, "1\n", "")
    assert pilotfish("logs", "2.1") == (0, "2", "it went wrong\n")
    assert pilotfish("logs", "2.1", "--stderr") == (0, "", "it went wrong\n")
    assert pilotfish("logs", "2", "--failed", "--stdout").out == "--- 2.1 failed echo 2\n2"
    assert "is RUN.INDEX" in pilotfish("logs", "1.x").err
    assert pilotfish("logs", "1.77").status == 2


def test_tail_prints_the_last_lines_and_follows_to_the_end(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.outcome = lambda argv: (0, b"a\nb\nc\nd\n", {})
    pilotfish("run", "--", "echo")
    assert pilotfish("tail", "-n", "2", "1.0").out == "c\nd\n"
    assert pilotfish("tail", "-f", "-n", "1", "1.0").out == "d\n"


def test_the_tail_of_a_running_task_is_fetched_from_its_worker(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.stuck = True
    master.running_output = b"so far\n"
    pilotfish("run", "--detach", "--", "echo")
    master.runs[1].tasks[0].state = "running"
    assert pilotfish("tail", "1.0").out == "so far\n"
    assert pilotfish("logs", "1.0", "--stdout").out == "so far\n"


def test_results_show_command_and_outcome(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    assert pilotfish("results").out == (
        "TASK  STATE    TIME  COMMAND  RESULT\n"
        "2.0   done    20 ms  echo 1   1\n"
        "2.1   failed  20 ms  echo 2   echo ended with exit status 1\n"
        "2.2   done    20 ms  echo 3   3\n"
    )
    data = json.loads(pilotfish("results", "1", "--json").out)
    assert [(row["task"], row["exit"], row["stdout"]) for row in data] == [("1.0", 0, "1\n"), ("1.1", 0, "2\n"), ("1.2", 0, "3\n")]
    assert pilotfish("results", "1", "--limit", "1").out.splitlines()[-1] == "... and 2 more: pilotfish results 1 --limit 3"


def test_results_can_be_saved(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    assert pilotfish("results", "2", "--save", "here").out == "6 files in here/\n"
    assert Path("here/0/stdout").read_text() == "1"
    assert Path("here/1/stderr").read_text() == "it went wrong\n"
    Path("file").write_text("")
    assert "is not a directory" in pilotfish("results", "--save", "file").err


def test_cancel_pause_and_resume_say_what_they_did(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    assert pilotfish("cancel", "1.0", "1.1").out == "Cancelled 2 tasks.\n"
    assert pilotfish("cancel", "first").out.startswith("Cancelled run 1: 3 tasks")
    assert pilotfish("pause", "2").out == "Run 2 is paused. Go on: pilotfish resume 2\n"
    assert pilotfish("resume").out == "Run 2 goes on. Watch it: pilotfish attach 2\n"
    assert "missing argument" in pilotfish("cancel").err


def test_rerun_runs_what_failed_and_watches_it(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    said = pilotfish("rerun", "--failed")
    assert said.out.startswith("Run 3: 1 task of run 2 once more.\nRun 3: 1 task, 1 failed in ")
    assert said.status == 1
    assert "has no failed tasks" in pilotfish("rerun", "1").err
    assert pilotfish("rerun", "2", "--detach").status == 0


def test_attach_watches_again(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    said = pilotfish("attach", "1")
    assert said.status == 0
    assert said.out.startswith("Run 1: 3 tasks, 3 done in ")
    assert pilotfish("attach").status == 1
