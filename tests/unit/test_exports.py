"""What ``import pilotfish`` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pilotfish

SOURCES = Path(pilotfish.__file__).parents[1]
NAMES = [
    "ApplicationManager",
    "ApplicationWorker",
    "BadInput",
    "BalanceReport",
    "Completed",
    "ConnectionFailed",
    "ExecutableFailed",
    "Executor",
    "ExecutorBroken",
    "LeftBehind",
    "NoSuitableWorker",
    "PilotfishError",
    "Run",
    "TaskFailed",
    "TaskFuture",
    "divide",
    "iterate",
]


def test_the_exported_names_are_these() -> None:
    assert sorted(set(pilotfish.__all__) - {"__version__"}) == NAMES
    assert set(NAMES) <= set(dir(pilotfish))


@pytest.mark.parametrize("name", NAMES)
def test_every_exported_name_is_there(name: str) -> None:
    assert getattr(pilotfish, name).__name__ == name


def test_an_unknown_name_is_an_error_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Exekutor'"):
        pilotfish.Exekutor  # noqa: B018


def test_importing_the_package_imports_next_to_nothing() -> None:
    script = "import sys; before = set(sys.modules); import pilotfish; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(SOURCES)}
    ).stdout
    assert loaded.split() == ["__future__", "pilotfish"]
