"""Tests the maximum number of input files of a task."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish.applications import input_files
from pilotfish.applications.input_files import PackedFiles, Source
from pilotfish.errors import BadInput


@pytest.mark.parametrize(
    ("directories", "named", "stored"), [((4,), 0, 0), ((), 4, 0), ((), 0, 4), ((2,), 2, 0), ((2, 2), 0, 0), ((), 2, 2)]
)
def test_more_inputs_than_the_maximum_are_refused_however_they_are_named(
    directories: tuple[int, ...], named: int, stored: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs: dict[str, Source] = {f"stored-{number}": b"" for number in range(stored)}
    for position, files in enumerate(directories):
        inputs[f"directory-{position}"] = folder = tmp_path / f"directory-{position}"
        folder.mkdir()
        for number in range(files):
            (folder / str(number)).touch()
    for number in range(named):
        inputs[f"named-{number}"] = tmp_path / f"named-{number}"
        (tmp_path / f"named-{number}").touch()
    monkeypatch.setattr(input_files, "MAX_ENTRIES", 4)
    assert len(PackedFiles(inputs).entries) == 4
    monkeypatch.setattr(input_files, "MAX_ENTRIES", 3)
    with pytest.raises(BadInput, match="there are more than 3 files"):
        PackedFiles(inputs)
