"""Combines the parts of the peer overlay. It takes inputs and returns effects. It does no I/O.

``Peer`` has Kademlia, broadcasts and the election. ``SiteMember`` is a peer that also takes part in site matching.

There is no clock and no thread. A host calls any number of inputs, then ``turn(now)``, which returns the effects in order. The host also
calls ``turn`` when ``deadline`` is reached. ``now`` is any monotonic clock in seconds. Keys and ids are 256-bit numbers. In messages, a key
or id is 64 lower-case hexadecimal digits, and a contact is [id, address].

Inputs
    received(sender, message, now)  an authenticated peer sent a message. If this raises MalformedMessage, disconnect that peer
    unreachable(node, now)          a message to a peer, or the connection to it, is lost
    send_to_all(payload, now, seconds, wants_answer) -> name
                                    sends a broadcast to all peers of the site, also to this peer. "gathered" follows within ``seconds``.
                                    ``wants_answer``: every host must answer
    leave(now)                      leaves the overlay. Later inputs are ignored
Inputs of the parts
    kademlia.bootstrap, find_holders, publish, withdraw
    broadcast.answer(name, answer)  the answer of this host to a broadcast. None is also an answer
    election.consider_claim(term, contact, now)
                                    the master appointed ``contact``, which may be this peer, as site master. The first term is 1

Effects (tuples)
    ("send_to_peer", contact, message)   send a JSON array to a peer. If that fails, call ``unreachable``
    ("deliver", name, payload, wants_answer)   a broadcast arrived. Each broadcast is delivered once
    ("gathered", name, count, result)   a broadcast of this peer ended. ``count``: number of peers reached. ``result``: their answers, which
                                    are lists, concatenated
    ("master", term, contact)       ``contact``, which may be this peer, is the site master from now on

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
    """One peer. The module docstring lists inputs and effects."""

    def __init__(self, me: Contact, random: Random, now: float, tuning: OverlayTuning = DEFAULT_TUNING) -> None:
        self.me = me
        self.left = False
        self._final_effects_returned = False
        self._effects: List[Effect] = []
        self.kademlia = Kademlia(me, tuning, random, self._effects, now)
        self.broadcast = Broadcast(self.kademlia, random, self._effects)
        self.election = Election(self.kademlia, self.broadcast, random, self._effects)
        self.broadcast.deliver = self._deliver
        self.broadcast.gathered = self._gathered
        self._handlers: Dict[str, Handler] = {
            "answer": self.kademlia.requests.on_answer,
            "find": self.kademlia.on_find,
            "keep": self.kademlia.on_keep,
            "inherit": self.kademlia.on_inherit,
            "withdraw": self.kademlia.on_withdraw,
            "ping": self.kademlia.on_ping,
            "leave": lambda sender, message, now: self.unreachable(sender.node, now),
            "spread": self.broadcast.on_spread,
            "gathered": self.broadcast.on_gathered,
            "reign": self.election.on_master_query,
            "suspect": self.election.on_suspect,
        }

    @property
    def deadline(self) -> float:
        if self._effects:
            return -NEVER
        return NEVER if self.left else min(self.kademlia.deadline, self.broadcast.deadline, self.election.deadline)

    def turn(self, now: float) -> List[Effect]:
        if not self.left:
            self.election.turn(now)
            self.broadcast.turn(now)
            self.kademlia.turn(now)
        effects = [] if self._final_effects_returned else self._effects[:]
        self._final_effects_returned = self.left
        self._effects.clear()
        return effects

    def received(self, sender: Contact, message: Any, now: float, body: Any = b"") -> None:
        """Handles a message of a peer. Only site matching uses ``body``. Raises MalformedMessage if the message violates the protocol."""
        if self.left or sender.node == self.me.node:
            return
        if type(message) is not list or not message or type(message[0]) is not str:
            raise MalformedMessage("not a message: %.80r" % (message,))
        handler = self._handlers.get(message[0])
        if handler is None:
            return  # a later version may send it
        if message[0] != "leave":
            self.kademlia.table.seen(sender, now)
        handler(sender, message, now)

    def unreachable(self, node: int, now: float) -> None:
        if not self.left:
            self.kademlia.unreachable(node, now)
            self.broadcast.unreachable(node, now)
            self.election.unreachable(node, now)

    def leave(self, now: float) -> None:
        if not self.left:
            self.kademlia.leave(now)
            self.left = True

    def send_to_all(self, payload: Any, now: float, seconds: float = 20.0, wants_answer: bool = True) -> str:
        self.election.broadcast_sent(now)
        return self.broadcast.send_to_all(["host", payload], seconds, wants_answer, now)

    def _deliver(self, state: BroadcastState, now: float) -> None:
        """Delivers a broadcast. If a host sent it, this host gets it. If it is a claim, the election gets it. Ignores other topics."""
        topic, content = topic_of(state.payload)
        if topic == "host":
            self.election.broadcast_received(state.origin, now)
            self._effects.append(("deliver", state.name, content, state.wants_answer))
        elif topic == "claim" and type(content) is int and state.origin.node != self.me.node:
            self.election.consider_claim(content, state.origin, now, directly=True)

    def _gathered(self, state: BroadcastState, count: int, result: Any) -> None:
        if topic_of(state.payload)[0] == "host":
            self._effects.append(("gathered", state.name, count, result))


class SiteMember(Peer):
    """One agent in the overlay of its site: a peer with site matching.

    Its inputs are the inputs of ``Peer`` and of ``SiteMatching``. Effects (tuples)
        ("send_to_peer", contact, header, parts)   send a message to a peer. If that fails, call ``unreachable``
        ("assigned", header, body)         tasks for this agent. Header and body are as in an Assign of the master
        ("send", header)                   send a message to the master
        ("alive",)                         the site master is connected to the master
    """

    def __init__(self, matching: SiteMatching, seed: int, now: float, tuning: OverlayTuning = DEFAULT_TUNING) -> None:
        super().__init__(matching.me, Random(seed), now, tuning)
        self.matching = matching
        self._assigned: List[Effect] = []

    @property
    def deadline(self) -> float:
        return min(super().deadline, self.matching.deadline)

    def turn(self, now: float) -> List[Effect]:
        effects = self._assigned
        self._assigned = []
        while True:
            # Effects of the peer are inputs of the matching. Effects of the matching are inputs of the peer. Repeat until there are none.
            of_peer, of_matching = super().turn(now), self.matching.turn(now)
            if not of_peer and not of_matching:
                return effects
            for effect in of_peer:
                self._perform_peer(effect, effects, now)
            for effect in of_matching:
                self._perform_matching(effect, effects, now)

    def _perform_peer(self, effect: Effect, effects: List[Effect], now: float) -> None:
        kind = effect[0]
        if kind == "send_to_peer":
            effects.append((*effect, ()))
        elif kind == "deliver":
            _, name, payload, wants_answer = effect
            if wants_answer and isinstance(payload, list) and len(payload) == 2 and payload[0] == "tasks":
                self.matching.delivered(name, payload[1], now)
            elif wants_answer:
                self.broadcast.answer(name, None)
        elif kind == "gathered":
            self.matching.gathered(effect[3], now)
        else:
            self.matching.site_master_changed(effect[1], effect[2])

    def _perform_matching(self, effect: Effect, effects: List[Effect], now: float) -> None:
        kind = effect[0]
        if kind == "broadcast":
            self.send_to_all(effect[1], now, effect[2])
        elif kind == "answer":
            self.broadcast.answer(effect[1], effect[2])
        elif kind == "send_to_peer":
            effects.append((*effect, ()))
        elif kind == "assign" and effect[1].node == self.me.node:
            self._receive_assignment(self.me, effect[2], b"".join(effect[3]), effects, now)
        elif kind == "assign":
            effects.append(("send_to_peer", *effect[1:]))
        else:
            effects.append(effect)

    def _receive_assignment(self, sender: Contact, header: Sequence[Any], body: Any, effects: List[Effect], now: float) -> None:
        self.matching.assignment_received(sender, header, now)
        effects.append(("assigned", header, body))

    def received(self, sender: Contact, message: Any, now: float, body: Any = b"") -> None:
        if message and message[0] in MATCHING_MESSAGES:
            self.matching.received(sender, message, now)
        elif message and message[0] == "assign":
            self._receive_assignment(sender, message, body, self._assigned, now)
        else:
            super().received(sender, message, now)

    def unreachable(self, node: int, now: float) -> None:
        super().unreachable(node, now)
        self.matching.unreachable(node)
