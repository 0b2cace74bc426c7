"""Who may still start, who has waited for too long, and who of those keeps a place."""

from __future__ import annotations

from pilotfish.core.pilots.factory_interface import JOINED, OVERDUE, SiteView
from pilotfish.factories.replication import PilotAssessment, assess_pilots
from pilotfish.factories.site_limits import ProposalRound
from tests.support.factory_stage import NOW, event, factory_view, pilot, queued, site_view, withdrawals

PATIENCE_S = 900.0


def look(*sites: SiteView, spare: tuple[str, ...] = ()) -> tuple[PilotAssessment, ProposalRound]:
    round_ = ProposalRound(factory_view(list(sites), spare=spare))
    return assess_pilots(round_, PATIENCE_S), round_


def test_who_runs_or_has_not_waited_long_is_counted_on() -> None:
    pilots, round_ = look(site_view("a", [pilot("a"), queued("a", 899)]))
    assert (pilots.active, pilots.expected, pilots.pending, pilots.overdue) == (1, 2, 1, [])
    assert round_.look_times == [NOW + 1]


def test_who_has_waited_too_long_is_not() -> None:
    late = queued("a", 900)
    pilots, _ = look(site_view("a", [late]))
    assert (pilots.expected, pilots.overdue) == (0, [[late]])


def test_a_group_is_counted_once_and_on_as_long_as_one_of_it_may_start() -> None:
    pilots, _ = look(site_view("a", [queued("a", 5000, id="root")]), site_view("b", [queued("b", 10, replica_of="root")]))
    assert (pilots.expected, pilots.overdue) == (1, [])


def test_where_waits_are_known_to_be_long_patience_is_too() -> None:
    pilots, round_ = look(site_view("a", [queued("a", 5000)], [event("a", JOINED, seconds=4000)]))
    assert pilots.expected == 1 and round_.look_times == [NOW + 3000]


def test_where_nobody_runs_the_oldest_stays_to_find_out_and_the_others_go() -> None:
    late = [queued("a", 1000), queued("a", 3000), queued("a", 2000), queued("a", 5)]
    pilots, round_ = look(site_view("a", late), site_view("b"))
    gone = withdrawals(round_.proposals)
    assert [one.pilot for one in gone] == [late[2].id, late[0].id] and {one.cause for one in gone} == {OVERDUE}
    assert list(pilots.stalled_sites) == ["a"]


def test_where_somebody_runs_all_keep_their_places() -> None:
    pilots, round_ = look(site_view("a", [pilot("a"), queued("a", 3000), queued("a", 2000)]), site_view("b"))
    assert not round_.proposals and not pilots.stalled_sites and len(pilots.overdue) == 2


def test_nobody_goes_when_there_is_no_other_site_to_try() -> None:
    full = site_view("b", [pilot("b")], max_pilots=1)
    _, round_ = look(site_view("a", [queued("a", 3000), queued("a", 2000)]), full)
    assert not round_.proposals


def test_sites_with_a_fixed_number_are_left_alone() -> None:
    pilots, round_ = look(site_view("a", [queued("a", 3000), queued("a", 2000), pilot("a")], wanted=3), site_view("b"))
    assert not round_.proposals and (pilots.active, pilots.expected, pilots.overdue) == (0, 0, [])


def test_who_is_unneeded_is_not_missed() -> None:
    late = queued("a", 3000)
    pilots, _ = look(site_view("a", [late]), spare=(late.id,))
    assert pilots.overdue == []
