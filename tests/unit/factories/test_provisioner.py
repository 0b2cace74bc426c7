"""This machine and all sites: the factory hears everything once, is asked now and then, and is not asked for sites that are given up."""

from __future__ import annotations

from collections.abc import Sequence

from pilotfish.core.pilots.factory_interface import FactoryView, PilotProposal, SiteView, WithdrawalProposal
from pilotfish.core.pilots.pilot_records import SiteRecord
from pilotfish.core.policy_interface import HoldProposal
from pilotfish.core.state import State
from pilotfish.factories.provisioner import HOLD_AFTER, MIN_INTERVAL_S, PoolProvisioner
from pilotfish.model.site import LOCAL, SUBMITTED, PilotSize, Site, SiteEvent

POND = Site(backend="slurm")
NOW = 1000.0


class Recorder:
    """A factory that wants one pilot at every site, always, and remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[SiteEvent] = []
        self.prospects: list[FactoryView] = []
        self.look_at: float | None = None

    def on_event(self, event: SiteEvent) -> None:
        self.heard.append(event)

    def propose(self, factory_view: FactoryView) -> Sequence[PilotProposal | WithdrawalProposal]:
        self.prospects.append(factory_view)
        return [PilotProposal(site_view.name, PilotSize(), "always") for site_view in factory_view.sites]

    def standing(self, site_view: SiteView, now: float) -> dict[str, object]:
        return {"site": site_view.name}

    def next_look_at(self, factory_view: FactoryView) -> float | None:
        return self.look_at


def made(**records: SiteRecord) -> tuple[PoolProvisioner, Recorder, State]:
    factory = Recorder()
    return PoolProvisioner(factory), factory, State(sites=dict(records))


def used(site: Site = POND, wanted: int | None = -1) -> SiteRecord:
    return SiteRecord(site=site, wanted=wanted)


def happens(record: SiteRecord, site: str, at: float) -> None:
    record.events += 1
    record.history.append(SiteEvent(at, site, SUBMITTED, f"{site}-{record.events}"))


def test_a_pool_without_sites_does_not_trouble_the_factory() -> None:
    everywhere, factory, state = made(pond=used(wanted=None), local=SiteRecord())
    assert everywhere.propose(state, NOW) == [] and factory.prospects == []
    assert everywhere.next_look_at(state, NOW) is None


def test_the_factory_sees_sites_that_are_used_and_neither_paused_nor_held() -> None:
    held = used()
    held.held = "its pilots fail"
    records = {"pond": used(), "paused": used(Site(backend="sge", paused=True)), "held": held, "unused": used(wanted=None)}
    everywhere, factory, state = made(**records, removed=SiteRecord(wanted=-1))
    assert [request.site for request in everywhere.propose(state, NOW) if isinstance(request, PilotProposal)] == ["pond"]
    assert [site_view.name for site_view in factory.prospects[0].sites] == ["pond"]


def test_sites_are_thought_about_now_and_then_and_not_forgotten() -> None:
    everywhere, factory, state = made(pond=used())
    assert everywhere.propose(state, NOW)
    assert everywhere.propose(state, NOW + MIN_INTERVAL_S / 2) == [] and len(factory.prospects) == 1
    assert everywhere.next_look_at(state, NOW + MIN_INTERVAL_S / 2) == NOW + MIN_INTERVAL_S
    factory.look_at = NOW + 77
    assert everywhere.propose(state, NOW + MIN_INTERVAL_S) and everywhere.next_look_at(state, NOW + MIN_INTERVAL_S) == NOW + 77


def test_the_factory_hears_every_event_once_and_in_order() -> None:
    pond, reef = used(), used()
    everywhere, factory, state = made(pond=pond, reef=reef)
    for at in range(6):
        happens((pond, reef)[at % 2], ("pond", "reef")[at % 2], float(at))
    everywhere.propose(state, NOW)
    everywhere.standings(state, NOW)
    assert [event.at for event in factory.heard] == [0, 1, 2, 3, 4, 5]
    happens(pond, "pond", 6.0)
    everywhere.standings(state, NOW)
    everywhere.propose(state, NOW + 1)
    assert [event.at for event in factory.heard] == [0, 1, 2, 3, 4, 5, 6]


def test_of_more_events_than_are_kept_the_latest_are_heard() -> None:
    pond = used()
    everywhere, factory, state = made(pond=pond)
    for at in range(500):
        happens(pond, "pond", float(at))
    everywhere.propose(state, NOW)
    assert [event.at for event in factory.heard] == list(range(300, 500))


def test_events_of_this_machine_are_none_of_its_business() -> None:
    local = SiteRecord()
    happens(local, LOCAL, 1.0)
    everywhere, factory, state = made(local=local, pond=used())
    everywhere.propose(state, NOW)
    assert factory.heard == []


def test_a_site_is_given_up_after_three_bad_starts_and_not_asked_in_the_same_breath() -> None:
    pond = used()
    pond.bad_starts, pond.last_bad = HOLD_AFTER, "no python3 on n07"
    everywhere, factory, state = made(pond=pond, reef=used())
    (hold,) = everywhere.propose(state, NOW)
    assert isinstance(hold, HoldProposal) and hold.site == "pond" and "no python3 on n07" in hold.reason
    assert everywhere.next_look_at(state, NOW) == NOW + MIN_INTERVAL_S, "the other sites are thought about soon"
    pond.held, pond.bad_starts = hold.reason, 0
    assert [type(one) for one in everywhere.propose(state, NOW + MIN_INTERVAL_S)] == [PilotProposal]
    assert [site_view.name for site_view in factory.prospects[-1].sites] == ["reef"]


def test_two_bad_starts_are_bad_luck_and_a_held_site_is_not_held_again() -> None:
    unlucky, held = used(), used()
    unlucky.bad_starts = HOLD_AFTER - 1
    held.bad_starts, held.held = HOLD_AFTER, "its pilots fail"
    everywhere, _, state = made(pond=unlucky, reef=held)
    assert not [one for one in everywhere.propose(state, NOW) if isinstance(one, HoldProposal)]


def test_standings_are_of_the_sites_that_are_used() -> None:
    everywhere, _, state = made(pond=used(), unused=used(wanted=None))
    assert everywhere.standings(state, NOW) == {"pond": {"site": "pond"}}
