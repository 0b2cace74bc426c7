"""Tests that the same command or program, started again, repeats only what changed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pilotfish.client.pools import PoolHandle

WAIT_S = 60.0


class Shell:
    """Types commands in one directory. Each task appends a line to ``log`` there, so it is known which tasks ran."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "log"
        self._seen = 0

    def type(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pilotfish", *words]
        everything = {**os.environ, "PILOTFISH_POOL": "test", **environment}
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
            cwd=self.directory,
            env=everything,
            stdin=subprocess.DEVNULL,
        )

    def run(self, *words: str, **environment: str) -> tuple[list[str], str]:
        """Resumes a run. Returns the tasks that ran, and what was said about the others."""
        done = self.type("run", "--resume", "--explain-cache", *words, **environment)
        assert done.returncode in (0, 1), done
        return self.ran(), done.stderr

    def run_plainly(self, *words: str) -> list[str]:
        done = self.type("run", *words)
        assert done.returncode == 0, done
        return self.ran()

    def ran(self) -> list[str]:
        lines = self.log.read_text().split() if self.log.exists() else []
        new, self._seen = sorted(lines[self._seen :]), len(lines)
        return new


@pytest.fixture
def shell(pool: PoolHandle, tmp_path: Path) -> Shell:
    directory = tmp_path / "work"
    directory.mkdir()
    return Shell(directory)


def write_program(shell: Shell, text: str = "") -> None:
    program = shell.directory / "sim"
    program.write_text(f"#!/bin/sh\necho $1 >> {shell.log}\n[ $1 = ${{BAD:-none}} ] && exit 1\n{text}\necho result $1\n")
    program.chmod(0o755)


SWEEP = ("--param", "x=1..3", "--", "./sim", "{x}")


def test_a_sweep_repeats_only_what_changed(shell: Shell) -> None:
    write_program(shell)
    assert shell.type("run", *SWEEP, BAD="2").returncode == 1
    assert shell.ran() == ["1", "2", "3"]
    ran, said = shell.run(*SWEEP, BAD="2")
    assert ran == ["2"] and "Reused the results of 2 of 3 tasks." in said and "2.1 runs: task 1.1 did the same, and failed" in said
    rows = json.loads(shell.type("tasks", "2", "--json").stdout)
    assert [row["reused_from"] for row in rows] == ["1.0", None, "1.2"]
    assert "result of task 1.2" in shell.type("tasks", "2").stdout
    assert [row["result"] for row in json.loads(shell.type("results", "2", "--json").stdout)] == ["result 1", None, "result 3"]
    ran, said = shell.run("--param", "x=1,3,4", "--memory", "1G", "--", "./sim", "{x}", BAD="2", SSH_TTY="/dev/pts/9", WINDOWID="7")
    assert ran == ["4"] and "3.2 runs: no earlier task had these arguments" in said
    ran, said = shell.run("--param", "x=3", "--", "./sim", "{x}", BAD="5")
    assert ran == ["3"] and "4.0 runs: the variable BAD changed since task" in said
    write_program(shell, "# edited")
    ran, said = shell.run("--param", "x=3", "--", "./sim", "{x}", BAD="5")
    assert ran == ["3"] and "5.0 runs: sim changed since task 4.0" in said
    assert shell.type("cache", "forget", "5").stdout == "Tasks like those of run 5 will run again.\n"
    ran, said = shell.run("--param", "x=3", "--", "./sim", "{x}", BAD="5")
    assert ran == ["3"] and "its result was forgotten with pilotfish cache forget" in said


