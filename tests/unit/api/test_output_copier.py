"""Tests that a program gets its output files before the result, and an error if a file cannot be copied."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pilotfish.api.output_copier import OutputCopier
from pilotfish.applications.executables.executable import Completed
from pilotfish.applications.input_files import StoredFile
from pilotfish.client.outputs.output_destinations import OutputDestinations, read_destinations
from pilotfish.errors import BadInput


@pytest.fixture
def copier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OutputCopier:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pool").mkdir()
    return OutputCopier(tmp_path / "pool", OutputDestinations(str(tmp_path)))


def completed(**files: bytes) -> Completed:
    return Completed(0, None, b"", b"", {name: StoredFile(data, size=len(data), name=name) for name, data in files.items()})


def test_every_client_knows_the_destinations_of_tasks_that_were_sent(copier: OutputCopier, tmp_path: Path) -> None:
    copier.add(1, 0, {"a": "x/a"})
    copier.add(1, 7, {"a": "x/b"})
    found = read_destinations(tmp_path / "pool", 1)
    assert found is not None and found.by_task == {0: {"a": "x/a"}, 7: {"a": "x/b"}}


def test_two_tasks_cannot_have_one_destination_nor_that_of_a_file_of_the_user(copier: OutputCopier, tmp_path: Path) -> None:
    copier.check({"a": "x/a"})
    with pytest.raises(BadInput, match="another task of the run writes x/a"):
        copier.check({"a": "x/"})
    (tmp_path / "mine").write_text("thesis")
    with pytest.raises(BadInput, match="mine exists and would be overwritten"):
        copier.check({"a": "mine"})


def test_a_file_that_appeared_meanwhile_is_kept_and_the_error_has_the_result(copier: OutputCopier, tmp_path: Path) -> None:
    copier.add(1, 0, {"a": "x"})
    (tmp_path / "x").write_text("thesis")
    result = completed(a=b"new")
    problem = copier.copy(0, result)
    assert problem is not None and problem.completed is result
    assert "x exists and was not made by run 1" in str(problem) and "pilotfish attach 1 --overwrite" in problem.hint
    assert (tmp_path / "x").read_text() == "thesis"


def test_copies_are_made_in_a_thread_and_finish_waits_for_them(copier: OutputCopier, tmp_path: Path) -> None:
    copier.add(1, 0, {"a": "x"})
    gate = threading.Event()

    def job() -> None:
        gate.wait()
        assert copier.copy(0, completed(a=b"new")) is None

    copier.put(job)
    assert not (tmp_path / "x").exists()
    gate.set()
    copier.finish()
    assert (tmp_path / "x").read_text() == "new"
    copier.finish()


def test_a_callback_that_raises_anything_does_not_end_the_thread(copier: OutputCopier) -> None:
    done = threading.Event()

    def callback() -> None:
        raise KeyboardInterrupt

    copier.put(callback)
    copier.put(done.set)
    assert done.wait(30.0)
    copier.finish()


def test_after_a_refusal_the_other_destinations_of_the_task_are_free(copier: OutputCopier, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("thesis")
    with pytest.raises(BadInput, match="mine exists"):
        copier.check({"a": "x", "b": "mine"})
    copier.check({"a": "x"})
