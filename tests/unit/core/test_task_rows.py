"""Rows of tasks say who ran them, where and when, and outputs of many tasks come in one answer."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.core import state_snapshot
from pilotfish.core.apply import apply
from pilotfish.core.explain import queries
from pilotfish.core.state import State
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import messages as m
from pilotfish.model.facts import TurnRecord, decode_record, encode_record
from pilotfish.model.states import CANCELLED, FAILED
from pilotfish.model.task import TaskSpec
from tests.support.machine_stage import Stage, fail

INFO = {"hostname": "n7.example", "node": "n7"}


def stage_with_ended_tasks() -> Stage:
    stage = Stage()
    worker = stage.join("w", cores=2.0, info=INFO)
    done, bad = stage.work(count=2)
    stage.wait(5)
    stage.finish(worker, done, wall_us=2_000_000)
    stage.finish(worker, bad, failure=fail())
    stage.lose("w")
    return stage


def shown(stage: Stage) -> list[dict[str, Any]]:
    names = ("worker", "node", "site", "attempt", "started_at", "ended_at", "wall_s")
    return [{name: row[name] for name in names} for row in stage.ask("tasks", run=1)]


def test_an_ended_task_keeps_its_worker_node_and_times_when_the_worker_is_gone() -> None:
    stage = stage_with_ended_tasks()
    done, bad = shown(stage)
    assert (done["worker"], done["node"], done["attempt"], done["wall_s"]) == ("w", "n7", 1, 2.0)
    assert done["ended_at"] == pytest.approx(stage.machine.now, abs=1.0)
    assert done["started_at"] == pytest.approx(done["ended_at"] - 2.0)
    assert (bad["worker"], bad["node"]) == ("w", "n7")


@pytest.mark.parametrize("how", ["cancelled", "lost"])
def test_a_task_that_did_not_reach_its_end_keeps_its_worker_and_times(how: str) -> None:
    stage = Stage()
    worker = stage.join("w", cores=2.0, info=INFO)
    run = stage.open_run()
    ran, _, _ = stage.submit(run, TaskSpec("python", losses=0), 3)
    stage.started(worker, ran)
    stage.wait(4)
    if how == "cancelled":
        stage.ask("cancel", run=run, reason="not needed")
    else:
        stage.lose("w")
    row, other, never = shown(stage)
    assert ran.state == (CANCELLED if how == "cancelled" else FAILED)
    assert (row["worker"], row["node"], row["attempt"]) == ("w", "n7", 1)
    assert row["wall_s"] == pytest.approx(row["ended_at"] - row["started_at"]) and row["wall_s"] >= 4.0
    assert (other["worker"], other["wall_s"]) == (None if how == "cancelled" else "w", 0.0)
    assert (never["worker"], never["started_at"]) == (None, None)


def test_worker_and_times_survive_a_restart_and_a_snapshot() -> None:
    stage = stage_with_ended_tasks()
    before = shown(stage)
    stage.restart()
    assert shown(stage) == before
    again = State()
    for fact in state_snapshot.dump(stage.machine.state):
        apply(again, decode_record(encode_record(TurnRecord(stage.machine.now, [fact]))).facts[0], stage.machine.now)
    stage.shadow = again
    stage.start(again)
    assert shown(stage) == before


def test_a_snapshot_of_an_older_version_has_tasks_without_worker_and_times() -> None:
    old = State()
    for fact in state_snapshot.dump(stage_with_ended_tasks().machine.state):
        row = fact.row[:13] if fact.kind == "run" else fact.row
        apply(old, decode_record(encode_record(TurnRecord(1.0, [f.Restored(fact.kind, row)]))).facts[0], 1.0)
    run = old.runs[1]
    assert (list(run.end_times), list(run.last_places)) == ([0.0, 0.0], [0, 0])


def test_a_running_task_shows_its_start_and_the_time_since() -> None:
    stage = Stage()
    worker = stage.join("w", info=INFO)
    (task,) = stage.work()
    (waiting,) = shown(stage)
    assert (waiting["worker"], waiting["started_at"], waiting["ended_at"]) == ("w", None, None)
    stage.started(worker, task)
    stage.wait(7)
    (running,) = shown(stage)
    assert running["node"] == "n7"
    assert running["wall_s"] == pytest.approx(stage.machine.now - running["started_at"])
    assert running["wall_s"] >= 7.0


def test_a_cancelled_task_has_an_end_but_no_worker() -> None:
    stage = Stage()
    stage.work()
    stage.ask("cancel", run=1)
    (row,) = shown(stage)
    assert (row["worker"], row["started_at"]) == (None, None)
    assert row["ended_at"] is not None


# --- outputs --------------------------------------------------------------------------------------------------------------------------


def outputs(stage: Stage, *tasks: str) -> tuple[list[int], list[Any]]:
    answer = stage.ask("outputs", tasks=list(tasks))
    (send,) = [effect for effect in stage.effects if isinstance(effect, e.Send) and isinstance(effect.message, m.Answer)]
    return answer["lengths"], send.payloads


def test_one_answer_has_the_outputs_of_many_tasks() -> None:
    stage = stage_with_ended_tasks()
    stage.work()
    lengths, payloads = outputs(stage, "1.1", "1.0", "2.0")
    assert payloads == [stage.task(1, 1).output, stage.task(1, 0).output, b""]
    assert lengths == [len(payload) for payload in payloads]


def test_an_answer_ends_before_it_grows_too_large_but_has_at_least_one_output(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = stage_with_ended_tasks()
    for task in stage.machine.state.runs[1].tasks:
        task.output = b"x" * 10
    monkeypatch.setattr(queries, "MAX_OUTPUT_BYTES", 15)
    assert outputs(stage, "1.0", "1.1") == ([10], [b"x" * 10])
    monkeypatch.setattr(queries, "MAX_OUTPUT_BYTES", 5)
    assert outputs(stage, "1.0", "1.1")[0] == [10]


@pytest.mark.parametrize("tasks", [None, [], "1.0", ["9.0"], [7]])
def test_outputs_of_something_else_are_refused(tasks: Any) -> None:
    assert isinstance(stage_with_ended_tasks().ask("outputs", tasks=tasks), m.Problem)