def test_rerun_tasks_are_reused(shell: Shell) -> None:
    write_program(shell, "test -e fixed")
    program = shell.directory / "sim"
    program.write_text(program.read_text().replace("echo result", "test -e fixed || exit 1\necho result"))
    assert shell.type("run", *SWEEP).returncode == 1
    write_program(shell, "# fixed")
    assert shell.ran() == ["1", "2", "3"]
    assert (shell.type("rerun", "1.0", "1.2").returncode, shell.ran()) == (1, ["1", "3"])
    ran, said = shell.run(*SWEEP)
    assert ran == ["2"] and "Reused the results of 2 of 3 tasks." in said
    files = ("--input", "model-{x}.dat", "--param", "x=1,2", "--", "sh", "-c", f"echo {{x}} >> {shell.log}; grep good model-{{x}}.dat")
    for x, text in (("1", "good"), ("2", "bad")):
        (shell.directory / f"model-{x}.dat").write_text(f"{text}\n")
    assert (shell.type("run", *files).returncode, shell.ran()) == (1, ["1", "2"])
    (shell.directory / "model-2.dat").write_text("good\n")
    assert (shell.type("rerun").returncode, shell.ran()) == (0, ["2"])
    assert shell.run(*files)[0] == []
    (shell.directory / "model-2.dat").write_text("bad\n")
    assert shell.run(*files)[0] == ["2"], "the result of the first content was a failure"


def test_rerun_repetitions_are_reused(shell: Shell) -> None:
    gate = shell.directory / "gate"
    command = ("--times", "2", "--", "sh", "-c", f"echo r >> {shell.log}; test -e {gate}")
    assert shell.type("run", *command).returncode == 1
    gate.touch()
    assert shell.type("rerun").returncode == 0
    shell.ran()
    ran, said = shell.run(*command)
    assert (ran, "Reused the results of 2 of 2 tasks." in said) == ([], True)
    ran, said = shell.run("--times", "3", *command[2:])
    assert ran == ["r"] and "3.2 runs: the earlier runs have fewer tasks that are equal to it" in said


def test_a_chain_that_was_fixed_and_rerun_is_reused_and_old_code_never_gives_a_result(shell: Shell) -> None:
    for name in "abc":
        (shell.directory / f"{name}.sh").write_text(f"echo {name} >> {shell.log}\ncp {{in,out}}\n".replace("{in,out}", "$1 $2"))
    good = (shell.directory / "b.sh").read_text()
    (shell.directory / "b.sh").write_text("exit 1\n")
    (shell.directory / "start").write_text("1")
    lines = [("a", "start", "x"), ("b", "x", "y"), ("c", "y", "z")]
    needed = {"a": "", "b": "after=a", "c": "after=b"}
    text = "".join(f"id={name} {needed[name]} sh {name}.sh {first} {last}\n" for name, first, last in lines)
    (shell.directory / "tasks.txt").write_text(text)
    command = ("--tasks", "tasks.txt")
    assert shell.type("run", *command).returncode == 1
    assert shell.ran() == ["a"]
    (shell.directory / "b.sh").write_text(good)
    again = shell.type("rerun")
    assert (again.returncode, shell.ran()) == (0, ["b", "c"]) and "Changed since the last try: b.sh\n" in again.stdout, again
    ran, said = shell.run(*command)
    assert (ran, "Reused the results of 3 of 3 tasks." in said) == ([], True), said
    (shell.directory / "b.sh").write_text(good + "# edited\n")
    ran, said = shell.run(*command)
    assert ran == ["b", "c"] and "3.1 runs: b.sh changed since task" in said, said
    assert "3.2 runs: task 2.2 did the same, but task 3.1, which it needs, runs again" in said, said
    (shell.directory / "b.sh").write_text("exit 1\n")
    assert (shell.run(*command)[0], shell.type("results", "4", "--json").stdout.count('"done"')) == ([], 1)


def test_a_changed_module_is_named_once_for_all_tasks_and_at_a_rerun(shell: Shell) -> None:
    (shell.directory / "lattice.py").write_text("SIZE = 1\n")
    (shell.directory / "ising.py").write_text(
        f"import lattice, sys\nopen({str(shell.log)!r}, 'a').write('r\\n')\nsys.exit(lattice.SIZE == 1)\n"
    )
    # -B: two edits within a second that keep the size of a module leave its cached bytecode valid for Python.
    command = ("--param", "T=1..5", "--", sys.executable, "-B", "ising.py", "{T}")
    assert shell.type("run", *command).returncode == 1
    (shell.directory / "lattice.py").write_text("SIZE = 2\n")
    again = shell.type("rerun")
    assert again.returncode == 0 and "Changed since the last try: lattice.py\n" in again.stdout, again
    shell.ran()
    assert shell.run(*command)[0] == [], "the key names the module as it was at the rerun"
    (shell.directory / "lattice.py").write_text("SIZE = 3\n")
    ran, said = shell.run(*command)
    assert len(ran) == 5 and "\n5 tasks run: lattice.py changed (3.0 … 3.4)\n" in said, said
    (shell.directory / "lattice.py").write_text("SIZE = 1\n")
    assert len(shell.run(*command)[0]) == 5, "with this module the tasks failed"
    said = shell.type("run", "--resume", "--explain-cache", "--json", *command).stderr
    assert said.count(" did the same, and failed\n") == 5 and "5.4 runs: task 4.4 " in said, said


