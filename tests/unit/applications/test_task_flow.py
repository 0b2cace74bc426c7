from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish.applications.sweeps.task_list_file import TaskFile, read_task_file
from pilotfish.client.descriptions.run_options import RunRequest
from pilotfish.client.descriptions.task_source import TaskSource, make_source
from pilotfish.errors import BadInput

ENVIRON = {"PATH": "/usr/bin:/bin"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(text: str) -> TaskFile:
    Path("tasks.txt").write_text(text)
    return read_task_file("tasks.txt")


def source(text: str, **wording: object) -> TaskSource:
    Path("tasks.txt").write_text(text)
    return make_source(RunRequest(task_list="tasks.txt", **wording), ENVIRON)  # type: ignore[arg-type]


def test_a_task_waits_for_those_that_its_after_names_wherever_they_stand() -> None:
    listed = read("after=b,c echo last\n# comment\nid=b echo b\nid=c after=b echo c\necho alone\n")
    assert [task.argv[1] for task in listed] == ["b", "alone", "c", "last"]
    assert listed.flow is not None
    assert listed.flow.parents == ((), (), (0,), (0, 2))


def test_who_needs_a_file_waits_for_who_makes_it() -> None:
    listed = read("in=./mid.txt,x/../raw.txt out=end.txt sort mid.txt\nin=raw.txt out=mid.txt cp raw.txt mid.txt\n")
    assert listed.flow is not None
    assert listed.flow.order == (1, 0)
    assert listed.flow.parents == ((), (0,))
    assert listed.flow.files == {"mid.txt"}


def test_tasks_that_need_nothing_of_each_other_are_as_before() -> None:
    assert read("in=a out=b ./x\nin=a out=b ./x\nid=c ./y\n").flow is None
    assert read("in=a out=a ./x\nin=a out=a ./x\n").flow is None, "each changes its own copy"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("out=x echo 1\nout=x echo 2\nin=x echo 3\n", "line 3: in=x: lines 1 and 2 both make it"),
        ("in=a out=b echo 1\nin=b out=a echo 2\n", r"tasks of lines \d, \d wait for each other"),
        ("id=a after=a echo 1\n", "the task of line 1 waits for itself"),
        ("after=nobody echo 1\n", "line 1: after=nobody: no task has that id"),
        ("id=a echo 1\n\nid=a echo 2\n", "line 3: id=a is already that of line 1"),
        ("after=a,,b echo 1\n", "line 1: after=a,,b has an empty name"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        read(text)


def test_tasks_that_make_files_for_each_other_run_in_this_directory() -> None:
    Path("raw.txt").write_text("1\n")
    found = source("in=raw.txt out=mid.txt cp raw.txt mid.txt\nin=mid.txt out=end.txt ./made\nout=made,other touch made\nin=made ./made\n")
    assert not found.launch.sandbox
    assert [found.parents(place) for place in range(found.count)] == [(), (), (0,), (1,)]
    assert all(not task.inputs for task, _, _ in found.described())
    assert all(task.outputs for task, _, _ in list(found.described())[:3]), "they must be there in the end"


def test_tasks_that_only_wait_may_still_have_files_that_travel() -> None:
    Path("raw.txt").write_text("1\n")
    found = source("id=a in=raw.txt out=x echo 1\nafter=a out=x echo 2\n")
    assert found.launch.sandbox
    assert found.parents(1) == (0,)


@pytest.mark.parametrize("wording", [{"sandbox": True}, {"outputs": ("y",)}, {"keep": ("y",)}, {"inputs": ("tasks.txt",)}])
def test_where_tasks_have_directories_of_their_own_the_files_go_from_one_to_the_next(wording: dict[str, object]) -> None:
    Path("raw.txt").write_text("1\n")
    Path("prog").write_text("an old one")
    text = "in=./x,raw.txt,prog ./prog x\nout=x,y touch x y\nout=./prog cc\nid=alone out=z touch z\n"
    found = source(text.replace("cc", "touch prog"), **wording)
    assert found.launch.sandbox
    tasks = [task for task, _, _ in found.described()]
    user = next(place for place, task in enumerate(tasks) if task.argv[0] == "./prog")
    future_files = {file.name: tasks[file.maker].argv for file in found.future_files(user)}
    assert future_files == {"x": ("touch", "x", "y"), "prog": ("touch", "prog")}
    assert set(tasks[user].inputs) == {"raw.txt"}, "what is made is not taken from here"
    assert [task.keep for task in tasks if task.outputs] == [("x",), ("prog",), ()]
    assert all(not found.future_files(place) for place in range(found.count) if place != user)


def test_who_changes_a_file_has_it_from_here_and_others_have_it_from_there() -> None:
    Path("x").write_text("1\n")
    found = source("in=x out=x touch x\nin=x cat x\n", sandbox=True)
    first, second = (task for task, _, _ in found.described())
    assert (set(first.inputs), first.keep, set(second.inputs)) == ({"x"}, ("x",), set())
    assert [file.maker for file in found.future_files(1)] == [0] and not found.future_files(0)


def test_what_a_task_makes_is_not_brought_for_all() -> None:
    Path("x").write_text("1\n")
    with pytest.raises(BadInput, match="--input ./x: a task of tasks.txt makes it"):
        source("out=x touch x\nin=x cat x\n", inputs=("./x",))


def test_an_input_that_nobody_makes_must_be_there() -> None:
    with pytest.raises(BadInput, match=r"raw.txt.* does not exist"):
        source("in=raw.txt out=mid.txt echo 1\nin=mid.txt echo 2\n")
