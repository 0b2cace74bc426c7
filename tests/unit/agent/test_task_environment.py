"""Tests which variables tasks get on the machine of their program, and at a site."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish.agent.slots.task_environment import TaskEnvironment

WHOLE = {"whole_env": True, "env": {"BOTH": "program", "PROGRAM": "program"}}
ADDED = {"env": {"BOTH": "task"}}


@pytest.fixture(autouse=True)
def variables_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTH", "worker")
    monkeypatch.setenv("WORKER", "worker")
    monkeypatch.delenv("PROGRAM", raising=False)


@pytest.mark.parametrize(
    ("is_here", "is_call", "launch", "both", "program", "worker"),
    [
        (True, True, WHOLE, "program", "program", None),
        (True, False, WHOLE, "program", "program", None),
        (False, True, WHOLE, "worker", "program", "worker"),
        (False, False, WHOLE, "program", "program", "worker"),
        (True, True, ADDED, "task", None, "worker"),
        (False, False, ADDED, "task", None, "worker"),
    ],
)
def test_tasks_get_the_variables_of_their_program(
    tmp_path: Path, is_here: bool, is_call: bool, launch: dict[str, object], both: str, program: str | None, worker: str | None
) -> None:
    environment = TaskEnvironment("w1", str(tmp_path), is_here)
    environment.add_spec(0, 0.0, launch, is_call)
    found = environment.environment(0, 1 << 32, 1, 1.0)
    assert (found["BOTH"], found.get("PROGRAM"), found.get("WORKER")) == (both, program, worker)
    assert found["PILOTFISH_WORKER"] == "w1" and found["PILOTFISH_TASK"] == "1.0"