def test_a_task_list_names_the_input_that_changed_and_the_task_that_runs_again(shell: Shell) -> None:
    (shell.directory / "data.txt").write_text("1")
    for name, more, made in (("a", "data.txt", "x"), ("b", "x", "y"), ("c", "y", "z")):
        (shell.directory / f"{name}.sh").write_text(f"echo {name} >> {shell.log}\ncat {more} > {made}\n")
    text = "in=data.txt out=x sh a.sh\nin=x out=y sh b.sh\nin=y out=z sh c.sh\n"
    (shell.directory / "tasks.txt").write_text(text)
    command = ("--here", "--tasks", "tasks.txt")
    assert (shell.run_plainly(*command), shell.run(*command)[0]) == (["a", "b", "c"], [])
    with (shell.directory / "b.sh").open("a") as file:
        file.write("# edited\n")
    ran, said = shell.run(*command)
    assert ran == ["b", "c"] and "3.1 runs: b.sh changed since task 2.1\n" in said, said
    assert "3.2 runs: task 2.2 did the same, but task 3.1, which it needs, runs again\n" in said, said
    (shell.directory / "data.txt").write_text("2")
    ran, said = shell.run(*command)
    assert ran == ["a", "b", "c"] and "4.0 runs: the input data.txt changed since task 3.0\n" in said, said


def test_numbers_with_other_decimals_are_named(shell: Shell) -> None:
    command = ("--", "sh", "-c", f"echo {{T}} >> {shell.log}")
    assert shell.run_plainly("--param", "T=1:2:0.5", *command) == ["1.0", "1.5", "2.0"]
    ran, said = shell.run("--param", "T=1.00,1.25", *command)
    assert ran == ["1.00", "1.25"]
    assert "2.0 runs: no earlier task had these arguments (task 1.0 had 'T=1.0', this one 'T=1.00')\n" in said, said
    assert "2.1 runs: no earlier task had these arguments (task 1.0 had 'T=1.0', this one 'T=1.25')\n" in said, said
    ran, said = shell.run("--param", "T=1.00:2.00:0.25", *command)
    assert ran == ["1.50", "1.75", "2.00"] and "Reused the results of 2 of 5 tasks." in said, said
    assert (
        shell.run("--param", "T=1.500,2.000", *command)[1].count(
            "written in another way, such as 'T=1.500' instead of 'T=1.50' (4.0 … 4.1)"
        )
        == 1
    )


CALLS_PROGRAM = """
import pilotfish, helper, sys
with pilotfish.Run(resume=True) as run:
    first = [run.submit(helper.half, x) for x in (2, 3)]
    second = [run.submit(helper.show, future) for future in first]
    print([str(task.exception() or task.result()) for task in second], run.status()["reused"])
"""
HELPER = "def half(x):\n    {check}\n    return x / 2\n\ndef show(x):\n    return x\n"


def test_calls_that_were_fixed_and_rerun_are_reused(shell: Shell) -> None:
    def start() -> str:
        done = subprocess.run(
            [sys.executable, "main.py"], capture_output=True, text=True, timeout=WAIT_S, cwd=shell.directory, env=environment, check=False
        )
        assert done.returncode == 0, done
        return done.stdout

    environment = {**os.environ, "PILOTFISH_POOL": "test", "PYTHONDONTWRITEBYTECODE": "1"}
    (shell.directory / "main.py").write_text(CALLS_PROGRAM.replace("Run(resume", "Run(pool='test', resume"))
    (shell.directory / "helper.py").write_text(HELPER.format(check="assert x % 2 == 0"))
    assert start().endswith(" 0\n")
    (shell.directory / "helper.py").write_text(HELPER.format(check="assert x"))
    assert shell.type("rerun").returncode == 0
    assert start() == "['1.0', '1.5'] 2\n", "task 1 and the task that needs it were rerun with this module"
    (shell.directory / "helper.py").write_text(HELPER.format(check="x += 1"))
    assert start() == "['1.5', '2.0'] 0\n"


