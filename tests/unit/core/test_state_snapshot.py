"""A snapshot is a state written as facts: applied to an empty state they give an equal one."""

from __future__ import annotations

from pilotfish.core import state_snapshot
from pilotfish.core.apply import apply
from pilotfish.core.state import State
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.facts import TurnRecord, decode_record, encode_record
from pilotfish.model.settings import PoolSettings
from pilotfish.model.states import ASSIGNED
from pilotfish.model.task import Request, TaskSpec
from tests.support.machine_stage import Stage, fail
from tests.support.state_check import check, fingerprint

GIB = 1 << 30


def round_trip(state: State) -> State:
    again = State()
    for fact in state_snapshot.dump(state):
        record = decode_record(encode_record(TurnRecord(state.at, [fact])))
        apply(again, record.facts[0], record.at)
    return again


def eventful_stage() -> Stage:
    """A bit of everything: runs in all states, troubles, suspects, tasks ahead and recalled, quarantine, pilots, gone workers."""
    stage = Stage(PoolSettings(quarantine_after=1))
    stage.ask("workers_set", local=2)
    good = stage.join("good", cores=4.0, capacity={"memory": 8.0 * GIB})
    stage.finish(good, *stage.work(count=3), wall_us=900_000)
    hole = stage.join("hole", tags={"place": "here"})
    (bad,) = stage.work(TaskSpec("python", retries=3, tags={"place": "here"}))
    stage.finish(hole, bad, failure=fail())
    run = stage.open_run("chain", name="chain")
    stage.submit(run, TaskSpec("python", request=Request(1.0, memory=GIB)), 4, {2: [0], 3: [2]})
    stage.finish(good, stage.task(run, 1), failure=fail("oom"))
    for name in ("a", "b"):
        stage.join(name, tags={"only": "there"})
        stage.work(TaskSpec("python", tags={"only": "there"}))
        stage.lose(name)
    stage.submit(1, TaskSpec("python"), 12)
    stage.join("idle", cores=1.0)
    stage.wait(3, quietly=False)
    stage.ask("pause", run=1)
    stage.ask("revoke", key_id="pilot:old")
    stage.ask("drain", worker="idle")
    stage.tell(i.PilotEndReported("local-1", False, "it cannot start"))
    return stage


def test_a_state_survives_a_snapshot() -> None:
    stage = eventful_stage()
    again = round_trip(stage.machine.state)
    check(again)
    assert fingerprint(again) == fingerprint(stage.machine.state)


def test_a_machine_goes_on_from_a_snapshot_as_if_nothing_had_been() -> None:
    stage = eventful_stage()
    state = round_trip(stage.machine.state)
    stage.journal = [encode_record(TurnRecord(state.at, [fact])) for fact in state_snapshot.dump(state)]
    stage.shadow = round_trip(state)
    stage.held.clear()
    stage.start(state)
    stage.ask("resume", run=1)
    worker = state.workers["good"]
    holding = [(task.id, task.attempt, m.STARTED) for task in (*worker.active, *worker.ahead)]
    link = stage.join("good", cores=4.0, capacity={"memory": 8.0 * GIB}, holding=holding)
    assert not stage.sent(m.Kill)
    stage.held.setdefault(link, {}).update({number: attempt for number, attempt, _ in holding})
    stage.finish(link)
    assert all(task.state != ASSIGNED or task.worker is not None for task in state.runs[1].tasks)


def test_equal_states_have_equal_fingerprints_and_others_do_not() -> None:
    one, other = eventful_stage(), eventful_stage()
    assert fingerprint(one.machine.state) == fingerprint(other.machine.state)
    other.ask("pause", run=2)
    assert fingerprint(one.machine.state) != fingerprint(other.machine.state)
