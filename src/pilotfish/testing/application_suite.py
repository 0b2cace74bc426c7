r"""Checks an application plug-in against the contract. An application plug-in reads files with one suffix.

class TestMine(ApplicationContract):
    suffix, text, broken = "flow", "sort data.txt\n", "sort"

    def read(self, path: Path, arguments: Sequence[str]) -> RunFile:
        return my_package.read_flow(path, arguments)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pilotfish.applications.application_manager import ApplicationManager
from pilotfish.applications.run_file import RunFile
from pilotfish.applications.task_list import TaskList
from pilotfish.errors import PilotfishError


class ApplicationContract:
    """Tests of an application. Override ``read``.

    Set ``suffix``, ``text`` (the text of a valid file) and ``broken`` (the text of an invalid file; empty if every text is valid).
    """

    suffix: str
    text: str
    broken: str = ""

    def read(self, path: Path, arguments: Sequence[str]) -> RunFile:
        raise NotImplementedError("read the file")

    def file(self, folder: Path, text: str | None = None) -> Path:
        path = folder / f"sample.{self.suffix}"
        path.write_text(self.text if text is None else text)
        return path

    def tasks_of(self, loaded: RunFile) -> list[tuple[str, bytes, tuple[int, ...]]]:
        """Returns the first tasks of the file. Each task is a tuple: kind, payload, and the indices of the tasks for which it waits."""
        tasks = loaded.tasks
        if loaded.manager is not None:
            tasks = TaskList(worker=loaded.manager.worker)
            loaded.manager.initialize(tasks)
        assert tasks is not None
        return [(tasks.specs[entry.spec][0].kind, entry.payload, tuple(entry.needs.after)) for entry in tasks.take()]

    def test_it_gives_tasks_or_a_manager(self, tmp_path: Path) -> None:
        path = self.file(tmp_path)
        loaded = self.read(path, ())
        assert isinstance(loaded, RunFile)
        assert loaded.path == path.resolve()
        assert isinstance(loaded.manager, ApplicationManager) != isinstance(loaded.tasks, TaskList)

    def test_there_is_something_to_do(self, tmp_path: Path) -> None:
        assert self.tasks_of(self.read(self.file(tmp_path), ()))

    def test_tasks_wait_for_earlier_ones_only(self, tmp_path: Path) -> None:
        for index, (_, _, after) in enumerate(self.tasks_of(self.read(self.file(tmp_path), ()))):
            assert all(0 <= other < index for other in after)

    def test_the_same_file_gives_the_same_tasks(self, tmp_path: Path) -> None:
        path = self.file(tmp_path)
        assert self.tasks_of(self.read(path, ())) == self.tasks_of(self.read(path, ()))

    def test_a_file_that_does_not_exist_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        with pytest.raises(PilotfishError, match=rf"missing\.{self.suffix}"):
            self.read(tmp_path / f"missing.{self.suffix}", ())

    def test_a_broken_file_is_an_error_that_names_it_and_says_what_to_do(self, tmp_path: Path) -> None:
        if not self.broken:
            pytest.skip("every text is good")
        with pytest.raises(PilotfishError, match=rf"sample\.{self.suffix}") as caught:
            self.read(self.file(tmp_path, self.broken), ())
        assert caught.value.hint
