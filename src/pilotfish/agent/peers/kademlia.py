"""The distributed table of a site: who is near an id, and who holds which content. After Kademlia, with the changes that suit pilots.

Storing appends: a key has many holders. A node that leaves says so, and hands over what it kept for others. Of the contacts in a full
bucket the least recently seen one goes. Holders publish again and again; what is not published again is forgotten.

A part of ``peer.py``, which lists the effects. Messages (a question's number is its first argument; the answer is ["answer", number, …])
    ["find", number, target, seek]   answer: [nearest contacts], [holders of target, if seek]
    ["keep", number, [[key, [[holder, seconds], …]], …]]   answer: how many of these keys are kept now
    ["inherit", [[key, [[holder, seconds], …]], …]]        the sender leaves, and kept these; they are to be passed on to the nearest
    ["ping", number]                 answer: nothing
    ["withdraw", key]                the sender no longer holds it
    ["leave"]                        the sender goes, and holds nothing any more
"""

from __future__ import annotations

from collections import OrderedDict, deque
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

from .contacts import (
    BITS,
    NEVER,
    Contact,
    Effect,
    MalformedMessage,
    OverlayTuning,
    read_contacts,
    read_count,
    read_fields,
    read_id,
    read_number,
)
from .content_holders import MOST_ROWS, ContentHolders, read_rows, write_row
from .node_lookup import NodeLookup
from .peer_requests import PeerRequests
from .routing_table import RoutingTable

Found = Callable[[List[Contact], float], None]
ENOUGH_HOLDERS = 8
RETRIES_PER_REPUBLISH = 20


