"""DAGMan files: categories, FINAL nodes, sub-DAGs and nodes with several jobs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pilotfish.applications.dagman.dag_file import read_dag
from pilotfish.applications.dagman.node_tasks import NodeTask, dependencies, done_node_names, node_tasks
from pilotfish.errors import BadInput

INNER = "JOB X a.sub\nJOB Y a.sub\nPARENT X CHILD Y\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.sub").write_text("executable = /bin/echo\narguments = $(JOB) $(Process)\nqueue $(n:1)\n")
    Path("inner.dag").write_text(INNER)


def tasks(text: str) -> list[NodeTask]:
    Path("flow.dag").write_text(text)
    return list(node_tasks(read_dag("flow.dag")))


def graph(text: str) -> dict[str, tuple[list[str], list[str]]]:
    """By label: labels of the tasks that must succeed before, and of those that must end before."""
    found = tasks(text)
    edges = ([[found[place].label for place in places] for places in both] for both in dependencies(found))
    return {task.label: (after, after_any) for task, (after, after_any) in zip(found, edges, strict=True)}


def limits(text: str) -> dict[str, tuple[str, int] | None]:
    return {task.label: task.options.get("concurrency_limit") for task in tasks(text)}


def run(one: NodeTask, failed: int) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "PILOTFISH_FAILED_DEPENDENCIES": str(failed), **one.options.get("env", {})}
    return subprocess.run(one.argv, cwd=one.options["cwd"], env=env, text=True, capture_output=True, check=False)


# --- categories -------------------------------------------------------------------------------------------------------------------------


def test_maxjobs_limits_the_nodes_of_a_category() -> None:
    text = "JOB A a.sub\nJOB B a.sub\nJOB C a.sub\nCATEGORY A big\nCATEGORY B other\nMAXJOBS big 2\n"
    assert limits(text) == {"A": ("big", 2), "B": None, "C": None}
    assert limits(text + "MAXJOBS big 0\n")["A"] is None


def test_a_category_of_a_splice_is_its_own_unless_its_name_begins_with_a_plus() -> None:
    Path("splice.dag").write_text("JOB X a.sub\nJOB Y a.sub\nCATEGORY X one\nCATEGORY Y +all\nMAXJOBS one 1\n")
    text = "SPLICE S splice.dag\nJOB A a.sub\nCATEGORY A +all\nMAXJOBS +all 3\n"
    assert limits(text) == {"A": ("+all", 3), "S+X": ("S+one", 1), "S+Y": ("+all", 3)}


def test_a_category_of_a_sub_dag_has_no_effect_and_a_limit_for_it_is_mentioned() -> None:
    text = "SUBDAG EXTERNAL S inner.dag\nCATEGORY S plans\n"
    assert set(limits(text + "MAXJOBS plans 1\n").values()) == {None}
    assert "MAXJOBS plans has no effect on the sub-DAG S" in read_dag_notices(text + "MAXJOBS plans 1\n")
    assert read_dag_notices(text) == ""
    Path("flow.dag").write_text(text + "MAXJOBS plans 1\n")
    dag = read_dag("flow.dag")
    assert len(list(node_tasks(dag))) == len(list(node_tasks(dag))) and len(dag.notices) == 1


def test_a_job_whose_program_is_in_its_vars_is_no_sub_dag() -> None:
    Path("b.sub").write_text("executable = $(prog)\nlog = dagman.log\nqueue\n")
    assert [task.argv for task in tasks('JOB A b.sub\nVARS A prog="/bin/echo"\n')] == [["/bin/echo"]]


# --- FINAL ------------------------------------------------------------------------------------------------------------------------------


def test_a_final_node_comes_after_the_end_of_all_others() -> None:
    assert graph("FINAL F a.sub\nJOB A a.sub\nJOB B a.sub\nPARENT A CHILD B\n") == {
        "A": ([], []),
        "B": (["A"], []),
        "F": ([], ["A", "B"]),
    }


def test_a_final_node_knows_how_the_dag_stands() -> None:
    Path("f.sub").write_text("executable = /bin/echo\narguments = $(DAG_STATUS) $(FAILED_COUNT)\nqueue\n")
    script = Path("post.sh")
    script.write_text('#!/bin/sh\necho "post $*"\n')
    script.chmod(0o755)
    final = tasks("JOB A a.sub\nFINAL F f.sub\nSCRIPT POST F post.sh $DAG_STATUS $FAILED_COUNT $RETURN\n")[-1]
    assert run(final, 0).stdout == "0 0\npost 0 0 0\n"
    assert run(final, 3).stdout == "2 3\npost 2 3 0\n"
    assert run(tasks("JOB A a.sub\nFINAL F f.sub\n")[-1], 1).stdout == "2 1\n"


def test_a_final_node_is_never_done() -> None:
    Path("flow.dag").write_text("JOB A a.sub\nJOB B a.sub\nFINAL F a.sub\n")
    dag = read_dag("flow.dag")
    assert done_node_names(dag, list(node_tasks(dag)), [0, 2]) == ["A"]


# --- sub-DAGs ---------------------------------------------------------------------------------------------------------------------------


def test_the_nodes_of_a_sub_dag_run_between_its_parents_and_its_children() -> None:
    assert graph("JOB A a.sub\nSUBDAG EXTERNAL S inner.dag\nJOB B a.sub\nPARENT A CHILD S\nPARENT S CHILD B\n") == {
        "A": ([], []),
        "S+X": (["A"], []),
        "S+Y": (["S+X"], []),
        "S": (["S+Y"], []),
        "B": (["S"], []),
    }


def test_scripts_of_a_sub_dag_run_before_and_after_it_and_the_last_one_decides() -> None:
    script = Path("s.sh")
    script.write_text('#!/bin/sh\necho "$*"\n')
    script.chmod(0o755)
    text = "JOB A a.sub\nSUBDAG EXTERNAL S inner.dag\nPARENT A CHILD S\nSCRIPT PRE S s.sh pre $JOB\nSCRIPT POST S s.sh $JOB $RETURN\n"
    assert graph(text) == {
        "A": ([], []),
        "S++PRE": (["A"], []),
        "S+X": (["S++PRE"], []),
        "S+Y": (["S+X"], []),
        "S": (["S++PRE"], ["S+X", "S+Y"]),
    }
    found = {task.label: task for task in tasks(text)}
    assert run(found["S++PRE"], 0).stdout == "pre S\n"
    assert (found["S++PRE"].command, found["S"].command) == ("s.sh pre '$JOB'", "s.sh '$JOB' '$RETURN'")
    assert (run(found["S"], 0).stdout, run(found["S"], 2).stdout) == ("S 0\n", "S 1\n")


def test_the_final_node_of_a_sub_dag_decides_whether_it_succeeds() -> None:
    Path("inner.dag").write_text(INNER + "FINAL F a.sub\n")
    found = graph("JOB A a.sub\nSUBDAG EXTERNAL S inner.dag\nPARENT A CHILD S\n")
    assert (found["S+F"], found["S"]) == ((["A"], ["S+X", "S+Y"]), (["S+F"], []))


def test_a_final_node_counts_only_failures_that_decide() -> None:
    Path("own.dag").write_text(INNER + "FINAL G a.sub\n")
    text = "SUBDAG EXTERNAL S inner.dag\nSUBDAG EXTERNAL T own.dag\nSUBDAG EXTERNAL U inner.dag\nSCRIPT POST U s.sh\nFINAL F a.sub\n"
    found = graph(text + "SCRIPT PRE T s.sh\n")
    assert sorted(found["F"][1]) == ["S", "S+X", "S+Y", "T", "T++PRE", "T+G", "U"]
    assert sorted(found["U"][1]) == ["U+X", "U+Y"]


def test_sub_dags_may_be_in_sub_dags_and_splices_and_have_a_directory() -> None:
    Path("d").mkdir()
    Path("d/low.dag").write_text("JOB L b.sub\n")
    Path("d/b.sub").write_text("executable = /bin/echo\nqueue\n")
    Path("inner.dag").write_text(INNER + "SUBDAG EXTERNAL T low.dag DIR d\nPARENT Y CHILD T\n")
    Path("splice.dag").write_text("SUBDAG EXTERNAL S inner.dag\n")
    found = graph("SPLICE P splice.dag\nJOB A a.sub\nJOB B a.sub\nPARENT A CHILD P\nPARENT P CHILD B\n")
    assert (found["P+S+X"][0], found["P+S+T+L"][0], found["P+S+T"][0]) == (["A"], ["P+S+Y"], ["P+S+T+L"])
    assert (found["P+S"][0], found["B"][0]) == (["P+S+T"], ["P+S"])


def test_a_node_of_a_sub_dag_sees_the_names_of_its_own_dag() -> None:
    Path("n.sub").write_text("executable = /bin/echo\narguments = $(JOB) '$(DAG_PARENT_NAMES)'\noutput = $(JOB).out\nqueue\n")
    script = Path("s.sh")
    script.write_text('#!/bin/sh\necho "$*"\n')
    script.chmod(0o755)
    Path("splice.dag").write_text("JOB W n.sub\n")
    Path("inner.dag").write_text(
        "JOB X n.sub\nJOB Y n.sub\nSPLICE P splice.dag\nPARENT X CHILD Y P\nSCRIPT POST Y s.sh $JOB $NODE $NODE_COUNT\n"
    )
    found = tasks("JOB A n.sub\nSUBDAG EXTERNAL S inner.dag\nPARENT A CHILD S\nSCRIPT PRE S s.sh $JOB\nJOB B n.sub\nPARENT S CHILD B\n")
    said = {task.label: run(task, 0).stdout for task in found}
    assert (said["S++PRE"], said["S+Y"]) == ("S\n", "Y Y 3\n")
    outputs = {path.name: path.read_text().split() for path in Path().glob("*.out")}
    assert outputs == {
        "A.out": ["A", "''"],
        "X.out": ["X", "''"],
        "Y.out": ["Y", "'X'"],
        "P+W.out": ["P+W", "'X'"],
        "B.out": ["B", "'S'"],
    }


def test_retries_of_a_sub_dag_multiply_those_of_its_nodes() -> None:
    Path("inner.dag").write_text(INNER + "RETRY X 2\n")
    found = {task.label: task.options.get("retries") for task in tasks("SUBDAG EXTERNAL S inner.dag\nRETRY S 1\n")}
    assert found == {"S+X": 5, "S+Y": 1, "S": 1}


def test_a_rescue_file_that_names_a_sub_dag_means_all_its_nodes() -> None:
    Path("flow.dag.rescue001").write_text("DONE S\n")
    assert list(graph("SUBDAG EXTERNAL S inner.dag\nJOB B a.sub\nPARENT S CHILD B\n")) == ["B"]


# --- several jobs -----------------------------------------------------------------------------------------------------------------------


def test_a_node_with_several_jobs_succeeds_if_all_do() -> None:
    text = 'JOB A a.sub\nVARS A n="3"\nJOB B a.sub\nPARENT A CHILD B\n'
    assert graph(text) == {"A.0": ([], []), "A.1": ([], []), "A.2": ([], []), "B": (["A.0", "A.1", "A.2"], [])}
    assert [task.argv for task in tasks(text)][:3] == [["/bin/echo", "A", str(place)] for place in range(3)]
    Path("flow.dag").write_text(text)
    dag = read_dag("flow.dag")
    assert done_node_names(dag, list(node_tasks(dag)), [0, 2, 3]) == ["B"]
    assert done_node_names(dag, list(node_tasks(dag)), [0, 1, 2]) == ["A"]


def test_scripts_of_a_node_with_several_jobs_run_once() -> None:
    script = Path("s.sh")
    script.write_text('#!/bin/sh\necho "$*"\n')
    script.chmod(0o755)
    text = 'JOB A a.sub\nVARS A n="2"\nSCRIPT PRE A s.sh pre\nSCRIPT POST A s.sh $RETURN $JOB_COUNT\nJOB B a.sub\nPARENT A CHILD B\n'
    assert graph(text) == {
        "A.PRE": ([], []),
        "A.0": (["A.PRE"], []),
        "A.1": (["A.PRE"], []),
        "A.POST": (["A.PRE"], ["A.0", "A.1"]),
        "B": (["A.POST"], []),
    }
    assert run(tasks(text)[3], 1).stdout == "1 2\n"
    Path("flow.dag").write_text(text)
    dag = read_dag("flow.dag")
    assert done_node_names(dag, list(node_tasks(dag)), [0, 1, 3]) == ["A"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("JOB A a.sub\nFINAL F a.sub\nPARENT A CHILD F\n", "line 3: the FINAL node 'F' has a parent or a child"),
        ("FINAL F a.sub\nFINAL G a.sub\n", "line 2: there is already a FINAL node"),
        ("SPLICE S final.dag\n", "line 2: a splice cannot have a FINAL node"),
        ("SUBDAG S inner.dag\n", "line 1: SUBDAG needs the word EXTERNAL"),
        ("SUBDAG EXTERNAL S gone.dag\n", "line 1: the sub-DAG file 'gone.dag' does not exist"),
        ("SUBDAG EXTERNAL S flow.dag\n", "contains itself"),
        ("SUBDAG EXTERNAL S inner.dag\nRETRY S 1 UNLESS-EXIT 2\n", "UNLESS-EXIT of the sub-DAG 'S' is not supported"),
        ("SUBDAG EXTERNAL S inner.dag\nPRE_SKIP S 1\n", "PRE_SKIP of the sub-DAG 'S' is not supported"),
        ("JOB A a.sub\nMAXJOBS x -1\n", "line 2: MAXJOBS: '-1' is not a whole number"),
        ('JOB A a.sub\nVARS A n="2"\nPRE_SKIP A 1\n', "PRE_SKIP of a node with 2 jobs is not supported"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, said: str) -> None:
    Path("final.dag").write_text("JOB A a.sub\nFINAL F a.sub\n")
    with pytest.raises(BadInput, match=said) as error:
        tasks(text)
    assert error.value.hint


def test_retries_of_a_node_with_several_jobs_and_a_post_script_repeat_all_of_it() -> None:
    Path("many.sub").write_text(
        "executable = /bin/sh\narguments = \"-c 'echo job $(Process) $WHICH >> log; exit `cat status.$(Process)`'\"\n"
        'environment = "WHICH=$(Process)"\nqueue 3\n'
    )
    for number, status in enumerate((0, 4, 0)):
        Path(f"status.{number}").write_text(str(status))
    script = Path("post.sh")
    script.write_text('#!/bin/sh\necho "post $*" >> log\n[ -e good ]\n')
    script.chmod(0o755)
    text = "JOB A many.sub\nSCRIPT POST A post.sh $RETURN\nRETRY A 2\n"
    (task,) = tasks(text)
    assert (task.label, task.options["retries"]) == ("A", 2)
    assert run(task, 0).returncode == 1
    assert Path("log").read_text().splitlines() == ["job 0 0", "job 1 1", "post 4"]
    Path("good").touch()
    Path("status.1").write_text("0")
    assert run(task, 0).returncode == 0
    assert Path("log").read_text().splitlines()[3:] == ["job 0 0", "job 1 1", "job 2 2", "post 0"]
    assert "one after the other" in read_dag_notices(text)


def read_dag_notices(text: str) -> str:
    Path("flow.dag").write_text(text)
    dag = read_dag("flow.dag")
    list(node_tasks(dag))
    return "\n".join(dag.notices)
