"""Tests the election: a site has one site master after any deaths and partitions, once it had time to settle."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from pilotfish.agent.peers.contacts import Contact
from tests.support.simulated_overlay import Network, grown

SEEDS = st.integers(0, 2**32)
QUIET = settings(deadline=None, max_examples=8, suppress_health_check=list(HealthCheck))


def with_master(seed: int, size: int) -> Network:
    """The first peer was appointed, and all were told so when they joined."""
    network = grown(seed, size)
    appoint(network, network.peers[next(iter(network.peers))].me)
    network.settle()
    return network


def appoint(network: Network, contact: Contact) -> None:
    for peer in network.peers.values():
        peer.election.consider_claim(1, contact, network.now)
        network.step(peer)


def believed(network: Network) -> set[tuple[int, int]]:
    """All believed claims: (term, node)."""
    return {(peer.election.term, peer.election.master.node) for peer in network.peers.values() if peer.election.master is not None}


def only_master(network: Network) -> int:
    ((_, node),) = believed(network)
    assert [peer.me.node for peer in network.peers.values() if peer.election.is_site_master] == [node]
    return node


def test_nothing_happens_before_the_first_appointment() -> None:
    network = grown(1, 10)
    network.run(1000.0)
    assert believed(network) == set()


def test_the_first_appointed_stays_site_master_although_it_has_not_the_lowest_id() -> None:
    network = with_master(2, 12)
    first = next(iter(network.peers))
    network.run(100.0)
    assert only_master(network) == first
    newcomer = network.join(node=1)
    network.run(100.0)
    assert only_master(network) == first
    assert newcomer.election.master is not None and newcomer.election.master.node == first


@QUIET
@given(seed=SEEDS, size=st.integers(2, 40), how=st.sampled_from(["leave", "silent death", "death"]), deaths=st.integers(1, 4))
def test_when_the_site_master_dies_the_live_peer_with_the_lowest_id_takes_over(seed: int, size: int, how: str, deaths: int) -> None:
    network = with_master(seed, size)
    for _ in range(min(deaths, size - 1)):
        master = only_master(network)
        if how == "leave":
            network.leave(master)
        else:
            network.die(master, silently=how == "silent death")
        network.settle()
        assert only_master(network) == min(network.peers)


@QUIET
@given(
    seed=SEEDS,
    size=st.integers(3, 30),
    events=st.lists(
        st.tuples(st.sampled_from(["join", "leave", "death", "silent death", "master dies", "cut", "heal"]), st.floats(0, 60)), max_size=15
    ),
)
def test_after_any_deaths_and_healed_partitions_all_believe_one_live_peer(seed: int, size: int, events: list[tuple[str, float]]) -> None:
    network = with_master(seed, size)
    known = [(1, network.peers[only_master(network)].me)]
    """What the master knows: the claims that site masters reported."""
    network.on_report = lambda peer, effect: known.append(effect[1:]) if effect[0] == "master" and effect[2] is peer.me else None
    for event, wait_s in events:
        masters = [peer.me.node for peer in network.peers.values() if peer.election.is_site_master]
        if event == "cut":
            network.sides = {node: network.random.randrange(2) for node in network.peers}
        elif event == "heal":
            network.sides = {}
        elif event == "join" or len(network.peers) < 3:
            network.join().election.consider_claim(*max(known, key=lambda claim: (claim[0], -claim[1].node)), network.now)
        elif event == "leave":
            network.leave(network.any_peer().me.node)
        else:
            node = masters[0] if masters and event == "master dies" else network.any_peer().me.node
            network.die(node, silently=event == "silent death")
        network.run(wait_s)
    network.sides = {}
    for peer in network.peers.values():
        peer.kademlia.bootstrap([other.me for other in network.random.sample(list(network.peers.values()), 2)], network.now)
        network.step(peer)
    network.settle()
    network.settle()
    assert only_master(network) in network.peers


@QUIET
@given(seed=SEEDS, size=st.integers(4, 30))
def test_of_two_site_masters_of_a_partitioned_site_the_better_claim_wins(seed: int, size: int) -> None:
    network = with_master(seed, size)
    first = only_master(network)
    network.sides = {node: int(node != first and network.random.random() < 0.5) for node in network.peers}
    other_side = [node for node, side in network.sides.items() if side]
    network.settle()
    if other_side:
        assert believed(network) == {(1, first), (2, min(other_side))}
    network.sides = {}
    network.settle()
    winner = only_master(network)
    if other_side:
        # A peer may have taken the old site master for dead meanwhile, and then claims as well.
        assert (-network.peers[winner].election.term, winner) <= (-2, min(other_side))
    else:
        assert winner == first


def test_of_two_claims_of_one_term_the_lower_id_wins_and_the_other_steps_down() -> None:
    network = grown(7, 10)
    low, high = sorted(network.peers)[:2]
    for node in (high, low):
        network.peers[node].election.consider_claim(5, network.peers[node].me, network.now)
    assert network.peers[low].election.is_site_master and network.peers[high].election.is_site_master
    for peer in list(network.peers.values()):
        network.step(peer)
    network.settle()
    assert only_master(network) == low
    assert [effect[2].node for effect in network.reports[high] if effect[0] == "master"] == [high, low]


def test_a_peer_that_cannot_reach_the_site_master_does_not_replace_it() -> None:
    network = with_master(8, 12)
    first = only_master(network)
    lonely = network.peers[max(node for node in network.peers if node != first)]
    for _ in range(5):
        lonely.unreachable(first, network.now)
        network.step(lonely)
        network.run(30.0)
    assert only_master(network) == first


def test_a_suspended_site_master_steps_down_when_it_resumes() -> None:
    network = with_master(9, 12)
    first = only_master(network)
    sleeper = network.peers.pop(first)
    network.silent.add(first)
    network.settle()
    successor = only_master(network)
    network.silent.clear()
    network.peers[first] = sleeper
    assert sleeper.election.is_site_master
    network.step(sleeper)
    network.settle()
    assert only_master(network) == successor == min(set(network.peers) - {first})


def test_broadcasts_of_the_election_are_not_delivered_to_hosts() -> None:
    network = with_master(11, 8)
    assert {effect[0] for reports in network.reports.values() for effect in reports} == {"master"}


def test_a_single_peer_becomes_site_master() -> None:
    network = grown(10, 2)
    one, other = network.peers.values()
    appoint(network, other.me)
    network.run(5.0)
    network.die(other.me.node, silently=True)
    network.settle()
    assert only_master(network) == one.me.node