class Kademlia:
    """See the head of this file."""

    def __init__(self, me: Contact, tuning: OverlayTuning, random: Random, effects: List[Effect], now: float) -> None:
        self.me = me
        self.tuning = tuning
        self.table = RoutingTable(me.node, tuning.k)
        self.holdings = ContentHolders(tuning.most_keys, tuning.most_holders, tuning.expire_s)
        self.requests = PeerRequests(tuning.timeout_s, random.getrandbits(32), effects, self._lost)
        self.published: Dict[int, float] = {}
        """key -> when it is to be published again"""
        self._agenda: List[Tuple[float, int]] = []
        self._told: Dict[int, List[Contact]] = {}
        """key -> who keeps it for us, as they acknowledged"""
        self._random = random
        self._effects = effects
        self._seeds: List[Contact] = []
        self._refresh_at = now
        self._lookups = 0
        self._waiting: Deque[NodeLookup] = deque()

    @property
    def deadline(self) -> float:
        agenda = self._agenda[0][0] if self._agenda else NEVER
        return min(self.requests.deadline, self._refresh_at, self.holdings.sweep_at, agenda)

    def turn(self, now: float) -> None:
        self.requests.turn(now)
        self.holdings.sweep(now)
        if now >= self._refresh_at:
            self._refresh(now)
        while self._agenda and self._agenda[0][0] <= now:
            at, key = heappop(self._agenda)
            if self.published.get(key) == at:
                self._publish(key, self._no_report, now)
        while self._waiting and self._lookups < self.tuning.most_lookups:
            self._begin(self._waiting.popleft(), now)

    # --- the neighbourhood ----------------------------------------------------------------------------------------------------------

    def bootstrap(self, contacts: Sequence[Contact], now: float) -> None:
        """Some peers to begin with. They are asked again at every refresh, so that two halves of a site that was cut find each other."""
        self._seeds = list(contacts[: self.tuning.k])
        self._refresh(now)

    def _refresh(self, now: float) -> None:
        """Look ourselves up; ask those for a sign of life that gave none since the last time."""
        interval = self.tuning.refresh_s
        self._refresh_at = now + interval * (0.75 + 0.5 * self._random.random())
        for contact in self.table.silent_since(now - interval / 2):
            self.requests.ask(contact, "ping", [], self._ignore, now)
        if self._seeds or len(self.table):
            self.look_up(self.me.node, self._refresh_buckets, now, self._seeds)

    def _refresh_buckets(self, neighbours: List[Contact], now: float) -> None:
        """All in nearer buckets than our k-th neighbour's are known now. Farther ones need a look at a random id in each, unless they are
        full of peers that live: who gave no sign of life was dropped."""
        if len(neighbours) < self.tuning.k:
            return
        for index in range(self.table.index_of(neighbours[-1].node), BITS):
            if self.table.is_full(index):
                continue
            self.look_up(self.me.node ^ (1 << index | self._random.getrandbits(index)), self._ignore, now)

    def _ignore(self, answer: Any, now: float) -> None:
        """Who answered was seen, who did not was dropped: that was the purpose."""

    def _lost(self, node: int, now: float) -> None:
        self.table.forget(node)

    def unreachable(self, node: int, now: float) -> None:
        self.table.forget(node)
        self.holdings.forget(node)
        self.requests.unreachable(node, now)

    def on_ping(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        self.requests.answer(sender, read_number(message), [])

    def leave(self, now: float) -> None:
        """Hand over what is kept for others to the nearest known, and say farewell to all that know us or keep something for us."""
        rows: OrderedDict[int, List[Any]] = OrderedDict()
        heirs: Dict[int, Contact] = {}
        for key, holders in self.holdings.rows(now):
            others = [(contact, seconds) for contact, seconds in holders if contact.node != self.me.node]
            for contact in self.table.nearest(key, 1) if others else []:
                heirs[contact.node] = contact
                rows.setdefault(contact.node, []).append(write_row(key, others))
        for node, mine in rows.items():
            for start in range(0, len(mine), MOST_ROWS):
                self._effects.append(("tell", heirs[node], ["inherit", mine[start : start + MOST_ROWS]]))
        friends = {contact.node: contact for kept in self._told.values() for contact in kept}
        friends.update((contact.node, contact) for contact in self.table)
        self._effects.extend(("tell", contact, ["leave"]) for contact in friends.values())

    # --- lookups --------------------------------------------------------------------------------------------------------------------

    def look_up(self, target: int, then: Found, now: float, more: Sequence[Contact] = (), count: int = 0) -> None:
        """``then`` gets the ``count`` (or k) nearest to ``target`` of all other nodes, nearest first."""
        lookup = NodeLookup(target, count or self.tuning.k, False, (0, 0), lambda done, at: then(done.found(), at))
        lookup.offer(more, self.me.node)
        self._begin(lookup, now)

    def seek(self, key: int, then: Found, now: float, enough: int = ENOUGH_HOLDERS) -> None:
        """``then`` gets holders of the key other than ourselves: as soon as there are ``enough``, or when all that should know of some have
        answered; if it is 0, all that are to be found."""
        lookup = NodeLookup(
            key, self.tuning.k, True, (enough, self.tuning.replicas), lambda done, at: then(list(done.holders.values()), at)
        )
        lookup.offer_holders(self.holdings.holders(key, now), self.me.node)
        self._begin(lookup, now)

    def _begin(self, lookup: NodeLookup, now: float) -> None:
        # Somebody waits for what is sought; all else can wait.
        if self._lookups < self.tuning.most_lookups * (1 + lookup.seek):
            self._lookups += 1
            lookup.offer(self.table.nearest(lookup.target, self.tuning.k) or self._seeds, self.me.node)
            self._advance(lookup, now)
        elif len(self._waiting) < self.tuning.most_waiting:
            self._waiting.append(lookup)
        else:
            lookup.then(lookup, now)

    def _advance(self, lookup: NodeLookup, now: float) -> None:
        contact = lookup.next_to_ask(self.tuning.alpha)
        while contact is not None:
            self._ask(lookup, contact, now)
            contact = lookup.next_to_ask(self.tuning.alpha)
        if lookup.over:
            self._lookups -= 1
            lookup.then(lookup, now)

    def _ask(self, lookup: NodeLookup, contact: Contact, now: float) -> None:
        def then(answer: Optional[Sequence[Any]], now: float) -> None:
            if lookup.over:
                return
            if answer is None:
                lookup.failed(contact)
                lookup.offer(self.table.nearest(lookup.target, self.tuning.k), self.me.node)
            else:
                self._take(lookup, answer)
                lookup.answered(contact)
            self._advance(lookup, now)

        self.requests.ask(contact, "find", ["%064x" % lookup.target, lookup.seek], then, now)

    def _take(self, lookup: NodeLookup, answer: Sequence[Any]) -> None:
        wires, holding = read_fields(["answer", *answer], 2)
        nodes = read_contacts(wires, self.tuning.k, lookup.known)
        holders = read_contacts(holding, self.tuning.most_holders)
        lookup.offer(nodes, self.me.node)
        lookup.offer_holders(holders, self.me.node)

    def on_find(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        number = read_number(message)
        _, text, seek = read_fields(message, 3)
        target = read_id(text)
        nodes = [contact.wire for contact in self.table.nearest(target, self.tuning.k, sender.node)]
        holders = [contact.wire for contact in self.holdings.holders(target, now)] if seek is True else []
        self.requests.answer(sender, number, [nodes, holders])

    # --- contents -------------------------------------------------------------------------------------------------------------------

    def publish(self, key: int, report: Callable[[int, float], None], now: float) -> None:
        """This node holds the content, until it withdraws. ``report`` gets how many nodes acknowledged that they keep this in mind."""
        self.published[key] = NEVER
        self._publish(key, report, now)

    def withdraw(self, key: int, now: float) -> None:
        self.published.pop(key, None)
        self.holdings.remove(key, self.me.node)
        for contact in self._told.pop(key, []):
            self._effects.append(("tell", contact, ["withdraw", "%064x" % key]))

    def _no_report(self, kept: int, now: float) -> None:
        pass

    def _publish(self, key: int, report: Callable[[int, float], None], now: float) -> None:
        self.published[key] = NEVER
        self._find_keepers(key, lambda found, at: Publication(self, key, found, report).advance(at), now)

    def _find_keepers(self, key: int, then: Found, now: float) -> None:
        """Some more than are needed: one may fail, and what is a little farther away may know somebody nearer."""
        self.look_up(key, then, now, count=min(self.tuning.k, 2 * self.tuning.replicas))

    def published_at(self, key: int, kept: List[Contact], whole: bool, now: float) -> None:
        """Told by a publication that is over. One that found no one to keep it, or lost some on the way, is tried again soon."""
        if key not in self.published:
            self._told[key] = kept
            self.withdraw(key, now)  # it was withdrawn meanwhile
            return
        self._told[key] = kept
        wait = self.tuning.republish_s * (0.75 + 0.25 * self._random.random())
        at = now + (wait if whole else wait / RETRIES_PER_REPUBLISH)
        self.published[key] = at
        heappush(self._agenda, (at, key))

    def on_keep(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        number = read_number(message)
        rows = read_rows(read_fields(message, 2)[1], self.tuning.most_holders)
        kept = sum(self.holdings.add(key, holders, now) for key, holders in rows)
        self.requests.answer(sender, number, [kept])

    def on_inherit(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        """The leaver knew its own neighbours, who need not be the key's: so whoever inherits looks for those."""
        rows = read_rows(read_fields(message, 1)[0], self.tuning.most_holders)
        for key, holders in rows:
            self.holdings.add(key, holders, now)
            self._find_keepers(key, partial(self._pass_on, write_row(key, holders)), now)

    def _pass_on(self, row: List[Any], found: List[Contact], now: float) -> None:
        for contact in found[: self.tuning.replicas]:
            self._effects.append(("tell", contact, ["keep", 0, [row]]))

    def on_withdraw(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        (key,) = read_fields(message, 1)
        self.holdings.remove(read_id(key), sender.node)


class Publication:
    """One key on its way to the nodes that are to keep it: the ``replicas`` nearest, and if one of them fails, the next."""

    def __init__(self, kademlia: Kademlia, key: int, found: List[Contact], report: Callable[[int, float], None]) -> None:
        self._kademlia = kademlia
        self._key = key
        self._candidates = deque(sorted([kademlia.me, *found], key=lambda contact: contact.node ^ key))
        self._missing = kademlia.tuning.replicas
        self._waiting = 0
        self._kept: List[Contact] = []
        self._failed = not found
        self._report = report

    def advance(self, now: float) -> None:
        kademlia = self._kademlia
        while self._candidates and self._waiting < self._missing:
            contact = self._candidates.popleft()
            self._waiting += 1
            if contact is kademlia.me:
                kept = kademlia.holdings.add(self._key, [(contact, kademlia.tuning.expire_s)], now)
                self._settle(contact, kept)
            else:
                row = write_row(self._key, [(kademlia.me, kademlia.tuning.expire_s)])
                kademlia.requests.ask(contact, "keep", [[row]], self._then(contact), now)
        if not self._waiting:
            others = [contact for contact in self._kept if contact is not kademlia.me]
            kademlia.published_at(self._key, others, bool(self._kept) and not self._failed, now)
            self._report(len(self._kept), now)

    def _then(self, contact: Contact) -> Callable[[Optional[Sequence[Any]], float], None]:
        def then(answer: Optional[Sequence[Any]], now: float) -> None:
            if answer is not None and not answer:
                raise MalformedMessage("an answer too short")
            self._settle(contact, answer is not None and read_count(answer[0], 1) == 1)
            self.advance(now)

        return then

    def _settle(self, contact: Contact, kept: bool) -> None:
        self._waiting -= 1
        if kept:
            self._kept.append(contact)
            self._missing -= 1
        else:
            self._failed = True
