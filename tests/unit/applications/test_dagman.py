from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilotfish.applications.dagman.dag_file import IGNORED_KEYWORDS, UNSUPPORTED_KEYWORDS, Dag, DagNode, read_dag
from pilotfish.applications.dagman.node_tasks import NodeTask, node_tasks, task_list
from pilotfish.errors import BadInput

SUB = "executable = /bin/echo\narguments = $(JOB) $(x:none)\nqueue\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.sub").write_text(SUB)


def dag(text: str, name: str = "flow.dag") -> Dag:
    Path(name).write_text(text)
    return read_dag(name)


def nodes(text: str) -> dict[str, DagNode]:
    return {node.name: node for node in dag(text).nodes}


def task(text: str, name: str = "A") -> NodeTask:
    return next(one for one in node_tasks(dag(text)) if one.node.name == name)


def described(*lines: str, more: str = "") -> NodeTask:
    return task("JOB A {\n" + "\n".join(lines) + "\n}\n" + more)


def run(one: NodeTask, attempt: int = 1) -> subprocess.CompletedProcess[str]:
    """As an agent would."""
    env = {"PATH": "/usr/bin:/bin", "PILOTFISH_ATTEMPT": str(attempt), "PILOTFISH_TASK": "3.4", **one.options.get("env", {})}
    return subprocess.run(one.argv, cwd=one.options["cwd"], env=env, text=True, capture_output=True, check=False)


def script(name: str, text: str) -> None:
    Path(name).write_text(f"#!/bin/sh\n{text}\n")
    Path(name).chmod(0o755)


# --- the graph --------------------------------------------------------------------------------------------------------------------------


def test_nodes_come_after_their_parents_whatever_the_order_of_lines() -> None:
    found = dag("parent B C child D\nPARENT A CHILD B C\nJOB D a.sub\nJOB C a.sub\nJob B a.sub\nJOB A a.sub\n")
    assert [node.name for node in found.nodes] == ["A", "C", "B", "D"]
    entries = task_list(found, node_tasks(found)).take()
    assert [tuple(entry.needs.after) for entry in entries] == [(), (0,), (0,), (2, 1)]


def test_comments_continued_lines_and_quotes() -> None:
    found = nodes("# one\n// two\nJOB A \\\n  a.sub\nJOB 'B' \"a.sub\"\n\nPARENT A \\\nCHILD B\n")
    assert list(found["B"].parents) == ["A"]


def test_what_is_said_of_all_nodes_is_said_of_each() -> None:
    found = nodes("JOB A a.sub\nJOB B a.sub\nRETRY all_nodes 3\nPRIORITY B 7\nRETRY B 1 UNLESS-EXIT 2\n")
    assert (found["A"].retries, found["B"].retries, found["B"].unless_exit, found["B"].priority) == (3, 1, 2, 7)


def test_nodes_that_are_done_are_left_out_and_nobody_waits_for_them() -> None:
    found = dag("JOB A a.sub DONE\nJOB B a.sub\nJOB C a.sub\nDONE B\nPARENT A B CHILD C\n")
    assert [tuple(entry.needs.after) for entry in task_list(found, node_tasks(found)).take()] == [()]


def test_the_latest_rescue_file_says_what_is_done() -> None:
    Path("flow.dag.rescue001").write_text("DONE A\n")
    Path("flow.dag.rescue010").write_text("# Rescue\nDONE A\nDONE B\nRETRY C 1\n")
    found = dag("JOB A a.sub\nJOB B a.sub\nJOB C a.sub\n")
    assert [node.name for node in found.nodes if not node.done] == ["C"]
    assert any("2 nodes" in notice for notice in found.notices)
    Path("flow.dag.rescue011").write_text("DONE X\n")
    with pytest.raises(BadInput, match=r"rescue011, line 1.*'X'"):
        read_dag("flow.dag")


def test_a_dag_of_which_all_is_done_says_so() -> None:
    made = dag("JOB A a.sub DONE\n")
    with pytest.raises(BadInput, match="every node is done"):
        task_list(made, node_tasks(made))


