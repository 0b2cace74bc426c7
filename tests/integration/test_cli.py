"""Tests the commands with a real master, real workers and a real terminal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.terminal import Typist


@pytest.fixture
def typist() -> Iterator[Typist]:
    directory = Path(tempfile.mkdtemp(prefix="pilotfish-cli-"))
    person = Typist(directory)
    yield person
    said = person.type("stop", "--now", "--json")
    assert said.status == 0, said
    assert json.loads(said.out)["left"] == []
    shutil.rmtree(directory)


def test_from_nothing_to_results_and_back_to_nothing(typist: Typist) -> None:
    assert typist.type("run", "--", "echo", "hello") == (0, "hello\n", "")
    swept = typist.type("run", "--local-cores", "2", "--json", "--param", "a=0.1:0.3:0.1", "--param", "b=1..3", "--", "echo", "{a}", "{b}")
    assert swept.status == 0
    data = json.loads(swept.out)
    assert (data["state"], data["counts"]["done"], sum(data["counts"].values()), data["tasks"]) == ("done", 9, 9, 9)
    results = json.loads(typist.type("results", "--json").out)
    assert [(task["command"], task["stdout"]) for task in results][4] == ("echo 0.2 2", "0.2 2\n")
    assert typist.type("stop").out == "Stopped: 0 processes and 0 sockets left.\n"
    assert typist.type("logs", "2.8").out == "0.3 3\n", "what was done is still known after the master ended"


def test_exit_status_and_output_of_failures(typist: Typist) -> None:
    failed = typist.type("run", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert failed.status == 1
    assert failed.out == "out\n"
    assert failed.err.startswith("err\nTask 1.0 failed: ")
    some = typist.type("run", "--param", "x=0,1", "--", "sh", "-c", "exit {x}")
    assert some.status == 1
    assert "1 done, 1 failed" in some.out
    again = typist.type("rerun", "2", "--failed")
    assert again.status == 1
    assert again.out.startswith("Run 2: 1 task again.\n")
    for told in (some.out, again.out, typist.type("attach", "2").out):
        assert "sh -c 'exit 1'" in told
        assert "Rerun:         pilotfish rerun" in told
    assert typist.type("why", "2").out.startswith("run 2 failed: 1 of 2 tasks failed [exit], such as 2.1: ")


def test_a_run_in_a_sandbox_brings_its_files_back(typist: Typist) -> None:
    program = typist.directory / "sim"
    program.write_text("#!/bin/sh\ncat in.txt > result-$1.txt\npwd\n")
    program.chmod(0o755)
    (typist.directory / "in.txt").write_text("data")
    said = typist.type("run", "--input", "in.txt", "--output", "result-*.txt", "--param", "n=1..2", "--", "./sim", "{n}")
    assert said.status == 0, said
    assert (typist.directory / "run-1/1/result-2.txt").read_text() == "data"
    places = {task["stdout"] for task in json.loads(typist.type("results", "--json").out)}
    assert len(places) == 2
    assert str(typist.directory) not in {place.strip() for place in places}


def test_only_a_task_that_misses_a_file_is_told_to_name_its_inputs(typist: Typist) -> None:
    for command, is_told in (("echo wrong value >&2; exit 2", False), ("cat nothing-here", True)):
        assert typist.type("run", "--sandbox", "--", "sh", "-c", command).status == 1
        for subject in ([], ["1.0" if not is_told else "2.0"]):
            assert ("run it again with --input FILE" in typist.type("why", *subject).out) is is_told


def test_ctrl_c_leaves_and_the_work_goes_on(typist: Typist) -> None:
    gate = typist.directory / "gate"
    script = f"while ! test -e {gate}; do sleep 0.02; done; echo {{x}}"
    terminal = typist.sit_down("run", "--local-cores", "2", "--param", "x=1..6", "--", "sh", "-c", script)
    terminal.wait_for("2 running")
    terminal.press_ctrl_c()
    status, seen = terminal.finish()
    assert status == 0
    assert "Left run 1. The work goes on: 0 of 6 tasks so far." in seen
    assert "come back   pilotfish attach 1" in seen
    watching = typist.sit_down("attach")
    watching.wait_for("0/6")
    gate.touch()
    status, seen = watching.finish()
    assert status == 0
    assert "Run 1: 6 tasks, 6 done in " in seen


def test_the_progress_line_moves_and_is_taken_away(typist: Typist) -> None:
    terminal = typist.sit_down("run", "--local-cores", "2", "--param", "x=1..30", "--", "sh", "-c", "sleep 0.05; test {x} != 7")
    terminal.wait_for("/30")
    status, seen = terminal.finish()
    assert status == 1
    assert "━" in seen
    assert "29 done, 1 failed" in seen.rpartition("\x1b[K")[2]
    assert "pilotfish rerun 1 --failed" in seen


def test_a_request_that_nothing_meets_is_told_and_kept(typist: Typist) -> None:
    typist.type("workers", "--local-cores", "1")
    said = typist.type("run", "--cores", "2", "--", "echo", "at last")
    assert said.status == 3
    assert "2 cores asked for, the largest worker has 1 core" in said.err
    assert "fix:    pilotfish workers --local-cores 2" in said.err
    assert "Run 1 is kept" in said.out
    assert json.loads(typist.type("why", "--json").out)["reasons"][-1]["code"] == "too-big"
    assert json.loads(typist.type("status", "--json").out)["runs"][0]["counts"]["ready"] == 1
    assert typist.type("cancel", "1").out == "Cancelled run 1: 1 task that had not ended.\n"


def test_a_detached_request_that_nothing_meets_is_told_at_submission(typist: Typist) -> None:
    (typist.directory / "flow.py").write_text("def run(tasks):\n    tasks.add(['echo'], gpus=1)\n")
    typist.type("run", "--", "true")  # now the pool has a worker
    for words, lack in {("--cores", "1000", "--", "echo"): "1000 cores asked for", ("flow.py",): "1 gpu asked for"}.items():
        said = typist.type("run", "--detach", "--quiet", *words)
        assert said.status == 3 and said.out.strip().isdecimal() and lack in said.err and "  fix:" in said.err, said
    typist.type("cancel", "2")
    again = typist.type("rerun", "2", "--detach")
    assert again.status == 3 and "1000 cores asked for" in again.err, again
    lines = ["def run(tasks):", "    tasks.add(['sleep', '60'])", "    tasks.add(['echo'], cores=1000)"]
    (typist.directory / "flow.py").write_text("\n".join(lines))
    assert typist.type("run", "--detach", "flow.py").status == 0, "a task of the run is running"


def test_tail_follows_a_running_task_to_its_end(typist: Typist) -> None:
    gate = typist.directory / "gate"
    script = f"echo one; while ! test -e {gate}; do sleep 0.02; done; echo two"
    typist.type("run", "--detach", "--", "sh", "-c", script)
    terminal = typist.sit_down("tail", "-f", "1.0")
    terminal.wait_for("one")
    gate.touch()
    status, seen = terminal.finish()
    assert status == 0
    assert seen == "one\ntwo\n"


def test_stopping_a_pool_is_told_to_whoever_watches_and_keeps_the_work(typist: Typist) -> None:
    gate = typist.directory / "gate"
    script = f"while ! test -e {gate}; do sleep 0.02; done"
    watching = typist.sit_down("run", "--local-cores", "2", "--param", "x=1..4", "--", "sh", "-c", f"{script}; echo {{x}}")
    watching.wait_for("2 running")
    stopped = typist.type("stop")
    assert stopped.out.startswith("Stopped: 0 processes and 0 sockets left; 4 unfinished tasks kept.\n")
    status, seen = watching.finish()
    assert status == 4
    assert "the pool was stopped; what is unfinished is kept" in seen
    gate.touch()
    assert typist.type("attach").status == 0


def test_looking_at_a_stopped_pool_does_not_set_its_work_going(typist: Typist) -> None:
    ran = typist.directory / "ran"
    typist.type("run", "--", "echo", "before")
    typist.type("run", "--detach", "--cores", "1000", "--", "touch", str(ran))
    typist.type("stop")
    told = typist.type("status").out
    assert "with 1 task unfinished in run 2. Resume: pilotfish attach 2\n" in told
    assert json.loads(typist.type("status", "--json").out)["pid"] is None, "nobody had to be started for that"
    assert typist.type("logs", "1.0").out == "before\n"
    assert json.loads(typist.type("why", "2", "--json").out)["reasons"][-1]["code"] == "stopped"
    resting = json.loads(typist.type("status", "--json").out)
    assert resting["pid"] and not resting["workers"] and not resting["pilots"]
    assert typist.type("cancel", "2").out.startswith("Cancelled run 2: 1 task")
    assert typist.type("stop").out.startswith("Stopped: 0 processes and 0 sockets left")
    assert "stopped" in typist.type("status").out and "unfinished" not in typist.type("status").out
    typist.type("logs", "1.0")
    assert typist.type("run", "--", "touch", str(ran)).status == 0, "also by a master that rests"
    assert ran.exists()


def test_a_killed_master_comes_back_while_somebody_watches(typist: Typist) -> None:
    gate = typist.directory / "gate"
    script = f"while ! test -e {gate}; do sleep 0.02; done; echo {{x}}"
    watching = typist.sit_down("run", "--local-cores", "2", "--param", "x=1..4", "--", "sh", "-c", script)
    watching.wait_for("2 running")
    directory = typist.home / "pools" / "default"
    lock = max(directory.glob("lock-*"))
    os.kill(int(json.loads(lock.read_text())["pid"]), signal.SIGKILL)
    gate.touch()
    status, seen = watching.finish()
    assert status == 0
    assert "Run 1: 4 tasks, 4 done in " in seen


def test_run_files_make_tasks_and_applications_make_more(typist: Typist) -> None:
    (typist.directory / "flow.py").write_text("def run(tasks):\n    for x in range(3):\n        tasks.add(['echo', str(x)])\n")
    assert "Run 1: 3 tasks, 3 done" in typist.type("run", "flow.py").out
    lines = [
        "from pilotfish import ApplicationManager, ApplicationWorker",
        "class Double(ApplicationWorker):",
        "    def do_work(self, x): return 2 * x",
        "class Grow(ApplicationManager):",
        "    worker = Double",
        "    def initialize(self, tasks): tasks.work(1)",
        "    def tasks_done(self, done, tasks):",
        "        for task in done:",
        "            if task.value < 32: tasks.work(task.value)",
        "manager = Grow()",
    ]
    (typist.directory / "grow.py").write_text("\n".join(lines))
    said = typist.type("run", "grow.py")
    assert "Run 2: 5 tasks, 5 done" in said.out, said
    assert [task["value"] for task in json.loads(typist.type("results", "--json").out)] == [2, 4, 8, 16, 32]
    (typist.directory / "bad.py").write_text("def runn(tasks): pass\n")
    (typist.directory / "raises.py").write_text("def fall(x):\n    return 1 / x\n\ndef run(tasks):\n    tasks.call(fall, 0)\n")
    assert typist.type("run", "raises.py").status == 1
    assert "in fall" in typist.type("logs", "3.0").err
    bad = typist.type("run", "bad.py")
    assert bad.status == 2
    assert "neither run nor manager" in bad.err


def test_doctor_starts_a_pool_that_leaves_nothing(typist: Typist) -> None:
    data = json.loads(typist.type("doctor", "--json").out)
    assert data["findings"][-1]["check"] == "test pool"
    assert data["findings"][-1]["state"] == "good", data["findings"][-1]
    assert typist.type("gc").out == "No leftovers found.\n"


def test_a_task_of_a_list_that_does_not_make_what_others_wait_for_has_failed(typist: Typist) -> None:
    (typist.directory / "tasks.txt").write_text("out=made true\nin=made cat made\n")
    said = typist.type("run", "--tasks", "tasks.txt")
    assert said.status == 1
    assert "did not leave the file 'made'" in said.out
    assert "task 1.0, which it needs, failed" in said.out


def test_the_tour_kills_three_things_and_loses_nothing(typist: Typist) -> None:
    said = typist.type("demo", "--tasks", "48", "--json")
    assert said.status == 0, said
    data = json.loads(said.out)
    assert (data["done"], data["own_results"], len(data["killed"]), data["left"]) == (48, 48, 3, [])


def test_gc_removes_what_a_killed_master_left(typist: Typist) -> None:
    typist.type("run", "--detach", "--", "sleep", "600")
    directory = typist.home / "pools" / "default"
    terminal = typist.sit_down("attach")
    terminal.wait_for("1 running")
    terminal.press_ctrl_c()
    terminal.finish()
    os.kill(int(json.loads(max(directory.glob("lock-*")).read_text())["pid"]), signal.SIGKILL)
    found = typist.type("gc").out
    assert "left  process" in found
    assert f"left  socket  {directory}/master.sock" in found
    assert typist.type("gc", "--remove").status == 0
    assert typist.type("gc").out == "No leftovers found.\n"


def test_tasks_that_the_master_refuses_are_an_error_and_not_an_empty_run(typist: Typist) -> None:
    for words in (["--", "echo"], ["--param", "x=1..5000", "--", "echo", "{x}"]):
        said = typist.type("run", "--resource", "sand=1e18", *words)
        assert said.status == 2
        assert "a task asks for 1e+18 sand" in said.err
    assert json.loads(typist.type("status", "--json").out)["runs"] == []


def test_an_application_whose_manager_fails_tells_why(typist: Typist) -> None:
    lines = (
        "from pilotfish import ApplicationManager",
        "class Bad(ApplicationManager):",
        "    def initialize(self, tasks):",
        "        raise RuntimeError('no such luck')",
        "manager = Bad()",
    )
    (typist.directory / "bad.py").write_text("\n".join(lines))
    said = typist.type("run", "bad.py")
    assert said.status == 1
    assert "Last output of its application manager: RuntimeError: no such luck\n" in said.out
    assert "in initialize" in typist.type("logs", "1").out


def test_a_sweep_goes_into_a_table_with_its_parameters_also_after_a_rerun(typist: Typist) -> None:
    typist.type("run", "--param", "x=1..3", "--", "sh", "-c", "test {x} = 1 || test -e mended && echo {x}")
    assert "exit,wall_s" in typist.type("results", "--csv").out
    (typist.directory / "mended").touch()
    assert typist.type("rerun").status == 0
    header, *rows = (line.split(",") for line in typist.type("results", "--csv").out.splitlines())
    assert [(row[header.index("x")], row[header.index("result")]) for row in rows] == [("1", "1"), ("2", "2"), ("3", "3")]


def test_a_shell_is_offered_runs_by_the_master_that_is_there(typist: Typist) -> None:
    typist.type("run", "--name", "night", "--", "echo")
    typist.environment |= {"_PILOTFISH_COMPLETE": "bash_complete", "COMP_WORDS": "pilotfish results ", "COMP_CWORD": "2"}
    offered = typist.type().out.split()
    for name in ("_PILOTFISH_COMPLETE", "COMP_WORDS", "COMP_CWORD"):
        del typist.environment[name]
    assert offered == ["plain,1", "plain,night"]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_may_be_closed(typist: Typist, closed: str) -> None:
    made = typist.directory / "made"
    for words in (f"run --local-cores 1 -- sh -c 'cat; echo ok; touch {made}'", "run --detach -- true", "status"):
        said = typist.run("sh", "-c", f"{typist.command} {words} {closed}")
        assert (said.status, said.err) == (0, ""), said
    assert made.exists()


@pytest.mark.parametrize(
    "typed",
    [
        "rnu -- true",
        "run --parm x=1 -- true",
        "run --memory 2 -- true",
        "run --time soon -- true",
        "run --param x=5..1 -- echo {x}",
        "run --require 'memory > 8' -- true",
        "run --site nosuch -- true",
        "run --input missing.dat -- cat missing.dat",
        "run -- ./missing.sh",
        "run --tasks missing.txt",
        "run --name 3 -- true",
        "status 1",
        "results 1",
        "why 1.0",
        "cancel 1",
        "rerun 1",
        "attach 1",
        "logs 1.0",
    ],
)
def test_a_mistake_in_a_new_home_starts_no_master(tmp_path: Path, typed: str) -> None:
    person = Typist(tmp_path)
    said = person.run("sh", "-c", f"{person.command} {typed}")
    assert said.status != 0 and "  fix: " in said.err, said
    assert not [path for path in person.home.rglob("*") if path.name in ("master.sock", "master.log", "journal")]


def test_a_failed_executable_frees_its_core_at_once(typist: Typist) -> None:
    """A failure that waits for a while leaves its core idle: tasks that fail would take many times as long as tasks that succeed."""
    for number, program in enumerate(("true", "false"), 1):
        typist.type("run", "--local-cores", "1", "--times", "30", "--", program)
        assert len(json.loads(typist.type("results", str(number), "--json").out)) == 30

    def seconds(run: int) -> float:
        times: list[float] = [row["started_at"] for row in json.loads(typist.type("results", str(run), "--json").out)]
        return max(times) - min(times)

    assert seconds(2) < 10 * seconds(1)
