"""DAGMan files and task lists with dependencies from the command line, against a fake master."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.fake_session import FakeMaster, echo
from tests.unit.cli.conftest import CommandLine

DAG = 'JOB B a.sub\nJOB A a.sub\nPARENT A CHILD B\nVARS ALL_NODES word="hi"\n'


@pytest.fixture
def flow(pilotfish: CommandLine) -> str:
    """In the directory where commands are typed."""
    Path("a.sub").write_text("executable = /bin/echo\narguments = $(JOB) $(word)\nqueue\n")
    Path("flow.dag").write_text(DAG)
    return "flow.dag"


@pytest.mark.parametrize("words", [("flow.dag",), ("--dag", "flow.dag")])
def test_the_nodes_of_a_dag_are_tasks_and_are_known_by_their_names(
    pilotfish: CommandLine, master: FakeMaster, flow: str, words: tuple[str, ...]
) -> None:
    said = pilotfish("run", *words)
    assert said.status == 0
    assert [task.told["argv"] for task in master.runs[1].tasks] == [["/bin/echo", "A", "hi"], ["/bin/echo", "B", "hi"]]
    assert master.runs[1].options.command == "--dag flow.dag"
    assert "A: /bin/echo A hi" in pilotfish("tasks").out


def test_nodes_keep_their_names_whatever_becomes_of_the_files_and_when_they_are_run_again(
    pilotfish: CommandLine, master: FakeMaster, flow: str
) -> None:
    Path("a.sub").write_text("executable = /bin/echo\narguments = $(JOB) $(word)\nerror = err.$(JOB)\nqueue\n")
    master.outcome = lambda argv: (1, b"", {}) if "B" in argv else echo(argv)
    pilotfish("run", flow)
    Path("a.sub").write_text("executable = /bin/true\n")
    Path(flow).unlink()
    told = pilotfish("tasks").out
    assert "A: /bin/echo A hi" in told and "B: /bin/echo B hi" in told
    assert "1.1   B: /bin/echo B hi  " in pilotfish("rerun").out


def test_a_task_is_named_as_its_list_or_dag_names_it(pilotfish: CommandLine, master: FakeMaster, flow: str) -> None:
    master.outcome = lambda argv: (1, b"", {}) if "B" in argv else echo(argv)
    Path("tasks.txt").write_text("after=mesh.1 id=use echo B\nid=mesh.1 echo A\necho C\n")
    failures = pilotfish("run", "--name", "listed", "--tasks", "tasks.txt").out
    assert "1.2   use: echo B  " in failures
    shown = pilotfish("tasks").out
    assert "mesh.1: echo A  " in shown and "1.1   echo C  " in shown
    assert [row["label"] for row in json.loads(pilotfish("tasks", "--json").out)] == ["mesh.1", None, "use"]
    assert [row["label"] for row in json.loads(pilotfish("results", "--json").out)] == ["mesh.1", None, "use"]
    assert pilotfish("why", "1.use").out.startswith("task 1.2 (use: echo B) is ")
    assert "Did you mean '1.use'?" in pilotfish("why", "use").err
    assert pilotfish("logs", "listed.mesh.1").out == "A\n"
    assert pilotfish("tail", "last.mesh.1").out == "A\n"
    assert "run 1 has no task 'ues'\n  fix: Did you mean 'use'?" in pilotfish("logs", "1.ues").err
    pilotfish("run", flow)
    pilotfish("cancel", "2.B", "1.0")
    assert ("cancel", {"tasks": ["2.1", "1.0"]}) in master.asked
    assert "  use: echo B\n" in pilotfish("run", "--dry-run", "--tasks", "tasks.txt").out


def test_a_dag_behind_dashes_is_a_program(pilotfish: CommandLine, master: FakeMaster, flow: str) -> None:
    Path(flow).write_text("#!/bin/sh\n")
    Path(flow).chmod(0o755)
    assert pilotfish("run", "--", "./flow.dag").status == 0
    assert master.runs[1].tasks[0].told["argv"] == ["./flow.dag"]


def test_a_quiet_run_of_a_file_says_nothing(pilotfish: CommandLine, flow: str) -> None:
    Path(flow).write_text(DAG + "DOT picture.dot\n")
    assert pilotfish("run", "-q", flow) == (0, "", "")
    assert "note: flow.dag, line 5: DOT has no effect" in pilotfish("run", flow).err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("flow.dag", "x"), "takes no arguments"),
        (("--dag", "flow.dag", "x"), "takes no arguments"),
        (("--cores", "2", "flow.dag"), "--cores does not go with a DAGMan file"),
        (("--param", "a=1..2", "--dag", "flow.dag"), "does not go with a sweep"),
        (("gone.dag",), "'gone.dag': no such file"),
        (("--dag", "gone.dag"), "'gone.dag': no such file"),
    ],
)
def test_what_does_not_go_with_a_dag_is_told(
    pilotfish: CommandLine, master: FakeMaster, flow: str, words: tuple[str, ...], said: str
) -> None:
    told = pilotfish("run", *words)
    assert told.status == 2
    assert said in told.err
    assert not master.runs


def test_a_dry_run_counts_the_nodes_that_are_not_done(pilotfish: CommandLine, master: FakeMaster, flow: str) -> None:
    Path("flow.dag.rescue001").write_text("DONE A\n")
    assert pilotfish("run", "--dry-run", flow).out == "Would run 1 task of flow.dag.\n"
    assert not master.runs


def test_after_a_failure_only_the_rest_is_run_and_after_a_success_all_again(pilotfish: CommandLine, master: FakeMaster, flow: str) -> None:
    master.outcome = lambda argv: (1, b"", {}) if "B" in argv else echo(argv)
    said = pilotfish("run", flow)
    assert said.status == 1
    assert "flow.dag.rescue001 has the nodes that are done" in said.err
    assert Path("flow.dag.rescue001").read_text().splitlines()[1:] == ["DONE A"]
    assert "A: /bin/echo A hi" in pilotfish("tasks", "1").out
    pilotfish("run", flow)
    assert Path("flow.dag.rescue002").read_text().splitlines()[1:] == ["DONE A"]
    master.outcome = echo
    said = pilotfish("run", flow)
    assert said.status == 0
    assert "1 node done before, says flow.dag.rescue002" in said.err
    assert [task.told["argv"][1] for task in master.runs[3].tasks] == ["B"]
    assert "B: /bin/echo B hi" in pilotfish("tasks", "3").out
    assert sorted(path.name for path in Path().glob("*rescue*")) == ["flow.dag.rescue001.old", "flow.dag.rescue002.old"]
    pilotfish("run", flow)
    assert len(master.runs[4].tasks) == 2
    assert "A: /bin/echo A hi" in pilotfish("tasks", "1").out


def test_who_follows_a_run_that_was_left_alone_writes_the_rescue_file(pilotfish: CommandLine, master: FakeMaster, flow: str) -> None:
    master.outcome = lambda argv: (1, b"", {}) if "B" in argv else echo(argv)
    pilotfish("run", "--detach", flow)
    assert not list(Path().glob("*rescue*"))
    said = pilotfish("attach", "1")
    assert "flow.dag.rescue001 has the nodes that are done" in said.err
    assert Path("flow.dag.rescue001").read_text().splitlines()[1:] == ["DONE A"]


def test_of_a_dag_that_was_changed_meanwhile_nothing_is_written_down(pilotfish: CommandLine, master: FakeMaster, flow: str) -> None:
    master.outcome = lambda argv: (1, b"", {}) if "B" in argv else echo(argv)
    pilotfish("run", "--detach", flow)
    Path("flow.dag").write_text(DAG.replace("B", "X"))
    pilotfish("attach", "1")
    assert not list(Path().glob("*rescue*"))


def test_when_what_failed_was_run_again_with_success_the_rescue_file_has_served(
    pilotfish: CommandLine, master: FakeMaster, flow: str
) -> None:
    master.outcome = lambda argv: (1, b"", {}) if "B" in argv else echo(argv)
    pilotfish("run", flow)
    master.outcome = echo
    assert pilotfish("rerun", "1").status == 0
    assert [path.name for path in Path().glob("*rescue*")] == ["flow.dag.rescue001.old"]


def test_tasks_of_a_list_wait_for_each_other(pilotfish: CommandLine, master: FakeMaster) -> None:
    Path("tasks.txt").write_text("in=x cat x\nout=x touch x\n")
    assert pilotfish("run", "--tasks", "tasks.txt").status == 0
    assert [task.told["argv"] for task in master.runs[1].tasks] == [["touch", "x"], ["cat", "x"]]
    assert [tuple(task.needs.after) for task in master.runs[1].tasks] == [(), (0,)]
    assert not Path("run-1").exists()
    assert "1.0   touch x" in pilotfish("tasks").out
