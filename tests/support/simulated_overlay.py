"""Simulates a site of peers in memory: a virtual clock, delayed messages, peers that join, leave or die silently, and partitions."""

from __future__ import annotations

import heapq
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from pilotfish.agent.peers.broadcast import BroadcastState
from pilotfish.agent.peers.contacts import BITS, NEVER, Contact, Effect, OverlayTuning
from pilotfish.agent.peers.peer import Peer, topic_of
from pilotfish.agent.peers.site_matching import SiteMatching

QUICK = OverlayTuning(k=5, timeout_s=1.0, refresh_s=20.0, republish_s=60.0, expire_s=180.0, heartbeat_s=5.0, silence_s=18.0)
"""Small buckets, so that small networks have full ones; and short intervals."""
LATENCY_S = 0.01


class IdleMatching(SiteMatching):
    """Assigns no tasks and begins no rounds: reports its inputs to the test."""

    def __init__(self, me: Contact, report: Callable[[Effect], None] = lambda event: None) -> None:
        super().__init__(me, "", {}, {}, {})
        self._report = report

    def site_master_changed(self, term: int, contact: Contact) -> None:
        self._report(("master", term, contact))

    def delivered(self, name: str, payload: Any, now: float) -> None:
        self._report(("deliver", name, payload))


class Network:
    """Performs the effects of peers. ``reports`` has the inputs of each matching, per node, and ("gathered", name, count, result) of each
    broadcast. Messages may overtake each other, unlike messages on real connections."""

    def __init__(self, seed: int, tuning: OverlayTuning = QUICK, as_json: bool = False) -> None:
        self.random = Random(seed)
        self.tuning = tuning
        self.now = 0.0
        self.peers: dict[int, Peer] = {}
        """Live peers."""
        self.silent: set[int] = set()
        """Peers that died silently: messages to them are lost without notice."""
        self.sides: dict[int, int] = {}
        """During a partition: the side of each node; 0 by default."""
        self.reports: dict[int, list[Effect]] = {}
        self.sent: Counter[str] = Counter()
        self.on_report: Callable[[Peer, Effect], None] = lambda peer, effect: None
        self.on_send: Callable[[Contact, Contact, list[Any]], None] = lambda sender, to, message: None
        self.after_step: Callable[[Peer], None] = lambda peer: None
        self._as_json = as_json
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._turns: dict[int, float] = {}

    # --- membership -----------------------------------------------------------------------------------------------------------------

    def join(self, node: int | None = None, knows: int = 3) -> Peer:
        node = self.random.getrandbits(BITS) if node is None else node
        known = [peer.me for peer in self.random.sample(list(self.peers.values()), min(knows, len(self.peers)))]
        matching = IdleMatching(Contact(node, ["127.0.0.1", len(self.peers)]), lambda event: self._report(peer, event))
        peer = Peer(matching, self.random.getrandbits(64), self.now, self.tuning)
        peer.broadcast.gathered = lambda state, count, result, now: self._gathered(peer, state, count, result)
        self.peers[node] = peer
        self.reports[node] = []
        peer.kademlia.bootstrap([Contact(contact.node, contact.address) for contact in known], self.now)
        self.step(peer)
        return peer

    def die(self, node: int, silently: bool) -> None:
        del self.peers[node]
        if silently:
            self.silent.add(node)

    def leave(self, node: int) -> None:
        peer = self.peers[node]
        peer.leave(self.now)
        self.step(peer)
        del self.peers[node]

    def any_peer(self) -> Peer:
        return self.peers[self.random.choice(list(self.peers))]

    def nearest(self, target: int, count: int, but: int = -1) -> list[int]:
        """What a lookup should find."""
        return sorted((node for node in self.peers if node != but), key=lambda node: node ^ target)[:count]

    # --- time -----------------------------------------------------------------------------------------------------------------------

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        end = self.now + seconds
        while self._heap and self._heap[0][0] <= end and not until():
            self.now, _, act = heapq.heappop(self._heap)
            act()
        if not until():
            self.now = end

    def settle(self) -> None:
        """Run until every peer has refreshed its table twice."""
        self.run(3 * self.tuning.refresh_s)

    def step(self, peer: Peer) -> None:
        node = peer.me.node
        for effect in peer.turn(self.now):
            assert effect[0] == "send_to_peer" and effect[3] == (), "the matching is idle"
            self._send(peer.me, effect[1], effect[2])
        self.after_step(peer)
        if peer.deadline < self._turns.get(node, float("inf")):
            self._turns[node] = peer.deadline
            self.at(peer.deadline, lambda: self._wake(peer))

    def _report(self, peer: Peer, event: Effect) -> None:
        self.reports[peer.me.node].append(event)
        self.on_report(peer, event)

    def _gathered(self, peer: Peer, state: BroadcastState, count: int, result: Any) -> None:
        if topic_of(state.payload)[0] == "host":
            self._report(peer, ("gathered", state.name, count, result))

    def _wake(self, peer: Peer) -> None:
        node = peer.me.node
        self._turns.pop(node, None)
        if self.peers.get(node) is peer:
            self.step(peer)

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (max(when, self.now), next(self._order), act))

    # --- messages -------------------------------------------------------------------------------------------------------------------

    def _send(self, sender: Contact, to: Contact, message: list[Any]) -> None:
        self.sent[message[0]] += 1
        self.on_send(sender, to, message)
        if self._as_json:
            message = json.loads(json.dumps(message))
        self.at(self.now + LATENCY_S * (0.5 + self.random.random()), lambda: self._arrive(sender, to.node, message))

    def _arrive(self, sender: Contact, node: int, message: list[Any]) -> None:
        peer = self.peers.get(node)
        if node in self.silent:
            return
        if peer is not None and self.sides.get(node, 0) == self.sides.get(sender.node, 0):
            peer.received(sender, message, self.now)
            self.step(peer)
        elif sender.node in self.peers:
            self.peers[sender.node].unreachable(node, self.now)
            self.step(self.peers[sender.node])

    def look_up(self, peer: Peer, target: int) -> list[Contact]:
        """Run until the peer has found the nodes nearest to an id."""
        found: list[list[Contact]] = []
        peer.kademlia.look_up(target, lambda nodes, at: found.append(nodes), self.now)
        self.step(peer)
        self.run(1000.0, until=lambda: bool(found))
        return found[0]

    def find(self, peer: Peer, key: int) -> list[Contact]:
        """Run until the peer has found holders of a key."""
        found: list[list[Contact]] = []
        peer.kademlia.find_holders(key, lambda contacts, at: found.append(contacts), self.now)
        self.step(peer)
        self.run(1000.0, until=lambda: bool(found))
        return found[0]

    def publish(self, peer: Peer, key: int) -> int:
        """Run until the peer has published a key; return the number of nodes that acknowledged it, with the peer itself if it is one."""
        kademlia = peer.kademlia
        kademlia.publish(key, self.now)
        self.step(peer)
        self.run(1000.0, until=lambda: kademlia.published[key] < NEVER)
        assert kademlia.published[key] < NEVER, f"{key} was never published"
        own = [contact for contact in kademlia.content_holders.holders(key, self.now) if contact is peer.me]
        return len(kademlia.keepers[key]) + len(own)


def grown(seed: int, size: int, tuning: OverlayTuning = QUICK) -> Network:
    """A settled network of this size."""
    network = Network(seed, tuning)
    for _ in range(size):
        network.join()
        network.run(0.05)
    network.settle()
    return network


def nodes_of(contacts: Iterable[Contact]) -> list[int]:
    return [contact.node for contact in contacts]
