"""Tests the decision which tasks of a run may have earlier results."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pilotfish.applications.executables.executable import Executable
from pilotfish.applications.task_list import TaskEntry
from pilotfish.applications.task_needs import NO_NEEDS
from pilotfish.client.descriptions.task_source import MadeTask
from pilotfish.client.reuse import resumption
from pilotfish.client.reuse.resumption import Resumption
from pilotfish.client.session import PoolSession
from pilotfish.errors import BadInput
from pilotfish.model.contents import KEY_BYTES


def made(name: str) -> MadeTask:
    entry = TaskEntry(0, b"", NO_NEEDS._replace(key=bytes(KEY_BYTES)))
    return MadeTask(entry, None, Executable(("./sim", name), outputs=(name,)), ())


def test_no_task_is_submitted_before_the_outputs_of_all_tasks_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resumption, "CHUNK", 2)
    for name in "abcde":
        Path(name).touch()
    now = os.stat("e").st_mtime
    earlier = {"source": "1.0", "started_at": now - 10, "ended_at": now - 5}

    def ask(what: str, keys: str = "") -> list[dict[str, Any]]:
        return [earlier] * 2 if what == "results" else []

    for name in "abcd":
        os.utime(name, (now - 7, now - 7))
    resume = Resumption(cast(PoolSession, SimpleNamespace(ask=ask)))
    tasks = resume.decide(map(made, "abce"), sandbox=False, has_outputs=True)
    with pytest.raises(BadInput, match="e changed after task 1.0 had made it"):
        next(tasks)
    tasks = resume.decide(map(made, "abcd"), sandbox=False, has_outputs=True)
    assert [one.entry.needs.reuse for one in tasks] == [True] * 4
