"""Combines a peer with site matching for one agent.

Inputs are those of ``peer.py`` and ``site_matching.py``. Effects (tuples)
    ("send_to_peer", contact, header, parts)   send to a peer; if that fails, call unreachable
    ("assigned", header, body)         tasks for this agent: an Assign as the master would send it
    ("send", header)                   send to the master
    ("alive",)                         the site master has contact with the master
    ("holders", query, contacts), ("stored", query, count), ("nodes", query, contacts)   answers, see ``peer.py``
"""

from __future__ import annotations

from random import Random
from typing import Any, Dict, List, Sequence

from .contacts import Contact, Effect, OverlayTuning
from .peer import DEFAULT_TUNING, Peer
from .site_matching import SiteMatching

MATCHING_MESSAGES = ("room", "got")


class SiteMember:
    """One agent in the overlay of its site."""

    def __init__(self, matching: SiteMatching, seed: int, now: float, tuning: OverlayTuning = DEFAULT_TUNING) -> None:
        self.peer = Peer(matching.me, Random(seed), now, tuning)
        self.matching = matching
        self._rounds: Dict[str, None] = {}
        self._assigned: List[Effect] = []

    @property
    def deadline(self) -> float:
        return min(self.peer.deadline, self.matching.deadline)

    def turn(self, now: float) -> List[Effect]:
        effects = self._assigned
        self._assigned = []
        while True:
            # Effects of one part are inputs of the other; repeat until there are none.
            of_peer, of_matching = self.peer.turn(now), self.matching.turn(now)
            if not of_peer and not of_matching:
                return effects
            for effect in of_peer:
                self._perform_peer(effect, effects, now)
            for effect in of_matching:
                self._perform_matching(effect, effects, now)

    def _perform_peer(self, effect: Effect, effects: List[Effect], now: float) -> None:
        kind = effect[0]
        if kind == "send_to_peer":
            effects.append(("send_to_peer", effect[1], effect[2], ()))
        elif kind == "deliver":
            _, name, _, payload, wants_answer = effect
            if wants_answer and isinstance(payload, list) and len(payload) == 2 and payload[0] == "tasks":
                self.matching.delivered(name, payload[1], now)
            elif wants_answer:
                self.peer.answer(name, None, now)
        elif kind == "gathered":
            if self._rounds.pop(effect[1], self) is None:
                self.matching.gathered(effect[3], now)
        elif kind == "master":
            self.matching.site_master_changed(effect[1], effect[2], now)
        else:
            effects.append(effect)

    def _perform_matching(self, effect: Effect, effects: List[Effect], now: float) -> None:
        kind = effect[0]
        if kind == "broadcast":
            self._rounds[self.peer.send_to_all(effect[1], now, effect[2])] = None
        elif kind == "answer":
            self.peer.answer(effect[1], effect[2], now)
        elif kind == "send_to_peer":
            effects.append((*effect, ()))
        elif kind == "assign" and effect[1].node == self.matching.me.node:
            self._receive(self.matching.me, effect[2], b"".join(effect[3]), effects, now)
        elif kind == "assign":
            effects.append(("send_to_peer", *effect[1:]))
        else:
            effects.append(effect)

    def _receive(self, sender: Contact, header: Sequence[Any], body: Any, effects: List[Effect], now: float) -> None:
        self.matching.assignment_received(sender, header, now)
        effects.append(("assigned", header, body))

    def received(self, sender: Contact, header: Sequence[Any], body: Any, now: float) -> None:
        """Raises MalformedMessage if it is no message of the protocol."""
        if header and header[0] in MATCHING_MESSAGES:
            self.matching.received(sender, header, now)
        elif header and header[0] == "assign":
            self._receive(sender, header, body, self._assigned, now)
        else:
            self.peer.received(sender, header, now)

    def unreachable(self, node: int, now: float) -> None:
        self.peer.unreachable(node, now)
        self.matching.unreachable(node, now)

    def connected(self, now: float) -> None:
        """The master can be reached."""
        self.matching.connected(self.peer.election.term, now)
