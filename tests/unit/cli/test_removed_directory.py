"""Tests commands and programs in a current directory that was removed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotfish import BadInput, Executor, Run
from pilotfish.cli.main import invoke


@pytest.fixture
def gone(tmp_path: Path, pilotfish_home: Path) -> Iterator[Path]:
    before = os.getcwd()
    directory = tmp_path / "gone"
    directory.mkdir()
    os.chdir(directory)
    directory.rmdir()
    yield directory
    os.chdir(before)
    assert not (pilotfish_home / "pools").exists(), "no pool was started"


@pytest.mark.parametrize("options", [[], ["--param", "x=1..2"], ["--input", "data"]])
def test_a_command_in_a_removed_directory_names_the_directory_and_the_fix(
    options: list[str], gone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["run", *options, "--", "echo", "{x}" if "--param" in options else "hi"]) == 2
    said = capsys.readouterr().err
    assert f"the current directory {gone} was removed" in said and "cd ~" in said


@pytest.mark.parametrize("kind", [Executor, Run])
def test_a_program_in_a_removed_directory_gets_the_same_sentence(kind: type[Executor] | type[Run], gone: Path) -> None:
    with pytest.raises(BadInput, match=f"the current directory {gone} was removed"), kind() as made:
        made.submit(abs, -1)
