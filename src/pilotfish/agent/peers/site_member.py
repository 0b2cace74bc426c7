"""An agent as a member of its site: the peer that it is to others, and the work that they share out. Both hosts drive this one object.

Inputs are those of ``peer.py`` and ``site_work.py``. Effects (tuples)
    ("tell", contact, header, parts)   send this to a peer; if that fails, say unreachable
    ("given", header, body)            work for this agent: an Assign as it would come from the pool's master
    ("send", header)                   to the pool's master
    ("alive",)                         the pool's master was heard of, through our site's
    ("holders", query, contacts), ("stored", query, count), ("nodes", query, contacts)   answers, see ``peer.py``
"""

from __future__ import annotations

from random import Random
from typing import Any, Dict, List, Sequence

from .contacts import Contact, Effect, OverlayTuning
from .peer import SHIPPED, Peer
from .site_matching import SiteMatching

FOR_SITE_WORK = ("room", "got")


class SiteMember:
    """See the head of this file."""

    def __init__(self, peer: Peer, work: SiteMatching) -> None:
        self.peer = peer
        self.work = work
        self._rounds: Dict[str, None] = {}
        self._given: List[Effect] = []

    @classmethod
    def new(cls, work: SiteMatching, seed: int, now: float, tuning: OverlayTuning = SHIPPED) -> SiteMember:
        return cls(Peer(work.me, Random(seed), now, tuning), work)

    @property
    def deadline(self) -> float:
        return min(self.peer.deadline, self.work.deadline)

    def turn(self, now: float) -> List[Effect]:
        effects = self._given
        self._given = []
        while True:
            # What one part does is news for the other, until neither has any.
            of_peer, of_work = self.peer.turn(now), self.work.turn(now)
            if not of_peer and not of_work:
                return effects
            for effect in of_peer:
                self._perform_peer(effect, effects, now)
            for effect in of_work:
                self._perform_work(effect, effects, now)

    def _perform_peer(self, effect: Effect, effects: List[Effect], now: float) -> None:
        kind = effect[0]
        if kind == "tell":
            effects.append(("tell", effect[1], effect[2], ()))
        elif kind == "deliver":
            _, name, _, payload, wanted = effect
            if wanted and isinstance(payload, list) and len(payload) == 2 and payload[0] == "tasks":
                self.work.delivered(name, payload[1], now)
            elif wanted:
                self.peer.answer(name, None, now)
        elif kind == "gathered":
            if self._rounds.pop(effect[1], self) is None:
                self.work.gathered(effect[3], now)
        elif kind == "master":
            self.work.reigns(effect[1], effect[2], now)
        else:
            effects.append(effect)

    def _perform_work(self, effect: Effect, effects: List[Effect], now: float) -> None:
        kind = effect[0]
        if kind == "spread":
            self._rounds[self.peer.spread(effect[1], now, effect[2])] = None
        elif kind == "answer":
            self.peer.answer(effect[1], effect[2], now)
        elif kind == "tell":
            effects.append((*effect, ()))
        elif kind == "give" and effect[1].node == self.work.me.node:
            self._receive(self.work.me, effect[2], b"".join(effect[3]), effects, now)
        elif kind == "give":
            effects.append(("tell", *effect[1:]))
        else:
            effects.append(effect)

    def _receive(self, sender: Contact, header: Sequence[Any], body: Any, effects: List[Effect], now: float) -> None:
        self.work.received(sender, header, now)
        effects.append(("given", header, body))

    def heard(self, sender: Contact, header: Sequence[Any], body: Any, now: float) -> None:
        """Raises Malformed if it is not of the protocol."""
        if header and header[0] in FOR_SITE_WORK:
            self.work.told(sender, header, now)
        elif header and header[0] == "assign":
            self._receive(sender, header, body, self._given, now)
        else:
            self.peer.heard(sender, header, now)

    def unreachable(self, node: int, now: float) -> None:
        self.peer.unreachable(node, now)
        self.work.unreachable(node, now)

    def connected(self, now: float) -> None:
        """The pool's master can be spoken to."""
        self.work.connected(self.peer.election.term, now)
