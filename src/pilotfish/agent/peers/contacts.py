"""Who a peer is, how large ids are, and how what comes from a peer is read: checked once, here, before anything is changed by it."""

from __future__ import annotations

import re
from typing import AbstractSet, Any, List, NamedTuple, Sequence, Tuple

Effect = Tuple[Any, ...]

BITS = 256
"""Ids of nodes and keys of contents live in one space; a key is the SHA-256 of the bytes."""
DIGITS = BITS // 4
MOST_NUMBER = 1 << 53
NEVER = float("inf")
_ID = re.compile("[0-9a-f]{%d}" % DIGITS).fullmatch


class MalformedMessage(ValueError):
    """A peer sent something that is not of the protocol. Nothing was changed by it but that an answer so spoilt counts as none."""


class Contact:
    """A node and how to reach it. The address is the host's business: anything that JSON carries."""

    __slots__ = ("node", "address", "wire")

    def __init__(self, node: int, address: Any) -> None:
        self.node = node
        self.address = address
        self.wire: List[Any] = ["%064x" % node, address]

    def __repr__(self) -> str:
        return "Contact(%.8s…, %r)" % (self.wire[0], self.address)

    @classmethod
    def read(cls, wire: Any) -> Contact:
        if type(wire) is not list or len(wire) != 2:
            raise MalformedMessage("not a contact: %.80r" % (wire,))
        contact = cls.__new__(cls)
        contact.node = read_id(wire[0])
        contact.address = wire[1]
        contact.wire = wire
        return contact


class OverlayTuning(NamedTuple):
    """How large and how patient. All peers of a site must have the same."""

    k: int = 20
    alpha: int = 3
    replicas: int = 3
    timeout_s: float = 2.0
    """A peer that does not answer within this is dropped."""
    refresh_s: float = 900.0
    """So often the neighbourhood is looked over, and peers that were silent since are asked for a sign of life."""
    republish_s: float = 900.0
    expire_s: float = 2700.0
    beat_s: float = 10.0
    """So often the site's master shows that it lives, if nothing else of it did."""
    silence_s: float = 35.0
    """So long it may be silent."""
    most_lookups: int = 32
    """At once; the others wait."""
    most_waiting: int = 10_000
    most_keys: int = 20_000
    """That are kept for others."""
    most_holders: int = 64
    """Of one key; the one that said so the longest ago goes."""
    most_broadcasts: int = 128
    """That are remembered, so that a message that comes twice is known."""


def read_id(text: Any) -> int:
    """One spelling only, so that an id is as good as its text: int() alone would take signs, underscores and other digits."""
    if type(text) is not str or _ID(text) is None:
        raise MalformedMessage("not an id: %.80r" % (text,))
    return int(text, 16)


def read_contacts(wires: Any, most: int, known: AbstractSet[str] = frozenset()) -> List[Contact]:
    """Those that are not ``known`` by the text of their ids."""
    if type(wires) is not list or len(wires) > most:
        raise MalformedMessage("not a list of at most %d contacts: %.80r" % (most, wires))
    return [Contact.read(wire) for wire in wires if type(wire) is not list or not wire or type(wire[0]) is not str or wire[0] not in known]


def read_count(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise MalformedMessage("not a number from 0 to %d: %.80r" % (most, value))
    return value


def read_seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= MOST_NUMBER:
        raise MalformedMessage("not a number of seconds: %.80r" % (value,))
    return float(value)


def read_fields(message: Sequence[Any], count: int) -> Sequence[Any]:
    """What follows the kind. More than we know of is fine: a later version may say more."""
    if len(message) <= count:
        raise MalformedMessage("a message too short: %.80r" % (message,))
    return message[1 : count + 1]


def read_number(message: Sequence[Any]) -> int:
    """Of a question. 0: no answer is wanted."""
    return read_count(read_fields(message, 1)[0], MOST_NUMBER)
