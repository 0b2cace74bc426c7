"""What every factory does before it chooses: pilots without work go home, unless a person wants them."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.core.pilots.factory_interface import FactoryView, SiteView
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.core.state import Task, Worker
from pilotfish.factories.site_limits import ProposalRound
from pilotfish.factories.upkeep import BaseFactory
from pilotfish.model.site import PilotSize
from pilotfish.model.states import DRAINING
from tests.support.factory_stage import NOW, factory_view, pilot, site_view, withdrawals

HOUR = PilotSize(walltime_s=3600.0)


def idler(idle_s: float, size: PilotSize = HOUR, agents: int = 1, **more: Any) -> tuple[Pilot, list[Worker]]:
    """A pilot whose agents have had nothing to do for so long."""
    made = pilot("pond", **more)
    made.size = size
    workers = [Worker(f"{made.id}.{number}", made.id, {}, NOW - idle_s) for number in range(agents)]
    made.workers = [worker.id for worker in workers]
    return made, workers


def seen(site: SiteView, workers: list[Worker], **more: Any) -> FactoryView:
    made = factory_view([site], **more)
    made.state.workers = {worker.id: worker for worker in workers}
    return made


class OnlyUpkeep(BaseFactory):
    def _fill_up(self, round_: ProposalRound) -> None:
        pass


def sent_home(made: FactoryView) -> tuple[list[str], list[float]]:
    """Who, and when to look again."""
    factory = OnlyUpkeep()
    return [one.pilot for one in withdrawals(factory.propose(made))], factory._look_times


def test_a_pilot_without_work_goes_home_after_a_while_and_not_before() -> None:
    (old, old_workers), (young, young_workers) = idler(301.0), idler(200.0)
    gone, look_times = sent_home(seen(site_view("pond", [old, young]), old_workers + young_workers))
    assert gone == [old.id] and look_times == [NOW + 100.0]


def test_one_of_several_nodes_goes_when_all_of_them_have_nothing_to_do() -> None:
    made, workers = idler(1000.0, agents=2)
    workers[1].ahead[object.__new__(Task)] = ()
    assert sent_home(seen(site_view("pond", [made]), workers)) == ([], [])
    workers[1].ahead.clear()
    assert sent_home(seen(site_view("pond", [made]), workers))[0] == [made.id]


def test_who_was_sent_home_is_not_sent_again() -> None:
    made, workers = idler(1000.0)
    workers[0].state = DRAINING
    assert sent_home(seen(site_view("pond", [made]), workers)) == ([], [])


@pytest.mark.parametrize(("about", "tasks"), [({"idle_s": 0.0}, 0), ({"wanted": 1}, 5)])
def test_where_pilots_shall_stay_they_do(about: dict[str, Any], tasks: int) -> None:
    made, workers = idler(1e5)
    assert sent_home(seen(site_view("pond", [made], **about), workers, tasks=tasks, sizes=[])) == ([], [])


def test_one_that_a_person_asked_for_stays_and_a_number_that_was_fixed_for_work_that_is_over_does_not_count() -> None:
    made, workers = idler(1e5)
    assert sent_home(seen(site_view("pond", [made], wanted=1), workers))[0] == [made.id]
    made.by_user = True
    assert sent_home(seen(site_view("pond", [made], wanted=1), workers))[0] == []


@pytest.mark.parametrize("about", [{"wanted": 3}, {"max_pilots": 3}, {"max_cores": 3}])
def test_an_idle_pilot_makes_room_for_one_that_the_waiting_work_fits(about: dict[str, Any]) -> None:
    """Such as a longer one, when its person has just described the site anew."""
    made, workers = idler(10.0)
    other, others = idler(10.0)
    busy, at_work = idler(10.0)
    at_work[0].active[object.__new__(Task)] = ()
    site = site_view("pond", [busy, made, other], **about)
    everybody = [*workers, *others, *at_work]
    assert sent_home(seen(site, everybody, tasks=1))[0] == [made.id]
    assert sent_home(seen(site, everybody, tasks=1, sizes=[]))[0] == [], "all that waits has a place"
    assert sent_home(seen(site, everybody, tasks=1, sizes=[PilotSize(64.0)]))[0] == [], "no pilot of this site would do"
    workers[0].state = DRAINING
    assert sent_home(seen(site, everybody, tasks=1))[0] == [], "one is leaving already"


def test_one_that_has_only_just_come_is_in_nobodys_way() -> None:
    """It is about to be given something of what waits."""
    made, workers = idler(1.0)
    assert sent_home(seen(site_view("pond", [made], wanted=1), workers, tasks=1)) == ([], [NOW + 4.0])


def test_where_another_one_may_be_asked_for_nobody_has_to_make_room() -> None:
    made, workers = idler(1.0)
    assert sent_home(seen(site_view("pond", [made], max_pilots=2), workers, tasks=1))[0] == []