def test_inputs_count_by_their_content_and_files_come_back_again(shell: Shell) -> None:
    write_program(shell, "cat model.dat > out.txt")
    model = shell.directory / "model.dat"
    model.write_text("one\n")
    words = ("--input", "model.dat", "--output", "out.txt", *SWEEP)
    assert shell.run(*words)[0] == ["1", "2", "3"]
    os.utime(model, (1, 1))
    assert shell.run(*words)[0] == []
    assert (shell.directory / "run-2/1/out.txt").read_text() == "one\n"
    shell.type("forget", "1")
    assert shell.run(*words)[0] == []
    model.write_text("two\n")
    ran, said = shell.run(*words)
    assert ran == ["1", "2", "3"] and "3 tasks run: the input model.dat changed (4.0 … 4.2)" in said


def test_repetitions_have_results_of_their_own(shell: Shell) -> None:
    write_program(shell, f"date +%N; wc -l < {shell.log}")
    assert shell.run("--times", "3", "--", "./sim", "0")[0] == ["0"] * 3
    before = [row["stdout"] for row in json.loads(shell.type("results", "1", "--json").stdout)]
    assert shell.run("--times", "4", "--", "./sim", "0")[0] == ["0"]
    after = [row["stdout"] for row in json.loads(shell.type("results", "2", "--json").stdout)]
    assert after[:3] == before and len(set(after)) == 4


LIST = """
id=make out=mesh.dat    ./sim make
id=solve in=mesh.dat after=make out=solution.dat ./sim solve
id=plot after=solve ./sim plot
id=other in=other.in ./sim other
"""


def test_a_task_list_skips_tasks_whose_outputs_are_current(shell: Shell) -> None:
    write_program(shell, "case $1 in make) echo mesh > mesh.dat;; solve) cat mesh.dat > solution.dat;; esac")
    (shell.directory / "list.txt").write_text(LIST)
    (shell.directory / "other.in").write_text("x")
    here = ("--tasks", "list.txt", "--here")
    assert shell.run(*here)[0] == ["make", "other", "plot", "solve"]
    assert shell.run(*here)[0] == []
    (shell.directory / "solution.dat").unlink()
    ran, said = shell.run(*here)
    assert ran == ["plot", "solve"], said
    assert "its output solution.dat is not here any more" in said
    assert ".3 did the same, but task 3.2, which it needs, runs again" in said
    (shell.directory / "other.in").write_text("y")
    assert shell.run(*here)[0] == ["other"]
    (shell.directory / "list.txt").write_text(LIST.replace("./sim make", "./sim make fine"))
    assert shell.run(*here)[0] == ["make", "plot", "solve"]


PROGRAM = """
import sys
from pilotfish import Executor, Run
import steps

def note(kind, x):
    with open("log", "a") as log:
        log.write(f"{kind}{x}\\n")

def work(x):
    note("w", x)
    if x == 13:
        raise ValueError(x)
    return steps.change(x), {"b", "a"}

count = int(sys.argv[1])
with Run("work", pool="test", resume=True) as run:
    futures = [run.submit(work, x) for x in range(count)]
    program = run.executable(["sh", "-c", "echo p >> log; echo made"], after=futures)
    assert [future.result()[0] for future in futures] == [steps.change(x) for x in range(count)]
    assert program.result().text == "made\\n"
with Run("pure", pool="test") as run:
    cached = run.options(cache=True)
    cached.submit(work, 0).result()
    bad = cached.submit(work, 13)
    bad.exception()
    run.submit(note, "n", 0).result()
with Executor(pool="test", cache=True) as executor:
    assert executor.submit(note, "e", 1).result() is None
"""


