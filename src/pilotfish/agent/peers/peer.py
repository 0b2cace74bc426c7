"""Combines Kademlia, broadcast and election into one peer: inputs in, effects out, no I/O.

No clock and no threads. A host calls any number of input methods, then ``turn(now)``, which returns the effects in order; it also calls
``turn`` when ``deadline`` is reached. ``now`` is any monotonic clock in seconds. Keys and ids are 256-bit numbers; in messages they are 64
lower-case hexadecimal digits, and a contact is [id, address].

Inputs
    bootstrap(contacts, now)        some peers of the site; may be called again at any time
    received(sender, message, now)  one message of an authenticated peer; raises MalformedMessage: then disconnect
    unreachable(node, now)          a message to this peer, or its connection, is lost
    find(key, now, min_holders)     -> query, answered with "holders" of this content (some may have left): as soon as ``min_holders`` are
                                    known, or when the three nodes that should know them have answered. 0: search farther, for all
                                    holders; use it if those found before were useless.
    nearest(target, now)            -> query, answered with "nodes": the k nodes nearest to an id
    publish(key, now)               -> query, answered with "stored": this node holds the content, until withdraw(key, now)
    send_to_all(payload, now, seconds, wants_answer)
                                    -> name: send a broadcast to all peers of the site, this one included; "gathered" follows within these
                                    seconds. ``wants_answer``: every host must answer
    answer(name, answer, now)       the answer of this host to a broadcast; None counts as one too
    appointed(term, contact, now)   the master appointed this peer (maybe ourselves) site master; the first has term 1. Ignored if a better
                                    claim is known: a higher term, or the same and a lower id
    leave(now)                      leave the overlay; later inputs are ignored

Effects (tuples)
    ("send_to_peer", contact, message)   send this JSON array to this peer; if that fails, call unreachable
    ("holders", query, [contact, …])
    ("nodes", query, [contact, …])  nearest first
    ("stored", query, count)        number of nodes that keep the record; 0: no peer will find it (it is tried again)
    ("deliver", name, origin, payload, wants_answer)   a broadcast, once
    ("gathered", name, count, result)   the end of our broadcast: number of peers reached (and answers, if wanted), and their combined
                                    answer
    ("master", term, contact)       this peer (maybe ourselves) is the site master from now on

``combine(payload, answers)`` makes one answer of several on the way; it must not depend on their order, must accept any JSON, and should
bound the size of its result.
``deadline`` is the time of the next turn if no input comes before; it is in the past if there are effects.
"""

from __future__ import annotations

from random import Random
from typing import Any, Callable, Dict, List, Sequence, Tuple

from .broadcast import Broadcast, BroadcastState, Combine
from .contacts import NEVER, Contact, Effect, MalformedMessage, OverlayTuning
from .election import Election
from .kademlia import MIN_HOLDERS, Kademlia

DEFAULT_TUNING = OverlayTuning()
Handler = Callable[[Contact, Sequence[Any], float], None]


def concatenate(payload: Any, answers: List[Any]) -> List[Any]:
    """The default combination: concatenate answers that are lists."""
    return [each for answer in answers if isinstance(answer, list) for each in answer]


def topic_of(payload: Any) -> Tuple[str, Any]:
    if type(payload) is list and len(payload) == 2 and type(payload[0]) is str:
        return payload[0], payload[1]
    return "", None


class Peer:
    """One peer; inputs and effects are listed in the module docstring."""

    def __init__(
        self, me: Contact, random: Random, now: float, tuning: OverlayTuning = DEFAULT_TUNING, combine: Combine = concatenate
    ) -> None:
        self.me = me
        self.left = False
        self._final_effects_returned = False
        self._effects: List[Effect] = []
        self._queries = 0
        self.kademlia = Kademlia(me, tuning, random, self._effects, now)
        self._combine = combine
        self.broadcast = Broadcast(self.kademlia, self._combine_answers, random, self._effects)
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

    # --- network --------------------------------------------------------------------------------------------------------------------

    def bootstrap(self, contacts: Sequence[Contact], now: float) -> None:
        if not self.left:
            self.kademlia.bootstrap(contacts, now)

    def received(self, sender: Contact, message: Any, now: float) -> None:
        if self.left or sender.node == self.me.node:
            return
        if type(message) is not list or not message or type(message[0]) is not str:
            raise MalformedMessage("not a message: %.80r" % (message,))
        handler = self._handlers.get(message[0])
        if handler is None:
            return  # maybe of a later version
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

    # --- contents -------------------------------------------------------------------------------------------------------------------

    def find(self, key: int, now: float, min_holders: int = MIN_HOLDERS) -> int:
        query = self._next_query()
        self.kademlia.find_holders(key, lambda found, at: self._effects.append(("holders", query, found)), now, min_holders)
        return query

    def nearest(self, target: int, now: float) -> int:
        query = self._next_query()
        self.kademlia.look_up(target, lambda found, at: self._effects.append(("nodes", query, found)), now)
        return query

    def publish(self, key: int, now: float) -> int:
        query = self._next_query()
        self.kademlia.publish(key, lambda kept, at: self._effects.append(("stored", query, kept)), now)
        return query

    def publishes(self, key: int) -> bool:
        return key in self.kademlia.published

    def withdraw(self, key: int, now: float) -> None:
        self.kademlia.withdraw(key, now)

    # --- broadcasts and election ----------------------------------------------------------------------------------------------------

    def send_to_all(self, payload: Any, now: float, seconds: float = 20.0, wants_answer: bool = True) -> str:
        self.election.broadcast_sent(now)
        return self.broadcast.send_to_all(["host", payload], seconds, wants_answer, now)

    def answer(self, name: str, answer: Any, now: float) -> None:
        self.broadcast.answer(name, answer, now)

    def appointed(self, term: int, contact: Contact, now: float) -> None:
        self.election.consider_claim(term, contact, now, directly=False)

    def _deliver(self, state: BroadcastState, now: float) -> None:
        """Deliver broadcasts of hosts to the host and claims to the election; ignore others."""
        topic, content = topic_of(state.payload)
        if topic == "host":
            self.election.broadcast_received(state.origin, now)
            self._effects.append(("deliver", state.name, state.origin, content, state.wants_answer))
        elif topic == "claim" and type(content) is int and state.origin.node != self.me.node:
            self.election.consider_claim(content, state.origin, now, directly=True)

    def _gathered(self, state: BroadcastState, count: int, result: Any) -> None:
        if topic_of(state.payload)[0] == "host":
            self._effects.append(("gathered", state.name, count, result))

    def _combine_answers(self, payload: Any, answers: List[Any]) -> Any:
        topic, content = topic_of(payload)
        return self._combine(content, answers) if topic == "host" else None

    def _next_query(self) -> int:
        self._queries += 1
        return self._queries
