"""DAGs whose tasks depend on what happens in the run: files that PRE scripts write, and aborts."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotfish.applications.application_manager import TaskDone
from pilotfish.applications.dagman.dag_file import read_dag
from pilotfish.applications.dagman.dag_manager import DagManager, load_dag
from pilotfish.applications.dagman.node_tasks import node_tasks
from pilotfish.applications.executables.executable import Completed, ExecutableFailed
from pilotfish.applications.task_list import TaskList
from pilotfish.errors import BadInput
from pilotfish.model.task import Usage

Effect = Callable[[], object]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.sub").write_text("executable = /bin/echo\narguments = $(JOB)\nqueue\n")
    Path("plan.sh").write_text("#!/bin/sh\n")
    Path("plan.sh").chmod(0o755)


class World:
    """Runs a manager: ends its tasks one after the other, as a master would. After each task, compares it with a restarted manager."""

    def __init__(self, text: str, exits: dict[str, int] | None = None, effects: dict[str, Effect] | None = None) -> None:
        Path("flow.dag").write_text(text)
        self.exits, self.effects = exits or {}, effects or {}
        self.manager = DagManager("flow.dag")
        self.command = shlex.split(self.manager.command)[1:]
        self.tasks = TaskList(post=lambda function: None)
        self.states: dict[int, str] = {}
        self.history: list[TaskDone] = []
        self.needs: dict[int, tuple[list[int], list[int]]] = {}
        self.manager.initialize(self.tasks)
        self._take()

    def _take(self) -> None:
        cancelled, self.tasks.cancelled = self.tasks.cancelled, {}
        for entry in self.tasks.take():
            self.needs[len(self.needs)] = list(entry.needs.after), list(entry.needs.after_any)
        for index in cancelled:
            if index not in self.states:
                self._report(index, "cancelled")

    def labels(self, state: str = "") -> list[str]:
        names = [self.tasks.descriptions[index][1] for index in self.needs]
        return [name for index, name in enumerate(names) if not state or self.states.get(index) == state]

    def run(self) -> World:
        while (index := next((index for index in self.needs if index not in self.states and self._is_ready(index)), None)) is not None:
            label = self.tasks.descriptions[index][1]
            if any(self.states[other] != "done" for other in self.needs[index][0] if other in self.states):
                self._report(index, "failed")
            else:
                self.effects.get(label, lambda: None)()
                self._report(index, "failed" if self.exits.get(label) else "done", self.exits.get(label, 0))
        assert len(self.states) == len(self.needs)
        self.manager.finalize()
        return self

    def _is_ready(self, index: int) -> bool:
        after, after_any = self.needs[index]
        is_hopeless = any(self.states.get(other, "done") != "done" for other in after)
        return is_hopeless or all(other in self.states for other in (*after, *after_any))

    def _report(self, index: int, state: str, status: int | None = None) -> None:
        self.states[index] = state
        value = Completed(status, None, b"", b"", {}) if status is not None else None
        error = ExecutableFailed("failed", completed=value) if state == "failed" else None
        self.history.append(TaskDone(index, state, value if state == "done" else None, error, Usage()))
        self.manager.tasks_done(self.history[-1:], self.tasks)
        restarted = load_dag(Path("flow.dag").resolve(), self.command).manager
        assert isinstance(restarted, DagManager)
        restarted.resume(self.history)
        assert [task.label for task in restarted._added] == [task.label for task in self.manager._added]
        assert restarted._aborted == self.manager._aborted
        self._take()


def write(name: str, text: str) -> Effect:
    return lambda: Path(name).write_text(text)


PLANNED = "SUBDAG EXTERNAL S inner.dag\nSCRIPT PRE S plan.sh\nJOB A a.sub\nJOB Z a.sub\nFINAL F a.sub\nPARENT A CHILD S\nPARENT S CHILD Z\n"
INNER = "JOB X a.sub\nJOB Y a.sub\nPARENT X CHILD Y\n"


def test_a_sub_dag_is_read_when_its_pre_script_has_written_it() -> None:
    Path("inner.dag").write_text("JOB Old a.sub\n")  # of an earlier run
    world = World(PLANNED, effects={"S++PRE": write("inner.dag", INNER)})
    assert world.labels() == ["A", "S++PRE"]
    assert world.run().labels("done") == ["A", "S++PRE", "S+X", "S+Y", "S", "Z", "F"]


def test_a_sub_dag_that_a_parent_writes_is_read_after_the_parent() -> None:
    world = World("JOB A a.sub\nSUBDAG EXTERNAL S inner.dag\nPARENT A CHILD S\n", effects={"A": write("inner.dag", INNER)})
    assert world.run().labels("done") == ["A", "S++PRE", "S+X", "S+Y", "S"]


def test_a_job_that_runs_condor_dagman_is_a_sub_dag() -> None:
    Path("sub").mkdir()
    Path("sub/diamond.sub").write_text(
        "universe = scheduler\nexecutable = /opt/condor/bin/condor_dagman\ngetenv = TRUE\ninitialdir = sub/diamond\n"
        'arguments = " -p 0  -f -l . -Lockfile inner.dag.lock -Dag inner.dag -AutoRescue 1 "\noutput = sub/diamond.out\nqueue\n'
    )
    text = (
        "JOB Before a.sub\nJOB Diamond sub/diamond.sub\nSCRIPT PRE Diamond plan.sh --basename inner\nRETRY Diamond 1\n"
        'CATEGORY Diamond plans\nVARS Diamond +DAGNodeRetry="$(RETRY)"\nJOB After a.sub\n'
        "PARENT Before CHILD Diamond\nPARENT Diamond CHILD After\n"
    )

    def plan() -> None:
        Path("sub/diamond").mkdir()
        Path("sub/diamond/inner.dag").write_text("JOB X x.sub\nJOB Y x.sub\nPARENT X CHILD Y\n")
        Path("sub/diamond/x.sub").write_text("executable = /bin/echo\narguments = $(JOB)\nqueue\n")

    world = World(text, effects={"Diamond++PRE": plan})
    assert world.labels() == ["Before", "Diamond++PRE"]
    assert world.run().labels("done") == ["Before", "Diamond++PRE", "Diamond+X", "Diamond+Y", "Diamond", "After"]
    assert world.manager.dag.notices == []
    cwd = {task.label: task.options["cwd"] for task in world.manager._added}
    assert cwd["Diamond++PRE"] == str(Path.cwd()) and cwd["Diamond+X"] == str(Path("sub/diamond").absolute())


def test_sub_dags_in_planned_sub_dags_are_planned_too() -> None:
    deep = "SUBDAG EXTERNAL D deep.dag\nJOB W a.sub\nPARENT W CHILD D\n"
    world = World(PLANNED, effects={"S++PRE": write("inner.dag", deep), "S+W": write("deep.dag", INNER)})
    assert sorted(world.run().labels("done")) == sorted(["A", "S++PRE", "S+W", "S+D++PRE", "S+D+X", "S+D+Y", "S+D", "S", "Z", "F"])


@pytest.mark.parametrize("text", [None, "JOB X missing.sub\n", "JOB\n"])
def test_a_planned_file_that_is_missing_or_wrong_fails_its_sub_dag_only(text: str | None) -> None:
    effects = {"S++PRE": write("inner.dag", text)} if text is not None else {}
    world = World(PLANNED + "JOB Other a.sub\n", {"S": 1}, effects).run()
    assert set(world.labels("done")) == {"A", "S++PRE", "Other", "F"}
    assert world.labels("failed") == ["S", "Z"]


def test_a_planned_file_that_no_parent_wrote_is_named() -> None:
    Path("flow.dag").write_text("JOB A a.sub\nSUBDAG EXTERNAL S inner.dag\nPARENT A CHILD S\n")
    test = list(node_tasks(read_dag("flow.dag", planned={})))[-1]
    done = subprocess.run(test.argv, env={**os.environ, **test.options["env"]}, text=True, capture_output=True, check=False)
    assert (test.label, done.returncode != 0) == ("S++PRE", True)
    assert "inner.dag" in done.stderr


def test_after_a_failed_pre_script_the_sub_dag_fails_and_the_final_node_runs() -> None:
    world = World(PLANNED, {"S++PRE": 1}).run()
    assert (world.labels("done"), world.labels("failed")) == (["A", "F"], ["S++PRE", "S", "Z"])
    assert Path("flow.dag.rescue001").read_text().splitlines()[1:] == ["DONE A"]


def test_a_run_with_a_rescue_file_continues_in_the_planned_sub_dag() -> None:
    first = World(PLANNED, {"S+X": 1}, {"S++PRE": write("inner.dag", INNER)}).run()
    assert first.labels("failed") == ["S+X", "S+Y", "S", "Z"]
    again = World(PLANNED)
    assert again.run().labels("done") == ["S+X", "S+Y", "S", "Z", "F"]
    assert not Path("flow.dag.rescue001").exists()


# --- ABORT-DAG-ON -----------------------------------------------------------------------------------------------------------------------

WIDE = "JOB A a.sub\nJOB B a.sub\nJOB C a.sub\nFINAL F a.sub\nPARENT A CHILD B\nABORT-DAG-ON A 3 RETURN 7\n"


def test_the_exit_status_of_a_node_aborts_the_dag_and_the_final_node_runs() -> None:
    world = World(WIDE, {"A": 3}).run()
    assert (world.labels("failed"), set(world.labels("cancelled")), world.labels("done")) == (["A"], {"B", "C"}, ["F"])
    other = World(WIDE, {"A": 2}).run()
    assert other.labels("done") == ["C", "F"]


def test_a_final_node_knows_whether_its_dag_was_aborted() -> None:
    Path("f.sub").write_text("executable = /bin/echo\narguments = $(DAG_STATUS)\nqueue\n")
    Path("inner.dag").write_text(WIDE.replace("FINAL F a.sub", "FINAL F f.sub"))

    def said(exits: dict[str, int]) -> dict[str, str]:
        Path("flow.dag.rescue001").unlink(missing_ok=True)
        world = World("SUBDAG EXTERNAL S inner.dag\nFINAL G f.sub\nJOB O a.sub\nABORT-DAG-ON O 9\n", exits).run()
        env = {**os.environ, "PILOTFISH_FAILED_DEPENDENCIES": "1"}
        finals = [task for task in world.manager._added if task.node.is_final]
        return {
            task.label: subprocess.run(task.argv, env=env | task.options["env"], text=True, capture_output=True, check=True).stdout.strip()
            for task in finals
        }

    assert said({"S+A": 2}) == {"S+F": "2", "G": "2"}
    assert said({"S+A": 3}) == {"S+F": "3", "G": "2"}
    assert said({"O": 9})["G"] == "3"


def test_an_exit_status_of_0_can_abort_a_dag() -> None:
    world = World("JOB A a.sub\nJOB B a.sub\nABORT-DAG-ON A 0 RETURN 0\n").run()
    assert (world.labels("done"), world.labels("cancelled")) == (["A"], ["B"])


def test_an_abort_in_a_sub_dag_ends_this_sub_dag_and_may_abort_the_dag() -> None:
    Path("inner.dag").write_text("JOB X a.sub\nJOB Y a.sub\nABORT-DAG-ON X 3 RETURN 4\n")
    text = "SUBDAG EXTERNAL S inner.dag\nJOB Z a.sub\nPARENT S CHILD Z\nJOB O a.sub\nJOB P a.sub\nPARENT O CHILD P\n"
    world = World(text, {"S+X": 3}).run()
    assert "S+Y" in world.labels("cancelled") and world.labels("done") == ["O", "P"]
    world = World(text + "ABORT-DAG-ON S 4\n", {"S+X": 3}).run()
    assert world.labels("done") == [] or world.labels("done") == ["O"]


def test_an_abort_while_a_sub_dag_is_planned_gives_up_the_sub_dag() -> None:
    world = World(PLANNED + "JOB B a.sub\nABORT-DAG-ON B 1\n", {"B": 1, "A": 1}).run()
    assert world.labels("done") == ["F"]


def test_an_abort_overrides_retries() -> None:
    Path("flow.dag").write_text("JOB A a.sub\nRETRY A 5\nABORT-DAG-ON A 3\n")
    (task,) = node_tasks(read_dag("flow.dag"))
    assert '[ "$code" -eq 3 ]' in task.options["env"]["DAG_NODE"] and "retries" not in task.options


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ABORT-DAG-ON A\n", "Write: ABORT-DAG-ON NODE EXIT-CODE"),
        ("ABORT-DAG-ON A 300\n", "no exit status"),
        ("ABORT-DAG-ON A 3 RETURN x\n", "RETURN"),
        ("ABORT-DAG-ON A 3 MORE\n", "unexpected"),
        ("ABORT-DAG-ON B 3\n", "no node 'B'"),
    ],
)
def test_a_wrong_abort_line_is_refused(line: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        World("JOB A a.sub\n" + line)
    assert said in f"{caught.value} {caught.value.hint}"


def test_other_arguments_of_a_dag_file_are_refused() -> None:
    Path("flow.dag").write_text("JOB A a.sub\n")
    with pytest.raises(BadInput, match="takes no arguments"):
        load_dag("flow.dag", ["more"])