EXECUTOR_AND_RUN = """
from pilotfish import Executor, Run

def note(x):
    with open("log", "a") as log:
        log.write(f"{x}\\n")
    return x

with Run("cached", pool="test") as run:
    run.options(cache=True).submit(note, 1).result()
with Executor(pool="test", cache=True) as executor:
    assert list(executor.map(note, (1, 2))) == [1, 2]
with Run("cached", pool="test") as run:
    run.options(cache=True).submit(note, 2).result()
"""


def test_an_executor_and_a_run_reuse_the_results_of_each_other(shell: Shell) -> None:
    assert start(shell, EXECUTOR_AND_RUN) == ("", ["1", "2"])


def test_a_program_started_again_repeats_only_what_changed(shell: Shell) -> None:
    def start(count: int = 2, steps: str = "return 2 * x", program: str = PROGRAM) -> list[str]:
        (shell.directory / "program.py").write_text(program)
        (shell.directory / "steps.py").write_text(f"def change(x):\n    {steps}\n")
        command = [sys.executable, "program.py", str(count)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=shell.directory)
        assert done.stderr == ""
        return shell.ran()

    assert start() == ["e1", "n0", "p", "w0", "w1", "w13"], "the second program part reuses w0 of the first"
    assert start() == ["n0", "w13"], "failed and uncached calls run again"
    assert start(count=3) == ["n0", "p", "w13", "w2"]
    assert start(program=PROGRAM.replace('{"b", "a"}', '{"b", "c"}')) == ["n0", "p", "w0", "w1", "w13"]
    assert start(steps="return 2 * x + 1")[:4] == ["e1", "n0", "p", "w0"]


def test_a_killed_command_is_resumed_after_a_killed_master(shell: Shell, pool: PoolHandle) -> None:
    gate = shell.directory / "gate"
    program = f"echo $1 >> log; [ $1 = 1 ] || until [ -e {gate} ]; do sleep 0.02; done"
    words = ["run", "--param", "x=1..2", "--local-cores", "2", "--", "sh", "-c", program, "sim", "{x}"]
    first = subprocess.Popen(
        [sys.executable, "-m", "pilotfish", *words],
        cwd=shell.directory,
        env={**os.environ, "PILOTFISH_POOL": "test"},
        stdin=subprocess.DEVNULL,
    )
    wait_for(lambda: any(row["state"] == "done" for row in tasks_of(shell, "1")))
    first.send_signal(signal.SIGKILL)
    first.wait()
    shell.type("cancel", "1")
    status = json.loads(shell.type("status", "--json").stdout)
    os.kill(status["pid"], signal.SIGKILL)
    gate.mkdir()  # a new file that the command names would be a change
    shell.ran()
    assert shell.run(*words[1:])[0] == ["2"]


def tasks_of(shell: Shell, run: str) -> list[dict[str, Any]]:
    said = shell.type("tasks", run, "--json").stdout
    rows: list[dict[str, Any]] = json.loads(said) if said.startswith("[") else []
    return rows


def wait_for(condition: Callable[[], object]) -> None:
    tick = threading.Event()
    for _ in range(int(WAIT_S / 0.1)):
        if condition():
            return
        tick.wait(0.1)
    raise AssertionError("it never happened")


FLOW = """
import sys
from pilotfish import Run

def note(kind, x):
    with open("log", "a") as log:
        log.write(f"{kind}{x}\\n")
    return x

def total(parts, factor):
    return note("t", sum(parts["all"]) * factor)

with Run("flow", pool="test", resume=True) as run:
    parts = [run.submit(note, "p", x) for x in range(int(sys.argv[1]))]
    whole = run.submit(total, {"all": parts}, int(sys.argv[2]))
    last = run.submit(note, "l", whole)
    print(last.result())
"""


def start(shell: Shell, program: str, *words: str) -> tuple[str, list[str]]:
    (shell.directory / "program.py").write_text(program)
    command = [sys.executable, "program.py", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=shell.directory)
    assert done.stderr == ""
    return done.stdout.strip(), shell.ran()


