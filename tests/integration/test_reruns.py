"""Tasks are fixed and run again, in the same run, with a real master and real workers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.terminal import Typist

LARGE = 100_000


@pytest.fixture
def typist() -> Iterator[Typist]:
    directory = Path(tempfile.mkdtemp(prefix="pilotfish-rerun-"))
    person = Typist(directory)
    yield person
    said = person.type("stop", "--now", "--json")
    assert said.status == 0 and json.loads(said.out)["left"] == [], said
    shutil.rmtree(directory)


def rows(typist: Typist, run: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(typist.type("results", run, "--json").out)
    return found


def test_a_fixed_script_and_fixed_inputs_are_used_and_the_results_are_one_set(typist: Typist) -> None:
    here = typist.directory
    (here / "sim").write_text("#!/bin/sh\ntail -c 3 big.dat; cat case; exit $1\n")
    (here / "sim").chmod(0o755)
    (here / "big.dat").write_bytes(bytes(LARGE) + b"one")
    (here / "case").write_text("bad\n")
    inputs = ["--input", "big.dat", "--input", "case"]
    said = typist.type("run", "--local-cores", "2", *inputs, "--output", "case", "--param", "x=0,1,2", "--", "./sim", "{x}")
    assert said.status == 1 and "1 done, 2 failed" in said.out, said
    (here / "sim").write_text("#!/bin/sh\ntail -c 3 big.dat; cat case; exit 0\n")
    (here / "big.dat").write_bytes(bytes(LARGE) + b"two")
    again = typist.type("rerun")
    assert again.status == 0, again
    assert again.out.startswith("Run 1: 2 tasks again.\nChanged since the last try: sim, big.dat\nRun 1: 3 tasks, 3 done in "), again
    assert [(row["task"], row["stdout"], row["attempt"]) for row in rows(typist, "1")] == [
        ("1.0", "onebad\n", 1),
        ("1.1", "twobad\n", 2),
        ("1.2", "twobad\n", 2),
    ]
    assert len(json.loads(typist.type("status", "--json").out)["runs"]) == 1


def test_after_max_failures_the_advised_rerun_takes_the_cancelled_tasks_too(typist: Typist) -> None:
    command = ("--max-failures", "1", "--param", "x=1..5", "--", "sh", "-c", f"test -e {typist.directory}/fixed", "{x}")
    said = typist.type("run", "--local-cores", "1", *command)
    assert said.status == 1 and "1 failed, 4 cancelled" in said.out and "Rerun:         pilotfish rerun 1\n" in said.out, said
    assert "pilotfish rerun 1\n" in typist.type("why", "1").out
    (typist.directory / "fixed").touch()
    said = typist.type("rerun", "1")
    assert said.status == 0 and "5 done" in said.out, said


def test_cancelled_and_running_tasks_survive_a_killed_master_and_a_rerun(typist: Typist) -> None:
    gate, log = typist.directory / "gate", typist.directory / "log"
    script = f"echo {{x}} >> {log}; while ! test -e {gate}; do sleep 0.02; done"
    typist.type("run", "--local-cores", "1", "--detach", "--param", "x=1..3", "--", "sh", "-c", script)
    assert "3 tasks" in typist.type("cancel", "1").out
    assert typist.type("rerun", "1", "--detach").status == 0
    lock = max(typist.home.glob("pools/default/lock-*"))
    os.kill(int(json.loads(lock.read_text())["pid"]), signal.SIGKILL)
    gate.touch()
    said = typist.type("attach", "1")
    assert said.status == 0 and "3 tasks, 3 done" in said.out, said
    assert [row["state"] for row in rows(typist, "1")] == ["done"] * 3
    assert typist.type("rerun", "1").status == 2


def test_a_fixed_module_is_used_and_a_function_of_the_main_program_is_named(typist: Typist) -> None:
    (typist.directory / "model.py").write_text("def area(x):\n    return x / 0\ndef case():\n    return int(open('case').read())\n")
    (typist.directory / "case").write_text("seven")
    (typist.directory / "main.py").write_text(
        "import functools, model, pilotfish\n"
        "def own(x):\n    raise ValueError(x)\n"
        "def part(x):\n    raise ValueError(x)\n"
        "class Model:\n    def solve(self, x):\n        raise ValueError(x)\n"
        "with pilotfish.Run() as run:\n"
        "    tasks = [run.submit(model.area, 3), run.submit(own, 4), run.options(inputs=['case']).submit(model.case)]\n"
        "    tasks += [run.submit(functools.partial(part, 5)), run.submit(Model().solve, 6)]\n"
        "    tasks.append(run.submit(functools.partial(model.area, 7)))\n"
        "    print([type(task.exception()).__name__ for task in tasks])\n"
    )
    said = typist.run(sys.executable, "main.py")
    assert "'ValueError'" in said.out, said
    (typist.directory / "model.py").write_text(
        "import factor\ndef area(x):\n    return x * factor.TWO\ndef case():\n    return int(open('case').read())\n"
    )
    (typist.directory / "case").write_text("7")
    (typist.directory / "factor.py").write_text("TWO = 2\n")
    again = typist.type("rerun")
    note = "note: the main program defined own, part, Model.solve, which run as they were"
    assert f"Changed since the last try: model.py, case\n{note}" in again.out, again
    found = [(row["state"], row.get("value")) for row in rows(typist, "1")]
    assert found == [("done", 6), ("failed", None), ("done", 7), *[("failed", None)] * 2, ("done", 14)]


def test_a_function_of_a_run_file_is_named(typist: Typist) -> None:
    (typist.directory / "sweep.py").write_text("def own(x):\n    raise ValueError(x)\ndef run(tasks):\n    tasks.call(own, 1)\n")
    assert typist.type("run", "sweep.py").status == 1
    assert "defined own, which runs as it was" in typist.type("rerun").out


def test_a_rerun_is_called_a_fix_only_if_it_reads_a_file_again(typist: Typist) -> None:
    here = typist.directory
    (here / "script.py").write_text("import nosuchmod\n")
    (here / "main.py").write_text("from pilotfish import Run\n\nwith Run() as run:\n    run.submit(lambda: 1 / 0)\n")
    again = {
        "1": ("run", "--local-cores", "1", "--", "false"),
        "2": ("run", "--", sys.executable, "-c", "import nosuchmod"),
        "3": ("run", "--", "sh", "-c", "nosuchprogram"),
        "4": ("run", "--", sys.executable, "script.py"),
        "5": ("run", "--stdin", "script.py", "--", "false"),
    }
    for words in again.values():
        assert typist.type(*words).status == 1
    assert typist.run(sys.executable, "main.py").status == 0
    labels = {}
    for run in (*again, "6"):
        (line,) = (line for line in typist.type("why", run).out.splitlines() if "pilotfish rerun" in line)
        assert line.endswith(f"pilotfish rerun {run} --failed")
        labels[run] = line.split()[0]
    assert labels == {"1": "again:", "2": "again:", "3": "again:", "4": "fix:", "5": "fix:", "6": "again:"}


def test_a_rerun_is_advised_with_a_larger_limit_and_works_as_typed(typist: Typist) -> None:
    said = typist.type("run", "--local-cores", "1", "--time", "0.2s", "--", "sleep", "0.5")
    (line,) = (line for line in (said.out + said.err).splitlines() if "pilotfish rerun" in line)
    assert typist.run("sh", "-c", line[line.index("pilotfish") :].replace("pilotfish", typist.command, 1)).status == 0
