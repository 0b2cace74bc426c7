"""The commands that look and steer, against a fake master."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from pilotfish.cli.commands.results_command import show_results
from pilotfish.cli.terminal.screen import Screen
from pilotfish.model.task import NO_DIRECTORY, Failure
from tests.support.fake_session import FakeMaster
from tests.unit.cli.conftest import CommandLine


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
        "RUN  NAME    STATE   TASKS  DONE  FAILED  COMMAND\n"
        "  1  first   done        3     3       0  echo {x}  --param x=1..3\n"
        "  2  second  failed      3     2       1  echo {x}  --param x=1..3\n"
        "warning: site local is held: no \\x1b[2Jspace\n"
        "  fix:    pilotfish doctor\n"
    )
    rows = json.loads(pilotfish("status", "--json").out)["runs"]
    assert [(row["name"], row["state"]) for row in rows] == [("first", "done"), ("second", "failed")]


def test_status_of_an_unfinished_run_tells_its_rate_and_what_is_left(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.stuck = True
    pilotfish("run", "--detach", "--param", "x=1..3", "--", "echo", "{x}")
    words = pilotfish("status").out.splitlines()[-1].split()
    assert " ".join(words) == "1 - waiting 3 0 0 0 3 2.5/s 1 min 30 s echo {x} --param x=1..3"
    pilotfish("pause")
    words = pilotfish("status").out.splitlines()[-1].split()
    assert " ".join(words) == "1 - paused 3 0 0 0 3 2.5/s - echo {x} --param x=1..3"


def test_status_before_anything_was_run(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.exists = False
    said = pilotfish("status")
    assert said.status == 0
    assert said.out == "Pool default has no runs yet. Start one: pilotfish run -- COMMAND\n"
    assert json.loads(pilotfish("status", "--json").out)["runs"] == []
    other = pilotfish("tasks")
    assert other.status == 4
    assert "pool 'default' has no runs yet" in other.err


def test_tasks_without_a_register_show_the_command_in_their_input(
    pilotfish: CommandLine, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    master.stuck = True
    pilotfish("run", "--detach", "--param", "x=1..2", "--", "echo", "{x}")
    monkeypatch.setattr("pilotfish.client.descriptions.task_descriptions.describe_run", lambda master, run: None)
    assert [line.split()[1:3] for line in pilotfish("tasks").out.splitlines()[1:]] == [["echo", "1"], ["echo", "2"]]


def test_tasks_can_be_filtered_and_listed_for_other_commands(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    assert pilotfish("tasks").out == (
        "TASK  COMMAND  STATE   ATTEMPT  WORKER   WALL TIME  CPU TIME  MAX MEMORY  NOTE\n"
        "2.0   echo 1   done          1  local-0      20 ms     10 ms       1 MiB\n"
        "2.1   echo 2   failed        1  local-0      20 ms     10 ms       1 MiB  echo ended with exit status 1\n"
        "2.2   echo 3   done          1  local-0      20 ms     10 ms       1 MiB\n"
    )
    assert pilotfish("tasks", "second", "--state", "failed", "--ids").out == "2.1\n"
    assert pilotfish("tasks", "1", "--limit", "2").out.splitlines()[-1] == "... 1 more: pilotfish tasks 1 --offset 2"
    listed = json.loads(pilotfish("tasks", "first", "--json").out)
    assert [(row["id"], row["command"]) for row in listed] == [("1.0", "echo 1"), ("1.1", "echo 2"), ("1.2", "echo 3")]
    assert json.loads(pilotfish("tasks", "first", "--json", "--state", "failed").out) == []
    assert pilotfish("tasks", "1", "--state", "failed").out == "Run 1 has no failed tasks.\n"


def test_programs_get_all_tasks_unless_they_ask_for_fewer(pilotfish: CommandLine, master: FakeMaster) -> None:
    pilotfish("run", "--quiet", "--param", "x=1..10050", "--", "echo", "{x}")
    assert pilotfish("tasks", "--ids").out.splitlines() == [f"1.{index}" for index in range(10050)]
    assert [row["index"] for row in json.loads(pilotfish("tasks", "--json").out)] == list(range(10050))
    assert [row["command"] for row in json.loads(pilotfish("results", "--json").out)][-1] == "echo 10050"
    assert len(pilotfish("tasks", "--ids", "--limit", "10020", "--offset", "7").out.splitlines()) == 10020
    assert len(json.loads(pilotfish("results", "--json", "--limit", "7").out)) == 7
    assert len(pilotfish("tasks").out.splitlines()) == 102


def test_commands_are_shown_so_that_they_can_be_pasted(pilotfish: CommandLine, master: FakeMaster) -> None:
    pilotfish("run", "--param", "x=1..2", "--", "echo", "a {x}")
    assert "echo 'a 2'" in pilotfish("results").out
    assert json.loads(pilotfish("tasks", "--json").out)[0]["command"] == "echo 'a 1'"


def test_programs_are_told_the_parameters_of_each_task(pilotfish: CommandLine, master: FakeMaster) -> None:
    pilotfish("run", "--param", "x=1..2", "--", "echo", "a {x}")
    assert [row["parameters"] for row in json.loads(pilotfish("tasks", "--json").out)] == [{"x": "1"}, {"x": "2"}]


def test_a_task_where_a_run_is_needed_is_told_from_a_run_that_is_not_there(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    said = pilotfish("results", "1.0")
    assert said.status == 2
    assert said.err == ("error: '1.0' is a task, and a run is needed here\n  fix: Its run is 1; for the task alone: pilotfish logs 1.0\n")


def test_a_run_that_does_not_exist_gets_the_nearest_name(pilotfish: CommandLine, master: FakeMaster) -> None:
    assert "there are no runs yet" in pilotfish("tasks").err
    two_runs(pilotfish, master)
    said = pilotfish("tasks", "secnd")
    assert said.status == 2
    assert "Did you mean 'second'?" in said.err
    assert "See the runs there are: pilotfish status" in pilotfish("tasks", "99").err


def test_workers_are_listed(pilotfish: CommandLine, master: FakeMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pilotfish("workers", "--all").out == (
        "WORKER   STATE  CORES  CORES BUSY  RUNNING  DONE  FAILED  NOTE\n"
        "local-1  idle       2           0        0     3       1\n"
        "local-0  lost       2           0        0     0       0  was killed by signal 9\n"
    )
    assert len(json.loads(pilotfish("workers", "--json").out)) == 1
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2})
    assert pilotfish("workers", "--local-cores", "3").out == "Pool default now uses 3 cores of this machine.\n"
    assert master.workers_asked == 3
    assert "note: this machine has 3 cores, so tasks share them" in pilotfish("workers", "--local-cores", "4").out


def test_a_quarantine_can_be_ended(pilotfish: CommandLine, master: FakeMaster) -> None:
    assert pilotfish("workers", "--end-quarantine", "local-1").out == "Worker local-1 gets tasks again.\n"
    assert master.asked[-1] == ("quarantine_clear", {"worker": "local-1"})


def test_workers_tell_their_site_when_some_are_elsewhere(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.workers = [{"worker": "hpc-1", "site": "hpc", "state": "busy", "capacity": {"cores": 8.0}, "free": {"cores": 1.0}, "running": 7}]
    assert pilotfish("workers").out == (
        "WORKER   SITE   STATE  CORES  CORES BUSY  RUNNING  DONE  FAILED  NOTE\n"
        "local-1  local  idle       2           0        0     3       1\n"
        "hpc-1    hpc    busy       8           7        7     0       0\n"
    )


def test_sites_show_this_machine_also_when_the_master_knows_of_none(pilotfish: CommandLine, master: FakeMaster) -> None:
    assert pilotfish("sites").out == (
        "SITE   BACKEND  STATE  QUEUED  RUNNING  WORKERS  MEDIAN WAIT  P90 WAIT  FAILURES\n"
        "local  local    ready       0        0        0            -         -  -\n"
        "No other sites are configured. Add one: pilotfish site add NAME --backend slurm\n"
    )


def test_why_tells_reasons_and_what_to_type(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    sentence, ran, see = pilotfish("why", "1.2").out.splitlines()
    assert (sentence, see) == ("task 1.2 (echo 3) is ready: all workers are busy", "  see:    pilotfish workers")
    assert re.fullmatch(r"  ran     worker local-0, node here, site local, from [-0-9]+ [:0-9]+ to [:0-9]+, attempt 1", ran)
    assert pilotfish("why", "first").out.startswith("run 1 is done")
    assert pilotfish("why", "local-0").out.startswith("worker local-0 is ready")
    data = json.loads(pilotfish("why", "--json").out)
    assert (data["subject"], data["state"], data["reasons"][0]["code"]) == ("run 2", "failed", "exit")
    assert pilotfish("why").out == (
        "run 2 failed: 1 of 3 tasks failed [exit], such as 2.1: echo ended with exit status 1\n"
        "  output: it went wrong\n"
        "  see:    pilotfish tasks 2 --state failed\n"
        "  see:    pilotfish logs 2.1\n"
        "  again:  pilotfish rerun 2 --failed\n"
    )


def test_why_a_run_was_cancelled_and_what_most_failures_have_in_common(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    master.runs[1].tasks[2].state = "cancelled"
    assert pilotfish("why", "1").out.startswith("run 1 is cancelled: 1 of 3 tasks cancelled, 2 done\n")
    for task in master.runs[2].tasks[1:]:
        task.state, task.failure = "failed", Failure("time", "task", "it took too long")
    master.runs[2].tasks[0].state, master.runs[2].tasks[0].failure = "failed", Failure("exit", "task", "exit status 1")
    assert pilotfish("why", "2").out.startswith("run 2 failed: 3 of 3 tasks failed, 2 of them [time], such as 2.1: it took too long\n")


def test_why_names_what_failed_by_itself_and_not_what_only_needed_it(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    for task in master.runs[2].tasks:
        task.state, task.failure = "failed", Failure("dependency", "task", "it needs what failed")
    master.runs[2].tasks[1].failure = Failure("time", "task", "it took too long")
    said = pilotfish("why", "2").out
    assert said.startswith("run 2 failed: 3 of 3 tasks failed, 1 of them [time], such as 2.1: it took too long; and 2 that needed it\n")
    assert "pilotfish logs 2.1\n" in said


def test_why_finds_tasks_by_the_name_of_their_run_and_tells_of_names_that_nothing_has(pilotfish: CommandLine, master: FakeMaster) -> None:
    pilotfish("run", "--name", "sim.v2", "--", "echo")
    assert pilotfish("why", "sim.v2.0").out.startswith("task 1.0 ")
    assert "there is no run 'foo'" in pilotfish("why", "foo").err
    assert "there is no run 'foo'" in pilotfish("why", "foo.0").err


def test_logs_print_what_tasks_wrote(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    assert pilotfish("logs", "1.0") == (0, "1\n", "")
    assert pilotfish("logs", "2.1") == (0, "2", "it went wrong\n")
    assert pilotfish("logs", "2.1", "--stderr") == (0, "", "it went wrong\n")
    assert pilotfish("logs", "2", "--failed", "--stdout").out == "--- 2.1 failed echo 2\n2\n"
    assert pilotfish("logs", "2", "--failed") == (0, "--- 2.1 failed echo 2\n2\n--- 2.1 stderr\nit went wrong\n", "")
    assert pilotfish("logs", "2", "--plain") == (0, "123", "it went wrong\n")
    assert pilotfish("logs", "2", "--plain", "--stdout") == (0, "123", "")
    assert pilotfish("logs", "2", "--plain", "--failed") == (0, "2", "it went wrong\n")
    assert "is RUN.INDEX" in pilotfish("logs", "1.x").err
    assert pilotfish("logs", "1.77").status == 2


def test_an_empty_log_is_told(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.outcome = lambda argv: (0, b"", {})
    pilotfish("run", "--", "echo")
    assert pilotfish("logs", "1.0") == (0, "", "task 1.0 has no output\n")
    master.runs[1].tasks[0].state = "cancelled"
    assert pilotfish("logs", "1.0").err == "task 1.0 has no output: it was cancelled, and the output of cancelled tasks is not stored\n"
    master.stuck = True
    pilotfish("run", "--detach", "--", "echo")
    assert pilotfish("logs", "2.0", "--stdout").err == "task 2.0 has no output to stdout so far: it is ready\n"


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


def test_a_running_task_shows_its_cpu_time_and_memory_so_far(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.stuck = True
    pilotfish("run", "--detach", "--", "echo")
    master.runs[1].tasks[0].state = "running"
    row = json.loads(pilotfish("tasks", "1", "--state", "running", "--json").out)[0]
    assert (row["cpu_s"], row["rss_bytes"]) == (1.5, 3 << 20)
    assert "1.5 s" in pilotfish("tasks", "1").out


def test_tail_says_where_the_output_is_if_it_is_not_in_stdout(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    master.outcome = lambda argv: (1, b"", {})
    pilotfish("run", "--", "echo")
    assert pilotfish("tail", "3.0") == (0, "", "task 3.0 has written only to standard error: pilotfish tail 3.0 --stderr\n")
    assert pilotfish("tail", "3.0", "--stderr") == (0, "it went wrong\n", "")


def test_results_show_command_and_outcome(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    assert pilotfish("results").out == (
        "TASK  STATE   WALL TIME  COMMAND  RESULT\n"
        "2.0   done        20 ms  echo 1   1\n"
        "2.1   failed      20 ms  echo 2   echo ended with exit status 1: it went wrong\n"
        "2.2   done        20 ms  echo 3   3\n"
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
    assert pilotfish("results", "--save", "here", "--csv").err.startswith("error: --csv and --save do not go together\n")


def test_cancel_pause_and_resume_say_what_they_did(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    assert pilotfish("cancel", "1.0", "1.1").out == "Cancelled 2 tasks.\n"
    assert pilotfish("cancel", "2.0", "first").out == "Cancelled 1 task.\nRun 1 has already ended (done).\n"
    assert pilotfish("cancel", "first").out == "Run 1 has already ended (done).\n"
    assert pilotfish("pause", "2").out == "Run 2 has already ended (failed).\n"
    assert pilotfish("resume", "2").out == "Run 2 has already ended (failed).\n"
    master.stuck = True
    pilotfish("run", "--detach", "--param", "x=1..3", "--", "echo", "{x}")
    assert pilotfish("pause", "3").out == "Run 3 is paused. Resume it: pilotfish resume 3\n"
    assert pilotfish("resume").out == "Run 3 resumed. Follow it: pilotfish attach 3\n"
    assert pilotfish("cancel", "3").out.startswith("Cancelled run 3: 3 tasks")
    assert "missing argument" in pilotfish("cancel").err


def test_status_warns_of_settings_that_the_master_has_not_read(pilotfish: CommandLine, master: FakeMaster, tmp_path: Path) -> None:
    pilotfish("run", "--", "echo")
    config = tmp_path / ".pilotfish" / "config.toml"
    config.parent.mkdir(exist_ok=True)
    for text, told in (
        ("[pool]\nlinger = 5\n", "unknown setting 'linger'"),
        ("local_cores = 4\n", "warning: " + f"{config}: the setting 'local_cores' is in no table\n  fix:    put it under [pool]"),
        (
            "[pool]\nlinger_s = 5\n",
            "after the master had started; a restarted master uses the changes\n  fix:    pilotfish stop",
        ),
    ):
        config.write_text(text)
        assert told in pilotfish("status").out
    os.utime(config, (1.0, 1.0))
    assert "warning" not in pilotfish("status").out


def test_ranges_name_several_tasks_and_runs(pilotfish: CommandLine, master: FakeMaster) -> None:
    for _ in range(4):
        pilotfish("run", "--name", "sweep", "--param", "x=1..6", "--", "echo", "{x}")
    pilotfish("run", "--name", "2-3", "--", "echo")
    assert pilotfish("cancel", "1.2-4", "1.3", "sweep.0-1").out.startswith("Cancelled 5 tasks.")
    assert ("cancel", {"tasks": ["1.2", "1.3", "1.4", "4.0", "4.1"]}) in master.asked
    assert "1.4-6: run 1 has the tasks 1.0 to 1.5" in pilotfish("cancel", "1.4-6").err
    assert "there is no run from 7 to 9" in pilotfish("forget", "7-9").err
    assert pilotfish("forget", "2-3").out == "Run 5 was deleted.\n", "the name of a run comes first"
    assert pilotfish("forget", "2-3").out == "Run 2 was deleted.\nRun 3 was deleted.\n"
    assert pilotfish("forget", "sweep").out == "Run 4 was deleted.\n1 other run with the name sweep is kept: 1\n"
    assert pilotfish("forget", "1.2").status == 2
    assert list(master.runs) == [1]
    assert pilotfish("forget", "sweep").out == "Run 1 was deleted.\n"


@pytest.mark.parametrize("command", ["cancel", "pause", "resume", "rerun", "results", "tasks", "why", "logs", "attach"])
@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_run_is_not_taken_for_the_last(pilotfish: CommandLine, master: FakeMaster, command: str, empty: str) -> None:
    master.stuck = True
    pilotfish("run", "--detach", "--", "echo")
    said = pilotfish(command, empty)
    assert said.status == 2
    assert "is no run: it is empty" in said.err
    assert "  fix: Write its number or its name, or last" in said.err
    assert ("cancel", {"run": 1}) not in master.asked and ("pause", {"run": 1}) not in master.asked


def test_rerun_runs_what_failed_and_watches_it(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    said = pilotfish("rerun", "--failed")
    assert said.out.startswith("Run 2: 1 task again.\nRun 2: 3 tasks, 2 done, 1 failed in ")
    assert said.status == 1
    assert "has no failed or cancelled task" in pilotfish("rerun", "1").err
    assert pilotfish("rerun", "2", "--detach").status == 0
    data = json.loads(pilotfish("rerun", "2", "--json").out)
    assert (data["state"], data["tasks"], sum(data["counts"].values())) == ("failed", 3, 3)
    told = {"message": "echo ended with exit status 1", "wrote": "it went wrong"}
    assert data["failures"] == [{"task": "2.1", "command": "echo 2", "cause": "exit", "blame": "task", **told}]


def test_attach_watches_again(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    said = pilotfish("attach", "1")
    assert said.status == 0
    assert said.out == "Run 1: 3 tasks, 3 done in 1 h.\n", "as long as the run took, not as long as we watched"
    failed = pilotfish("attach")
    assert failed.status == 1
    assert "2.1   echo 2   echo ended with exit status 1: it went wrong\n" in failed.out


def test_tasks_whose_directory_the_nodes_lack_are_not_offered_to_be_run_so_once_more(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    for task in master.runs[2].tasks:
        if task.failure is not None:
            task.failure = Failure(NO_DIRECTORY, "site", "there is no directory '/mine' on node n1")
    said = pilotfish("attach")
    assert "Fix:           run it again with --sandbox " in said.out and "--input FILE" in said.out
    assert "rerun" not in said.out and "logs" not in said.out


def test_a_run_whose_client_died_amid_its_tasks_is_not_taken_for_done(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    master.runs[1].incomplete = True
    assert json.loads(pilotfish("status", "--json").out)["runs"][0]["state"] == "incomplete"
    assert json.loads(pilotfish("why", "1", "--json").out)["state"] == "incomplete"
    said = pilotfish("attach", "1")
    assert said.status == 1
    assert (
        "It is incomplete: its program ended before it closed the run, and may have wanted to submit more tasks. More: pilotfish why 1\n"
        in said.out
    )


def test_a_narrow_terminal_shows_parameters_where_commands_would_be_cut(
    pilotfish: CommandLine, master: FakeMaster, capfd: pytest.CaptureFixture[str]
) -> None:
    pilotfish("run", "--param", "x=1..2", "--", "echo", "a long text that has no room", "--x", "{x}")
    row, screen = master.runs[1].row(), Screen(sys.stdout, True, False, 70)
    show_results(screen, master, row, master.ask("tasks", run=1))
    assert capfd.readouterr().out.splitlines()[:2] == [
        "TASK  STATE  WALL TIME  PARAMETERS  RESULT",
        "1.0   done       20 ms  x=1         a long text that has no room --x 1",
    ]
    screen.width = 200
    show_results(screen, master, row, master.ask("tasks", run=1))
    assert "echo 'a long text that has no room' --x 1" in capfd.readouterr().out


def test_status_of_one_run_and_its_watch_end_with_the_run(pilotfish: CommandLine, master: FakeMaster) -> None:
    two_runs(pilotfish, master)
    said = pilotfish("status", "first")
    assert said.out.splitlines()[1].split()[:3] == ["1", "first", "done"] and "second" not in said.out
    assert said.out.splitlines()[-1].startswith("run 1 is done: 3 done")
    assert json.loads(pilotfish("status", "2", "--json").out)["state"] == "failed"
    assert pilotfish("status", "1", "--watch") == said
    assert "there is no run 'thrid'" in pilotfish("status", "thrid").err
    assert "--watch and --json do not go together" in pilotfish("status", "--watch", "--json").err


def test_watching_shows_the_status_again_until_ctrl_c(pilotfish: CommandLine, master: FakeMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    two_runs(pilotfish, master)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("pilotfish.cli.terminal.watching.time.sleep", wait)
    said = pilotfish("status", "--watch")
    assert (said.status, said.out.count("pool default")) == (0, 2)


def test_pools_are_listed_without_starting_a_master(
    pilotfish: CommandLine, master: FakeMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_runs(pilotfish, master)
    (row,) = json.loads(pilotfish("pools", "--json").out)
    assert (row["pool"], row["state"], row["runs"], row["unfinished"], row["workers"]) == ("default", "running", 2, 0, 1)
    monkeypatch.setattr("pilotfish.client.session._connector", None)
    (tmp_path / ".pilotfish/pools/other").mkdir()
    said = pilotfish("pools")
    assert [line.split()[:2] for line in said.out.splitlines()] == [["POOL", "STATE"], ["default", "idle"], ["other", "idle"]]
