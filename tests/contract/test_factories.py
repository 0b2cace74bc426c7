"""The factories of Pilotfish hold to the contract that plug-ins are tested with."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from pilotfish import plugins
from pilotfish.core.pilots.factory_interface import Factory, FactoryView, PilotProposal, SiteEvent, SiteView
from pilotfish.model.site import PilotSize
from pilotfish.testing.factory_suite import FactoryContract


class EveryFactory(FactoryContract):
    name: str

    def make_factory(self, pilots: int, rng: random.Random) -> Factory:
        factory: Factory = plugins.load("factories", self.name)(pilots, rng)
        return factory


class TestDemand(EveryFactory):
    name = "demand"


class TestSimple(EveryFactory):
    name = "simple"


class TestHeuristic(EveryFactory):
    name = "heuristic"


class TestHybrid(EveryFactory):
    name = "hybrid"


class TestSwift(EveryFactory):
    name = "swift"


def test_every_factory_is_tested() -> None:
    assert {one.name for one in EveryFactory.__subclasses__()} == set(plugins.BUILT_IN["factories"])


class Greedy:
    """A factory that looks at no limit."""

    def on_event(self, event: SiteEvent) -> None:
        pass

    def propose(self, view: FactoryView) -> Sequence[PilotProposal]:
        return [PilotProposal(site.name, PilotSize(), "more") for site in view.sites for _ in range(view.demand.tasks)]

    def standing(self, view: SiteView, now: float) -> dict[str, object]:
        return {}

    def next_look_at(self, view: FactoryView) -> float | None:
        return None


def test_the_suite_finds_a_factory_that_ignores_limits() -> None:
    suite = FactoryContract()
    suite.make_factory = lambda pilots, rng: Greedy()  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        suite.test_the_limits_of_a_site_hold()
