"""Keeps records for other peers: which nodes hold which content, named by its key. A key can have many holders. Each record expires."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from .contacts import NEVER, Contact, MalformedMessage, read_id, read_seconds

SWEEPS_PER_LIFE = 20
MAX_ROWS = 256
"""Maximum keys in one message."""

Row = Tuple[int, List[Tuple[Contact, float]]]
"""A key, and its holders, each with the seconds until its record expires."""


def write_row(key: int, holders: Sequence[Tuple[Contact, float]]) -> List[Any]:
    return ["%064x" % key, [[contact.wire, seconds] for contact, seconds in holders]]


def read_rows(wires: Any, max_holders: int) -> List[Row]:
    if type(wires) is not list or len(wires) > MAX_ROWS:
        raise MalformedMessage("not a list of at most %d keys: %.80r" % (MAX_ROWS, wires))
    return [_read_row(wire, max_holders) for wire in wires]


def _read_row(wire: Any, max_holders: int) -> Row:
    if type(wire) is not list or len(wire) != 2 or type(wire[1]) is not list or len(wire[1]) > max_holders:
        raise MalformedMessage("not a key with its holders: %.80r" % (wire,))
    holders = []
    for pair in wire[1]:
        if type(pair) is not list or len(pair) != 2:
            raise MalformedMessage("not a holder with its seconds: %.80r" % (pair,))
        holders.append((Contact.read(pair[0]), read_seconds(pair[1])))
    return read_id(wire[0]), holders


class ContentHolders:
    """Records of holders. The number of keys and the number of holders per key are limited."""

    def __init__(self, max_keys: int, max_holders: int, expire_s: float) -> None:
        self._max_keys = max_keys
        self._max_holders = max_holders
        self._expire_s = expire_s
        self._records: Dict[int, OrderedDict[int, Tuple[Contact, float]]] = {}
        """key -> node -> (contact, time at which the record expires). The latest record is the last."""
        self.sweep_at = NEVER

    def add(self, key: int, holders: Sequence[Tuple[Contact, float]], now: float) -> bool:
        """Adds records of holders of a key. Returns False if the records were not added, because there are too many keys.

        ``holders``: each holder with the seconds until its record expires. If a holder already has a record of this key, the record that
        expires later is kept. If the key has too many holders, the oldest records are deleted.
        """
        if not holders:
            return True
        records = self._records.get(key)
        if records is None:
            if len(self._records) >= self._max_keys:
                return False
            records = self._records[key] = OrderedDict()
        for contact, seconds in holders:
            until = now + min(seconds, self._expire_s)
            before = records.get(contact.node)
            if before is None or before[1] < until:
                records[contact.node] = (contact, until)
                records.move_to_end(contact.node)
        while len(records) > self._max_holders:
            records.popitem(last=False)
        self.sweep_at = min(self.sweep_at, now + self._expire_s / SWEEPS_PER_LIFE)
        return True

    def remove(self, key: int, node: int) -> None:
        records = self._records.get(key)
        if records is not None and records.pop(node, None) is not None and not records:
            del self._records[key]

    def forget(self, node: int) -> None:
        for key in [key for key, records in self._records.items() if node in records]:
            self.remove(key, node)

    def holders(self, key: int, now: float) -> List[Contact]:
        """Returns the holders of a key. The holder whose record was updated last comes first."""
        records = self._records.get(key)
        return [] if records is None else [contact for contact, until in reversed(records.values()) if until > now]

    def sweep(self, now: float) -> None:
        """Deletes expired records."""
        if now < self.sweep_at:
            return
        for key in list(self._records):
            records = self._records[key]
            for node in [node for node, (_, until) in records.items() if until <= now]:
                del records[node]
            if not records:
                del self._records[key]
        self.sweep_at = now + self._expire_s / SWEEPS_PER_LIFE if self._records else NEVER

    def rows(self, now: float) -> Iterator[Row]:
        """Yields each key with those of its holders whose records have not expired."""
        for key, records in self._records.items():
            yield key, [(contact, until - now) for contact, until in records.values() if until > now]