def test_a_splice_is_joined_at_its_ends() -> None:
    Path("inner.dag").write_text("JOB X a.sub\nJOB Y a.sub\nJOB Z a.sub\nPARENT X CHILD Y Z\nRETRY ALL_NODES 2\n")
    found = nodes(
        "JOB A a.sub\nJOB B a.sub\nSPLICE S inner.dag\nSPLICE T inner.dag\nPARENT A CHILD S\nPARENT S CHILD T\nPARENT T CHILD B\n"
    )
    assert list(found["S+X"].parents) == ["A"]
    assert list(found["S+Y"].parents) == ["S+X"]
    assert list(found["T+X"].parents) == ["S+Y", "S+Z"]
    assert list(found["B"].parents) == ["T+Y", "T+Z"]
    assert (found["S+X"].retries, found["A"].retries) == (2, None)


def test_a_splice_may_have_a_directory_of_its_own_and_splices_in_it() -> None:
    Path("d/e").mkdir(parents=True)
    Path("d/one.dag").write_text("SPLICE T two.dag DIR e\n")
    Path("d/e/two.dag").write_text("JOB X b.sub\n")
    Path("d/e/b.sub").write_text(SUB)
    (only,) = node_tasks(dag('SPLICE S one.dag DIR d\nVARS S+T+X x="1"\n'))
    assert only.argv == ["/bin/echo", "S+T+X", "1"]
    assert only.options["cwd"].endswith("/d/e")


