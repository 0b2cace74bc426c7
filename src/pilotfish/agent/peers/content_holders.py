"""What a node keeps for others: who holds which content. Storing adds a holder to those that are known; each is forgotten in its time."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from .contacts import NEVER, Contact, MalformedMessage, read_id, read_seconds

SWEEPS_PER_LIFE = 20
MOST_ROWS = 256
"""Keys in one message."""

Row = Tuple[int, List[Tuple[Contact, float]]]
"""A key, and its holders with the seconds they are to be remembered."""


def write_row(key: int, holders: Sequence[Tuple[Contact, float]]) -> List[Any]:
    return ["%064x" % key, [[contact.wire, seconds] for contact, seconds in holders]]


def read_rows(wires: Any, most_holders: int) -> List[Row]:
    if type(wires) is not list or len(wires) > MOST_ROWS:
        raise MalformedMessage("not a list of at most %d keys: %.80r" % (MOST_ROWS, wires))
    return [_read_row(wire, most_holders) for wire in wires]


def _read_row(wire: Any, most_holders: int) -> Row:
    if type(wire) is not list or len(wire) != 2 or type(wire[1]) is not list or len(wire[1]) > most_holders:
        raise MalformedMessage("not a key with its holders: %.80r" % (wire,))
    holders = []
    for pair in wire[1]:
        if type(pair) is not list or len(pair) != 2:
            raise MalformedMessage("not a holder with its seconds: %.80r" % (pair,))
        holders.append((Contact.read(pair[0]), read_seconds(pair[1])))
    return read_id(wire[0]), holders


class ContentHolders:
    """Bounded in keys and in holders of a key."""

    def __init__(self, most_keys: int, most_holders: int, expire_s: float) -> None:
        self._most_keys = most_keys
        self._most_holders = most_holders
        self._expire_s = expire_s
        self._kept: Dict[int, OrderedDict[int, Tuple[Contact, float]]] = {}
        """key -> node -> (contact, when it is forgotten), the latest said last"""
        self.sweep_at = NEVER

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, key: int, holders: Sequence[Tuple[Contact, float]], now: float) -> bool:
        """False: no room for another key. A holder said by hearsay (of one that leaves) never shortens what itself said."""
        if not holders:
            return True
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= self._most_keys:
                return False
            kept = self._kept[key] = OrderedDict()
        for contact, seconds in holders:
            until = now + min(seconds, self._expire_s)
            before = kept.get(contact.node)
            if before is None or before[1] < until:
                kept[contact.node] = (contact, until)
                kept.move_to_end(contact.node)
        while len(kept) > self._most_holders:
            kept.popitem(last=False)
        self.sweep_at = min(self.sweep_at, now + self._expire_s / SWEEPS_PER_LIFE)
        return True

    def remove(self, key: int, node: int) -> None:
        kept = self._kept.get(key)
        if kept is not None and kept.pop(node, None) is not None and not kept:
            del self._kept[key]

    def forget(self, node: int) -> None:
        for key in [key for key, kept in self._kept.items() if node in kept]:
            self.remove(key, node)

    def holders(self, key: int, now: float) -> List[Contact]:
        """The latest first."""
        kept = self._kept.get(key)
        return [] if kept is None else [contact for contact, until in reversed(kept.values()) if until > now]

    def sweep(self, now: float) -> None:
        if now < self.sweep_at:
            return
        for key in list(self._kept):
            kept = self._kept[key]
            for node in [node for node, (_, until) in kept.items() if until <= now]:
                del kept[node]
            if not kept:
                del self._kept[key]
        self.sweep_at = now + self._expire_s / SWEEPS_PER_LIFE if self._kept else NEVER

    def rows(self, now: float) -> Iterator[Row]:
        for key, kept in self._kept.items():
            yield key, [(contact, until - now) for contact, until in kept.values() if until > now]
