"""Keeps known peers in k-buckets: one for each power of two of distance, with at most k contacts, least recently seen first.

A contact is added only after a message of its own, never because others name it. A full bucket drops the contact seen longest ago, not the
newest: pilots live about equally long, so the one seen last will live longest.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from typing import Dict, Iterator, List, Tuple

from .contacts import BITS, Contact


class RoutingTable:
    """Known contacts. Distance is the exclusive or of two ids; bucket i holds distances whose highest bit is i."""

    def __init__(self, node: int, k: int) -> None:
        self.node = node
        self.k = k
        self.buckets: Dict[int, OrderedDict[int, Tuple[Contact, float]]] = {}
        """index -> node -> (contact, last seen)"""
        self._indices: List[int] = []
        """Indices of non-empty buckets, ascending: about a dozen."""

    def __len__(self) -> int:
        return sum(len(bucket) for bucket in self.buckets.values())

    def __contains__(self, node: int) -> bool:
        bucket = self.buckets.get(self.index_of(node))
        return bucket is not None and node in bucket

    def __iter__(self) -> Iterator[Contact]:
        for index in self._indices:
            for contact, _ in self.buckets[index].values():
                yield contact

    def index_of(self, node: int) -> int:
        return (self.node ^ node).bit_length() - 1

    def is_full(self, index: int) -> bool:
        return len(self.buckets.get(index, ())) >= self.k

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
        """The contacts nearest to ``target``, nearest first, without ``exclude``. All contacts of one bucket are nearer than those of the
        next in this walk, so only the buckets needed are read, and each is sorted by itself."""
        distance = self.node ^ target
        found: List[Contact] = []
        for index in self._by_distance(distance):
            contacts = [contact for contact, _ in self.buckets[index].values() if contact.node != exclude]
            contacts.sort(key=lambda contact: contact.node ^ target)
            found += contacts
            if len(found) >= count:
                return found[:count]
        return found

    def _by_distance(self, distance: int) -> List[int]:
        """Buckets by their distance to a target at this distance from us. Moving to bucket i flips bit i of the distance: where it is set
        we come nearer, the higher the bit the more; where it is not, we move away."""
        nearer = [index for index in self._indices if distance >> index & 1]
        farther = [index for index in self._indices if not distance >> index & 1]
        nearer.reverse()
        return nearer + farther

    def within(self, prefix: int, length: int) -> Tuple[List[Contact], bool]:
        """Known nodes whose ids begin with these ``length`` bits, and whether there may be more because a bucket is full."""
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
        silent: List[Contact] = []
        for index in self._indices:
            for contact, seen in self.buckets[index].values():
                if seen > time:
                    break
                silent.append(contact)
        return silent
