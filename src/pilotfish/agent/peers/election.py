"""Who speaks for the site: the peer that was appointed first, and when it dies, the one with the lowest id that lives.

A claim is (term, node): the higher term is better, and of equal terms the lower id. A peer believes the best claim it has heard of; the one
that believes in itself is the site's master, says so again and again to all, and stops as soon as it hears of a better claim.

When the master was silent for too long, or its connection is lost, a peer asks it once more. If there is no answer, it looks for the lowest
id that lives: that is the node nearest to 0. If it is that itself, it claims the next term; else it tells that one, which does the same.

What holds: in a network that had time to settle, after whatever deaths and cuts, all peers believe in the same live master, and nobody else
believes in itself. If the last master died in a settled, uncut network, it is the lowest id that lived then; after a cut has healed, the
best of the claims of both sides. Before anybody was appointed, nothing happens.

A part of ``peer.py``, which lists inputs and effects. Messages
    ["reign", number]                   answer: whether the one asked believes in itself
    ["suspect", number, term, contact]  the master of this claim seems dead; answer: the claim that the one asked believes in: term, contact
and the broadcast ["claim", term] of a master.
"""

from __future__ import annotations

from random import Random
from typing import Any, List, Optional, Sequence, Tuple

from .broadcast import Broadcast
from .contacts import MOST_NUMBER, NEVER, Contact, Effect, read_count, read_fields, read_number
from .kademlia import Kademlia

Claim = Tuple[int, Contact]


class Election:
    """See the head of this file."""

    def __init__(self, kademlia: Kademlia, broadcast: Broadcast, random: Random, effects: List[Effect]) -> None:
        self.term = 0
        self.master: Optional[Contact] = None
        self.deadline = NEVER
        """When the master is to be heard again; or, if it is us, when we are to be heard."""
        self._kademlia = kademlia
        self._broadcast = broadcast
        self._me = kademlia.me
        self._tuning = kademlia.tuning
        self._random = random
        self._effects = effects
        self._checking = False

    @property
    def is_mine(self) -> bool:
        return self.master is not None and self.master.node == self._me.node

    # --- claims ---------------------------------------------------------------------------------------------------------------------

    def claimed(self, term: int, contact: Contact, now: float, directly: bool) -> None:
        """A claim was heard of; ``directly``: of the claimant."""
        ours = (self.term, 0 if self.master is None else -self.master.node)
        if self.master is None or (term, -contact.node) > ours:
            self.term, self.master = term, contact
            self._effects.append(("master", term, contact))
            self._heard(now)
            if self.is_mine:
                self._beat(now)
        elif directly and (term, -contact.node) == ours:
            self._heard(now)

    def _heard(self, now: float) -> None:
        if not self.is_mine:
            self.deadline = now + self._tuning.silence_s + self._hesitation()

    def _hesitation(self) -> float:
        """Those that know of a lower id wait a little: most likely that one claims, and they need not do anything."""
        lowest = self._kademlia.table.nearest(0, 1)
        if lowest and lowest[0].node < self._me.node:
            return self._tuning.beat_s * (0.5 + 0.5 * self._random.random())
        return 0.0

    def _beat(self, now: float) -> None:
        self.deadline = now + self._tuning.beat_s
        self._broadcast.spread(["claim", self.term], self._tuning.beat_s, False, now)

    def spoke(self, now: float) -> None:
        """We told something to all: that shows as well that we live."""
        if self.is_mine:
            self.deadline = now + self._tuning.beat_s

    def heard_of(self, origin: Contact, now: float) -> None:
        """All were told something by this peer."""
        if self.master is not None and origin.node == self.master.node:
            self._heard(now)

    def turn(self, now: float) -> None:
        if now < self.deadline:
            return
        if self.is_mine:
            self._beat(now)
        else:
            self._suspect(now)

    # --- when the master seems dead -------------------------------------------------------------------------------------------------

    def unreachable(self, node: int, now: float) -> None:
        if self.master is not None and node == self.master.node and not self._checking:
            self.deadline = min(self.deadline, now + self._hesitation())

    def _suspect(self, now: float) -> None:
        """Until this leads to something, it is tried again and again."""
        self.deadline = now + self._tuning.silence_s * (0.5 + 0.5 * self._random.random())
        if self.master is None or self._checking:
            return
        claim = (self.term, self.master)
        self._checking = True

        def then(answer: Optional[Sequence[Any]], now: float) -> None:
            self._checking = False
            if self._believes(claim):
                if answer and answer[0] is True:
                    self._heard(now)
                else:
                    self._kademlia.look_up(0, lambda found, at: self._succeed(claim, found, at), now)

        self._kademlia.requests.ask(self.master, "reign", [], then, now)

    def _believes(self, claim: Claim) -> bool:
        return self.master is not None and (claim[0], claim[1].node) == (self.term, self.master.node)

    def _succeed(self, claim: Claim, found: List[Contact], now: float) -> None:
        if not self._believes(claim) or self.is_mine:
            return
        if not found or found[0].node > self._me.node:
            self.claimed(self.term + 1, self._me, now, directly=True)
            return

        def then(answer: Optional[Sequence[Any]], now: float) -> None:
            if answer is None:
                return
            term, wire = read_fields(["answer", *answer], 2)
            if wire is not None:
                self.claimed(read_count(term, MOST_NUMBER), Contact.read(wire), now, directly=False)

        self._kademlia.requests.ask(found[0], "suspect", [claim[0], claim[1].wire], then, now)

    def on_suspect(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        number = read_number(message)
        _, term, wire = read_fields(message, 3)
        claim = (read_count(term, MOST_NUMBER), Contact.read(wire))
        self.claimed(*claim, now, directly=False)  # who came after it died has never heard of it
        self._kademlia.requests.answer(sender, number, [self.term, None if self.master is None else self.master.wire])
        if self._believes(claim) and not self.is_mine:
            self._suspect(now)

    def on_reign(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        self._kademlia.requests.answer(sender, read_number(message), [self.is_mine])
