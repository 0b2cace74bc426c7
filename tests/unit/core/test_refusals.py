"""Requests that cannot be fulfilled are refused before anything is done; errors of the machine itself are never blamed on a client."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.core.clients import client_messages, pool_commands
from pilotfish.core.machine import Machine
from pilotfish.errors import BadInput, IllegalTransition
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.task import StoredPayload, TaskSpec
from tests.support.machine_stage import CLIENT, Stage
from tests.support.state_check import fingerprint
from tests.unit.core.test_requests import COMMANDS, busy_stage

JUNK: list[Any] = [None, True, -1, 0.5, 10**30, "", "x", "9" * 5000, "1.0", [], [1], ["1.0"], {}, {"run": 1}]
NAMES = (
    "run",
    "task",
    "tasks",
    "worker",
    "pilot",
    "site",
    "pilots",
    "offset",
    "limit",
    "stream",
    "local",
    "uid",
    "key_id",
    "state",
    "share",
)


@pytest.mark.parametrize("kind", [*client_messages.ANSWERS, "tail"])
def test_no_argument_of_a_request_is_an_error_of_the_machine(kind: str) -> None:
    stage, good = busy_stage(), dict(COMMANDS).get(kind, {"task": "2.0"})
    for name in NAMES:
        for value in JUNK:
            stage.tell(i.ClientMessage(CLIENT, m.Ask(1, kind, {**good, name: value})))
            assert all(problem.code == BadInput.code for problem in stage.sent(m.Problem))


@pytest.mark.parametrize("error", [IllegalTransition("a bug"), KeyError("a bug"), ValueError("a bug")])
def test_an_error_of_the_machine_goes_to_its_host(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the master. The next one starts from what is written down, which is nothing of this turn."""

    def fail(machine: Machine, arguments: dict[str, Any]) -> None:
        machine.record(f.RunPaused(1, True))
        raise error

    stage = Stage()
    stage.work()
    monkeypatch.setitem(client_messages.ANSWERS, "pause", fail)
    before = fingerprint(stage.machine.state)
    with pytest.raises(type(error)):
        stage.ask("pause", run=1)
    assert fingerprint(stage.shadow) == before
    assert not stage.shadow.runs[1].paused


def test_a_request_that_is_refused_when_it_is_half_done_is_an_error_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(machine: Machine, arguments: dict[str, Any]) -> None:
        pool_commands.COMMANDS["pause"](machine, arguments)
        raise BadInput("too late")

    stage = Stage()
    stage.work()
    monkeypatch.setitem(client_messages.ANSWERS, "pause", fail)
    with pytest.raises(IllegalTransition):
        stage.ask("pause", run=1)


def test_a_submission_with_a_bad_spec_behind_a_known_one_gives_up_its_payloads_once() -> None:
    stage = Stage()
    run = stage.open_run()
    good, bad = TaskSpec("python"), TaskSpec("python", time_s=-1.0)
    stored = [StoredPayload(1, 10 * place, 10) for place in range(3)]
    stage.tell(i.ClientMessage(CLIENT, m.Submit(run, 0, 0, [good], [0], [(0, 1)], {}), [b"", b"x"]))
    stage.tell(i.ClientMessage(CLIENT, m.Submit(run, 0, 0, [good, bad], [0, 0], [(1, 1)], {}), [stored[0], stored[1], stored[2]]))
    assert stage.sent(m.Problem)
    released = [effect.stored for effect in stage.effects if isinstance(effect, e.ReleasePayload)]
    assert released == stored


def test_nobody_watches_from_before_the_beginning() -> None:
    stage = Stage()
    run = stage.open_run()
    stage.tell(i.ClientMessage(CLIENT, m.Watch(run, -5, True)))
    assert not stage.sent(m.Ended)
    assert stage.machine.subscriptions.links[CLIENT][run].cursor == 0
