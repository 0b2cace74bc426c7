"""Who may still start, who has waited for too long, and who of those keeps a place."""

from __future__ import annotations

from pilotfish.core.pilots.factory_interface import JOINED, OVERDUE, SiteView
from pilotfish.factories.replication import WaitOutlook, sort_out
from pilotfish.factories.site_limits import ProposalRound
from tests.support.factory_stage import NOW, event, pilot, prospect, queued, view, withdrawals

PATIENCE_S = 900.0


def look(*sites: SiteView, spare: tuple[str, ...] = ()) -> tuple[WaitOutlook, ProposalRound]:
    round_ = ProposalRound(prospect(list(sites), spare=spare))
    return sort_out(round_, PATIENCE_S), round_


def test_who_runs_or_has_not_waited_long_is_counted_on() -> None:
    outlook, round_ = look(view("a", [pilot("a"), queued("a", 899)]))
    assert (outlook.active, outlook.hopeful, outlook.pending, outlook.hopeless) == (1, 2, 1, [])
    assert round_.moments == [NOW + 1]


def test_who_has_waited_too_long_is_not() -> None:
    late = queued("a", 900)
    outlook, _ = look(view("a", [late]))
    assert (outlook.hopeful, outlook.hopeless) == (0, [[late]])


def test_a_group_is_counted_once_and_on_as_long_as_one_of_it_may_start() -> None:
    outlook, _ = look(view("a", [queued("a", 5000, id="root")]), view("b", [queued("b", 10, replica_of="root")]))
    assert (outlook.hopeful, outlook.hopeless) == (1, [])


def test_where_waits_are_known_to_be_long_patience_is_too() -> None:
    outlook, round_ = look(view("a", [queued("a", 5000)], [event("a", JOINED, seconds=4000)]))
    assert outlook.hopeful == 1 and round_.moments == [NOW + 3000]


def test_where_nobody_runs_the_oldest_stays_to_find_out_and_the_others_go() -> None:
    late = [queued("a", 1000), queued("a", 3000), queued("a", 2000), queued("a", 5)]
    outlook, round_ = look(view("a", late), view("b"))
    gone = withdrawals(round_.proposals)
    assert [one.pilot for one in gone] == [late[2].id, late[0].id] and {one.cause for one in gone} == {OVERDUE}
    assert list(outlook.silent) == ["a"]


def test_where_somebody_runs_all_keep_their_places() -> None:
    outlook, round_ = look(view("a", [pilot("a"), queued("a", 3000), queued("a", 2000)]), view("b"))
    assert not round_.proposals and not outlook.silent and len(outlook.hopeless) == 2


def test_nobody_goes_when_there_is_no_other_site_to_try() -> None:
    full = view("b", [pilot("b")], max_pilots=1)
    _, round_ = look(view("a", [queued("a", 3000), queued("a", 2000)]), full)
    assert not round_.proposals


def test_sites_with_a_fixed_number_are_left_alone() -> None:
    outlook, round_ = look(view("a", [queued("a", 3000), queued("a", 2000), pilot("a")], wanted=3), view("b"))
    assert not round_.proposals and (outlook.active, outlook.hopeful, outlook.hopeless) == (0, 0, [])


def test_who_is_unneeded_is_not_missed() -> None:
    late = queued("a", 3000)
    outlook, _ = look(view("a", [late]), spare=(late.id,))
    assert outlook.hopeless == []
