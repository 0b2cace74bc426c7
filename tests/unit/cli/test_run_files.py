"""Run files from the command line, against a fake master."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.fake_session import FakeMaster
from tests.unit.cli.conftest import CommandLine

FLOW = "import sys\ndef run(tasks):\n    for word in sys.argv[1:] or ['a', 'b']:\n        tasks.add(['echo', word])\n"


def test_a_run_file_adds_its_tasks_and_gets_its_arguments(pilotfish: CommandLine, master: FakeMaster) -> None:
    Path("flow.py").write_text(FLOW)
    said = pilotfish("run", "--name", "flow", "flow.py", "x", "y", "z")
    assert said.status == 0
    assert [task.told["argv"] for task in master.runs[1].tasks] == [["echo", "x"], ["echo", "y"], ["echo", "z"]]
    assert (master.runs[1].options.name, master.runs[1].options.command) == ("flow", "flow.py x y z")


def test_a_detached_run_file_says_how_to_come_back(pilotfish: CommandLine) -> None:
    Path("flow.py").write_text(FLOW)
    assert pilotfish("run", "--detach", "flow.py").out == "Run 1: 2 tasks submitted. Follow it: pilotfish attach 1\n"
    assert pilotfish("run", "--detach", "--quiet", "flow.py").out == "2\n"


def test_an_executable_python_file_goes_behind_dashes(pilotfish: CommandLine, master: FakeMaster) -> None:
    Path("flow.py").write_text("#!/bin/sh\n")
    Path("flow.py").chmod(0o755)
    assert pilotfish("run", "--", "./flow.py").status == 0
    assert master.runs[1].tasks[0].told["argv"] == ["./flow.py"]


def test_options_of_tasks_belong_into_the_file(pilotfish: CommandLine, master: FakeMaster) -> None:
    Path("flow.py").write_text(FLOW)
    said = pilotfish("run", "--cores", "2", "flow.py")
    assert said.status == 2
    assert "--cores does not go with a run file" in said.err
    assert not master.runs


def test_a_dry_run_counts_the_tasks(pilotfish: CommandLine, master: FakeMaster) -> None:
    Path("flow.py").write_text(FLOW)
    assert pilotfish("run", "--dry-run", "flow.py").out == "Would run 2 tasks of flow.py.\n"
    assert json.loads(pilotfish("run", "--dry-run", "--json", "flow.py").out) == {"tasks": 2, "application": False}
    assert not master.runs


def test_a_missing_or_bad_run_file_is_told(pilotfish: CommandLine) -> None:
    assert "'gone.py' does not exist" in pilotfish("run", "gone.py").err
    Path("bad.py").write_text("def run(tasks:\n")
    said = pilotfish("run", "bad.py")
    assert said.status == 2
    assert "bad.py, line 1" in said.err
    Path("worse.py").write_text("def run(tasks):\n    1 / 0\n")
    assert "worse.py, line 2: ZeroDivisionError" in pilotfish("run", "worse.py").err


def test_a_plain_program_is_told_from_a_run_file_before_anything_of_it_is_executed(pilotfish: CommandLine, master: FakeMaster) -> None:
    Path("sim.py").write_text("open('executed', 'w')\ndef simulate(): pass\n")
    said = pilotfish("run", "sim.py", "3")
    assert said.status == 2
    assert "sim.py: it defines neither run nor manager (it has: simulate)" in said.err
    assert "pilotfish run -- python sim.py 3" in said.err
    assert not Path("executed").exists()
    assert not master.runs


def test_a_deleted_run_leaves_no_file_with_the_environment_of_its_command(pilotfish: CommandLine, master: FakeMaster) -> None:
    Path("flow.py").write_text("from pilotfish import ApplicationManager\nclass Flow(ApplicationManager):\n    pass\nmanager = Flow()\n")
    assert pilotfish("run", "--detach", "flow.py").status == 0
    assert list(master.directory.glob("environment-*"))
    assert pilotfish("forget", "1").status == 0
    assert not list(master.directory.glob("environment-*"))
