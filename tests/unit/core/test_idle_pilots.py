"""A master that was started for somebody who only looks at a pool that was stopped."""

from __future__ import annotations

from pilotfish.core.machine import Machine
from pilotfish.core.state import State
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.settings import PoolSettings
from pilotfish.model.states import DONE, READY
from tests.support.machine_stage import CLIENT, Stage

MOST_PATIENT_S = 1000.0


class AfterAStop(Stage):
    """Its first machine works and is stopped; the second rests."""

    inspect_only = False

    def __init__(self, application: str = "") -> None:
        super().__init__(PoolSettings(local_cores=2))
        self.work(count=2, application=application)
        assert self.machine.state.pilots
        self.ask("stop", now=False)
        self.tell(*(i.PilotEndReported(pilot, True, "was cancelled") for pilot in self.machine.state.pilots))
        self.inspect_only = True
        self.restart()

    def start(self, state: State) -> None:
        self.machine = Machine(state, self.policy, self.provisioner, self.settings)
        self.machine.inspect_only = self.inspect_only
        self._take(self.machine.start(self.now))

    def pilots(self) -> list[e.SubmitPilot]:
        return [effect for effect in self.effects if isinstance(effect, e.SubmitPilot)]


def test_whoever_looks_sets_nothing_going_and_is_told_why() -> None:
    stage = AfterAStop()
    assert stage.ask("status")["runs"][0]["counts"]["ready"] == 2
    answer = stage.ask("why", run=1)
    assert answer["reasons"][-1]["code"] == "stopped"
    assert answer["reasons"][-1]["commands"] == ["pilotfish attach 1"]
    stage.join("somebody")
    assert not any(isinstance(effect, e.SubmitPilot) for effect in stage.wait(MOST_PATIENT_S))
    assert stage.held == {}
    assert {task.state for task in stage.machine.state.runs[1].tasks} == {READY}


def test_without_anybody_who_looks_it_ends_whatever_there_is_to_do() -> None:
    stage = AfterAStop()
    stage.tell(i.LinkClosed(CLIENT))
    assert any(isinstance(effect, e.Finish) for effect in stage.wait(stage.settings.linger_s + 1))


def test_the_work_goes_on_when_somebody_wants_it_to() -> None:
    stage = AfterAStop()
    stage.tell(i.ResumeRequested(), i.ClientMessage(CLIENT, m.Ask(1, "status", {})))
    assert stage.pilots()
    link = stage.join("somebody", cores=2.0)
    stage.finish(link)
    assert {task.state for task in stage.machine.state.runs[1].tasks} == {DONE}
    assert stage.ask("why", run=1)["state"] != "stopped"
    stage.tell(i.ResumeRequested())
    assert stage.effects == [], "nobody needs to be told twice"


def test_an_application_is_started_again_only_with_the_work() -> None:
    stage = AfterAStop(application="/somewhere/grow.py")
    assert not any(isinstance(effect, e.StartApplication) for effect in [*stage.effects, *stage.wait(MOST_PATIENT_S)])
    assert any(isinstance(effect, e.StartApplication) for effect in stage.tell(i.ResumeRequested()))
