"""The machine by itself: what clients and agents may say, and what it makes of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pilotfish.core.machine import Machine
from pilotfish.core.state import State
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.settings import PoolSettings
from pilotfish.model.task import Payload, Request, RunOptions, TaskSpec
from pilotfish.policies.dispatcher import Dispatcher
from pilotfish.policies.matchers import LocalityMatcher
from tests.support.local_provisioner import LocalProvisioner
from tests.support.state_check import check, fingerprint


class Stage:
    """A machine with a client on link 1 and, where wanted, agents on further links."""

    def __init__(self, **settings: Any) -> None:
        self.machine = Machine(State(), Dispatcher(LocalityMatcher()), LocalProvisioner(), PoolSettings(local_cores=2, **settings))
        self.now = 1000.0
        self.machine.start(self.now)

    def turn(self, *inputs: i.Input, after_s: float = 0.1) -> list[e.Effect]:
        self.now += after_s
        effects = self.machine.handle(inputs, self.now).effects
        check(self.machine.state)
        return effects

    def say(self, message: m.FromClient, payloads: list[Payload] | None = None, link: int = 1) -> list[m.Message]:
        effects = self.turn(i.ClientMessage(link, message, payloads or []))
        return [effect.message for effect in effects if isinstance(effect, e.Send) and effect.link == link]

    def open(self, uid: str = "u", **options: Any) -> int:
        (opened,) = self.say(m.Open(uid, RunOptions(**options)))
        assert isinstance(opened, m.Opened)
        return opened.run

    def submit(self, run: int, count: int, spec: TaskSpec | None = None, deps: dict[int, list[int]] | None = None) -> list[m.Message]:
        payloads: list[Payload] = [b"", *([b"x"] * count)]
        return self.say(m.Submit(run, 0, 0, [spec or TaskSpec("python")], [0], [(0, 1)] * count, deps or {}), payloads)

    def join(self, worker: str = "local-1", link: int = 2, cores: float = 2.0, pilot: str = "") -> list[e.Effect]:
        hello = m.Hello(worker, pilot or worker, {"cores": cores}, {}, {}, None, 0.0, [])
        return self.turn(i.AgentMessage(link, hello))


BAD_QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("nonsense", {}),
    ("workers_set", {}),
    ("workers_set", {"local": "many"}),
    ("workers_set", {"local": -3}),
    ("revoke", {}),
    ("tasks", {"run": 1, "offset": "x"}),
    ("tasks", {"run": 1, "state": "asleep"}),
    ("cancel", {"tasks": 5}),
    ("cancel", {"run": [1]}),
    ("task", {"task": "1.99"}),
    ("payload", {"task": ".."}),
    ("why", {"worker": "nobody"}),
    ("tail", {"task": 7}),
    ("tail", {"task": "1.0", "colour": 1}),
]


@pytest.mark.parametrize(("kind", "arguments"), BAD_QUESTIONS)
def test_a_bad_question_is_answered_with_a_problem_and_a_hint(kind: str, arguments: dict[str, Any]) -> None:
    stage = Stage()
    stage.submit(stage.open(), 1)
    (answer,) = stage.say(m.Ask(7, kind, arguments))
    assert isinstance(answer, m.Problem)
    assert answer.query == 7 and answer.message and answer.hint


@pytest.mark.parametrize(
    "submit",
    [
        m.Submit(9, 0, 0, [], [], [], {}),
        m.Submit(1, 5, 0, [], [], [(0, 1)], {}),
        m.Submit(1, 0, 0, [TaskSpec("python")], [0], [(3, 1)], {}),
        m.Submit(1, 0, 0, [TaskSpec("python")], [0], [(0, 1)], {7: [5]}),
        m.Submit(1, 0, 0, [TaskSpec("python")], [0], [(0, 1)], {0: [0]}),
        m.Submit(1, 0, 0, [TaskSpec("python", request=Request(cores=1e306))], [0], [(0, 1)], {}),
        m.Submit(1, 0, 0, [TaskSpec("python", time_s=-1.0)], [0], [(0, 1)], {}),
    ],
)
def test_a_bad_submission_is_refused_as_a_whole(submit: m.Submit) -> None:
    stage = Stage()
    stage.open()
    payloads: list[Payload] = [b"x"] * (len(submit.specs) + len(submit.tasks))
    (answer,) = stage.say(submit, payloads)
    assert isinstance(answer, m.Problem) and answer.hint
    assert stage.machine.state.runs[1].tasks == []


def test_numbers_that_cannot_be_are_refused_at_the_door() -> None:
    for bad in (-1, 2**63):
        with pytest.raises(msgspec.ValidationError):
            m.decode_from_agent(f'["results",0,[[1,1,null,{bad},0,0,0]]]'.encode())


def test_sending_tasks_twice_adds_them_once() -> None:
    stage = Stage()
    run = stage.open()
    stage.submit(run, 3)
    before = fingerprint(stage.machine.state)
    (again,) = stage.submit(run, 3)
    assert again == m.Accepted(run, 3)
    assert fingerprint(stage.machine.state) == before


def test_a_pilots_key_does_not_speak_for_another_pilots_worker() -> None:
    stage = Stage()
    stage.join("victim", pilot="theirs")
    stage.turn(i.AgentMessage(9, m.AgentDied("victim", "so I say"), pilot="mine"))
    assert "victim" in stage.machine.state.workers
    hello = m.Hello("victim", "mine", {"cores": 1.0}, {}, {}, None, 0.0, [])
    effects = stage.turn(i.AgentMessage(9, hello, pilot="mine"))
    assert e.HangUp(9) in effects
    assert stage.machine.connections["victim"].link == 2


def test_a_rerun_belongs_to_nobody() -> None:
    stage = Stage()
    run = stage.open(owned=True)
    stage.submit(run, 1, TaskSpec("python", losses=0))
    stage.join()
    stage.turn(i.AgentMessage(2, m.AgentDied("local-1", "died")))
    stage.say(m.Close(run))
    (answer,) = stage.say(m.Ask(1, "rerun", {"run": run}))
    assert isinstance(answer, m.Answer)
    assert not stage.machine.state.runs[run].options.owned


def test_idle_workers_are_not_replaced_for_an_empty_run() -> None:
    stage = Stage(idle_s=5.0)
    stage.open()
    requested = 0
    for number in range(60):
        effects = stage.turn(after_s=5.0)
        for pilot in [effect for effect in effects if isinstance(effect, e.SubmitPilot)]:
            requested += 1
            stage.join(pilot.pilot, link=10 + number)
        for effect in effects:
            if isinstance(effect, e.Send) and isinstance(effect.message, m.Drain):
                stage.turn(i.AgentMessage(effect.link, m.Leave("drained")))
        for gone in [pilot for pilot in stage.machine.state.pilots.values() if pilot.state == 3]:
            stage.turn(i.PilotEndReported(gone.id, True, "ended"))
    assert requested <= 1


def test_an_answer_never_has_more_rows_than_a_frame_takes() -> None:
    stage = Stage()
    stage.submit(stage.open(), 12_000)
    (answer,) = stage.say(m.Ask(1, "tasks", {"limit": 10**9}))
    assert isinstance(answer, m.Answer) and len(answer.data) == 10_000
    (rest,) = stage.say(m.Ask(2, "tasks", {"offset": 10_000}))
    assert isinstance(rest, m.Answer) and len(rest.data) == 2_000


def test_large_assignments_are_sent_in_several_messages() -> None:
    stage = Stage()
    run = stage.open()
    payloads: list[Payload] = [b"", *(bytes(9_000_000) for _ in range(4))]
    stage.say(m.Submit(run, 0, 0, [TaskSpec("python")], [0], [(0, 9_000_000)] * 4), payloads)
    effects = stage.join(cores=4.0)
    sent = [effect.message for effect in effects if isinstance(effect, e.Send) and isinstance(effect.message, m.Assign)]
    assert [len(message.tasks) for message in sent] == [2, 2]
    assert [len(message.specs) for message in sent] == [1, 0]
