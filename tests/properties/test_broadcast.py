"""Tests broadcasts: all peers are reached and counted once, and no peer sends to more than eight."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from pilotfish.agent.peers.broadcast import CHILD_SHARE
from pilotfish.agent.peers.contacts import Contact, Effect, MalformedMessage, OverlayTuning
from pilotfish.agent.peers.peer import Peer
from tests.support.simulated_overlay import QUICK, Network, grown

SEEDS = st.integers(0, 2**32)
QUIET = settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck))
SECONDS = 60.0


class Watched:
    """A network in which every peer answers with its id after a while, and a record of its broadcasts."""

    def __init__(self, network: Network, slow_s: float = 0.05) -> None:
        self.network = network
        self.slow_s = slow_s
        self.delivered: Counter[int] = Counter()
        self.depth: dict[int, int] = {}
        self.sends: Counter[int] = Counter()
        self.seconds: dict[int, list[float]] = {}
        self.began_at = 0.0
        network.on_report = self._reported
        network.on_send = self._sent

    def _reported(self, peer: Peer, effect: Effect) -> None:
        if effect[0] == "deliver":
            self.delivered[peer.me.node] += 1
            self.network.at(self.network.now + self.slow_s * self.network.random.random(), lambda: self._answer(peer, effect[1]))

    def _answer(self, peer: Peer, name: str) -> None:
        if peer.me.node in self.network.peers:
            peer.broadcast.answer(name, [peer.me.node], self.network.now)
            self.network.step(peer)

    def _sent(self, sender: Contact, to: Contact, message: list[Any]) -> None:
        if message[0] == "spread":
            self.sends[sender.node] += 1
            depth = self.depth[sender.node] + 1
            self.depth.setdefault(to.node, depth)
            self.seconds.setdefault(depth, []).append(message[6])

    def send_to_all(self, peer: Peer) -> str:
        self.began_at = self.network.now
        self.depth[peer.me.node] = 0
        name = peer.send_to_all(["tasks", [1, 2]], SECONDS, self.network.now)
        self.network.step(peer)
        return name

    def result(self, peer: Peer, name: str) -> tuple[int, list[int]]:
        def gathered() -> list[Effect]:
            return [effect for effect in self.network.reports[peer.me.node] if effect[:2] == ("gathered", name)]

        self.network.run(SECONDS + 1e-6, until=lambda: bool(gathered()))
        assert len(gathered()) == 1, "nothing was gathered in time"
        return gathered()[0][2:]


def assert_everybody_once(network: Network) -> Watched:
    watched = Watched(network)
    peer = network.any_peer()
    count, answers = watched.result(peer, watched.send_to_all(peer))
    assert sorted(answers) == sorted(network.peers)
    assert count == len(network.peers)
    assert watched.delivered == Counter(list(network.peers))
    assert max(watched.sends.values(), default=0) <= 8
    return watched


@QUIET
@given(seed=SEEDS, size=st.integers(1, 80), k=st.sampled_from([2, 5, 20]))
def test_a_broadcast_in_a_settled_network_reaches_and_counts_all_peers_once(seed: int, size: int, k: int) -> None:
    watched = assert_everybody_once(grown(seed, size, QUICK._replace(k=k)))
    assert sum(watched.sends.values()) == size - 1


@pytest.mark.parametrize(("size", "k"), [(300, 5), (150, 20)])
def test_the_tree_of_hundreds_is_shallow_and_deeper_peers_have_less_time(size: int, k: int) -> None:
    watched = assert_everybody_once(grown(k, size, QUICK._replace(k=k)))
    assert max(watched.depth.values()) <= 2 + math.log2(size) / 2
    for depth, times in watched.seconds.items():
        assert max(times) <= SECONDS * CHILD_SHARE**depth * 1.001


@QUIET
@given(seed=SEEDS, size=st.integers(2, 60), deaths=st.lists(st.tuples(st.floats(0, 0.15), st.booleans()), max_size=10))
def test_live_peers_are_counted_once_although_others_die_meanwhile(seed: int, size: int, deaths: list[tuple[float, bool]]) -> None:
    """Silently or not. There is time enough for a few dead peers on one path."""
    network = grown(seed, size)
    watched = Watched(network)
    peer = network.any_peer()
    before = set(network.peers)
    name = watched.send_to_all(peer)
    for after_s, silently in sorted(deaths):
        network.run(max(0.0, watched.began_at + after_s - network.now))
        others = [node for node in network.peers if node != peer.me.node]
        if others:
            network.die(network.random.choice(others), silently)
    count, answers = watched.result(peer, name)
    assert count == len(answers) == len(set(answers))
    assert set(network.peers) <= set(answers) <= before
    assert max(watched.delivered.values()) == 1


@QUIET
@given(seed=SEEDS, size=st.integers(2, 60), dead=st.integers(1, 3))
def test_peers_found_dead_are_replaced_at_once_and_not_waited_for(seed: int, size: int, dead: int) -> None:
    network = grown(seed, size)
    watched = Watched(network)
    peer = network.any_peer()
    for node in network.random.sample([node for node in network.peers if node != peer.me.node], min(dead, size - 1)):
        network.die(node, silently=True)
    count, answers = watched.result(peer, watched.send_to_all(peer))
    assert sorted(answers) == sorted(network.peers) and count == len(network.peers)
    assert network.now - watched.began_at < SECONDS / 3


@QUIET
@given(seed=SEEDS, size=st.integers(2, 40), dead=st.floats(0, 1))
def test_the_answer_is_in_time_whichever_peers_die(seed: int, size: int, dead: float) -> None:
    network = grown(seed, size)
    watched = Watched(network)
    peer = network.any_peer()
    name = watched.send_to_all(peer)
    network.run(0.02)
    for node in [node for node in network.peers if node != peer.me.node and network.random.random() < dead]:
        network.die(node, silently=True)
    count, answers = watched.result(peer, name)
    assert count == len(set(answers)) == len(answers) >= 1
    assert max(watched.delivered.values()) == 1


def test_hosts_that_answer_too_late_are_not_counted_and_delay_no_other() -> None:
    network = grown(3, 30)
    watched = Watched(network, slow_s=0.0)
    lazy = set(list(network.peers)[:5])
    peer = network.peers[next(node for node in network.peers if node not in lazy)]
    network.on_report = lambda each, effect: None if each.me.node in lazy else watched._reported(each, effect)
    count, answers = watched.result(peer, watched.send_to_all(peer))
    assert set(answers) == set(network.peers) - lazy and count == 25


def test_a_broadcast_without_answers_counts_the_peers_reached() -> None:
    network = grown(4, 50)
    peer = network.any_peer()
    name = peer.broadcast.send_to_all(["host", ["tasks", "stop"]], SECONDS, False, network.now)
    network.step(peer)
    network.run(5.0)
    assert ("gathered", name, 50, None) in network.reports[peer.me.node]
    told = [effect for reports in network.reports.values() for effect in reports if effect[0] == "deliver"]
    assert len(told) == 50 and all(effect[2:] == ("stop",) for effect in told)


def test_only_the_latest_broadcasts_are_remembered() -> None:
    network = grown(5, 10, QUICK._replace(max_broadcasts=4))
    for _ in range(20):
        peer = network.any_peer()
        peer.broadcast.send_to_all(["host", "x" * 100], 5.0, False, network.now)
        network.step(peer)
        network.run(1.0)
    assert all(len(peer.broadcast._known) <= 4 for peer in network.peers.values())
    network.run(100.0)
    assert all(told.payload is None and not told.duties for peer in network.peers.values() for told in peer.broadcast._known.values())


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 400),
    st.just(10**400),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["0" * 64, "f" * 64]),
)
WORDS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4), max_leaves=8)
NEARLY = st.tuples(
    st.just("spread"), st.integers(-1, 9), WORDS, st.just(["a" * 64, None]), WORDS, st.lists(WORDS, max_size=2), WORDS, WORDS, WORDS
)
MESSAGES = st.one_of(NEARLY.map(list), st.tuples(st.just("gathered"), WORDS, WORDS, WORDS, WORDS, WORDS).map(list))


@settings(deadline=None, max_examples=80)
@given(messages=st.lists(MESSAGES, max_size=10))
def test_malformed_messages_are_refused_or_ignored_and_the_next_broadcast_works(messages: list[Any]) -> None:
    network = Network(1, OverlayTuning())
    for _ in range(5):
        network.join()
        network.run(0.2)
    victim, other = list(network.peers.values())[:2]
    for message in messages:
        try:
            victim.received(other.me, message, network.now)
        except MalformedMessage:
            pass
        network.step(victim)
    assert_everybody_once(network)
