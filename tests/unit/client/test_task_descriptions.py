"""A task's command line, found again from what was typed."""

from __future__ import annotations

import gzip
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from pilotfish.client.descriptions.run_options import RunRequest
from pilotfish.client.descriptions.task_descriptions import (
    UNDESCRIBED,
    TaskDescription,
    TaskRegister,
    describe_from_command,
    read_register,
    with_outcome,
)
from pilotfish.client.descriptions.task_source import make_source


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
        (RunRequest(command=("echo", "{1}{2:02d}", ":::", "a b", "c", ":::+", "1", "2")), ["echo 'a b01'", "echo c02"]),
        (RunRequest(command=("echo", "{#:03d}"), times=2), ["echo 000", "echo 001"]),
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
    description = describe_from_command(row(source.command, source.count, tmp_path))
    assert description is not None
    assert [line.command for line in description.lines] == expected


def _made(source: Any, directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    with monkeypatch.context() as here:
        here.chdir(directory)
        return [task for task, _, _ in source.described()]


@pytest.mark.parametrize(
    "command",
    ["script.py --flag", "", "--each-line - -- echo {}", "--each-line gone.txt -- echo {}", "--param a=x: -- 'open", "--odd -- x"],
)
def test_what_cannot_be_known_for_certain_is_not_guessed(tmp_path: Path, command: str) -> None:
    assert describe_from_command(row(command, 2, tmp_path)) is None


def test_a_long_list_is_shortened_in_the_command_and_needs_a_register(tmp_path: Path) -> None:
    source = make_source(RunRequest(command=("echo", "{}", ":::", *map(str, range(100)))), {"PATH": "/usr/bin:/bin"})
    assert source.command == "-- echo {} ::: 0 1 2 3 4 5 6 7 8 ..."
    assert source.count == 100 and source.from_files
    assert describe_from_command(row(source.command, 100, tmp_path)) is None


def test_a_pipe_is_not_opened_again(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for command in ("--each-line pipe -- echo {}", "--params-from pipe -- echo {a}", "--param a=@pipe -- echo {a}", "--tasks pipe"):
        assert describe_from_command(row(command, 2, tmp_path)) is None


def test_a_rerun_of_some_tasks_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    assert describe_from_command(row("--param a=1..5 -- echo {a}", 3, tmp_path)) is None


@pytest.mark.parametrize("so_far", [{"state": "open"}, {"state": "done", "incomplete": True}])
def test_the_tasks_that_a_killed_client_submitted_have_their_parameters(tmp_path: Path, so_far: dict[str, Any]) -> None:
    description = describe_from_command({**row("--param a=1..5 -- echo {a}", 3, tmp_path), **so_far})
    assert description is not None and next(description.lines).values == ("1",)


def test_the_values_of_the_parameters_are_told_with_their_names(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    description = describe_from_command(row("--each-line lines.txt --param a=1..2 --zip -- echo {} {a}", 2, tmp_path))
    assert description is not None
    assert description.names == ("line", "a")
    assert [line.values for line in description.lines] == [("one", "1"), ("two", "2")]


@pytest.mark.parametrize(
    "command", ["--params-from t.csv -- echo {n}", "--param n=@t.csv -- echo {n}", "--each-line t.csv -- echo {}", "--tasks t.csv"]
)
def test_a_file_that_was_changed_since_is_not_believed(tmp_path: Path, command: str) -> None:
    (tmp_path / "t.csv").write_text("n\necho\n")
    changed_at = (tmp_path / "t.csv").stat().st_ctime
    tasks = 1 if "{n}" in command else 2
    assert describe_from_command({**row(command, tasks, tmp_path), "opened_at": changed_at + 1.0}) is not None
    assert describe_from_command({**row(command, tasks, tmp_path), "opened_at": changed_at - 1.0}) is None


def described(directory: Path, run: int = 1) -> list[TaskDescription]:
    found = read_register(directory, run)
    assert found is not None
    return list(found.lines)


def test_a_register_has_one_description_per_task_also_where_some_have_none(tmp_path: Path) -> None:
    register = TaskRegister(tmp_path, 1, ("x",))
    register.note(0, TaskDescription("echo 1", ("1",)))
    register.note(1, TaskDescription("echo 2", ("2",), "second"))
    register.flush()
    register.note(4, TaskDescription("echo 5"))
    register.note(5, TaskDescription("echo 6"))
    register.flush()
    found = read_register(tmp_path, 1)
    assert found is not None and found.names == ("x",)
    first = [TaskDescription("echo 1", ("1",)), TaskDescription("echo 2", ("2",), "second")]
    assert list(found.lines) == [*first, UNDESCRIBED, UNDESCRIBED, TaskDescription("echo 5"), TaskDescription("echo 6")]


def test_two_programs_that_fill_one_run_never_describe_each_others_tasks(tmp_path: Path) -> None:
    one, other = TaskRegister(tmp_path, 1), TaskRegister(tmp_path, 1)
    one.note(0, TaskDescription("a"))
    one.flush()
    other.note(3, TaskDescription("d"))
    other.flush()
    one.note(1, TaskDescription("b"))
    one.note(4, TaskDescription("e"))
    one.flush()
    assert [line.command for line in described(tmp_path)] == ["a", "", "", "d", "e"]


def test_a_register_is_written_in_pieces_and_does_without_a_directory(tmp_path: Path) -> None:
    register = TaskRegister(tmp_path, 1)
    for index in range(2500):
        register.note(index, TaskDescription(f"echo {index}"))
        register.flush_if_due()
    assert len(described(tmp_path)) >= 2000
    register.flush()
    assert [line.command for line in described(tmp_path)] == [f"echo {index}" for index in range(2500)]
    gone = TaskRegister(tmp_path / "gone", 1)
    gone.note(0, TaskDescription("echo"))
    gone.flush()
    assert read_register(tmp_path / "gone", 1) is None


def test_a_register_of_the_last_version_is_read(tmp_path: Path) -> None:
    rows = [["x"], ["", "echo 1", "1"], ["b", "echo 2", "2"]]
    (tmp_path / "register-3.gz").write_bytes(gzip.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows)))
    assert described(tmp_path, 3) == [TaskDescription("echo 1", ("1",)), TaskDescription("echo 2", ("2",), "b")]


def test_what_is_whole_of_a_damaged_register_is_read(tmp_path: Path) -> None:
    register = TaskRegister(tmp_path, 1)
    register.note(0, TaskDescription("echo"))
    register.flush()
    with (tmp_path / "register-1.gz").open("ab") as file:
        file.write(b"torn")
    assert [line.command for line in described(tmp_path)] == ["echo"]


def test_the_macros_of_a_final_node_are_listed_with_their_values_when_they_are_known() -> None:
    command = "Report: echo '$DAG_STATUS' 'failed $FAILED_COUNT'"
    assert with_outcome(command, {}) == command
    assert with_outcome(command, {"failed_before": 0}) == "Report: echo 0 'failed 0'"
    assert with_outcome(command, {"failed_before": 3}) == "Report: echo 2 'failed 3'"
