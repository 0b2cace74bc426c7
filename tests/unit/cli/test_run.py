"""pilotfish run, against a fake master."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from pilotfish.errors import BadInput
from tests.support.fake_session import FakeMaster, Outcome
from tests.unit.cli.conftest import CommandLine


def commands(master: FakeMaster, run: int = 1) -> list[list[str]]:
    return [task.told["argv"] for task in master.runs[run].tasks]


def test_one_command_prints_what_it_printed_and_nothing_else(pilotfish: CommandLine) -> None:
    said = pilotfish("run", "--", "echo", "hello", "world")
    assert said == (0, "hello world\n", "")


def test_dashes_may_be_left_out_and_options_of_the_command_are_its_own(pilotfish: CommandLine, master: FakeMaster) -> None:
    assert pilotfish("run", "--name", "x", "echo", "--name", "y").status == 0
    assert commands(master) == [["echo", "--name", "y"]]
    assert master.runs[1].options.name == "x"


def test_one_failed_command_gives_status_1_its_output_and_the_next_commands(pilotfish: CommandLine) -> None:
    said = pilotfish("run", "--", "false")
    assert said.status == 1
    assert said.err == (
        "it went wrong\n"
        "Task 1.0 failed: false ended with exit status 1\n"
        "  why         pilotfish why 1.0\n"
        "  rerun       pilotfish rerun 1 --failed\n"
    )


def test_a_sweep_makes_one_task_per_combination(pilotfish: CommandLine, master: FakeMaster) -> None:
    said = pilotfish("run", "--param", "alpha=0.1:0.3:0.1", "--param", "seed=1..2", "--", "echo", "{alpha}", "--seed={seed}", "n{#}")
    assert said.status == 0
    assert commands(master)[:3] == [["echo", "0.1", "--seed=1", "n0"], ["echo", "0.1", "--seed=2", "n1"], ["echo", "0.2", "--seed=1", "n2"]]
    assert len(commands(master)) == 6
    assert "Run 1: 6 tasks, 6 done in" in said.out
    assert "pilotfish results 1" in said.out


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("x=1-10", "x=1..10"),
        ("x=1-3,8,10-12", "x=1..3,8,10..12"),
        ("x=1 2 3", "x=1,2,3"),
        ("x=1, 2.5, 3e-4", "x=1,2.5,3e-4"),
        ("x={1..3}", "x=1..3"),
        ("x={1..9..2}", "x=1:9:2"),
        ("x={a,b}", "x=a,b"),
    ],
)
def test_values_that_look_like_several_values_of_another_program_get_a_note(pilotfish: CommandLine, typed: str, meant: str) -> None:
    said = pilotfish("run", "--dry-run", "--param", typed, "--", "echo", "{x}")
    assert said.status == 0
    assert said.err.startswith(f"note: --param {shlex.quote(typed)} ") and said.err.endswith(f": --param {meant}\n")
    assert pilotfish("run", "--quiet", "--dry-run", "--param", typed, "--", "echo", "{x}").err == ""


@pytest.mark.parametrize(
    "typed", ["x=10-1", "x=2024-01-05", "x=a b", "x=a-b,1", 'x="1-10"', "x={name}", "x=1,2", "x=1..3", "x=new york, rome"]
)
def test_values_without_another_meaning_get_no_note(pilotfish: CommandLine, typed: str) -> None:
    assert pilotfish("run", "--dry-run", "--param", typed, "--", "echo", "{x}").err == ""


def test_a_time_limit_without_a_unit_gets_a_note_because_slurm_counts_minutes(pilotfish: CommandLine, master: FakeMaster) -> None:
    note = "note: --time 10 is 10 seconds. For minutes: --time 10m\n"
    assert pilotfish("run", "--time", "10", "--", "false").err.startswith(note)
    assert pilotfish("rerun", "1", "--time", "10").err.startswith(note)
    for words in (("--time", "10s"), ("--time", "10", "--quiet"), ()):
        assert pilotfish("run", *words, "--", "true").err == ""


def test_zip_and_tables_work_on_the_command_line(pilotfish: CommandLine, master: FakeMaster) -> None:
    Path("t.csv").write_text("a,b\n1,x\n2,y\n")
    pilotfish("run", "--zip", "--params-from", "t.csv", "--param", "c=7,8", "--", "echo", "{a}{b}{c}")
    assert commands(master) == [["echo", "1x7"], ["echo", "2y8"]]


def test_lists_after_the_command_make_one_task_per_value(pilotfish: CommandLine, master: FakeMaster) -> None:
    said = pilotfish("run", "--param", "n=1..2", "--", "echo", "{n}", "{/.}", "{}", ":::", "data/a b.dat", "c.dat")
    assert said.status == 0
    assert commands(master) == [["echo", n, stem, path] for n in ("1", "2") for stem, path in (("a b", "data/a b.dat"), ("c", "c.dat"))]
    assert pilotfish("run", "echo", "{2}{1}", ":::", "a", "b", ":::", "1", "2").status == 0
    assert commands(master, 2) == [["echo", "1a"], ["echo", "2a"], ["echo", "1b"], ["echo", "2b"]]


def test_a_list_that_the_command_does_not_use_is_refused(pilotfish: CommandLine) -> None:
    said = pilotfish("run", "--", "echo", ":::", "a", "b")
    assert said.status == 2
    assert "the list ::: a b is not used: the command has no {1}" in said.err
    said = pilotfish("run", "--", "echo", "{1}", ":::", "a", ":::", "one word", "2", "3", "4")
    assert "the list ::: 'one word' 2 3 ... is not used: the command has no {2}" in said.err
    assert "there is a sweep, but no command to run" in pilotfish("run", "--", ":::", "a").err


def test_placeholders_that_nothing_replaces_never_pass_silently(pilotfish: CommandLine, master: FakeMaster) -> None:
    assert "no parameter 'x'" in pilotfish("run", "--times", "3", "--", "echo", "{x:03d}").err
    for sign in ("::::", "::::+"):
        said = pilotfish("run", "--", "echo", "{1}", ":::", "a", sign, "list")
        assert (said.status, "--each-line FILE" in said.err, f"{sign} of GNU parallel" in said.err) == (2, True, True)
    Path("tasks.txt").write_text("echo '{a,b}'\necho x-{i:03d} {}\n")
    said = pilotfish("run", "--tasks", "tasks.txt")
    assert said.status == 0 and said.err.startswith("warning: tasks.txt, line 2: {i:03d} is not replaced: a task list has no values")
    assert commands(master)[1] == ["echo", "x-{i:03d}", "{}"]


def test_a_command_is_repeated(pilotfish: CommandLine, master: FakeMaster) -> None:
    assert pilotfish("run", "--times", "3", "--", "echo", "{#:02d}").status == 0
    assert commands(master) == [["echo", "00"], ["echo", "01"], ["echo", "02"]]
    assert pilotfish("run", "--times", "3", "--tasks", "x").status == 2


def test_a_value_that_could_run_as_code_is_refused_before_any_task_starts(pilotfish: CommandLine, master: FakeMaster) -> None:
    said = pilotfish("run", "--", "sh", "-c", "cat {}", ":::", "good", "; rm -rf x")
    assert said.status == 2
    assert "the command has {} in a script, where the value '; rm -rf x' could run as code" in said.err
    assert """Pass it as an argument: sh -c '... "$1" ...' sh {}""" in said.err
    assert not master.runs


def test_each_line_is_put_where_the_braces_are(pilotfish: CommandLine, master: FakeMaster) -> None:
    Path("in.txt").write_text("a b\nc\n")
    pilotfish("run", "--each-line", "in.txt", "--", "echo", "<{}>")
    assert commands(master) == [["echo", "<a b>"], ["echo", "<c>"]]


def test_a_task_list_runs_its_lines(pilotfish: CommandLine, master: FakeMaster) -> None:
    Path("data").write_text("x")
    Path("tasks.txt").write_text("echo 1\nin=data out=r.txt cost=3 echo 2\n")
    pilotfish("run", "--tasks", "tasks.txt")
    assert commands(master) == [["echo", "1"], ["echo", "2"]]
    assert master.runs[1].tasks[1].told["inputs"] == [["data", 0o644]]
    assert master.runs[1].specs[0].launch["sandbox"] is True


def test_resources_reach_the_spec(pilotfish: CommandLine, master: FakeMaster) -> None:
    words = ["--cores", "2-4", "--memory", "2G", "--gpus", "1", "--resource", "licence=3", "--time", "1h30m", "--retries", "2"]
    pilotfish("run", *words, "--priority", "5", "--max-failures", "7", "--", "echo")
    spec = master.runs[1].specs[0]
    assert (spec.request.cores, spec.request.cores_max, spec.request.memory, spec.request.gpus) == (2.0, 4.0, 2 << 30, 1.0)
    assert spec.request.custom == {"licence": 3.0}
    assert (spec.time_s, spec.retries, spec.priority) == (5400.0, 2, 5)
    assert master.runs[1].options.max_failures == 7


def test_tasks_see_the_environment_of_the_shell_but_not_its_secrets(
    pilotfish: CommandLine, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SETTING", "on")
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    monkeypatch.setenv("PILOTFISH_HOME", "/somewhere")
    monkeypatch.setenv("DB_PASSWORD", "wanted")
    pilotfish("run", "--env", "EXTRA=1", "--env", "DB_PASSWORD", "--param", "x=1,2", "--env", "X={x}", "--", "echo", "{x}")
    shared = master.runs[1].specs[0].launch["env"]
    assert (shared["MY_SETTING"], shared["EXTRA"], shared["DB_PASSWORD"]) == ("on", "1", "wanted")
    assert "GITHUB_TOKEN" not in shared
    assert "PILOTFISH_HOME" not in shared
    assert [task.told["env"] for task in master.runs[1].tasks] == [{"X": "1"}, {"X": "2"}]


def test_output_files_come_back_to_a_directory_of_the_run(pilotfish: CommandLine, master: FakeMaster) -> None:
    def outcome(argv: list[str]) -> Outcome:
        return 0, b"", {"out.txt": argv[1].encode()}

    master.outcome = outcome
    said = pilotfish("run", "--output", "out.txt", "--param", "x=1,2", "--", "echo", "{x}")
    assert Path("run-1/0/out.txt").read_text() == "1"
    assert Path("run-1/1/out.txt").read_text() == "2"
    assert "2 files in run-1/" in said.out
    assert [task.told["outputs"] for task in master.runs[1].tasks] == [["out.txt"], ["out.txt"]]


def test_standard_input_of_tasks_comes_from_a_file(pilotfish: CommandLine, master: FakeMaster) -> None:
    from pilotfish.portable.payload_format import unpack

    Path("a.in").write_bytes(b"first")
    Path("b.in").write_bytes(b"second")
    pilotfish("run", "--param", "x=a,b", "--stdin", "{x}.in", "--", "echo", "{x}")
    assert [bytes(unpack(task.payload)[1]) for task in master.runs[1].tasks] == [b"first", b"second"]


def test_a_dry_run_starts_nothing(pilotfish: CommandLine, master: FakeMaster) -> None:
    said = pilotfish("run", "--dry-run", "--cores", "2", "--param", "x=1..9", "--", "echo", "{x}")
    assert said.status == 0
    assert said.out.splitlines()[0].startswith("Would run 9 tasks, in ")
    assert said.out.splitlines()[0].endswith("each needs 2 cores:")
    assert said.out.splitlines()[1:] == ["  echo 1", "  echo 2", "  echo 3", "  echo 4", "  echo 5", "  ... and 4 more"]
    assert not master.runs


def test_a_dry_run_as_json(pilotfish: CommandLine) -> None:
    data = json.loads(pilotfish("run", "--dry-run", "--json", "--param", "x=1..9", "--", "echo", "{x}").out)
    assert data["tasks"] == 9
    assert data["first"][0] == ["echo", "1"]


def test_ctrl_c_leaves_the_run_with_a_sentence_and_status_0(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.interrupt = master.stuck = True
    said = pilotfish("run", "--param", "x=1..9", "--", "echo", "{x}")
    assert said.status == 0
    assert said.out == (
        "Left run 1. The work goes on: 0 of 9 tasks so far.\n"
        "  come back   pilotfish attach 1\n"
        "  look        pilotfish status\n"
        "  cancel it   pilotfish cancel 1\n"
    )


def test_detached_runs_say_how_to_come_back(pilotfish: CommandLine) -> None:
    assert pilotfish("run", "--detach", "--", "echo").out == "Run 1: 1 task submitted. Follow it: pilotfish attach 1\n"
    assert pilotfish("run", "--detach", "--quiet", "--", "echo").out == "2\n"
    assert json.loads(pilotfish("run", "--detach", "--json", "--", "echo").out) == {"run": 3, "tasks": 1, "state": "submitted"}


def test_a_request_that_nothing_can_meet_is_told_and_kept(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.stuck = True
    text = "64 cores asked for, the largest worker has 2 cores"
    master.reasons = [{"code": "too-big", "text": text, "commands": ["pilotfish workers --local-cores 64"]}]
    said = pilotfish("run", "--cores", "64", "--", "echo")
    assert said.status == 3
    assert text in said.err
    assert "fix:    pilotfish workers --local-cores 64" in said.err
    assert said.out.startswith("Run 1 is kept, and starts as soon as something fits.\n")
    quiet = pilotfish("run", "--quiet", "--cores", "64", "--", "echo")
    assert (quiet.status, quiet.out) == (3, "")
    data = json.loads(pilotfish("run", "--json", "--cores", "64", "--", "echo").out)
    assert (data["state"], data["left"], sum(data["counts"].values())) == ("waiting", "hopeless", data["tasks"])


def test_tasks_of_a_list_are_of_one_kind_if_they_run_one_program(pilotfish: CommandLine, master: FakeMaster) -> None:
    for name in ("sim.py", "merge"):
        Path(name).write_text("#!/bin/sh\n")
        Path(name).chmod(0o755)
    lines = ["./merge 1", "python3 sim.py 1", "sh -c 'echo 1'", "./sim.py 2", "./merge 2", *(f"env{n}/prog" for n in range(60))]
    for number in range(60):
        Path(f"env{number}").mkdir()
        Path(f"env{number}/prog").symlink_to("../merge")
        Path(f"p{number}").symlink_to("merge")
    lines += [f"./p{number}" for number in range(60)]
    Path("tasks.txt").write_text("\n".join(lines))
    assert pilotfish("run", "--tasks", "tasks.txt").status == 0
    run = master.runs[1]
    kinds = [run.specs[task.spec].name for task in run.tasks]
    assert kinds[:7] == ["merge", "sim.py", "task", "sim.py", "merge", "prog", "prog"]
    assert len(run.specs) == 50 and kinds[-1] == "task", "not without end"


def test_some_failures_give_status_1_a_short_list_and_the_next_commands(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.outcome = lambda argv: (1 if int(argv[1]) % 2 else 0, b"", {})
    said = pilotfish("run", "--param", "x=0..19", "--", "echo", "{x}")
    assert said.status == 1
    lines = said.out.splitlines()
    assert lines[0].startswith("Run 1: 20 tasks, 10 done, 10 failed in ")
    assert lines[1:7] == [
        "TASK  COMMAND  FAILURE",
        *(f"1.{index}   echo {index}   echo ended with exit status 1: it went wrong" for index in (1, 3, 5, 7, 9)),
    ]
    assert "pilotfish tasks 1 --state failed" in said.out
    assert "pilotfish logs 1.1" in said.out
    assert "pilotfish rerun 1 --failed" in said.out


def test_the_outcome_as_json(pilotfish: CommandLine, master: FakeMaster) -> None:
    said = pilotfish("run", "--json", "--param", "x=1,2", "--", "false", "{x}")
    data = json.loads(said.out)
    assert said.status == 1
    assert (data["run"], data["state"], data["tasks"], data["counts"]["failed"]) == (1, "failed", 2, 2)
    assert sum(data["counts"].values()) == data["tasks"]
    assert data["failures"][0] == {
        "task": "1.0",
        "command": "false 1",
        "cause": "exit",
        "blame": "task",
        "message": "false ended with exit status 1",
        "wrote": "it went wrong",
    }


def test_quiet_prints_nothing(pilotfish: CommandLine) -> None:
    assert pilotfish("run", "--quiet", "--param", "x=1,2", "--", "echo", "{x}") == (0, "", "")


def test_a_report_shows_results_and_where_the_time_went(pilotfish: CommandLine) -> None:
    out = pilotfish("run", "--report", "--param", "x=1..3", "--", "echo", "{x}").out
    assert "TASK  STATE  WALL TIME  COMMAND  RESULT" in out
    assert "1.2   done       20 ms  echo 3   3" in out
    for line in ("Where the time went", "until the first result", "a task waited", "a task ran", "overhead", "workers busy"):
        assert line in out


def test_an_interrupted_submission_cancels_the_run(pilotfish: CommandLine, master: FakeMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: object, run: object, spec: int, payload: bytes, needs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tests.support.fake_session.FakeMaster.submit", interrupted)
    said = pilotfish("run", "--cores", "1", "--param", "x=1..3", "--", "echo", "a {x}")
    assert said.status == 130
    assert ("cancel", {"run": 1}) in master.asked
    assert said.err.splitlines() == [
        "Run 1: 3 tasks: --param x=1..3 -- echo 'a {x}'",
        "Not all tasks were submitted: run 1 was cancelled. Again: pilotfish run --cores 1 --param x=1..3 -- echo 'a {x}'",
    ]


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["wc -l f"], "pilotfish run wc -l f"),
        (["--name", "n", "--", "cat f | wc"], "pilotfish run --name n -- sh -c 'cat f | wc'"),
        (["wc -l {}", ":::", "f", "f"], "pilotfish run wc -l '{}' ::: f f"),
        (["cat {} | wc", ":::", "f", "f"], "pilotfish run sh -c 'cat {} | wc' ::: f f"),
        (["--", "sim.py", "--seed", "1"], "pilotfish run -- python ./sim.py --seed 1"),
    ],
)
def test_a_command_that_cannot_start_is_shown_as_it_works(pilotfish: CommandLine, master: FakeMaster, words: list[str], fix: str) -> None:
    Path("f").write_text("x\n")
    Path("sim.py").write_text("print(1)\n")
    said = pilotfish("run", *words)
    assert said.status == 2 and said.err.splitlines()[-1].replace("python3 ", "python ") == f"  fix: {fix}", said.err
    assert not master.runs
    assert pilotfish(*shlex.split(fix)[1:]).status == 0


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("--jobs 4 -- echo", "pilotfish run --local-cores 4 -- echo"),
        ("--jobs=4 -- echo", "pilotfish run --local-cores 4 -- echo"),
        ("-j2 -- echo", "pilotfish run --local-cores 2 -- echo"),
        ("-j 2 -- make -j 2", "pilotfish run --local-cores 2 -- make -j 2"),
        ("-P 4 -- echo", "pilotfish run --local-cores 4 -- echo"),
        ("-n 4 -- echo", "pilotfish run --cores 4 -- echo"),
        ("-c 2 -- echo", "pilotfish run --cores 2 -- echo"),
        ("--mem 2G -- echo", "pilotfish run --memory 2G -- echo"),
        ("--mem 512 -- echo", "pilotfish run --memory 512M -- echo"),
        ("-t 10 -- echo", "pilotfish run --time 10m -- echo"),
        ("-t 1-12 -- echo", "pilotfish run --time 1d12h -- echo"),
        ("--walltime=01:30:00 -- echo", "pilotfish run --time 01:30:00 -- echo"),
        ("--array 1-10:3 -- echo {i}", "pilotfish run --param i=1:10:3 -- echo '{i}'"),
        ("--array=1-3,8 -- echo {i}", "pilotfish run --param i=1..3,8 -- echo '{i}'"),
        ("-J night -- echo", "pilotfish run --name night -- echo"),
    ],
)
def test_options_of_parallel_xargs_and_slurm_are_known(pilotfish: CommandLine, master: FakeMaster, typed: str, fix: str) -> None:
    said = pilotfish("run", *typed.split())
    assert said.status == 2 and said.err.splitlines()[-1] == f"  fix: {fix}", said.err
    assert pilotfish(*shlex.split(fix)[1:]).status == 0


@pytest.mark.parametrize("indices", ["1-10%4", "1-10:2,20", "x"])
def test_indices_of_a_job_array_that_a_parameter_cannot_have_are_not_made_a_command(pilotfish: CommandLine, indices: str) -> None:
    said = pilotfish("run", "--array", indices, "--", "echo", "{i}")
    assert said.status == 2 and "Did you mean '--param'?" in said.err and f"i={indices}" not in said.err


@pytest.mark.parametrize(
    ("words", "said", "fix"),
    [
        ([], "there is no command to run", "Write the command after --"),
        (["--param", "x=1"], "there is a sweep, but no command", "Write the command after --"),
        (["--local-croes", "2", "--", "echo"], "pilotfish run has no option --local-croes", "Did you mean '--local-cores'?"),
        (["--local-cores", "many", "--", "echo"], "'many' is not a whole number", "pilotfish run --help"),
        (["--param", "alpah=1,2", "--", "echo", "{alpha}"], "{alpha}, but there is no parameter 'alpha'", "Did you mean 'alpah'?"),
        (["--param", "x=1", "--param", "y=2", "--", "echo", "{x}"], "the parameter y is not used", "{y}"),
        (["--each-line", "none.txt", "--", "echo", "{}"], "--each-line: the file 'none.txt' does not exist", "ls"),
        (["--tasks", "none.txt"], "--tasks: the file 'none.txt' does not exist", "ls"),
        (["--tasks", "t", "--", "echo"], "--tasks t and a command do not go together", "one of them"),
        (["--tasks", "t", "--param", "x=1"], "--tasks t and a sweep do not go together", "one of them"),
        (["--", "./smi"], "the program './smi' does not exist", "ls"),
        (["--", "ehco", "x"], "there is no program 'ehco'", "Did you mean 'echo'?"),
        (["--cores", "many", "--", "echo"], "cores: 'many' is not a number of cores", "2-8"),
        (["--memory", "2 apples", "--", "echo"], "memory: '2 apples' is not a size", "2 GiB"),
        (["--memory", "2", "--", "echo"], "memory: '2' is only 2 B", "such as 2G"),
        (["--time", "soon", "--", "echo"], "time: 'soon' is not a duration", "1h30m"),
        (["--resource", "licence", "--", "echo"], "--resource 'licence' is not NAME=AMOUNT", "licence=1"),
        (["--env", "NOT_THERE_AT_ALL", "--", "echo"], "--env NOT_THERE_AT_ALL: there is no such variable", "NOT_THERE_AT_ALL=VALUE"),
        (["--input", "none.dat", "--", "echo"], "inputs: 'none.dat' does not exist", ""),
        (["--stdin", "none.dat", "--", "echo"], "--stdin none.dat: no such file", "ls"),
        (["--here", "--output", "x", "--", "echo"], "--here does not go with", "Leave --here out"),
        (["--name", "12", "--", "echo"], "--name 12: that already means the run 12", "--name run-12"),
        (["--name", "3.17", "--", "echo"], "--name 3.17: that already means the task 3.17", "--name run-3.17"),
        (["--name", "x" * 201, "--", "echo"], "--name xxxxxxxxxxxxxxxxxxxx...: it has 201 characters, and 200 are", "shorter"),
        (["--name", "a\nb", "--", "echo"], "--name a b: \\n cannot be part of a name", "--name a-b"),
        (["--name", "a\x1b[31m", "--", "echo"], "\\x1b cannot be part of a name", "--name 'a-[31m'"),
        (["--name", "a\udcff", "--", "echo"], "\\udcff cannot be part of a name", "--name a-"),
        (["--param", "a=1..1000000000", "--", "echo", "{a}"], "would make 1,000,000,000 tasks; a run may have 50,000,000", "fewer values"),
        (["--input", "t", "b.dat", "--", "ls"], "--input takes one name, and there are several: t b.dat", "--input t --input b.dat"),
        (["--output", "../x", "--", "echo"], "--output: '../x'", "relative"),
        (["--zip", "--param", "x=1,2", "--param", "y=1", "--", "echo", "{x}{y}"], "x has 2, y has 1", "same length"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    pilotfish: CommandLine, master: FakeMaster, words: list[str], said: str, fix: str
) -> None:
    answer = pilotfish("run", *words)
    assert answer.status == 2
    first, do, *rest = answer.err.splitlines()
    assert first.startswith("error: ")
    assert said in first
    assert do.startswith("  fix: ")
    assert fix in do
    assert all(line.startswith("  fix: pilotfish run ") for line in rest), "the corrected command"
    assert answer.out == ""
    assert not master.runs


def test_a_variable_that_looks_like_a_secret_is_mentioned_if_the_command_or_script_names_it(
    pilotfish: CommandLine, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "x")
    monkeypatch.setenv("API_KEY", "y")
    Path("fetch.py").write_text("import os\nos.environ['MY_TOKEN']\n")
    note = "note: the tasks do not get MY_TOKEN: its name looks like a secret. Pass it: --env MY_TOKEN\n"
    assert pilotfish("run", "--", "python3", "fetch.py").err.count(note) == 1
    assert pilotfish("run", "--param", "x=1..3", "--", "sh", "-c", "echo $MY_TOKEN {x}").err.count(note) == 1
    Path("list").write_text("sh -c 'echo $MY_TOKEN $API_KEY'\n" * 2)
    assert (
        "API_KEY, MY_TOKEN: their names look like a secret. Pass them: --env API_KEY --env MY_TOKEN"
        in pilotfish("run", "--tasks", "list").err
    )
    assert "note" not in pilotfish("run", "--env", "MY_TOKEN", "--", "python3", "fetch.py").err
    assert "note" not in pilotfish("run", "--", "echo", "MY_TOKENS").err
    assert "note" not in pilotfish("run", "--quiet", "--", "python3", "fetch.py").err


def test_a_program_that_may_not_be_executed_is_told_before_it_is_tried(pilotfish: CommandLine) -> None:
    Path("sim").write_text("#!/bin/sh\n")
    assert "chmod +x ./sim" in pilotfish("run", "--", "./sim").err
    assert "Write ./sim" in pilotfish("run", "--", "sim").err
    assert "is a directory" in pilotfish("run", "--", "./").err


def test_a_run_whose_tasks_the_master_refuses_fails_and_is_forgotten(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.refusal = BadInput("a task asks for too much", "ask for less")
    said = pilotfish("run", "--param", "x=1..3", "--", "echo", "{x}")
    assert said.status == 2
    assert "error: a task asks for too much\n  fix: ask for less\n" in said.err
    assert master.runs == {}


@pytest.mark.parametrize("typed", ["tasks.txt", "./tasks.txt"])
def test_a_list_of_tasks_that_is_taken_for_a_program_is_told_apart(pilotfish: CommandLine, typed: str) -> None:
    Path("tasks.txt").write_text("echo 1\necho 2\n")
    answer = pilotfish("run", typed)
    assert answer.status == 2
    assert f"  fix: If it lists tasks: pilotfish run --tasks {typed};" in answer.err
    assert pilotfish("run", "--tasks", typed).status == 0


@pytest.mark.parametrize(
    ("name", "content", "mode", "said", "fix"),
    [
        ("sim.py", "print(1)\n", 0o644, "may not be executed", "Name what reads it: python ./sim.py"),
        ("sim.py", "#!/bin/sh\n", 0o644, "may not be executed", "chmod +x ./sim.py, or name what reads it: python ./sim.py"),
        ("sim", "print(1)\n", 0o644, "may not be executed", "chmod +x ./sim"),
        ("sim", "echo hi\n", 0o755, "has no interpreter line", "sh ./sim"),
        ("ising.py", "print(1)\n", 0o755, "has no interpreter line", "python ./ising.py"),
        ("ising.R", "1\n", 0o755, "has no interpreter line", "or name what reads it: Rscript ./ising.R"),
        ("ising.jl", "1\n", 0o755, "has no interpreter line", "or name what reads it: julia ./ising.jl"),
    ],
)
def test_a_script_that_could_not_be_started_is_told_before_anything_starts(
    pilotfish: CommandLine, name: str, content: str, mode: int, said: str, fix: str
) -> None:
    Path(name).write_text(content)
    Path(name).chmod(mode)
    answer = pilotfish("run", "--", f"./{name}")
    assert answer.status == 2
    assert said in answer.err
    assert f"{fix}\n" in answer.err.replace("python3 ./", "python ./")
    Path(name).write_text(f"#!/bin/sh\n{content}")
    Path(name).chmod(0o755)
    assert pilotfish("run", "--", f"./{name}").status == 0


def test_local_cores_limit_this_run_and_leave_the_pool_as_it_is(pilotfish: CommandLine, master: FakeMaster) -> None:
    said = pilotfish("run", "--local-cores", "1", "--param", "x=1..3", "--", "echo", "{x}")
    assert said.status == 0, said
    assert [spec.concurrency_limit for spec in master.runs[1].specs] == [("--local-cores", 1)]
    assert (master.workers_asked, master.runs[1].options.sites) == (None, ("local",))
    Path("flow.py").write_text("def run(tasks):\n    tasks.add(['echo', 'x'])\n")
    pilotfish("run", "--local-cores", "1", "flow.py")
    assert master.runs[2].specs[0].concurrency_limit == ("--local-cores", 1)


def test_more_local_cores_than_the_pool_uses_are_told(pilotfish: CommandLine, master: FakeMaster) -> None:
    said = pilotfish("run", "--local-cores", "4", "--", "echo", "x")
    assert "this pool uses 2 cores of this machine" in said.err and "pilotfish workers --local-cores 4" in said.err
    assert (master.workers_asked, master.runs[1].specs[0].concurrency_limit) == (None, ("", 0))
    assert pilotfish("run", "--local-cores", "2", "--", "echo", "x") == (0, "x\n", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--local-cores", "1", "--cores", "2", "--", "echo"], "--local-cores 1: a task asks for 2 cores"),
        (["--local-cores", "1", "--cores", "1-2", "--", "echo"], "--local-cores 1: a task asks for 2 cores"),
    ],
)
def test_a_limit_that_no_task_can_meet_is_refused(pilotfish: CommandLine, master: FakeMaster, words: list[str], said: str) -> None:
    answer = pilotfish("run", *words)
    assert answer.status == 2 and said in answer.err
    assert not master.runs
