"""Tests how the current directory is read."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pilotfish.applications.executables.working_directory import current_directory, directory_reader


def check(read: object, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(read)
    seen = []
    for name in ("a", "b", "a"):
        (folder / name).mkdir(exist_ok=True)
        monkeypatch.chdir(folder / name)
        seen.append(read())
    assert seen[0] == seen[2] != seen[1]
    os.rmdir(folder / "a")
    assert read() is None is current_directory()


def test_a_reader_sees_each_change_and_a_removed_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(directory_reader(), tmp_path, monkeypatch)


def test_a_python_without_ctypes_reads_the_directory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    assert directory_reader() is current_directory
    check(directory_reader(), tmp_path, monkeypatch)
