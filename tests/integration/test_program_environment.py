"""Tests with real processes that tasks get the environment and the interpreter of the program that submits them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pilotfish
from pilotfish.client.session import connect_if_served

WAIT_S = 60.0
PROGRAM = """
import json, os, sys
from pilotfish import Executor, Run

def look(number):
    import os, sys
    try:
        import only_here
    except ImportError:
        only_here = None
    names = ("WHOSE", "MASTER_ONLY", "API_TOKEN")
    variables = [os.environ.get(name) for name in names]
    return [variables, os.environ["PATH"].split(":")[0], sys.executable, sys.prefix, only_here and only_here.NAME, os.getpid()]

with Run(pool="shared") as run:
    calls = [run.submit(look, number) for number in range(6)]
    program = run.executable(["sh", "-c", "echo $WHOSE,$MASTER_ONLY,$API_TOKEN,$EXTRA,$(tool)"], env={"EXTRA": "extra"})
    called = [call.result() for call in calls]
    os.environ["WHOSE"] = "changed"
    later = [run.submit(look, 7).result()[0][0], run.executable(["sh", "-c", "echo $WHOSE"]).result().text.strip()]
with Executor(pool="shared") as executor:
    called.append(executor.submit(look, 8).result())
print(json.dumps([called, program.result().text.strip(), later, sys.executable, sys.prefix]))
"""


@pytest.fixture(autouse=True)
def stopped(pilotfish_home: Path) -> Iterator[None]:
    yield
    session = connect_if_served("shared")
    if session is not None:
        session.ask("stop", now=True)
        session.close()


def make_environment(place: Path, name: str) -> str:
    """Makes a virtual environment that has Pilotfish and a module of its own. Returns its interpreter."""
    venv.create(place, symlinks=True)
    packages = next(place.glob("lib/python*/site-packages"))
    sources = Path(pilotfish.__file__).parents[1]
    (packages / "shared.pth").write_text(f"{sources}\n{sysconfig.get_path('purelib')}\n")
    (packages / "only_here.py").write_text(f"NAME = {name!r}\n")
    return str(place / "bin" / "python")


def run_program(interpreter: str, folder: Path, **variables: str) -> Any:
    folder.mkdir(exist_ok=True)
    tool = folder / "tool"
    tool.write_text(f"#!/bin/sh\necho tool of {folder.name}\n")
    tool.chmod(0o755)
    (folder / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **variables}
    done = subprocess.run(
        [interpreter, "program.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_tasks_get_the_environment_and_the_interpreter_of_their_program_and_not_those_of_the_master(tmp_path: Path) -> None:
    first = run_program(sys.executable, tmp_path / "a", WHOSE="first", MASTER_ONLY="master", API_TOKEN="secret")
    second_python = make_environment(tmp_path / "venv", "second")
    second = run_program(second_python, tmp_path / "b", WHOSE="second")
    again = run_program(sys.executable, tmp_path / "a", WHOSE="first")
    for found, interpreter, whose, folder, own in (
        (first, sys.executable, "first", "a", None),
        (second, second_python, "second", "b", "second"),
        (again, sys.executable, "first", "a", None),
    ):
        called, program, later, executable, prefix = found
        only = "master" if found is first else None
        assert executable == interpreter
        for row in called[:-1]:
            assert row[:-1] == [[whose, only, None], str(tmp_path / folder), interpreter, prefix, own]
        assert called[-1][0] == ["changed", only, None]
        assert program == f"{whose},{only or ''},,extra,tool of {folder}"
        assert later == ["changed", "changed"]
    processes = [{row[-1] for row in found[0]} for found in (first, second, again)]
    assert processes[1].isdisjoint(processes[0] | processes[2])


def test_an_interpreter_that_does_not_exist_any_more_is_named(tmp_path: Path) -> None:
    run_program(sys.executable, tmp_path / "a")
    python = make_environment(tmp_path / "venv", "gone")
    text = """
import shutil, sys
from pilotfish import Run, TaskFailed
with Run(pool="shared") as run:
    shutil.rmtree(sys.prefix + "/bin")
    try:
        run.submit(abs, -1).result()
    except TaskFailed as error:
        print(error)
    print(run.executable(["echo", "still works"]).result().text)
"""
    done = subprocess.run([python, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert f"cannot start the Python of the program that submitted it, {python}: No such file" in done.stdout, done.stderr
    assert "still works" in done.stdout


def test_a_run_file_and_its_manager_get_the_environment_of_the_command(tmp_path: Path) -> None:
    run_program(sys.executable, tmp_path / "a", WHOSE="first")
    python = make_environment(tmp_path / "venv", "second")
    look = "def look():\n    import os, sys\n    return [os.environ['WHOSE'], sys.executable]\n"
    (tmp_path / "listed.py").write_text(look + "def run(tasks):\n    tasks.call(look)\n    tasks.add(['sh', '-c', 'echo $WHOSE'])\n")
    (tmp_path / "managed.py").write_text(
        "import sys\nfrom pilotfish import ApplicationManager\n" + look + "class Manager(ApplicationManager):\n"
        "    def initialize(self, tasks):\n        tasks.call(look)\n        tasks.add(['echo', sys.executable])\nmanager = Manager()\n"
    )
    environment = {**os.environ, "WHOSE": "second"}
    for name, last in (("listed", "second"), ("managed", python)):
        command = [python, "-m", "pilotfish", "run", "--pool", "shared", "--name", name, f"{name}.py"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        results = pilotfish.Run.find(name, pool="shared").results()
        assert next(results) == ["second", python]
        assert next(results).text.strip() == last
