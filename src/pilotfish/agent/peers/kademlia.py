"""Finds nodes and holders of contents in the distributed hash table of a site.

The table is Kademlia with changes that suit pilots. The id of a content is a key. A record names a key and a node that holds the content. A
key can have many holders: a new record does not replace the other records. When a node leaves, it informs the other nodes and passes on the
records that it keeps. A holder publishes its contents periodically; a record that is not published again expires.

This is a part of ``peer.py``, which lists the effects. The first argument of a question is its number. The answer is ["answer", number, …].
Messages
    ["find", number, target, wants_holders]   answer: [nearest contacts], [holders of the target, if wanted]
    ["keep", number, [[key, [[holder, seconds], …]], …]]   answer: number of these keys that the receiver keeps now
    ["inherit", [[key, [[holder, seconds], …]], …]]        the sender leaves, and has kept these records. Pass them on to the nodes that
                                     are nearest to each key
    ["ping", number]                 the answer has no further fields
    ["withdraw", key]                the sender no longer holds this content
    ["leave"]                        the sender leaves, and no longer holds any content
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

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
from .content_holders import MAX_ROWS, ContentHolders, read_rows, write_row

Found = Callable[[List[Contact], float], None]
OnAnswer = Callable[[Optional[Sequence[Any]], float], None]
MIN_HOLDERS = 8
RETRIES_PER_REPUBLISH = 20
MAX_ASKED_PER_K = 10
"""Maximum number of peers that a lookup asks, as a multiple of k. A lookup reaches this limit only if a peer invents nodes."""


class RoutingTable:
    """Known contacts in buckets.

    The distance of two ids is their exclusive or. A contact is in bucket i if bit i is the highest bit that is set in its distance from
    this node. A bucket has at most k contacts, the least recently seen first. A contact is added only when it sends a message itself, never
    because another node names it.

    If a bucket is full, standard Kademlia drops the new contact. This table drops the contact that was seen longest ago, because pilots
    live about equally long: the new contact will probably live longest.
    """

    def __init__(self, node: int, k: int) -> None:
        self.node = node
        self.k = k
        self.buckets: Dict[int, OrderedDict[int, Tuple[Contact, float]]] = {}
        """index -> node -> (contact, time of its last message)"""
        self._indices: List[int] = []
        """Indices of buckets that are not empty, ascending. There are about a dozen."""

    def __len__(self) -> int:
        return sum(len(bucket) for bucket in self.buckets.values())

    def __iter__(self) -> Iterator[Contact]:
        for index in self._indices:
            for contact, _ in self.buckets[index].values():
                yield contact

    def index_of(self, node: int) -> int:
        return (self.node ^ node).bit_length() - 1

    def seen(self, contact: Contact, now: float) -> None:
        index = self.index_of(contact.node)
        if index < 0:
            return
        bucket = self.buckets.get(index)
        if bucket is None:
            bucket = self.buckets[index] = OrderedDict()
            insort(self._indices, index)
        bucket[contact.node] = (contact, now)
        bucket.move_to_end(contact.node)
        if len(bucket) > self.k:
            bucket.popitem(last=False)

    def forget(self, node: int) -> None:
        index = self.index_of(node)
        bucket = self.buckets.get(index)
        if bucket is not None and bucket.pop(node, None) is not None and not bucket:
            del self.buckets[index]
            self._indices.remove(index)

    def nearest(self, target: int, count: int, exclude: int = -1) -> List[Contact]:
        """Returns the contacts nearest to ``target``, nearest first, without the node ``exclude``."""
        distance = self.node ^ target
        found: List[Contact] = []
        for index in self._by_distance(distance):
            contacts = [contact for contact, _ in self.buckets[index].values() if contact.node != exclude]
            contacts.sort(key=lambda contact: contact.node ^ target)  # all are nearer than the contacts of the next bucket
            found += contacts
            if len(found) >= count:
                return found[:count]
        return found

    def _by_distance(self, distance: int) -> List[int]:
        """Returns the indices of the buckets in the order of their distance from a target, nearest first. ``distance``: the distance of the
        target from this node.

        The distance between a contact in bucket i and the target differs from ``distance`` in bit i, and perhaps in lower bits. If bit i of
        ``distance`` is set, the contact is nearer to the target than this node: the higher the bit, the nearer. If bit i is not set, the
        contact is farther from the target than this node: the higher the bit, the farther.
        """
        nearer = [index for index in self._indices if distance >> index & 1]
        farther = [index for index in self._indices if not distance >> index & 1]
        nearer.reverse()
        return nearer + farther

    def within(self, prefix: int, length: int) -> Tuple[List[Contact], bool]:
        """Returns the known nodes whose first ``length`` bits are ``prefix``, and True if possibly more exist, because a bucket is full."""
        shift = BITS - length
        index = (self.node >> shift ^ prefix).bit_length() - 1
        if index < 0:
            buckets = [self.buckets[each] for each in self._indices if each < shift]
        else:
            bucket = self.buckets.get(index + shift)
            buckets = [] if bucket is None else [bucket]
        contacts = [contact for bucket in buckets for contact, _ in bucket.values() if contact.node >> shift == prefix]
        return contacts, any(len(bucket) >= self.k for bucket in buckets)

    def silent_since(self, time: float) -> List[Contact]:
        """Returns the contacts that sent nothing after this time."""
        silent: List[Contact] = []
        for index in self._indices:
            for contact, seen in self.buckets[index].values():
                if seen > time:
                    break
                silent.append(contact)
        return silent


class PeerRequests:
    """Questions to peers that have no answer yet. All questions have the same time-out, so they expire in the order in which they were
    asked.

    ``then(answer, now)`` of a question is called with the fields of the answer, or with None if no valid answer came. ``on_silent(node)``
    is called for a node that did not answer. The numbers of questions begin after the random number ``first``. So a restarted process
    accepts no answer to a question that the process asked before the restart.
    """

    def __init__(self, timeout_s: float, first: int, send: Callable[[Contact, List[Any]], None], on_silent: Callable[[int], None]) -> None:
        self._timeout_s = timeout_s
        self._send = send
        self._on_silent = on_silent
        self._pending: OrderedDict[int, Tuple[float, int, OnAnswer]] = OrderedDict()
        self._last = first

    @property
    def deadline(self) -> float:
        for due, _, _ in self._pending.values():
            return due
        return NEVER

    def ask(self, contact: Contact, kind: str, arguments: List[Any], then: OnAnswer, now: float) -> None:
        self._last += 1
        self._pending[self._last] = (now + self._timeout_s, contact.node, then)
        self._send(contact, [kind, self._last, *arguments])

    def answer(self, sender: Contact, question: int, arguments: List[Any]) -> None:
        if question:
            self._send(sender, ["answer", question, *arguments])

    def on_answer(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        (question,) = read_fields(message, 1)
        pending = self._pending.get(question) if type(question) is int else None
        if pending is None or pending[1] != sender.node:
            return  # the question has expired
        del self._pending[question]
        try:
            pending[2](message[2:], now)
        except MalformedMessage:
            pending[2](None, now)
            raise

    def unreachable(self, node: int, now: float) -> None:
        for question in [question for question, (_, asked, _) in self._pending.items() if asked == node]:
            self._expire(question, now)

    def turn(self, now: float) -> None:
        while self.deadline <= now:
            self._expire(next(iter(self._pending)), now)

    def _expire(self, question: int, now: float) -> None:
        pending = self._pending.pop(question, None)
        if pending is not None:
            self._on_silent(pending[1])
            pending[2](None, now)


class NodeLookup:
    """Finds the k live nodes nearest to a target. Asks the nearest known nodes for nearer nodes until the k nearest have answered.

    The result is exact if each node of the site has a good routing table: a full bucket has at least one live contact, and any other bucket
    has all live nodes that belong in it.
    """

    def __init__(self, target: int, k: int, max_keepers: int, then: Callable[[NodeLookup, float], None]) -> None:
        self.target = target
        self.wants_holders = max_keepers > 0
        """Whether the target is a key whose holders are wanted. Every lookup ends when the k nearest nodes have answered. This lookup also
        ends when MIN_HOLDERS are known, or when ``max_keepers`` nodes that keep records of the key have answered."""
        self.then = then
        self.holders: OrderedDict[int, Contact] = OrderedDict()
        self.ended = False
        self._k = k
        self._max_keepers = max_keepers
        self._ranked: List[Tuple[int, Contact]] = []
        """(distance from the target, contact) of each candidate, nearest first. Nodes that did not answer in time are removed."""
        self.known: Set[str] = set()
        """Ids of all candidates, as text, also of nodes that did not answer."""
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
        """Returns the next node to ask, or None if no node is left or ``alpha`` questions are open. Sets ``ended`` when the lookup ends."""
        found_enough = self.wants_holders and (len(self.holders) >= MIN_HOLDERS or self._keepers >= self._max_keepers)
        if found_enough or len(self._asked) >= MAX_ASKED_PER_K * self._k:
            self.ended = True
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
        self.ended = not missing
        return None

    def answered(self, contact: Contact) -> None:
        self._waiting -= 1
        self._answered.add(contact.node)

    def failed(self, contact: Contact) -> None:
        self._waiting -= 1
        del self._ranked[bisect_left(self._ranked, (contact.node ^ self.target,))]

    def found(self) -> List[Contact]:
        """Returns the k nearest nodes that answered, nearest first."""
        found = [contact for _, contact in self._ranked if contact.node in self._answered]
        return found[: self._k]


class Kademlia:
    """Routing table, lookups and records of one node."""

    def __init__(self, me: Contact, tuning: OverlayTuning, random: Random, effects: List[Effect], now: float) -> None:
        self.me = me
        self.tuning = tuning
        self.table = RoutingTable(me.node, tuning.k)
        self.content_holders = ContentHolders(tuning.max_keys, tuning.max_holders, tuning.expire_s)
        self.requests = PeerRequests(tuning.timeout_s, random.getrandbits(32), self.send, self.table.forget)
        self.published: Dict[int, float] = {}
        """key -> time at which this node publishes it again"""
        self._agenda: List[Tuple[float, int]] = []
        self.keepers: Dict[int, List[Contact]] = {}
        """key -> other nodes that acknowledged the record of this node"""
        self.left = False
        self._random = random
        self._effects = effects
        self._seeds: List[Contact] = []
        self._refresh_at = now
        self._lookups = 0
        self._waiting: Deque[NodeLookup] = deque()

    @property
    def deadline(self) -> float:
        agenda = self._agenda[0][0] if self._agenda else NEVER
        return min(self.requests.deadline, self._refresh_at, self.content_holders.sweep_at, agenda)

    def turn(self, now: float) -> None:
        self.requests.turn(now)
        self.content_holders.sweep(now)
        if now >= self._refresh_at:
            self._refresh(now)
        while self._agenda and self._agenda[0][0] <= now:
            at, key = heappop(self._agenda)
            if self.published.get(key) == at:
                self.publish(key, now)
        while self._waiting and self._lookups < self.tuning.max_lookups:
            self._begin(self._waiting.popleft(), now)

    def send(self, contact: Contact, message: List[Any]) -> None:
        """Sends a message to a peer. Does nothing if this node has left."""
        if not self.left:
            self._effects.append(("send_to_peer", contact, message, ()))

    # --- membership -----------------------------------------------------------------------------------------------------------------

    def bootstrap(self, contacts: Sequence[Contact], now: float) -> None:
        """Stores some contacts of the site. Every refresh asks these peers, so that two halves of a split site find each other again."""
        self._seeds = list(contacts[: self.tuning.k])
        self._refresh(now)

    def _refresh(self, now: float) -> None:
        """Looks up the id of this node, and pings peers that sent nothing in the last ``refresh_s / 2`` seconds."""
        interval = self.tuning.refresh_s
        self._refresh_at = now + interval * (0.75 + 0.5 * self._random.random())
        for contact in self.table.silent_since(now - interval / 2):
            self.requests.ask(contact, "ping", [], self._ignore, now)
        if self._seeds or len(self.table):
            self.look_up(self.me.node, self._refresh_buckets, now, self._seeds)

    def _refresh_buckets(self, neighbours: List[Contact], now: float) -> None:
        """Looks up a random id in each bucket that is not full. ``neighbours``: the nearest nodes, nearest first. Skips the buckets nearer
        than the bucket of the last neighbour: they already contain all their nodes. With fewer than k neighbours, all buckets already
        contain all their nodes."""
        if len(neighbours) < self.tuning.k:
            return
        for index in range(self.table.index_of(neighbours[-1].node), BITS):
            if len(self.table.buckets.get(index, ())) < self.table.k:
                self.look_up(self.me.node ^ (1 << index | self._random.getrandbits(index)), self._ignore, now)

    def _ignore(self, answer: Any, now: float) -> None:
        """Does nothing: the routing table knows already which peers have answered."""

    def unreachable(self, node: int, now: float) -> None:
        self.table.forget(node)
        self.content_holders.forget(node)
        self.requests.unreachable(node, now)

    def on_ping(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        self.requests.answer(sender, read_number(message), [])

    def leave(self, now: float) -> None:
        """Passes each record of another holder on to the known node that is nearest to the key of the record. Tells all known nodes, and
        all nodes that keep records of this node, that this node leaves."""
        rows: OrderedDict[int, List[Any]] = OrderedDict()
        successors: Dict[int, Contact] = {}
        for key, holders in self.content_holders.rows(now):
            others = [(contact, seconds) for contact, seconds in holders if contact.node != self.me.node]
            for contact in self.table.nearest(key, 1) if others else []:
                successors[contact.node] = contact
                rows.setdefault(contact.node, []).append(write_row(key, others))
        for node, mine in rows.items():
            for start in range(0, len(mine), MAX_ROWS):
                self.send(successors[node], ["inherit", mine[start : start + MAX_ROWS]])
        known = {contact.node: contact for kept in self.keepers.values() for contact in kept}
        known.update((contact.node, contact) for contact in self.table)
        for contact in known.values():
            self.send(contact, ["leave"])
        self.left = True

    # --- lookups --------------------------------------------------------------------------------------------------------------------

    def look_up(self, target: int, then: Found, now: float, extra: Sequence[Contact] = (), count: int = 0) -> None:
        """Calls ``then`` with the ``count`` (0: k) nodes nearest to ``target``, nearest first. ``extra``: contacts to ask, too."""
        lookup = NodeLookup(target, count or self.tuning.k, 0, lambda done, at: then(done.found(), at))
        lookup.offer(extra, self.me.node)
        self._begin(lookup, now)

    def find_holders(self, key: int, then: Found, now: float) -> None:
        """Calls ``then`` with holders of the key. This node is not among the holders. Some of the holders have possibly left.

        The search ends when MIN_HOLDERS are known, or when the nodes that should keep the records of the key have answered.
        """
        lookup = NodeLookup(key, self.tuning.k, self.tuning.replicas, lambda done, at: then(list(done.holders.values()), at))
        lookup.offer_holders(self.content_holders.holders(key, now), self.me.node)
        self._begin(lookup, now)

    def _begin(self, lookup: NodeLookup, now: float) -> None:
        # Searches for holders have a larger limit, because a task waits for their result.
        if self._lookups < self.tuning.max_lookups * (1 + lookup.wants_holders):
            self._lookups += 1
            lookup.offer(self.table.nearest(lookup.target, self.tuning.k) or self._seeds, self.me.node)
            self._advance(lookup, now)
        elif len(self._waiting) < self.tuning.max_waiting:
            self._waiting.append(lookup)
        else:
            lookup.then(lookup, now)

    def _advance(self, lookup: NodeLookup, now: float) -> None:
        contact = lookup.next_to_ask(self.tuning.alpha)
        while contact is not None:
            self._ask(lookup, contact, now)
            contact = lookup.next_to_ask(self.tuning.alpha)
        if lookup.ended:
            self._lookups -= 1
            lookup.then(lookup, now)

    def _ask(self, lookup: NodeLookup, contact: Contact, now: float) -> None:
        def then(answer: Optional[Sequence[Any]], now: float) -> None:
            if lookup.ended:
                return
            if answer is None:
                lookup.failed(contact)
                lookup.offer(self.table.nearest(lookup.target, self.tuning.k), self.me.node)
            else:
                self._take(lookup, answer)
                lookup.answered(contact)
            self._advance(lookup, now)

        self.requests.ask(contact, "find", ["%064x" % lookup.target, lookup.wants_holders], then, now)

    def _take(self, lookup: NodeLookup, answer: Sequence[Any]) -> None:
        wires, holding = read_fields(["answer", *answer], 2)
        nodes = read_contacts(wires, self.tuning.k, lookup.known)
        holders = read_contacts(holding, self.tuning.max_holders)
        lookup.offer(nodes, self.me.node)
        lookup.offer_holders(holders, self.me.node)

    def on_find(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        number = read_number(message)
        _, text, wants_holders = read_fields(message, 3)
        target = read_id(text)
        nodes = [contact.wire for contact in self.table.nearest(target, self.tuning.k, sender.node)]
        holders = [contact.wire for contact in self.content_holders.holders(target, now)] if wants_holders is True else []
        self.requests.answer(sender, number, [nodes, holders])

    # --- contents -------------------------------------------------------------------------------------------------------------------

    def publish(self, key: int, now: float) -> None:
        """Announces that this node holds a content. This node repeats the announcement periodically until ``withdraw``."""
        self.published[key] = NEVER
        self._find_keepers(key, lambda found, at: Publication(self, key, found).advance(at), now)

    def withdraw(self, key: int) -> None:
        self.published.pop(key, None)
        self.content_holders.remove(key, self.me.node)
        for contact in self.keepers.pop(key, []):
            self.send(contact, ["withdraw", "%064x" % key])

    def _find_keepers(self, key: int, then: Found, now: float) -> None:
        """Calls ``then`` with the nodes that should keep the record of a key. These nodes are more than needed, because some can fail."""
        self.look_up(key, then, now, count=min(self.tuning.k, 2 * self.tuning.replicas))

    def published_at(self, key: int, kept: List[Contact], complete: bool, now: float) -> None:
        """Plans when to publish a key again: late if enough nodes keep the record of the key (``complete``), otherwise soon. ``kept``: the
        nodes that keep the record, without this node."""
        self.keepers[key] = kept
        if key not in self.published:
            self.withdraw(key)  # the host withdrew the content during the publication
            return
        wait = self.tuning.republish_s * (0.75 + 0.25 * self._random.random())
        at = now + (wait if complete else wait / RETRIES_PER_REPUBLISH)
        self.published[key] = at
        heappush(self._agenda, (at, key))

    def on_keep(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        number = read_number(message)
        rows = read_rows(read_fields(message, 2)[1], self.tuning.max_holders)
        kept = sum(self.content_holders.add(key, holders, now) for key, holders in rows)
        self.requests.answer(sender, number, [kept])

    def on_inherit(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        """Keeps the records of a leaving node. Passes the records on to the nodes nearest to the keys. The leaving node possibly does not
        know these nodes."""
        rows = read_rows(read_fields(message, 1)[0], self.tuning.max_holders)
        for key, holders in rows:
            self.content_holders.add(key, holders, now)
            self._find_keepers(key, partial(self._pass_on, write_row(key, holders)), now)

    def _pass_on(self, row: List[Any], found: List[Contact], now: float) -> None:
        for contact in found[: self.tuning.replicas]:
            self.send(contact, ["keep", 0, [row]])

    def on_withdraw(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        (key,) = read_fields(message, 1)
        self.content_holders.remove(read_id(key), sender.node)


class Publication:
    """Asks the ``tuning.replicas`` nodes nearest to a key to record that this node is a holder. If a node fails, asks the next node."""

    def __init__(self, kademlia: Kademlia, key: int, found: List[Contact]) -> None:
        self._kademlia = kademlia
        self._key = key
        self._candidates = deque(sorted([kademlia.me, *found], key=lambda contact: contact.node ^ key))
        self._missing = kademlia.tuning.replicas
        self._waiting = 0
        self._kept: List[Contact] = []
        self._failed = not found

    def advance(self, now: float) -> None:
        kademlia = self._kademlia
        while self._candidates and self._waiting < self._missing:
            contact = self._candidates.popleft()
            self._waiting += 1
            if contact is kademlia.me:
                kept = kademlia.content_holders.add(self._key, [(contact, kademlia.tuning.expire_s)], now)
                self._record(contact, kept)
            else:
                row = write_row(self._key, [(kademlia.me, kademlia.tuning.expire_s)])
                kademlia.requests.ask(contact, "keep", [[row]], partial(self._answered, contact), now)
        if not self._waiting:
            others = [contact for contact in self._kept if contact is not kademlia.me]
            kademlia.published_at(self._key, others, bool(self._kept) and not self._failed, now)

    def _answered(self, contact: Contact, answer: Optional[Sequence[Any]], now: float) -> None:
        if answer is not None and not answer:
            raise MalformedMessage("an answer too short")
        self._record(contact, answer is not None and read_count(answer[0], 1) == 1)
        self.advance(now)

    def _record(self, contact: Contact, kept: bool) -> None:
        self._waiting -= 1
        if kept:
            self._kept.append(contact)
            self._missing -= 1
        else:
            self._failed = True
