"""What people do about pilots and sites while they are at it: ask for some, withdraw them, describe a site anew, have it tried again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pilotfish.factories.on_demand import DemandFactory
from pilotfish.factories.provisioner import PoolProvisioner
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.site import CANCELLED, DIED, REFUSED, WITHDRAWN
from pilotfish.model.states import ACTIVE, DRAINING, ENDING, SUBMITTED
from tests.unit.core.test_site_events import POND, add, cancelled, events, stage_with


def test_pilots_that_were_added_by_hand_can_be_withdrawn_again() -> None:
    stage = stage_with(pond=POND)
    waiting, working, kept = stage.ask("pilots_add", site="pond", pilots=3)["pilots"]
    other = add(stage)
    for pilot in (waiting, working, kept):
        stage.tell(i.PilotAccepted(pilot, f"job of {pilot}", 0.5))
    stage.join("w", pilot=working, cores=2.0)
    answer = stage.ask("pilots_withdraw", pilots=[waiting, "pond-99", working, other, waiting], reason="it was only a test")
    assert answer == {"pilots": [waiting, working]}, "neither those that nobody knows, nor those that nobody added"
    assert cancelled(stage.effects) == [waiting] and stage.machine.state.workers["w"].state == DRAINING
    assert [stage.machine.state.pilots[pilot].state for pilot in (waiting, kept, other)] == [ENDING, SUBMITTED, SUBMITTED]
    stage.ask("pilots_withdraw", pilots=[waiting, working])
    assert not cancelled(stage.effects), "once is enough"
    stage.tell(i.PilotEndReported(waiting, True, "cancelled", cause=CANCELLED))
    assert events(stage)[-1] == (WITHDRAWN, "unneeded")
    assert stage.ask("pilots_withdraw", pilots=[waiting]) == {"pilots": []}


@pytest.mark.parametrize("pilots", [None, "pond-1", 1, [1], {"pond-1": 1}])
def test_what_are_no_names_of_pilots_is_refused(pilots: Any) -> None:
    assert isinstance(stage_with(pond=POND).ask("pilots_withdraw", pilots=pilots), m.Problem)


def test_pilots_that_wait_are_replaced_when_their_site_is_described_otherwise_and_those_that_work_are_not() -> None:
    stage = stage_with(pond=POND)
    waiting, working = add(stage), add(stage)
    (by_user,) = stage.ask("pilots_add", site="pond", pilots=1)["pilots"]
    stage.join("w", pilot=working, cores=2.0)
    stage.tell(i.SitesRead({"pond": msgspec.structs.replace(POND, max_pilots=20, period_s=5.0)}))
    pilots = stage.machine.state.pilots
    assert all(pilots[name].state <= ACTIVE for name in (waiting, working, by_user)), "that changes nothing for them"
    stage.tell(i.SitesRead({"pond": msgspec.structs.replace(POND, queue="long", walltime_s=7200.0)}))
    assert pilots[waiting].state == ENDING == pilots[by_user].state and pilots[working].state == ACTIVE
    (fresh,) = [pilot for pilot in pilots.values() if pilot.by_user and pilot.state <= ACTIVE]
    assert fresh.size.walltime_s == 7200.0


def test_pilots_that_are_refused_together_are_one_bad_start() -> None:
    stage = stage_with(PoolProvisioner(DemandFactory()), pond=POND)
    stage.ask("site_use", site="pond", pilots=5)
    stage.work(count=50)
    stage.wait(1)
    refused = [
        i.PilotEndReported(pilot, False, "was refused: Unspecified error", cause=REFUSED) for pilot in list(stage.machine.state.pilots)
    ]
    assert len(refused) == 5
    stage.tell(*refused)
    stage.wait(2)
    record = stage.machine.state.sites["pond"]
    assert record.bad_starts == 1 and not record.held and not stage.machine.state.pilots, "nor is the next one sent at once"
    assert stage.ask("why", site="pond")["reasons"][0]["commands"][-1] == "pilotfish site resume pond"
    stage.wait(5)
    assert len(stage.machine.state.pilots) == 5


def test_a_site_whose_pilots_died_is_tried_at_once_when_somebody_says_so() -> None:
    stage = stage_with(PoolProvisioner(DemandFactory()), pond=msgspec.structs.replace(POND, max_pilots=1))
    stage.work(count=50)
    stage.wait(1)
    (pilot,) = stage.machine.state.pilots
    stage.join("w", pilot=pilot, cores=2.0)
    stage.tell(i.PilotEndReported(pilot, False, "NODE_FAIL", cause=DIED))
    stage.wait(5)
    assert not stage.machine.state.pilots, "it is left alone for a while"
    assert stage.ask("why", site="pond")["reasons"][0]["code"] == "back-off"
    stage.ask("site_release", site="pond")
    stage.wait(1)
    assert stage.machine.state.pilots


def test_no_pilot_is_added_to_a_paused_site() -> None:
    stage = stage_with(pond=msgspec.structs.replace(POND, paused=True))
    problem = stage.ask("pilots_add", site="pond", pilots=1)
    assert isinstance(problem, m.Problem) and problem.hint == "pilotfish site resume pond"