def test_calls_with_futures_as_arguments_are_reused_too(shell: Shell) -> None:
    assert start(shell, FLOW, "3", "1") == ("3", ["l3", "p0", "p1", "p2", "t3"])
    assert start(shell, FLOW, "3", "1") == ("3", [])
    assert start(shell, FLOW, "3", "2") == ("6", ["l6", "t6"]), "the results of reused calls go to calls that run"
    assert start(shell, FLOW, "2", "2") == ("2", ["l2", "t2"])


CHANGES = """
import os
from pilotfish import Executor, Run

settings = {"factor": 2}

def work(x):
    return x * settings["factor"], os.path.basename(os.getcwd())

def make(values):
    return lambda x: x + values[0]

values = [1]
add = make(values)
seen = []
for cache in (False, True):
    with Run("changes", pool="test") as run:
        calls = run.options(cache=cache)
        settings["factor"], values[0] = 2, 1
        os.makedirs("below", exist_ok=True)
        seen.append((calls.submit(work, 1).result(), calls.submit(add, 1).result()))
        settings["factor"], values[0] = 3, 5
        os.chdir("below")
        seen.append((calls.submit(work, 1).result(), calls.submit(add, 1).result()))
        os.chdir("..")
        seen.append((calls.submit(work, 1).result(), calls.submit(add, 1).result()))
print(*seen, sep="\\n")
"""


def test_a_change_in_place_or_of_the_directory_makes_another_call(shell: Shell) -> None:
    top = shell.directory.name
    rows = [((2, top), 2), ((3, "below"), 6), ((3, top), 6)] * 2
    assert start(shell, CHANGES)[0] == "\n".join(map(str, rows))
    assert start(shell, CHANGES)[0] == "\n".join(map(str, rows))


RUN_FILE = """
import sys

def note(kind, x):
    with open("log", "a") as log:
        log.write(f"{kind}{x}\\n")
    return x

def total(parts):
    return note("s", sum(parts))

def run(tasks):
    parts = [tasks.call(note, "c", x) for x in range(int(sys.argv[1]))]
    tasks.call(total, [tasks.result(part) for part in parts])
    program = tasks.add(["sh", "-c", "echo e >> log"])
    tasks.add(["sh", "-c", "echo f >> log"], after=[program])
"""


def test_a_run_file_repeats_only_what_changed(shell: Shell) -> None:
    (shell.directory / "flow.py").write_text(RUN_FILE)
    assert shell.type("run", "flow.py", "2").returncode == 0
    assert shell.ran() == ["c0", "c1", "e", "f", "s1"]
    ran, said = shell.run("flow.py", "2")
    assert ran == [] and "Reused the results of 5 of 5 tasks." in said, said
    ran, said = shell.run("flow.py", "3")
    assert ran == ["c2", "s3"] and "2 tasks run: no earlier task had these arguments (3.2 … 3.3)" in said, said
    (shell.directory / "flow.py").write_text(RUN_FILE.replace("echo e >>", "echo E >>"))
    assert shell.run("flow.py", "3")[0] == ["E", "f"]
    assert shell.type("run", "flow.py", "3").returncode == 0
    assert len(shell.ran()) == 6, "without --resume, all tasks run"


MANAGER = """
from pilotfish import ApplicationManager

class Manager(ApplicationManager):
    def initialize(self, tasks):
        self.left = 3
        self.add(tasks)

    def add(self, tasks):
        tasks.add(["sh", "-c", "echo m >> log; date +%N"])

    def tasks_done(self, done, tasks):
        self.left -= len(done)
        if self.left:
            self.add(tasks)

manager = Manager()
"""


def test_the_tasks_of_a_manager_are_reused_one_by_one(shell: Shell) -> None:
    (shell.directory / "grow.py").write_text(MANAGER)
    assert shell.run_plainly("grow.py") == ["m"] * 3
    assert shell.run_plainly("--resume", "grow.py") == []
    outputs = [[row["stdout"] for row in json.loads(shell.type("results", run, "--json").stdout)] for run in ("1", "2")]
    assert outputs[0] == outputs[1] and len(set(outputs[0])) == 3, "equal tasks have results of their own"
    (shell.directory / "grow.py").write_text(MANAGER.replace("self.left = 3", "self.left = 4"))
    assert shell.run_plainly("--resume", "grow.py") == ["m"]
    refused = shell.type("run", "--resume", "--explain-cache", "grow.py")
    assert refused.returncode == 2 and "--explain-cache does not go with the manager of grow.py" in refused.stderr


