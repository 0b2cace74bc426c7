"""An agent as a peer of the others of its site: what the host tells it goes in, what is to be done comes out. No I/O, no clock, no threads.

A host tells news with the methods below, any number of them, and then calls ``turn(now)``, which returns the effects, in order; it must
also call ``turn`` when ``deadline`` is reached. ``now`` is any clock that never goes back, in seconds. Keys and ids are numbers of 256
bits; on the wire they are 64 lower-case hexadecimal digits, and a contact is [id, address].

Inputs
    bootstrap(contacts, now)        some peers of the site; may come again at any time
    heard(sender, message, now)     one message of an authenticated peer; raises Malformed if it is not of the protocol: hang up
    unreachable(node, now)          what was to be told to this peer, or its connection, is lost
    find(key, now, enough)          -> query, which is answered with "holders": who holds this content? (Some may be gone.) The answer is
                                    there when ``enough`` are known, or the three that should know them all have answered. 0: look
                                    farther, for all that are to be found; do that if those found before are no good.
    nearest(target, now)            -> query, which is answered with "nodes": the k nodes nearest to an id
    publish(key, now)               -> query, which is answered with "stored": this node holds the content, until withdraw(key, now)
    spread(payload, now, seconds, wanted)
                                    -> name: tell this to all peers of the site, this one included; "gathered" follows within these seconds.
                                    ``wanted``: every host is to answer
    answer(name, answer, now)       what this host has to say to a broadcast that wants an answer; None counts as one too
    appointed(term, contact, now)   the pool's master made this peer (maybe ourselves) the master of the site; the first has term 1. Not
                                    heeded if a better claim is known: a higher term, or the same and a lower id
    leave(now)                      say farewell; nothing follows, and later inputs are ignored

Effects (tuples)
    ("tell", contact, message)      send this JSON array to this peer; if that fails, say unreachable
    ("holders", query, [contact, …])
    ("nodes", query, [contact, …])  nearest first
    ("stored", query, count)        so many nodes acknowledged that they keep it in mind; 0: nobody will find it (it is tried again)
    ("deliver", name, origin, payload, wanted)   a broadcast, once; if ``wanted``, answer it
    ("gathered", name, count, result)   the end of a broadcast of ours: so many peers were told (and answered, if wanted), and what
                                    ``combine`` made of their answers
    ("master", term, contact)       this peer (maybe ourselves) is the master of the site from now on

``combine(payload, answers)`` makes one answer of several, on the way; it must not care for their order, must bear any
JSON, and should bound what it makes.
``deadline`` is the time of the next turn if nothing happens before; it is over already if there are effects to fetch.
"""

from __future__ import annotations

from random import Random
from typing import Any, Callable, Dict, List, Sequence, Tuple

from .broadcast import Broadcast, BroadcastState, Combine
from .contacts import NEVER, Contact, Effect, MalformedMessage, OverlayTuning
from .election import Election
from .kademlia import ENOUGH_HOLDERS, Kademlia

SHIPPED = OverlayTuning()
Handler = Callable[[Contact, Sequence[Any], float], None]


def concatenate(payload: Any, answers: List[Any]) -> List[Any]:
    """The plainest combination: answers are lists."""
    return [each for answer in answers if isinstance(answer, list) for each in answer]


def topic_of(payload: Any) -> Tuple[str, Any]:
    if type(payload) is list and len(payload) == 2 and type(payload[0]) is str:
        return payload[0], payload[1]
    return "", None


class Peer:
    """See the head of this file."""

    def __init__(self, me: Contact, random: Random, now: float, tuning: OverlayTuning = SHIPPED, combine: Combine = concatenate) -> None:
        self.me = me
        self.left = False
        self._gone = False
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
            "reign": self.election.on_reign,
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
        effects = [] if self._gone else self._effects[:]
        self._gone = self.left
        self._effects.clear()
        return effects

    # --- the network ----------------------------------------------------------------------------------------------------------------

    def bootstrap(self, contacts: Sequence[Contact], now: float) -> None:
        if not self.left:
            self.kademlia.bootstrap(contacts, now)

    def heard(self, sender: Contact, message: Any, now: float) -> None:
        if self.left or sender.node == self.me.node:
            return
        if type(message) is not list or not message or type(message[0]) is not str:
            raise MalformedMessage("not a message: %.80r" % (message,))
        handler = self._handlers.get(message[0])
        if handler is None:
            return  # of a later version, maybe
        if message[0] != "leave":
            self.kademlia.table.saw(sender, now)
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

    def find(self, key: int, now: float, enough: int = ENOUGH_HOLDERS) -> int:
        query = self._next_query()
        self.kademlia.seek(key, lambda found, at: self._effects.append(("holders", query, found)), now, enough)
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

    # --- all of them at once --------------------------------------------------------------------------------------------------------

    def spread(self, payload: Any, now: float, seconds: float = 20.0, wanted: bool = True) -> str:
        self.election.spoke(now)
        return self.broadcast.spread(["host", payload], seconds, wanted, now)

    def answer(self, name: str, answer: Any, now: float) -> None:
        self.broadcast.answer(name, answer, now)

    def appointed(self, term: int, contact: Contact, now: float) -> None:
        self.election.claimed(term, contact, now, directly=False)

    def _deliver(self, told: BroadcastState, now: float) -> None:
        """Of the host's broadcasts the host is told; those of the election are ours. What is neither is of nobody."""
        topic, content = topic_of(told.payload)
        if topic == "host":
            self.election.heard_of(told.origin, now)
            self._effects.append(("deliver", told.name, told.origin, content, told.wanted))
        elif topic == "claim" and type(content) is int and told.origin.node != self.me.node:
            self.election.claimed(content, told.origin, now, directly=True)

    def _gathered(self, told: BroadcastState, count: int, result: Any) -> None:
        if topic_of(told.payload)[0] == "host":
            self._effects.append(("gathered", told.name, count, result))

    def _combine_answers(self, payload: Any, answers: List[Any]) -> Any:
        topic, content = topic_of(payload)
        return self._combine(content, answers) if topic == "host" else None

    def _next_query(self) -> int:
        self._queries += 1
        return self._queries
