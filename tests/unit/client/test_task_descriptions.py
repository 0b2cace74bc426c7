"""A task's command line, found again from what was typed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from pilotfish.client.run_options import RunRequest
from pilotfish.client.task_descriptions import read_recipe
from pilotfish.client.task_source import make_source


def row(command: str, tasks: int, cwd: Path) -> dict[str, Any]:
    return {"command": command, "tasks": tasks, "cwd": str(cwd)}


@pytest.mark.parametrize(
    ("wording", "expected"),
    [
        (RunRequest(command=("echo", "hello world")), ["echo 'hello world'"]),
        (RunRequest(command=("echo", "{a}{b}"), parameters=("a=1..2", 'b="x y",z')), ["echo '1x y'", "echo 1z", "echo '2x y'", "echo 2z"]),
        (RunRequest(command=("echo", "{a}{b}"), parameters=("a=1..2", "b=x,y"), zipped=True), ["echo 1x", "echo 2y"]),
        (RunRequest(command=("echo", "{}"), each_line="lines.txt"), ["echo one", "echo two"]),
        (RunRequest(command=("echo", "{n}"), tables=("t.csv",)), ["echo 7", "echo 8"]),
        (RunRequest(task_list="tasks.txt"), ["echo listed", "echo too"]),
    ],
)
def test_what_was_typed_gives_each_task_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: RunRequest, expected: list[str]
) -> None:
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    (tmp_path / "t.csv").write_text("n\n7\n8\n")
    (tmp_path / "tasks.txt").write_text("echo listed\necho too\n")
    monkeypatch.chdir(tmp_path)
    source = make_source(wording, {"PATH": "/usr/bin:/bin"})
    monkeypatch.chdir("/")
    assert [shlex.join(task.argv) for task in _made(source, tmp_path, monkeypatch)] == expected
    recipe = read_recipe(row(source.command, source.count, tmp_path))
    assert recipe is not None
    assert [line.command for line in recipe.lines] == expected


def _made(source: Any, directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    with monkeypatch.context() as here:
        here.chdir(directory)
        return list(source)


@pytest.mark.parametrize(
    "command",
    ["script.py --flag", "", "--each-line - -- echo {}", "--each-line gone.txt -- echo {}", "--param a=x: -- 'open", "--odd -- x"],
)
def test_what_cannot_be_known_for_certain_is_not_guessed(tmp_path: Path, command: str) -> None:
    assert read_recipe(row(command, 2, tmp_path)) is None


def test_a_rerun_of_some_tasks_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    assert read_recipe(row("--param a=1..5 -- echo {a}", 3, tmp_path)) is None


def test_the_values_of_the_parameters_are_told_with_their_names(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    recipe = read_recipe(row("--each-line lines.txt --param a=1..2 --zip -- echo {} {a}", 2, tmp_path))
    assert recipe is not None
    assert recipe.names == ("line", "a")
    assert [line.values for line in recipe.lines] == [("one", "1"), ("two", "2")]


@pytest.mark.parametrize(
    "command", ["--params-from t.csv -- echo {n}", "--param n=@t.csv -- echo {n}", "--each-line t.csv -- echo {}", "--tasks t.csv"]
)
def test_a_file_that_was_changed_since_is_not_believed(tmp_path: Path, command: str) -> None:
    (tmp_path / "t.csv").write_text("n\necho\n")
    changed_at = (tmp_path / "t.csv").stat().st_ctime
    tasks = 1 if "{n}" in command else 2
    assert read_recipe({**row(command, tasks, tmp_path), "opened_at": changed_at + 1.0}) is not None
    assert read_recipe({**row(command, tasks, tmp_path), "opened_at": changed_at - 1.0}) is None