def test_what_resume_cannot_do_is_told(shell: Shell) -> None:
    (shell.directory / "flow.dag").write_text("JOB a a.sub\n")
    (shell.directory / "a.sub").write_text("executable = /bin/true\nqueue\n")
    refused = shell.type("run", "--resume", "flow.dag")
    assert refused.returncode == 2 and "--resume does not go with a DAGMan file (flow.dag)" in refused.stderr
    refused = shell.type("run", "--explain-cache", "--", "true")
    assert refused.returncode == 2 and "--resume ..." in refused.stderr


def test_a_task_runs_again_if_a_file_that_its_command_names_changed(shell: Shell) -> None:
    write_program(shell, "cat $2; echo $1 > out-$1.dat")
    for name in ("1", "2"):
        (shell.directory / f"{name}.json").write_text("old")
    command = ("--param", "x=1,2", "--", "./sim", "{x}", "--config={x}.json", "out-{x}.dat")
    assert shell.run_plainly(*command) == ["1", "2"]
    assert shell.run(*command)[0] == [], "a file that the task itself wrote is not a change"
    (shell.directory / "2.json").write_text("new")
    ran, said = shell.run(*command)
    assert ran == ["2"] and "3.1 runs: 2.json changed after task" in said
    older = shell.directory / "older"
    older.write_text("old")
    os.utime(older, (1, 1))
    older.rename(shell.directory / "1.json")
    ran, said = shell.run(*command)
    assert ran == ["1"] and "4.0 runs: 1.json changed" in said
    assert shell.run(*command)[0] == []


def test_a_file_to_which_all_tasks_append_is_not_a_change(shell: Shell) -> None:
    command = ("--param", "x=1..3", "--", "sh", "-c", f"echo {{x}} >> {shell.log}; cat data")
    (shell.directory / "data").write_text("1")
    assert shell.run_plainly(*command) == ["1", "2", "3"]
    assert shell.run(*command)[0] == []
    (shell.directory / "data").write_text("2")
    assert shell.run(*command)[0] == ["1", "2", "3"]


def test_a_task_that_started_after_an_edit_is_not_reused_when_the_edit_is_undone(shell: Shell) -> None:
    """Without a sandbox, a task reads its program when it starts, and not when it is submitted."""
    gate, module = shell.directory / "gate", shell.directory / "mym.py"
    module.write_text("V = 'k1'")
    (shell.directory / "use.py").write_text(f"import mym\nprint(mym.V, file=open({str(shell.log)!r}, 'a'))")
    waiting = f"id=wait sh -c 'until [ -e {gate} ]; do sleep 0.02; done'"
    (shell.directory / "tasks.txt").write_text(f"{waiting}\nafter=wait {sys.executable} -B use.py\n")
    command = ("--here", "--tasks", "tasks.txt")
    assert shell.type("run", "--detach", *command).returncode == 0
    module.write_text("V = 'k2'")
    gate.touch()
    assert shell.type("attach").returncode == 0 and shell.ran() == ["k2"]
    module.write_text("V = 'k1'")
    ran, said = shell.run(*command)
    assert ran == ["k1"] and "2.1 runs: mym.py changed after task 1.1 had started" in said
    assert shell.run(*command)[0] == []


APPENDING = """
import sys
with open(sys.argv[3], "a") as results, open("log", "a") as log:
    print(sys.argv[1], file=results)
    print(sys.argv[1], file=log)
open(sys.argv[2]).read()
"""


