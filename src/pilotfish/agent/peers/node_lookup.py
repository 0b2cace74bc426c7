"""Runs one iterative Kademlia lookup: the nodes nearest to a target, or the holders of a key."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from typing import Callable, Iterable, List, Optional, Sequence, Set, Tuple

from .contacts import Contact

MAX_ASKED_PER_K = 10
"""Maximum peers asked, as a multiple of k: beyond it, a peer is inventing nodes."""


class NodeLookup:
    """Asks the nearest known nodes for nearer ones until the k nearest that answer have all answered. This finds the true nearest if every
    node knows all nodes of its non-full buckets and some live node of the full ones."""

    def __init__(
        self, target: int, k: int, wants_holders: bool, enough: Tuple[int, int], then: Callable[[NodeLookup, float], None]
    ) -> None:
        self.target = target
        self.wants_holders = wants_holders
        """Whether it asks for holders of a key. It ends when this many holders are known, or this many keepers of the key have answered, as
        ``enough`` says (0, 0: it runs to the end)."""
        self.then = then
        self.holders: OrderedDict[int, Contact] = OrderedDict()
        self.over = False
        self._k = k
        self._enough = enough
        self._ranked: List[Tuple[int, Contact]] = []
        """Candidates by distance, without those that did not answer."""
        self.known: Set[str] = set()
        """Ids of all candidates ever offered, as text."""
        self._asked: Set[int] = set()
        self._answered: Set[int] = set()
        self._keepers = 0
        self._waiting = 0

    def offer(self, contacts: Iterable[Contact], me: int) -> None:
        for contact in contacts:
            if contact.wire[0] not in self.known and contact.node != me:
                self.known.add(contact.wire[0])
                insort(self._ranked, (contact.node ^ self.target, contact))

    def offer_holders(self, contacts: Sequence[Contact], me: int) -> None:
        self._keepers += bool(contacts)
        for contact in contacts:
            if contact.node != me:
                self.holders[contact.node] = contact

    def next_to_ask(self, alpha: int) -> Optional[Contact]:
        """The next node to ask, of the k nearest; None if enough questions are open. Sets ``over`` when nothing is left to do."""
        holders, keepers = self._enough
        plenty = holders and (len(self.holders) >= holders or self._keepers >= keepers)
        if plenty or len(self._asked) >= MAX_ASKED_PER_K * self._k:
            self.over = True
            return None
        missing = False
        for _, contact in self._ranked[: self._k]:
            if contact.node in self._answered:
                continue
            missing = True
            if contact.node not in self._asked:
                if self._waiting >= alpha:
                    return None
                self._asked.add(contact.node)
                self._waiting += 1
                return contact
        self.over = not missing
        return None

    def answered(self, contact: Contact) -> None:
        self._waiting -= 1
        self._answered.add(contact.node)

    def failed(self, contact: Contact) -> None:
        self._waiting -= 1
        del self._ranked[bisect_left(self._ranked, (contact.node ^ self.target,))]

    def found(self) -> List[Contact]:
        """The k nearest that answered, nearest first."""
        found = [contact for _, contact in self._ranked if contact.node in self._answered]
        return found[: self._k]
