"""Combines the parts of the network of the peers. It takes inputs and returns effects. It does no I/O.

The parts are Kademlia, broadcasts, the election of the site master, and site matching.

There is no clock and no thread. A host calls any number of inputs, and then ``turn(now)``, which returns the effects of these inputs in
order. The host also calls ``turn`` at the time ``deadline``, even if there was no input. ``now`` is the time of any monotonic clock in
seconds. Keys and ids are 256-bit numbers. In messages, a key or id is 64 lower-case hexadecimal digits, and a contact is [id, address].

Inputs
    received(sender, message, now, body)   an authenticated peer sent a message. If this raises MalformedMessage, disconnect that peer
    unreachable(node, now)          a message to the peer ``node``, or the connection to this peer, is lost
    leave(now)                      this agent leaves the network of the peers
Inputs of the parts
    kademlia.bootstrap, find_holders, publish, withdraw
    election.consider_claim(term, contact, now)
                                    the master appointed ``contact``, which may be this peer, as site master. The first term is 1
    matching.connected, disconnected, delegated, dropped, free_changed

Effects (tuples)
    ("send_to_peer", contact, header, parts)   send a message to a peer. If sending fails, call ``unreachable``
    ("assigned", header, body)      tasks for this agent. Header and body are as in an Assign of the master
    ("send", header)                send a message to the master
    ("alive",)                      the site master is connected to the master

``deadline`` is the time of the next turn if no input comes earlier. If there are effects, ``deadline`` is in the past.
"""

from __future__ import annotations

from random import Random
from typing import Any, Callable, Dict, List, Sequence, Tuple

from .broadcast import Broadcast, BroadcastState
from .contacts import NEVER, Contact, Effect, MalformedMessage, OverlayTuning
from .election import Election
from .kademlia import Kademlia
from .site_matching import SiteMatching

DEFAULT_TUNING = OverlayTuning()
MATCHING_MESSAGES = ("room", "got")
Handler = Callable[[Contact, Sequence[Any], float], None]


def topic_of(payload: Any) -> Tuple[str, Any]:
    if type(payload) is list and len(payload) == 2 and type(payload[0]) is str:
        return payload[0], payload[1]
    return "", None


class Peer:
    """One agent in the network of the peers of its site. The module docstring lists inputs and effects."""

    def __init__(self, matching: SiteMatching, seed: int, now: float, tuning: OverlayTuning = DEFAULT_TUNING) -> None:
        random = Random(seed)
        self.me = matching.me
        self.matching = matching
        self._effects: List[Effect] = []
        self.kademlia = Kademlia(self.me, tuning, random, self._effects, now)
        self.broadcast = Broadcast(self.kademlia, random)
        self.election = Election(self.kademlia, self.broadcast, random, matching.site_master_changed)
        self.broadcast.deliver = self._deliver
        self.broadcast.gathered = self._gathered
        self._handlers: Dict[str, Handler] = {
            "answer": self.kademlia.requests.on_answer,
            "find": self.kademlia.on_find,
            "keep": self.kademlia.on_keep,
            "inherit": self.kademlia.on_inherit,
            "withdraw": self.kademlia.on_withdraw,
            "ping": self.kademlia.on_ping,
            "leave": lambda sender, message, now: self._forget(sender.node, now),
            "spread": self.broadcast.on_spread,
            "gathered": self.broadcast.on_gathered,
            "reign": self.election.on_master_query,
            "suspect": self.election.on_suspect,
        }

    @property
    def deadline(self) -> float:
        if self._effects or self.matching.effects:
            return -NEVER
        if self.kademlia.left:
            return self.matching.deadline
        return min(self.kademlia.deadline, self.broadcast.deadline, self.election.deadline, self.matching.deadline)

    def turn(self, now: float) -> List[Effect]:
        if not self.kademlia.left:
            self.election.turn(now)
            self.broadcast.turn(now)
            self.kademlia.turn(now)
        of_matching = self.matching.turn(now)
        while of_matching:
            for effect in of_matching:
                self._perform(effect, now)
            of_matching = self.matching.turn(now)  # a broadcast also reaches this agent, so the matching can have new effects
        effects = self._effects[:]
        self._effects.clear()
        return effects

    def _perform(self, effect: Effect, now: float) -> None:
        """Performs an effect of ``self.matching``, or passes the effect to the host."""
        kind = effect[0]
        if kind == "broadcast":
            self.send_to_all(effect[1], effect[2], now)
        elif kind == "answer":
            self.broadcast.answer(effect[1], effect[2], now)
        elif kind == "assign" and effect[1].node == self.me.node:
            self._receive_assignment(self.me, effect[2], b"".join(effect[3]), now)
        elif kind == "assign":
            self._effects.append(("send_to_peer", *effect[1:]))
        else:
            self._effects.append(effect)

    def _receive_assignment(self, sender: Contact, header: Sequence[Any], body: Any, now: float) -> None:
        self.matching.assignment_received(sender, header, now)
        self._effects.append(("assigned", header, body))

    def received(self, sender: Contact, message: Any, now: float, body: Any = b"") -> None:
        """Handles a message of a peer. Only an assignment has a ``body``. Raises MalformedMessage if the message violates the protocol."""
        if type(message) is not list or not message or type(message[0]) is not str:
            raise MalformedMessage("not a message: %.80r" % (message,))
        kind = message[0]
        if kind in MATCHING_MESSAGES:
            self.matching.received(sender, message, now)
        elif kind == "assign":
            self._receive_assignment(sender, message, body, now)
        elif kind in self._handlers and not self.kademlia.left and sender.node != self.me.node:  # ignore other kinds of a later version
            if kind != "leave":
                self.kademlia.table.seen(sender, now)
            self._handlers[kind](sender, message, now)

    def unreachable(self, node: int, now: float) -> None:
        self._forget(node, now)
        self.matching.unreachable(node)

    def _forget(self, node: int, now: float) -> None:
        """Removes a peer from all parts except ``matching``: until a leaving peer disconnects, it can still acknowledge tasks."""
        if not self.kademlia.left:
            self.kademlia.unreachable(node, now)
            self.broadcast.unreachable(node, now)
            self.election.unreachable(node, now)

    def leave(self, now: float) -> None:
        if not self.kademlia.left:
            self.kademlia.leave(now)

    def send_to_all(self, payload: Any, seconds: float, now: float) -> str:
        """Sends a broadcast to all peers of the site, also to this peer. Answers come within ``seconds``. Returns the broadcast's name."""
        self.election.broadcast_sent(now)
        return self.broadcast.send_to_all(["host", payload], seconds, True, now)

    def _deliver(self, state: BroadcastState, now: float) -> None:
        """Delivers a broadcast. Announced tasks go to the part of the peer that matches tasks to workers. A claim of another peer goes to
        the part that elects the site master. Other topics are ignored."""
        topic, content = topic_of(state.payload)
        if topic == "host":
            self.election.broadcast_received(state.origin, now)
            kind, announced = topic_of(content)
            if kind == "tasks":
                self.matching.delivered(state.name, announced, now)
            else:
                self.broadcast.answer(state.name, None, now)
        elif topic == "claim" and type(content) is int and state.origin.node != self.me.node:
            self.election.consider_claim(content, state.origin, now, directly=True)

    def _gathered(self, state: BroadcastState, count: int, result: Any, now: float) -> None:
        if topic_of(state.payload)[0] == "host":
            self.matching.gathered(result, now)
