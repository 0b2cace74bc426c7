"""Files that tasks will leave, as inputs of others that are added to the same list."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from pilotfish.applications.executables.executable import FutureFile
from pilotfish.applications.task_list import TaskList
from pilotfish.errors import BadInput
from pilotfish.model.contents import ExpectedFile


def test_files_of_earlier_tasks_are_awaited_under_the_names_they_are_given() -> None:
    tasks = TaskList()
    tasks.defaults.keep = ["log"]
    first = tasks.add(["./mesh"], keep=["mesh.bin", "parts/"])
    tasks.add(["./use"], inputs=(source for source in [tasks.file(first, "mesh.bin"), tasks.file(first, "parts/1")]))
    tasks.add(["./use"], inputs={"./in//m": tasks.file(first, "mesh.bin"), "log": tasks.file(1, "log")})
    _, *users = tasks.take()
    assert [user.needs.future_files for user in users] == [
        (ExpectedFile(0, "mesh.bin", "mesh.bin"), ExpectedFile(0, "parts/1", "parts/1")),
        (ExpectedFile(0, "mesh.bin", "in/m"), ExpectedFile(1, "log", "log")),
    ]
    assert all(tasks.specs[user.spec][0].launch["sandbox"] for user in users)


def test_other_inputs_come_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").write_text("bytes of this file")
    tasks = TaskList()
    tasks.add(["./mesh"], keep=["m"])
    tasks.add(["./use"], inputs=(source for source in ["here"]))
    tasks.add(["./use"], inputs=["here", tasks.file(0, "m")])
    assert all(b"bytes of this file" in entry.payload for entry in tasks.take()[1:])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"inputs": [FutureFile(0, "m"), FutureFile(1, "m")]}, "both be called 'm'"),
        ({"inputs": {"/m": FutureFile(0, "m")}}, "inside the task's directory"),
        ({"inputs": [FutureFile(0, "m")], "sandbox": False}, "sandbox=False"),
        ({"inputs": [FutureFile(Future(), "m")]}, "no task of this list"),
        ({"inputs": {"m": FutureFile(0, "m"), "./m": FutureFile(1, "m")}}, "both be called 'm'"),
        ({"inputs": {"m": FutureFile(0, "m"), "./m": b"x"}}, "both be called 'm'"),
        ({"inputs": [FutureFile(3, "m")]}, "not the index of an earlier task"),
    ],
)
def test_what_cannot_be_is_told(options: dict[str, Any], said: str) -> None:
    tasks = TaskList()
    tasks.add(["true"], keep=["m"])
    with pytest.raises(BadInput, match=said):
        tasks.add(["true"], **options)


def test_what_nobody_keeps_is_not_promised() -> None:
    tasks = TaskList()
    tasks.add(["true"], outputs=["m"])
    for index in (0, 7):
        with pytest.raises(BadInput, match=f"task {index} does not keep 'm' for others") as problem:
            tasks.file(index, "m")
        assert "A Python call cannot wait for the file" in problem.value.hint


@pytest.mark.parametrize(("kept", "name"), [("parts/", "parts/"), ("parts", "./parts/1"), ("*.bin", "a.bin"), ("d/**/x?", "d/e/x1")])
def test_names_are_read_as_keep_reads_them(kept: str, name: str) -> None:
    tasks = TaskList()
    tasks.add(["true"], keep=[kept])
    assert tasks.file(0, name).name == name.rstrip("/").removeprefix("./")


def test_a_program_that_another_task_makes_is_not_taken_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tool").write_text("an old one")
    tasks = TaskList()
    tasks.add(["cc"], keep=["tool"])
    tasks.add(["./tool"], inputs=[tasks.file(0, "tool")])
    tasks.add(["./tool"], sandbox=True)
    _, made, own = tasks.take()
    assert not tasks.specs[made.spec][0].launch["inputs"] and tasks.specs[own.spec][0].launch["inputs"][0][0] == "tool"


def test_a_promised_file_has_no_name_that_all_tasks_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m").write_text("everybody's")
    tasks = TaskList()
    tasks.add(["true"], keep=["m"])
    tasks.defaults.inputs = ["m"]
    with pytest.raises(BadInput, match="both be called 'm'"):
        tasks.add(["true"], inputs=[tasks.file(0, "m")])


def test_promised_files_are_no_inputs_of_all_tasks() -> None:
    tasks = TaskList()
    tasks.defaults.inputs = [FutureFile(0, "m")]
    with pytest.raises(BadInput, match="a file that a task will leave"):
        tasks.add(["true"])