def test_an_included_file_is_part_of_the_file() -> None:
    Path("more.dag").write_text("JOB B a.sub\nPARENT A CHILD B\n")
    assert list(nodes("INCLUDE more.dag\nJOB A a.sub\n")["B"].parents) == ["A"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("JOB A a.sub\nJOB A a.sub\n", r"line 2: there is already a node 'A' \(flow.dag, line 1\)"),
        ("JOB A a.sub\nPARENT A CHILD B\n", "line 2: there is no node 'B'"),
        ("JOB A a.sub\nJOB B a.sub\nPARENT A CHILD B\nPARENT B CHILD A\n", "wait for each other: .* -> .*"),
        ("JOB A a.sub\nPARENT A CHILD A\n", "wait for each other: A -> A"),
        ("JOB A a.sub\nPARENT A\n", "line 2: PARENT needs names"),
        ("JOB A a.sub\nRETRY A many\n", "line 2: RETRY: 'many' is not a whole number"),
        ("JOB A a.sub\nRETRY A 3 PLEASE\n", "line 2: 'PLEASE' is unexpected"),
        ("JOB A\n", "line 1: something is missing"),
        ("JOB A a.sub WHATEVER\n", "'WHATEVER' is unexpected"),
        ("JOB A+B a.sub\n", "cannot be the name"),
        ("JBO A a.sub\n", "line 1: unknown keyword 'JBO'"),
        ("JOB A a.sub\nVARS A x\n", "line 2: VARS: 'x' is not name="),
        ("JOB A 'a.sub\n", "a quote is not closed"),
        ("JOB A {\nexecutable = x\n", "the description does not end"),
        ("# nothing\n", "it has no nodes"),
        ("INCLUDE flow.dag\n", "contains itself"),
        ("SPLICE S flow.dag\n", "contains itself"),
        ("INCLUDE none.dag\n", "line 1: 'none.dag': no such file"),
        ("INCLUDE .\n", "line 1: '.': no such file"),
        ("JOB A a.sub\nSCRIPT AROUND A x\n", "SCRIPT AROUND is not understood"),
        *((f"JOB A a.sub\n{keyword} A 1 2\n", f"line 2: {keyword} is not supported") for keyword in UNSUPPORTED_KEYWORDS),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as error:
        dag(text)
    assert error.value.hint


@pytest.mark.parametrize("keyword", IGNORED_KEYWORDS)
def test_what_has_no_effect_is_said_and_passed_over(keyword: str) -> None:
    (notice,) = dag(f"JOB A a.sub\n{keyword} x y\n").notices
    assert f"flow.dag, line 2: {keyword} has no effect" in notice


# --- submit descriptions ----------------------------------------------------------------------------------------------------------------


def test_vars_are_macros_of_the_description_which_has_the_last_word_unless_they_are_appended() -> None:
    text = "executable = /bin/echo\nx = own\narguments = $(x) $(y) $(z:default)\n"
    Path("v.sub").write_text(text)
    assert task('JOB A v.sub\nVARS A x="a" y="say \\"hi\\""').argv[1:] == ["own", "say", '"hi"', "default"]
    assert task('JOB A v.sub\nVARS A APPEND x="a" z=3').argv[1:] == ["a", "3"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("one two", ["one", "two"]),
        (r"one \"two\"", ["one", '"two"']),
        ("\"one 'two words' 'it''s' \"\"x\"\" ''\"", ["one", "two words", "it's", '"x"', ""]),
        ("$ENV(HOME_OF_TEST) $(DOLLAR)5", ["at-home", "$5"]),
        ("$(Cluster).$(Process)", ["1.0"]),
    ],
)
def test_both_forms_of_arguments(line: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME_OF_TEST", "at-home")
    assert described("executable = /bin/echo", f"arguments = {line}").argv == ["/bin/echo", *words]


@pytest.mark.parametrize("line", ["A=1;B=two words", "\"A=1 'B=two words'\""])
def test_both_forms_of_the_environment(line: str) -> None:
    assert described("executable = /bin/env", f"environment = {line}").options["env"] == {"A": "1", "B": "two words"}


def test_what_a_job_asks_for_is_asked_for() -> None:
    options = described(
        "executable = /bin/true", "request_cpus = 2", "request_memory = 1.5 GB", "request_gpus = 1", "max_retries = 4", more="PRIORITY A -3"
    ).options
    assert (options["cores"], options["memory"], options["gpus"], options["retries"], options["priority"]) == (2, 3 << 29, 1, 4, -3)
    assert described("executable = /bin/true", "request_memory = 100").options["memory"] == 100 << 20


def test_a_description_may_be_shared_and_have_an_end_of_its_own() -> None:
    found = dag("SUBMIT-DESCRIPTION echo @=end\nexecutable = /bin/echo\narguments = $(JOB)\n@end\nJOB A echo\nJOB B echo DONE\n")
    assert [one.argv for one in node_tasks(found)] == [["/bin/echo", "A"]]


def test_a_bare_name_is_a_program_of_the_directory() -> None:
    script("tool", "echo mine")
    one = described("executable = tool")
    assert run(one).stdout == "mine\n"
    assert one.options["name"] == "tool"
    assert described("executable = sh").argv == ["sh"]


@pytest.mark.parametrize("count", [1, 2])
def test_an_earlier_node_or_the_pre_script_may_create_the_directory_of_a_job(count: int) -> None:
    script("make.sh", 'mkdir -p "$1"')
    Path("touch.sub").write_text(f"executable = /usr/bin/touch\narguments = $(Process)\ninitialdir = scratch/$(JOB)\nqueue {count}\n")
    text = (
        "JOB Create {\nexecutable = make.sh\narguments = scratch/Later\n}\n"
        "JOB Later touch.sub\nPARENT Create CHILD Later\n"
        "JOB Planned touch.sub\nSCRIPT PRE Planned make.sh scratch/Planned\nFINAL End touch.sub\n"
    )
    for one in node_tasks(dag(text)):
        if one.node.name != "End":
            assert run(one).returncode == 0
    made = {str(path) for path in Path().glob("scratch/*/*")}
    assert made == {f"scratch/{node}/{place}" for node in ("Later", "Planned") for place in range(count)}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["arguments = x"], "there is no executable"),
        (["executable = none"], "the program 'none' does not exist"),
        (["executable = a.sub"], "may not be executed"),
        (["executable = /bin/true", "queue 0"], "line 3: 'queue 0' is not queue with a number"),
        (["executable = /bin/true", "queue x in (a b)"], "is not queue with a number"),
        (["executable = /bin/true", "queue", "queue"], "there is more after"),
        (["executable = /bin/true", "universe = docker"], "line 3: universe = docker is not supported"),
        (["executable = /bin/true", "request_cpus = few"], "line 3: request_cpus = few is not a whole number"),
        (["executable = /bin/true", "request_memory = much"], "not a size"),
        (["executable = /bin/true", 'arguments = "a'], 'line 3: arguments = "a: a double quote'),
        (["executable = /bin/true", "environment = A"], "is not NAME=VALUE"),
        (["executable = /bin/true", "if true"], "if is not supported"),
        (["executable = /bin/true", "gibberish"], "is not NAME = VALUE"),
        (["executable = $(a)", "a = $(b)", "b = $(a)"], "a macro uses itself"),
        (["executable = $INT(a)"], "is not supported"),
        (["executable = /bin/true", "transfer_input_files = http://x/y"], "is a URL"),
        (["executable = /bin/true", 'transfer_output_remaps = "a"'], "line 3: transfer_output_remaps: 'a' is not FILE = FILE"),
        (["executable = /bin/true", 'transfer_output_remaps = "a=http://x/y"'], "is not FILE = FILE"),
        (
            ["executable = /bin/true", "transfer_output_files = d", 'transfer_output_remaps = "d/x=y"'],
            "line 4: transfer_output_remaps: 'd/x' is not in transfer_output_files",
        ),
        (["executable = /bin/true", "initialdir = nowhere"], "is not a directory"),
    ],
)
def test_what_is_wrong_with_a_description_is_said(lines: list[str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        described(*lines)


def test_macros_that_double_again_and_again_do_not_fill_the_memory() -> None:
    doubling = [f"m{number} = $(m{number + 1})$(m{number + 1})" for number in range(60)]
    for last in ("", "x" * 1000):
        with pytest.raises(BadInput):
            described("executable = $(m0)", *doubling, f"m60 = {last}")
    with pytest.raises(BadInput, match="characters"):
        described("executable = /bin/true", "a = xxxxxxxxxx", *["a = $(a)$(a)"] * 60)


# --- what a node does -------------------------------------------------------------------------------------------------------------------


def test_streams_go_to_files_of_the_directory() -> None:
    Path("d").mkdir()
    Path("d/in.txt").write_text("given\n")
    one = described(
        "executable = /bin/sh",
        "arguments = \"-c 'cat; echo oops >&2'\"",
        "input = in.txt",
        "output = o.$(JOB)",
        "error = e",
        "initialdir = d",
    )
    assert run(one).returncode == 0
    assert (Path("d/o.A").read_text(), Path("d/e").read_text()) == ("given\n", "oops\n")


@pytest.mark.parametrize("more", [(), ("transfer_input_files = in.txt",)], ids=["here", "scratch"])
def test_a_failed_job_shows_the_end_of_its_error_file_and_the_name_of_the_file(more: tuple[str, ...]) -> None:
    Path("in.txt").write_text("")
    lines = ("executable = /bin/sh", "error = plot of $(JOB).err", *more)
    said = run(described(*lines, "arguments = \"-c 'seq 1 20 >&2; printf broken >&2; exit 2'\""))
    assert said.returncode == 2 and said.stdout == ""
    assert said.stderr.splitlines()[0] == "plot of A.err: 12" and said.stderr.endswith("\nplot of A.err: broken\n")
    assert run(described(*lines, "arguments = \"-c 'exit 3'\"")).stderr == "plot of A.err is empty\n"
    succeeded = run(described(*lines, "arguments = \"-c 'echo fine >&2'\""))
    assert (succeeded.returncode, succeeded.stderr) == (0, "")


def scripted(exit_code: int, more: str) -> NodeTask:
    script("pre.sh", 'echo "pre $@"; exit ${PRE:-0}')
    script("post.sh", 'echo "post $@"; exit ${POST:-0}')
    return described(
        "executable = /bin/sh", f"arguments = \"-c 'echo job; exit {exit_code}'\"", more=f"SCRIPT PRE A pre.sh $JOB $RETRY\n{more}"
    )


def with_env(one: NodeTask, **env: str) -> NodeTask:
    return one._replace(options={**one.options, "env": {**one.options["env"], **env}})


def test_scripts_run_before_and_after_and_the_last_one_decides() -> None:
    one = scripted(
        5, "RETRY A 2\nSCRIPT POST A post.sh $NODE $RETURN $MAX_RETRIES $PRE_SCRIPT_RETURN $SUCCESS $JOBID $NODE_COUNT x$RETURN\n"
    )
    ended = run(one, attempt=2)
    assert ended.stdout == "pre A 1\njob\npost A 5 2 0 False 3.4 1 x$RETURN\n"
    assert ended.returncode == 0
    assert run(with_env(one, POST="3")).returncode == 3
    assert one.options["retries"] == 2


def test_without_a_post_script_the_job_decides() -> None:
    assert run(scripted(5, "")).returncode == 5
    assert run(scripted(0, "")).returncode == 0


def test_when_the_pre_script_fails_the_node_fails_and_nothing_else_runs() -> None:
    one = with_env(scripted(0, "SCRIPT POST A post.sh\n"), PRE="9")
    ended = run(one)
    assert (ended.stdout, ended.returncode) == ("pre A 0\n", 9)
    skipped = run(with_env(scripted(0, "SCRIPT POST A post.sh\nPRE_SKIP A 9\n"), PRE="9"))
    assert (skipped.stdout, skipped.returncode) == ("pre A 0\n", 0)


def test_a_job_that_a_signal_ended_returns_the_negative_number() -> None:
    script("post.sh", 'echo "$@"')
    one = described("executable = /bin/sh", "arguments = \"-c 'kill -9 $$'\"", more="SCRIPT POST A post.sh $RETURN\n")
    assert run(one).stdout == "-9\n"


def test_unless_exit_ends_the_retries() -> None:
    script("tool", 'echo x >> count; [ "$(wc -l < count)" -ge 3 ] && exit 7; exit 1')
    one = described("executable = tool", more="RETRY A 5 UNLESS-EXIT 7\n")
    assert run(one).returncode == 7
    assert Path("count").read_text().count("x") == 3
    assert "retries" not in one.options


def test_the_number_of_the_try_reaches_arguments_environment_and_names_of_files() -> None:
    one = described(
        "executable = /bin/sh",
        "arguments = \"-c 'echo $0 $T' try-$(RETRY)\"",
        "environment = T=t$(RETRY)",
        "output = out.$(RETRY)",
        more="RETRY A 3\n",
    )
    assert run(one, attempt=3).returncode == 0
    assert Path("out.2").read_text() == "try-2 t2\n"


def test_files_that_travel_go_to_a_directory_of_its_own_and_back() -> None:
    Path("data/deep").mkdir(parents=True)
    for name in ("data/x.txt", "data/deep/y.txt", "-odd name.txt"):
        Path(name).write_text(name)
    script("tool", "ls; cat x.txt > made.txt; cat y.txt > other.txt; echo changed > x.txt; exit ${CODE:-0}")
    lines = ["executable = tool", "transfer_input_files = data/x.txt, data/deep/, -odd name.txt", "output = list"]
    one = described(*lines)
    assert run(one).returncode == 0
    assert Path("list").read_text().split("\n")[:3] == ["-odd name.txt", "x.txt", "y.txt"]
    assert (Path("made.txt").read_text(), Path("data/x.txt").read_text()) == ("data/x.txt", "data/x.txt")
    assert not Path("x.txt").exists()
    assert not Path("y.txt").exists()
    assert run(with_env(one, CODE="4")).returncode == 4
    for name in ("made.txt", "other.txt"):
        Path(name).unlink()
    assert run(described(*lines, "transfer_output_files = made.txt")).returncode == 0
    assert (Path("made.txt").exists(), Path("other.txt").exists()) == (True, False)
    assert run(described(*lines, "transfer_output_files = missing.txt")).returncode == 1
    assert "cat: x.txt" in run(described(*lines, "should_transfer_files = NO")).stderr


@pytest.mark.parametrize("listed", [(), ("transfer_output_files = made.txt, deep/own.txt, folder, odd;name",)])
def test_outputs_go_where_transfer_output_remaps_says(listed: tuple[str, ...]) -> None:
    Path("work/kept").mkdir(parents=True)
    script(
        "tool",
        "mkdir deep folder; touch folder/in; for name in made.txt plain.txt deep/own.txt 'odd;name'; do echo $name > \"$name\"; done",
    )
    remaps = 'transfer_output_remaps = "made.txt = results/$(JOB)/made.txt; folder = kept ;odd\\;name=a=b;plain.txt=p.txt"'
    for _ in range(2):
        done = run(described("executable = ../tool", "initialdir = work", "should_transfer_files = YES", remaps, *listed))
        assert (done.returncode, done.stderr) == (0, "")
    expected = {"results/A/made.txt", "a=b"} | ({"own.txt", "kept/in"} if listed else {"p.txt"})
    assert {str(path.relative_to("work")) for path in Path("work").rglob("*") if path.is_file()} == expected
    missing = described("executable = /bin/true", "transfer_output_files = made.txt", 'transfer_output_remaps = "made.txt=new.txt"')
    assert run(missing).returncode == 1


def test_a_node_without_a_job_only_runs_its_scripts() -> None:
    script("pre.sh", "echo pre")
    one = task("JOB A none.sub NOOP\nSCRIPT PRE A pre.sh\n")
    assert (run(one).stdout, run(one).returncode) == ("pre\n", 0)


def test_a_script_may_not_ask_for_what_nobody_can_know() -> None:
    for line in ("SCRIPT PRE A x.sh $RETURN", "SCRIPT POST A x.sh $FAILED_COUNT"):
        with pytest.raises(BadInput, match=r"flow.dag, line 2: \$.* is not known"):
            task(f"JOB A a.sub\n{line}\n")


@pytest.mark.parametrize("word", ["$(touch hacked)", "`touch hacked`", "; touch hacked", "' ; touch hacked ; '", "a\\b", "*"])
def test_no_word_is_taken_for_shell(word: str) -> None:
    Path("s.sub").write_text("executable = /bin/echo\noutput = out\narguments = \"'$(x)'\"\n")
    quoted = word.replace("'", "''").replace("$(", "$(DOLLAR)(").replace("\\", "\\\\").replace('"', '\\"')
    assert run(task(f'JOB A s.sub\nVARS A x="{quoted}"\n')).returncode == 0
    assert Path("out").read_text() == f"{word}\n"
    assert not Path("hacked").exists()


# --- hostile input ----------------------------------------------------------------------------------------------------------------------

KEYWORDS = [
    "JOB",
    "PARENT",
    "CHILD",
    "RETRY",
    "UNLESS-EXIT",
    "SCRIPT",
    "PRE",
    "POST",
    "VARS",
    "PRIORITY",
    "SPLICE",
    "INCLUDE",
    "DONE",
    "DIR",
    "SUBDAG EXTERNAL",
    "FINAL",
    "CATEGORY",
    "MAXJOBS",
]
WORDS = st.sampled_from(
    [
        *KEYWORDS,
        "NOOP",
        "ALL_NODES",
        "A",
        "B",
        "a.sub",
        "b.sub",
        "flow.dag",
        "{",
        "}",
        "@=x",
        "@x",
        'k="v"',
        "k=",
        '"',
        "'",
        "\\",
        "\0",
        "1",
        "-1",
        ".",
    ]
)
LINES = st.lists(st.lists(WORDS | st.text(max_size=6), max_size=7).map(" ".join), max_size=8).map("\n".join)
DESCRIPTIONS = st.lists(
    st.tuples(
        st.sampled_from(["executable", "arguments", "environment", "request_memory", "queue", "x", "input", "transfer_input_files", "if"]),
        st.sampled_from(["=", " = ", " ", ""]),
        st.sampled_from(["$(x)", "$(x:$(x))", '"', "'", "/bin/echo", "$ENV(", "$$(", "\0", "queue", "1G"]) | st.text(max_size=8),
    ).map("".join),
    max_size=6,
).map("\n".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(LINES, DESCRIPTIONS)
def test_nothing_but_bad_input_comes_of_any_text(text: str, description: str) -> None:
    Path("b.sub").write_text(description, encoding="utf-8", errors="replace")
    Path("flow.dag").write_text(f"JOB N b.sub\n{text}", encoding="utf-8", errors="replace")
    try:
        read = read_dag("flow.dag")
        task_list(read, node_tasks(read))
    except BadInput as problem:
        assert str(problem)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"JOB A a.sub\nPARENT \xc3\x28", b"\0" * 100])
def test_bytes_that_are_no_text_are_refused(content: bytes) -> None:
    Path("flow.dag").write_bytes(content)
    with pytest.raises(BadInput):
        read_dag("flow.dag")


def test_files_that_include_each_other_without_end_are_refused() -> None:
    for number in range(40):
        Path(f"{number}.dag").write_text(f"INCLUDE {number + 1}.dag\nINCLUDE {number + 1}.dag\n")
    Path("40.dag").write_text("")
    with pytest.raises(BadInput, match="too many files"):
        read_dag("0.dag")


def test_too_many_dependencies_in_one_line_are_refused_before_they_are_made() -> None:
    names = [f"n{number}" for number in range(3000)]
    jobs: Any = "".join(f"JOB {name} a.sub NOOP\n" for name in names)
    with pytest.raises(BadInput, match="too many"):
        dag(f"{jobs}PARENT {' '.join(names[:1])} {' '.join(names[1:])} CHILD {' '.join(names)}\n")
