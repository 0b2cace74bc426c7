"""Checks a factory against the contract.

class TestMine(FactoryContract):
    def make_factory(self, pilots: int, rng: random.Random) -> Factory:
        return MyFactory(pilots, rng)
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from pilotfish.core.pilots.factory_interface import Demand, Factory, FactoryView, PilotProposal, SiteEvent, SiteView, WithdrawalProposal
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.core.state import State
from pilotfish.model.backend_traits import BackendTraits
from pilotfish.model.site import EXPIRED, FAILED, JOINED, RELEASED, SUBMITTED, SUCCEEDED, WITHDRAWN, PilotSize, Site
from pilotfish.model.states import ACTIVE
from pilotfish.model.states import SUBMITTED as WAITS

NOW = 100_000.0
ONE_NODE = BackendTraits(ignores=("nodes",))


def site_view(name: str, active: int = 0, queued: int = 0, traits: BackendTraits = ONE_NODE, **about: Any) -> SiteView:
    """Returns a site as a factory sees it. ``active`` and ``queued``: numbers of its pilots in these states. ``about``: other keys of the
    site."""
    states = [ACTIVE] * active + [WAITS] * queued
    pilots = [
        Pilot(f"{name}-{number}", name, PilotSize(), NOW - 1000.0, state=state, joined=int(state == ACTIVE))
        for number, state in enumerate(states)
    ]
    site = Site(**{"backend": "slurm", "cores": 1, "max_pilots": 100, "max_queued": 100, **about})
    return SiteView(name, site, pilots, traits=traits)


def factory_view(sites: Sequence[SiteView], tasks: int, size: PilotSize | None = None, now: float = NOW) -> FactoryView:
    """Returns a factory view of ``sites``. ``tasks``: number of waiting tasks. Each task needs a pilot of the size ``size``."""
    state = State(unfinished=tasks)
    for view in sites:
        state.pilots.update({pilot.id: pilot for pilot in view.pilots})
    sizes = [size or PilotSize()] * tasks
    return FactoryView(state, list(sites), Demand(sum(one.all_cores for one in sizes), tasks, sizes), now)


def requests(proposals: Sequence[PilotProposal | WithdrawalProposal]) -> list[PilotProposal]:
    return [proposal for proposal in proposals if isinstance(proposal, PilotProposal)]


class FactoryContract:
    """Tests of a factory. Override ``make_factory``. ``pilots``: maximum number of pilots at all sites together. 0 means no maximum."""

    def make_factory(self, pilots: int, rng: random.Random) -> Factory:
        raise NotImplementedError("return a new factory")

    def factory(self, pilots: int = 20) -> Factory:
        return self.make_factory(pilots, random.Random(1))

    def test_work_that_waits_gets_pilots(self) -> None:
        asked = requests(self.factory().propose(factory_view([site_view("a"), site_view("b")], 4)))
        assert 1 <= len(asked) <= 4
        assert {proposal.site for proposal in asked} <= {"a", "b"}
        assert all(proposal.reason and proposal.size.cores >= 0 and proposal.size.nodes > 0 for proposal in asked)

    def test_it_works_without_a_number_of_pilots(self) -> None:
        assert requests(self.factory(0).propose(factory_view([site_view("a")], 2)))

    def test_without_work_nothing_is_asked_for(self) -> None:
        assert requests(self.factory().propose(factory_view([site_view("a"), site_view("b")], 0))) == []

    def test_without_sites_nothing_is_asked_for(self) -> None:
        assert list(self.factory().propose(factory_view([], 4))) == []

    def test_the_limits_of_a_site_hold(self) -> None:
        for view in (
            site_view("a", active=3, max_pilots=4),
            site_view("a", active=3, queued=1, max_queued=2),
            site_view("a", active=3, max_cores=4),
        ):
            assert len(requests(self.factory().propose(factory_view([view], 20)))) <= 1

    def test_no_pilot_is_asked_for_that_no_waiting_task_fits(self) -> None:
        for view, size in (
            (site_view("a", cores=4), PilotSize(cores=8)),
            (site_view("a", walltime_s=600.0), PilotSize(walltime_s=601.0)),
            (site_view("a"), PilotSize(gpus=1)),
            (site_view("a"), PilotSize(nodes=2)),
        ):
            assert requests(self.factory().propose(factory_view([view], 1, size))) == []

    def test_only_pilots_that_exist_are_withdrawn(self) -> None:
        views = [site_view("a", active=2, queued=2), site_view("b", queued=1)]
        known = {pilot.id for view in views for pilot in view.pilots}
        factory = self.factory()
        for tasks, now in ((0, NOW), (0, NOW + 1000.0), (0, NOW + 10_000.0), (3, NOW + 20_000.0)):
            for proposal in factory.propose(factory_view(views, tasks, now=now)):
                if isinstance(proposal, WithdrawalProposal):
                    assert proposal.pilot in known and proposal.reason

    def test_the_same_past_and_dice_give_the_same_proposals(self) -> None:
        one, two = (self.factory().propose(factory_view([site_view("a"), site_view("b")], 9)) for _ in range(2))
        assert list(one) == list(two)

    def test_it_hears_every_kind_of_event(self) -> None:
        factory = self.factory()
        for kind in (SUBMITTED, JOINED, SUCCEEDED, FAILED, EXPIRED, RELEASED, WITHDRAWN):
            factory.on_event(SiteEvent(NOW - 10.0, "a", kind, "a-7", 5.0, "a-cause"))
            factory.on_event(SiteEvent(NOW - 9.0, "gone", kind, "gone-7", 5.0, ""))
        factory.propose(factory_view([site_view("a")], 3))

    def test_it_says_when_to_ask_again(self) -> None:
        view = factory_view([site_view("a", queued=1)], 3)
        factory = self.factory()
        factory.propose(view)
        look_at = factory.next_look_at(view)
        assert look_at is None or look_at > view.now

    def test_what_it_thinks_of_a_site_can_be_shown(self) -> None:
        view = site_view("a", active=1)
        assert isinstance(json.dumps(self.factory().standing(view, NOW)), str)
