"""DAGs whose tasks depend on what happens in the run, with real processes: planned sub-DAGs, aborts and FINAL nodes."""

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
from tests.support.scripted_master import eventually

HIERARCHICAL = """\
JOB first a.sub
SUBDAG EXTERNAL plan plan.dag
SCRIPT PRE plan plan.sh
JOB last a.sub
FINAL report report.sub
PARENT first CHILD plan
PARENT plan CHILD last
"""
PLAN = """#!/bin/sh
printf 'JOB one wait.sub\\nJOB two a.sub\\nPARENT one CHILD two\\n' > plan.dag
"""
FILES = {
    "flow.dag": HIERARCHICAL,
    "a.sub": "executable = /bin/sh\narguments = \"-c 'echo $(JOB) >> order.txt'\"\nqueue\n",
    "wait.sub": "executable = /bin/sh\n"
    "arguments = \"-c 'touch started; while [ ! -e go ]; do sleep 0.05; done; echo $(JOB) >> order.txt'\"\nqueue\n",
    "report.sub": "executable = /bin/echo\narguments = $(DAG_STATUS) $(FAILED_COUNT)\noutput = report.txt\nqueue\n",
    "fail.sub": "executable = /bin/sh\narguments = \"-c 'exit 3'\"\nqueue\n",
    "sleep.sub": "executable = /bin/sleep\narguments = 600\nqueue\n",
}


@pytest.fixture
def typist() -> Iterator[Typist]:
    directory = Path(tempfile.mkdtemp(prefix="pilotfish-dag-"))
    person = Typist(directory)
    for name, text in FILES.items():
        (directory / name).write_text(text)
    (directory / "plan.sh").write_text(PLAN)
    (directory / "plan.sh").chmod(0o755)
    assert person.type("workers", "--local-cores", "2").status == 0
    yield person
    said = person.type("stop", "--now", "--json")
    assert json.loads(said.out)["left"] == []
    shutil.rmtree(directory)


def managers(directory: Path) -> list[int]:
    """Process ids of the managers of this pool."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if b"pilotfish.client.application_host" in words and any(os.fsencode(directory) in word for word in words):
            found.append(int(entry.name))
    return found


def test_a_planned_sub_dag_runs_although_its_manager_is_killed(typist: Typist) -> None:
    here = typist.directory
    assert typist.type("run", "--detach", "flow.dag").status == 0
    eventually((here / "started").exists)
    (manager,) = managers(here)
    os.kill(manager, signal.SIGKILL)
    eventually(lambda: manager not in managers(here))
    (here / "go").touch()
    said = typist.type("attach", "1")
    assert said.status == 0, said.out + said.err
    assert (here / "order.txt").read_text().split() == ["first", "one", "two", "last"]
    assert (here / "report.txt").read_text() == "0 0\n"
    rows = json.loads(typist.type("tasks", "1", "--json").out)
    assert [row["label"] for row in rows] == ["first", "plan++PRE", "plan+one", "plan+two", "plan", "last", "report"]
    assert rows[-1]["command"] == "report: /bin/echo 0 0"


def test_a_rerun_of_a_planned_dag_keeps_its_rescue_files_current(typist: Typist) -> None:
    here = typist.directory
    (here / "try.sub").write_text("executable = /bin/ls\narguments = $(JOB).file\nqueue\n")
    (here / "plan.sh").write_text("#!/bin/sh\nprintf 'JOB one try.sub\\nJOB two try.sub\\nPARENT one CHILD two\\n' > plan.dag\n")
    (here / "again.dag").write_text("SUBDAG EXTERNAL plan plan.dag\nSCRIPT PRE plan plan.sh\n")
    assert typist.type("run", "again.dag").status == 1
    assert (here / "again.dag.rescue001").read_text().splitlines()[1:] == ["DONE plan++PRE"]
    (here / "one.file").touch()
    assert typist.type("rerun", "1", "--failed").status == 1
    assert set((here / "again.dag.rescue002").read_text().splitlines()[1:]) == {"DONE plan++PRE", "DONE plan+one"}
    (here / "two.file").touch()
    assert typist.type("rerun", "1", "--failed").status == 0
    assert sorted(path.name for path in here.glob("again.dag.rescue*")) == ["again.dag.rescue001.old", "again.dag.rescue002.old"]


def test_nodes_inherit_the_environment_of_the_command_and_not_that_of_the_master(typist: Typist) -> None:
    here = typist.directory
    assert typist.type("run", "--", "true").status == 0  # the master is started without the variable
    typist.environment["WANTED"] = "by the node"
    (here / "env.sub").write_text("executable = /bin/sh\narguments = \"-c 'echo $WANTED'\"\ngetenv = WANTED\noutput = env.txt\nqueue\n")
    (here / "inherit.dag").write_text("JOB a env.sub\nABORT-DAG-ON a 9\n")
    said = typist.type("run", "inherit.dag")
    assert (said.status, (here / "env.txt").read_text()) == (0, "by the node\n")
    assert not list((typist.home / "pools/default").glob("environment-*"))


def test_an_abort_ends_running_tasks_and_gives_its_exit_status(typist: Typist) -> None:
    here = typist.directory
    (here / "abort.dag").write_text("JOB bad fail.sub\nJOB long sleep.sub\nRETRY bad 5\nABORT-DAG-ON bad 3 RETURN 42\n")
    said = typist.type("run", "abort.dag")
    assert said.status == 42, said.err
    assert "the node bad ended with exit status 3, which aborted the DAG" in said.err
    assert "1 failed, 1 cancelled" in said.out


def test_a_final_node_that_succeeds_decides(typist: Typist) -> None:
    here = typist.directory
    (here / "final.dag").write_text("JOB bad fail.sub\nFINAL report report.sub\nABORT-DAG-ON bad 3\n")
    said = typist.type("run", "final.dag")
    assert said.status == 0, said.err
    assert "the FINAL node report succeeded, so the DAG succeeded" in said.err
    assert (here / "report.txt").read_text() == "3 1\n"
    assert json.loads(typist.type("tasks", "1", "--json").out)[-1]["command"] == "report: /bin/echo 3 1"
    (here / "final.dag").write_text("JOB good a.sub\nFINAL bad fail.sub\n")
    assert typist.type("run", "final.dag").status == 1


@pytest.mark.parametrize("more", ["ABORT-DAG-ON wait 3\n", "SUBDAG EXTERNAL plan plan.dag\nPARENT wait CHILD plan\n"])
def test_a_cancelled_dag_keeps_what_is_done_and_does_not_run_its_final_node(typist: Typist, more: str) -> None:
    here = typist.directory
    (here / "cancelled.dag").write_text("JOB good a.sub\nJOB wait wait.sub\nPARENT good CHILD wait\nFINAL report report.sub\n" + more)
    assert typist.type("run", "--detach", "cancelled.dag").status == 0
    eventually((here / "started").exists)
    assert typist.type("cancel", "1").status == 0
    assert typist.type("attach", "1").status == 1
    eventually((here / "cancelled.dag.rescue001").exists)
    assert (here / "cancelled.dag.rescue001").read_text().splitlines()[1:] == ["DONE good"]
    assert not (here / "report.txt").exists()
