"""Tests how a peer combines its parts."""

from __future__ import annotations

from pilotfish.agent.peers.contacts import Contact
from pilotfish.agent.peers.peer import Peer
from pilotfish.agent.peers.site_matching import CLAIM_S, SiteMatching
from tests.support.site_matching_stage import spec_row, task_row


def test_a_worker_that_leaves_may_still_acknowledge_tasks_until_its_connection_closes() -> None:
    matching = SiteMatching(Contact(1, None), "w1", {}, {}, {"cores": 0.0})
    peer = Peer(matching, 1, 0.0)
    leaver = Contact(2, None)
    matching.connected()
    peer.election.consider_claim(1, peer.me, 0.0)
    peer.turn(0.0)
    matching.gathered([[leaver.wire, "w2", {"cores": 2.0}, 0, [[7, 0.0]], []]], 0.0)
    matching.delegated(["lend", [spec_row()], [task_row(0), task_row(1)]], b"xx", 0.0)
    matching.backlog.announce(2)
    peer.received(leaver, ["room", {"cores": 2.0}, 0], 0.0)
    peer.received(leaver, ["leave"], 0.0)
    assert not matching.backlog.tasks, "the tasks are not assigned again"
    peer.received(leaver, ["got", 1, [[0, 1]]], 0.0)
    assert ("send", ["claims", [["w2", [[0, 1]]]]]) in peer.turn(CLAIM_S)
    peer.unreachable(leaver.node, CLAIM_S)
    assert list(matching.backlog.tasks) == [1]
