"""Elects the site master.

The master appoints the first site master. After the death of a site master, the live peer with the lowest id becomes the site master.

A claim is (term, contact). It says that the peer ``contact`` is the site master of this term. The claim with the higher term is better. If
the terms are equal, the claim with the lower id is better. A peer believes the best claim that it knows. A peer that believes its own claim
is the site master. The site master broadcasts heartbeats until it learns of a better claim.

If a peer hears nothing from the site master for too long, or loses the connection, the peer asks the site master whether it is alive. If no
answer comes, the peer looks up the live node with the lowest id. If the peer itself is that node, the peer claims the next term. Otherwise
the peer informs that node, and that node repeats these steps.

Guarantees: some time after the last death and the last partition, all peers believe the claim of the same live peer. If the site master
dies in a network without partitions, the live peer with the lowest id becomes the site master. When a partition ends, the better claim of
the two sides remains. Before the first appointment, there is no site master and no election.

This is a part of ``peer.py``, which lists inputs and effects. Messages
    ["reign", number]                   answer: whether the receiver believes its own claim
    ["suspect", number, term, contact]  the site master of this claim seems dead; answer: term and contact of the claim that the receiver
                                        believes
The site master broadcasts ["claim", term].
"""

from __future__ import annotations

from random import Random
from typing import Any, Callable, List, Optional, Sequence, Tuple

from .broadcast import Broadcast
from .contacts import MAX_NUMBER, NEVER, Contact, read_count, read_fields, read_number
from .kademlia import Kademlia

MasterClaim = Tuple[int, Contact]


class Election:
    """The claim that this peer believes: ``term`` and ``master``. ``on_change(term, master)`` is called for each new claim."""

    def __init__(self, kademlia: Kademlia, broadcast: Broadcast, random: Random, on_change: Callable[[int, Contact], None]) -> None:
        self.term = 0
        self.master: Optional[Contact] = None
        self.deadline = NEVER
        """If this peer is the site master: the time of its next heartbeat. Otherwise: the time at which this peer suspects that the site
        master is dead."""
        self._kademlia = kademlia
        self._broadcast = broadcast
        self._me = kademlia.me
        self._tuning = kademlia.tuning
        self._random = random
        self._on_change = on_change
        self._checking = False

    @property
    def is_site_master(self) -> bool:
        return self.master is not None and self.master.node == self._me.node

    # --- claims ---------------------------------------------------------------------------------------------------------------------

    def consider_claim(self, term: int, contact: Contact, now: float, directly: bool = False) -> None:
        """Believes a claim if it is better than the current claim. ``directly``: the site master itself sent the claim, so it is alive."""
        ours = (self.term, 0 if self.master is None else -self.master.node)
        if self.master is None or (term, -contact.node) > ours:
            self.term, self.master = term, contact
            self._on_change(term, contact)
            self._master_alive(now)
            if self.is_site_master:
                self._send_heartbeat(now)
        elif directly and (term, -contact.node) == ours:
            self._master_alive(now)

    def _master_alive(self, now: float) -> None:
        if not self.is_site_master:
            self.deadline = now + self._tuning.silence_s + self._succession_delay()

    def _succession_delay(self) -> float:
        """Returns the seconds by which this peer delays its suspicion of a site master: 0 if it knows no peer with a lower id."""
        lowest = self._kademlia.table.nearest(0, 1)
        if lowest and lowest[0].node < self._me.node:
            return self._tuning.heartbeat_s * (0.5 + 0.5 * self._random.random())
        return 0.0

    def _send_heartbeat(self, now: float) -> None:
        self.deadline = now + self._tuning.heartbeat_s
        self._broadcast.send_to_all(["claim", self.term], self._tuning.heartbeat_s, False, now)

    def broadcast_sent(self, now: float) -> None:
        """If this peer is the site master, counts its broadcast as a heartbeat."""
        if self.is_site_master:
            self.deadline = now + self._tuning.heartbeat_s

    def broadcast_received(self, origin: Contact, now: float) -> None:
        """If a broadcast came from the site master, counts the broadcast as a heartbeat."""
        if self.master is not None and origin.node == self.master.node:
            self._master_alive(now)

    def turn(self, now: float) -> None:
        if now < self.deadline:
            return
        if self.is_site_master:
            self._send_heartbeat(now)
        else:
            self._suspect(now)

    # --- suspicion and succession ---------------------------------------------------------------------------------------------------

    def unreachable(self, node: int, now: float) -> None:
        if self.master is not None and node == self.master.node and not self._checking:
            self.deadline = min(self.deadline, now + self._succession_delay())

    def _suspect(self, now: float) -> None:
        """Asks the site master whether it is alive. Finds a successor if no answer comes. ``turn`` calls this method again until the claim
        changes or the site master shows that it is alive."""
        self.deadline = now + self._tuning.silence_s * (0.5 + 0.5 * self._random.random())
        if self.master is None or self._checking:
            return
        claim = (self.term, self.master)
        self._checking = True

        def then(answer: Optional[Sequence[Any]], now: float) -> None:
            self._checking = False
            if self._believes(claim):
                if answer and answer[0] is True:
                    self._master_alive(now)
                else:
                    self._kademlia.look_up(0, lambda found, at: self._inform_successor(claim, found, at), now)

        self._kademlia.requests.ask(self.master, "reign", [], then, now)

    def _believes(self, claim: MasterClaim) -> bool:
        return self.master is not None and (claim[0], claim[1].node) == (self.term, self.master.node)

    def _inform_successor(self, claim: MasterClaim, found: List[Contact], now: float) -> None:
        if not self._believes(claim) or self.is_site_master:
            return
        if not found or found[0].node > self._me.node:
            self.consider_claim(self.term + 1, self._me, now, directly=True)
            return

        def then(answer: Optional[Sequence[Any]], now: float) -> None:
            if answer is None:
                return
            term, wire = read_fields(["answer", *answer], 2)
            if wire is not None:
                self.consider_claim(read_count(term, MAX_NUMBER), Contact.read(wire), now)

        self._kademlia.requests.ask(found[0], "suspect", [claim[0], claim[1].wire], then, now)

    def on_suspect(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        number = read_number(message)
        _, term, wire = read_fields(message, 3)
        claim = (read_count(term, MAX_NUMBER), Contact.read(wire))
        self.consider_claim(*claim, now)  # this peer does not know the claim if it joined after the site master died
        self._kademlia.requests.answer(sender, number, [self.term, None if self.master is None else self.master.wire])
        if self._believes(claim) and not self.is_site_master:
            self._suspect(now)

    def on_master_query(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        self._kademlia.requests.answer(sender, read_number(message), [self.is_site_master])
