"""Tests Kademlia: a settled network finds exactly the nearest nodes, and contents are found while a holder lives."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from pilotfish.agent.peers.contacts import BITS, Contact, MalformedMessage, OverlayTuning
from pilotfish.agent.peers.content_holders import ContentHolders
from pilotfish.agent.peers.kademlia import RoutingTable
from pilotfish.agent.peers.peer import Peer
from tests.support.simulated_overlay import QUICK, IdleMatching, Network, grown, nodes_of

SEEDS = st.integers(0, 2**32)
CHANGES = st.sampled_from(["join", "join", "leave", "silent death", "death"])
TUNINGS = st.sampled_from([QUICK, QUICK._replace(k=12)])
"""With larger buckets, a publisher looks for fewer nodes than fit into one."""
QUIET = settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck))


def change(network: Network, kind: str, least: int = 2) -> int:
    """The node that was changed."""
    if kind == "join" or len(network.peers) <= least:
        return network.join().me.node
    node = network.any_peer().me.node
    if kind == "leave":
        network.leave(node)
    else:
        network.die(node, silently=kind == "silent death")
    return node


def assert_lookups_are_exact(network: Network, count: int) -> None:
    for _ in range(count):
        peer = network.any_peer()
        target = network.random.getrandbits(BITS)
        found = network.look_up(peer, target)
        assert nodes_of(found) == network.nearest(target, network.tuning.k, peer.me.node)


def assert_tables_are_settled(network: Network) -> None:
    """Check what exact lookups and broadcasts need: a bucket has all live nodes of its range, or k of them, and no dead one."""
    for me, peer in network.peers.items():
        live = Counter(peer.kademlia.table.index_of(node) for node in network.peers if node != me)
        known = {index: len(bucket) for index, bucket in peer.kademlia.table.buckets.items()}
        assert known == {index: min(count, network.tuning.k) for index, count in live.items()}
        assert all(contact.node in network.peers for contact in peer.kademlia.table)


# --- the table ------------------------------------------------------------------------------------------------------------------------


@given(seed=SEEDS, k=st.integers(1, 6), steps=st.integers(0, 150), bits=st.sampled_from([4, 8, BITS]))
def test_a_table_equals_a_plain_list_of_contacts_seen_last(seed: int, k: int, steps: int, bits: int) -> None:
    random = Random(seed)
    me = random.getrandbits(bits)
    table = RoutingTable(me, k)
    plain: list[int] = []
    """Least recently seen first."""
    for step in range(steps):
        node = random.choice(plain) if plain and random.random() < 0.4 else random.getrandbits(bits)
        if random.random() < 0.2:
            table.forget(node)
            plain = [other for other in plain if other != node]
        else:
            table.seen(Contact(node, step), step)
            plain = [other for other in plain if other != node] + [node] * (node != me)
            same_bucket = [other for other in plain if (other ^ me).bit_length() == (node ^ me).bit_length()]
            if len(same_bucket) > k:
                plain.remove(same_bucket[0])
        for index, bucket in table.buckets.items():
            assert list(bucket) == [other for other in plain if (other ^ me).bit_length() - 1 == index] != []
            assert sorted(bucket.values(), key=lambda entry: entry[1]) == list(bucket.values())
        assert len(table) == len(plain) and {contact.node for contact in table} == set(plain) and me not in plain
        target, count, but = random.getrandbits(bits), random.randrange(12), random.choice([me, *plain])
        expected = sorted((other for other in plain if other != but), key=lambda other: other ^ target)
        assert nodes_of(table.nearest(target, count, but)) == expected[:count]


@given(seed=SEEDS, length=st.integers(0, 12))
def test_a_table_knows_which_of_its_contacts_are_in_a_region_and_whether_there_may_be_more(seed: int, length: int) -> None:
    random = Random(seed)
    me, k = random.getrandbits(BITS), random.randrange(1, 5)
    table = RoutingTable(me, k)
    everybody = [me ^ random.getrandbits(BITS - random.randrange(12)) for _ in range(random.randrange(40))]
    for node in everybody:
        table.seen(Contact(node, None), 0.0)
    shift = BITS - length
    prefix = (me >> shift) ^ random.choice([0, random.getrandbits(length)])
    contacts, more = table.within(prefix, length)
    assert sorted(nodes_of(contacts)) == sorted(contact.node for contact in table if contact.node >> shift == prefix)
    if not more:
        assert set(nodes_of(contacts)) == {node for node in everybody if node >> shift == prefix and node != me}


# --- lookups --------------------------------------------------------------------------------------------------------------------------


@QUIET
@given(seed=SEEDS, size=st.integers(1, 40), changes=st.lists(CHANGES, max_size=25), as_json=st.booleans())
def test_lookups_in_a_settled_network_find_exactly_the_nearest(seed: int, size: int, changes: list[str], as_json: bool) -> None:
    network = Network(seed, as_json=as_json)
    for kind in ["join"] * size + changes:
        change(network, kind)
        network.run(2 * network.random.random())
    network.settle()
    assert_tables_are_settled(network)
    assert_lookups_are_exact(network, 15)


def test_lookups_find_exactly_the_nearest_of_a_hundred_with_buckets_as_shipped() -> None:
    network = grown(1, 100, QUICK._replace(k=20))
    assert_tables_are_settled(network)
    assert_lookups_are_exact(network, 60)


@QUIET
@given(seed=SEEDS, size=st.integers(2, 30), changes=st.lists(CHANGES, max_size=25))
def test_tables_keep_their_rules_at_every_step(seed: int, size: int, changes: list[str]) -> None:
    def check(peer: Peer) -> None:
        table = peer.kademlia.table
        for index, bucket in table.buckets.items():
            assert 0 < len(bucket) <= network.tuning.k
            assert all(table.index_of(node) == index >= 0 and contact.node == node for node, (contact, _) in bucket.items())
            seen = [at for _, at in bucket.values()]
            assert seen == sorted(seen)

    network = Network(seed)
    network.after_step = check
    for kind in ["join"] * size + changes:
        change(network, kind)
        network.run(network.random.random())


@QUIET
@given(seed=SEEDS, size=st.integers(6, 40))
def test_two_halves_of_a_partitioned_site_find_each_other_again(seed: int, size: int) -> None:
    network = grown(seed, size)
    network.sides = {node: network.random.randrange(2) for node in network.peers}
    network.settle()
    assert all(network.sides[other.node] == network.sides[node] for node, peer in network.peers.items() for other in peer.kademlia.table)
    network.sides = {}
    network.settle()
    assert_lookups_are_exact(network, 5)


# --- contents -------------------------------------------------------------------------------------------------------------------------


@QUIET
@given(seed=SEEDS, size=st.integers(3, 40), holders=st.integers(1, 8), tuning=TUNINGS)
def test_a_content_is_kept_by_the_three_nearest_and_all_its_holders_are_found(
    seed: int, size: int, holders: int, tuning: OverlayTuning
) -> None:
    network = grown(seed, size, tuning)
    key = network.random.getrandbits(BITS)
    holding = network.random.sample(list(network.peers.values()), min(holders, size))
    for peer in holding:
        assert network.publish(peer, key) == 3
    keepers = [node for node, peer in network.peers.items() if peer.kademlia.content_holders.holders(key, network.now)]
    assert set(keepers) == set(network.nearest(key, 3))
    seeker = network.any_peer()
    found = network.find(seeker, key)
    assert set(nodes_of(found)) == {peer.me.node for peer in holding} - {seeker.me.node}
    first = holding[0]
    first.kademlia.withdraw(key)
    network.step(first)
    network.run(1.0)
    found = network.find(seeker, key)
    assert set(nodes_of(found)) == {peer.me.node for peer in holding[1:]} - {seeker.me.node}


@QUIET
@given(seed=SEEDS, size=st.integers(10, 30), changes=st.lists(CHANGES, min_size=10, max_size=30), tuning=TUNINGS)
def test_contents_are_found_during_churn_while_a_holder_lives(seed: int, size: int, changes: list[str], tuning: OverlayTuning) -> None:
    """At most two of the three keepers of a key die between two publications: three copies cannot survive more."""
    network = grown(seed, size, tuning)
    keys = {network.random.getrandbits(BITS): {peer.me.node: peer} for peer in network.random.sample(list(network.peers.values()), 4)}
    for key, holders in keys.items():
        for peer in holders.values():
            network.publish(peer, key)
    for kind in changes:
        gone = change(network, kind, least=8)
        for key, holders in keys.items():
            holders.pop(gone, None)
            seeker = network.any_peer()
            live = set(holders) - {seeker.me.node}
            if live:
                found = network.find(seeker, key)
                assert live & set(nodes_of(found))
        network.run(network.tuning.republish_s / 2)


@QUIET
@given(seed=SEEDS, size=st.integers(8, 30), leavers=st.integers(1, 20))
def test_a_leaving_node_passes_on_its_records(seed: int, size: int, leavers: int) -> None:
    """All keepers leave, one after the other, before the holder publishes again."""
    network = grown(seed, size, QUICK._replace(republish_s=1e6, expire_s=3e6))
    holder = network.any_peer()
    key = network.random.getrandbits(BITS)
    network.publish(holder, key)
    for _ in range(min(leavers, size - 4)):
        network.leave(network.nearest(key, 1, but=holder.me.node)[0])
        network.run(1.0)
    for seeker in list(network.peers.values()):
        if seeker is not holder:
            assert nodes_of(network.find(seeker, key)) == [holder.me.node]


@QUIET
@given(seed=SEEDS, size=st.integers(3, 30))
def test_a_node_that_left_is_no_holder_any_more(seed: int, size: int) -> None:
    network = grown(seed, size)
    holder = network.any_peer()
    network.publish(holder, 7)
    network.leave(holder.me.node)
    network.run(1.0)
    assert not any(peer.kademlia.content_holders.holders(7, network.now) for peer in network.peers.values())


@QUIET
@given(seed=SEEDS, size=st.integers(3, 20), dead=st.integers(0, 20))
def test_only_acknowledged_stores_are_counted(seed: int, size: int, dead: int) -> None:
    network = grown(seed, size)
    key = network.random.getrandbits(BITS)
    holder = network.any_peer()
    others = network.nearest(key, size, but=holder.me.node)
    for node in others[:dead]:
        network.die(node, silently=True)
    kept = network.publish(holder, key)
    keepers = [node for node, peer in network.peers.items() if peer.kademlia.content_holders.holders(key, network.now)]
    assert kept == len(keepers) >= 1
    if dead <= 3:
        assert kept == min(3, len(network.peers))


def test_a_record_that_all_nodes_refuse_is_not_counted() -> None:
    network = grown(1, 10, QUICK._replace(max_keys=0))
    holder = network.any_peer()
    assert network.publish(holder, 7) == 0


def test_a_record_that_is_not_published_again_expires() -> None:
    network = grown(2, 12)
    holder = network.any_peer()
    network.publish(holder, 7)
    network.run(10 * network.tuning.expire_s)
    seeker = next(peer for peer in network.peers.values() if peer is not holder)
    assert nodes_of(network.find(seeker, 7)) == [holder.me.node]
    network.die(holder.me.node, silently=True)
    network.run(1.1 * network.tuning.expire_s)
    assert network.find(seeker, 7) == []
    assert sum(len(peer.kademlia.content_holders._records) for peer in network.peers.values()) == 0


@given(seed=SEEDS)
def test_records_are_bounded_and_never_drop_the_latest_holder(seed: int) -> None:
    random = Random(seed)
    content_holders = ContentHolders(5, 3, 10.0)
    plain: dict[tuple[int, int], float] = {}
    latest: dict[int, tuple[int, float]] = {}
    """key -> the holder added last, and the time until which this addition alone is valid"""
    for now in range(80):
        key, node = random.randrange(8), random.randrange(6)
        if random.random() < 0.7:
            seconds = random.choice([0.5, 3.0, 100.0])
            if content_holders.add(key, [(Contact(node, None), seconds)], now):
                plain[key, node] = max(plain.get((key, node), 0), now + min(seconds, 10.0))
                latest[key] = node, now + min(seconds, 10.0)
        elif random.random() < 0.5:
            content_holders.remove(key, node)
            plain.pop((key, node), None)
            if latest.get(key, (None, 0))[0] == node:
                del latest[key]
        else:
            content_holders.sweep(now)
        assert len(content_holders._records) <= 5
        for key in range(8):
            found = nodes_of(content_holders.holders(key, now))
            live = {node for (other, node), until in plain.items() if other == key and until > now}
            assert len(found) <= 3 and set(found) <= live
            newest, until = latest.get(key, (None, 0.0))
            assert until <= now or newest in found


# --- malformed messages ---------------------------------------------------------------------------------------------------------------

KINDS = st.sampled_from(["reign", "suspect", "find", "keep", "inherit", "withdraw", "ping", "leave", "answer", "no such thing"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 400),
    st.just(10**400),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["0" * 64, "f" * 64, "F" * 64, "٣" * 64]),
)
WORDS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2), max_leaves=12
)
MESSAGES = st.one_of(WORDS, st.lists(WORDS, max_size=5), st.tuples(KINDS, st.integers(0, 60), WORDS, WORDS).map(list))


@settings(deadline=None, max_examples=120)
@given(words=st.lists(MESSAGES, max_size=10), seed=SEEDS)
def test_malformed_messages_are_refused_or_ignored_and_harm_nothing(words: list[Any], seed: int) -> None:
    network = Network(seed)
    for _ in range(6):
        network.join()
        network.run(0.2)
    victim = network.any_peer()
    stranger = next(peer.me for peer in network.peers.values() if peer is not victim)
    found: list[list[Contact]] = []
    victim.kademlia.look_up(network.random.getrandbits(BITS), lambda nodes, at: found.append(nodes), network.now)
    for message in words:
        try:
            victim.received(stranger, message, network.now)
        except MalformedMessage:
            pass
        network.step(victim)
    network.step(victim)
    network.run(1000.0, until=lambda: bool(found))
    assert found
    network.settle()
    assert_lookups_are_exact(network, 3)


def test_a_lookup_ends_although_a_peer_invents_nodes_for_ever() -> None:
    random = Random(1)
    peer = Peer(IdleMatching(Contact(0, None)), 1, 0.0, OverlayTuning(k=4))
    liar = Contact(1 << 200, None)
    peer.received(liar, ["ping", 1], 0.0)
    peer.turn(0.0)
    found: list[list[Contact]] = []
    peer.kademlia.look_up(1 << 250, lambda nodes, at: found.append(nodes), 0.0)
    asked = 0
    effects = peer.turn(0.0)
    while effects:
        asked += 1
        _, contact, message, _ = effects.pop()
        if message[0] == "find":
            nearer = [Contact((1 << 250) ^ random.getrandbits(250 - min(asked, 200)), None).wire for _ in range(4)]
            peer.received(contact, ["answer", message[1], nearer, []], 0.0)
        new = peer.turn(0.0)
        if found:
            return
        effects += new
    pytest.fail("it never ended")


def test_a_peer_that_left_sends_nothing_any_more() -> None:
    network = grown(3, 5)
    peer = network.any_peer()
    peer.leave(network.now)
    assert {effect[2][0] for effect in peer.turn(network.now)} == {"leave"}
    peer.kademlia.find_holders(7, lambda contacts, at: None, network.now)
    peer.kademlia.publish(7, network.now)
    peer.send_to_all("x", 20.0, network.now)
    assert peer.turn(network.now) == [] and peer.deadline == float("inf")