def test_a_file_that_all_tasks_write_is_not_a_change_but_a_shared_input_is(shell: Shell) -> None:
    (shell.directory / "db.py").write_text(APPENDING)
    data = shell.directory / "data"
    data.write_text("1")

    def command(last: int) -> tuple[str, ...]:
        return ("--param", f"x=1..{last}", "--", sys.executable, "db.py", "{x}", "data", "results.csv")

    assert shell.run_plainly(*command(3)) == ["1", "2", "3"]
    ran, said = shell.run(*command(3))
    assert ran == [] and "note: results.csv changed while earlier tasks of this command ran" in said
    assert shell.run(*command(4))[0] == ["4"]
    assert shell.run(*command(4))[0] == []
    data.write_text("2")
    assert shell.run_plainly("--param", "x=5,6", *command(1)[2:]) == ["5", "6"]
    ran, said = shell.run(*command(6))
    assert ran == ["1", "2", "3", "4"] and "4 tasks run: data changed" in said
    (shell.directory / "list").write_text("".join(f"{sys.executable} db.py {x} data results.csv\n" for x in (7, 8, 9)))
    assert shell.run_plainly("--here", "--tasks", "list") == ["7", "8", "9"]
    assert shell.run("--here", "--tasks", "list")[0] == []


@pytest.mark.parametrize("restored", [False, True])
def test_an_output_that_was_edited_is_not_replaced_silently(shell: Shell, restored: bool) -> None:
    mesh = shell.directory / "mesh.txt"
    (shell.directory / "tasks.txt").write_text(
        f"out=mesh.txt sh -c 'echo mesh >> {shell.log}; echo 16 > mesh.txt'\nin=mesh.txt cat mesh.txt\n"
    )
    command = ("--here", "--tasks", "tasks.txt")
    assert shell.run_plainly(*command) == ["mesh"]
    mesh.chmod(0o664)
    mesh.with_name("copy").hardlink_to(mesh)
    assert shell.run(*command)[0] == [], "the content did not change"
    edited = shell.directory / "edited"
    edited.write_text("18")
    if restored:
        os.utime(edited, (1, 1))
    edited.rename(mesh)
    refused = shell.type("run", "--resume", *command)
    assert refused.returncode == 2 and "error: mesh.txt changed after task 1.0 had made it, and would be replaced" in refused.stderr
    assert (shell.ran(), mesh.read_text()) == ([], "18")
    ran, said = shell.run("--overwrite", *command)
    assert ran == ["mesh"] and "its output mesh.txt was changed after the task had ended" in said


def test_unfinished_equal_tasks_of_another_run_are_named(shell: Shell) -> None:
    gate = shell.directory / "gate"
    command = ("--detach", "--param", "x=1..2", "--", "sh", "-c", f"echo {{x}}; until [ -e {gate} ]; do sleep 0.02; done")
    assert shell.type("run", *command).returncode == 0
    said = shell.type("run", "--resume", *command).stderr
    gate.touch()
    assert "note: run 1 has not ended, and 2 tasks of it do the same." in said
    assert "pilotfish cancel --pool test 2; pilotfish attach --pool test 1" in said
    shell.type("attach", "1")
    shell.type("attach", "2")
    assert "note:" not in shell.type("run", "--resume", *command).stderr


UNFINISHED = """
import sys
from pilotfish import Run
run = Run("slow", pool="test", resume=True)
run.executable(["sh", "-c", f"until [ -e {sys.argv[1]} ]; do sleep 0.02; done"])
assert run.status()["resume"]
"""


def test_a_program_whose_earlier_tasks_run_is_warned(shell: Shell) -> None:
    (shell.directory / "slow.py").write_text(UNFINISHED + "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    gate = shell.directory / "gate"

    def start() -> str:
        words = [sys.executable, "slow.py", str(gate)]
        done = subprocess.run(words, cwd=shell.directory, capture_output=True, text=True, timeout=WAIT_S, check=False)
        return done.stderr

    assert start() == ""
    wait_for(lambda: len(tasks_of(shell, "1")) == 1)
    said = start()
    assert "run 1 of the same program has 1 unfinished task;" in said
    assert "To wait for that run: list(Run.find(1, pool='test').results())" in said
    gate.touch()


def test_a_missing_file_of_a_reused_command_is_named(shell: Shell) -> None:
    command = ("--", "sh", "-c", f"echo 1 >> {shell.log}; echo hi > made.txt")
    assert shell.run_plainly(*command) == ["1"]
    assert "note:" not in shell.run(*command)[1]
    (shell.directory / "made.txt").unlink()
    ran, said = shell.run(*command)
    assert ran == [] and "note: made.txt is missing, and reused tasks do not write files. To write them again, leave --resume out" in said
