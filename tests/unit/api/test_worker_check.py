"""Programs are told that their calls wait in vain."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pilotfish.api import worker_check
from pilotfish.api.futures import TaskFuture
from pilotfish.api.run_futures import RunFutures
from pilotfish.api.worker_check import WorkerCheck
from pilotfish.model.task import TaskSpec

CALL = TaskSpec("python", launch={"form": "pickle", "python": [3, 11]})
WAIT_S = 30.0


def reason(code: str) -> dict[str, Any]:
    return {"state": "ready", "reasons": [{"code": code, "text": code, "commands": [f"pilotfish fix {code}"]}]}


def test_a_site_whose_first_worker_has_another_python_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_check, "ASK_AFTER_S", 0.0)
    monkeypatch.setattr(worker_check, "ASK_AGAIN_S", 0.0)
    told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    monkeypatch.setattr(worker_check, "print_reasons", lambda answer, pool: told.put(answer))
    answers = [reason("pending"), reason("starting"), reason("python")]
    client = SimpleNamespace(ask=lambda kind, **_: answers.pop(0) if kind == "why" else {})
    session = SimpleNamespace(client=client, sites=("desk3",), pool=SimpleNamespace(name="default"))
    check = WorkerCheck(cast(RunFutures, session), private_cores=0)
    check.add(0, CALL)
    check.submitted(0, cast("TaskFuture[Any]", SimpleNamespace(task_id="1.0", done=lambda: False, running=lambda: False)))
    assert told.get(timeout=WAIT_S)["reasons"][0]["code"] == "python"
