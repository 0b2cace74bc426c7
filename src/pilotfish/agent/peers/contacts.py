"""Validates contacts, ids and numbers in messages of peers, before a message changes anything."""

from __future__ import annotations

import re
from typing import AbstractSet, Any, List, NamedTuple, Sequence, Tuple

Effect = Tuple[Any, ...]

BITS = 256
"""Number of bits of a node id, and of a key. A key is the SHA-256 of a content. Ids and keys are numbers of the same range."""
MAX_NUMBER = 1 << 53
NEVER = float("inf")
_ID = re.compile("[0-9a-f]{%d}" % (BITS // 4)).fullmatch


class MalformedMessage(ValueError):
    """The message of a peer violates the protocol. The message has changed nothing. A malformed answer counts as no answer."""


class Contact:
    """The id of a node, and its address. The address is any JSON value. Only the host interprets the address."""

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
    """Sizes and time-outs. All peers of a site must use the same values."""

    k: int = 20
    """Maximum number of contacts in a bucket of the routing table. A lookup finds the same number of nodes."""
    alpha: int = 3
    """Maximum open questions of a lookup."""
    replicas: int = 3
    """Number of nodes that keep the record of a holder."""
    timeout_s: float = 2.0
    """Seconds after which a peer that does not answer is dropped."""
    refresh_s: float = 900.0
    """Seconds between refreshes of the routing table. A refresh pings silent peers."""
    republish_s: float = 900.0
    expire_s: float = 2700.0
    heartbeat_s: float = 10.0
    """Seconds between heartbeats of a site master that sends no other broadcasts."""
    silence_s: float = 35.0
    """Seconds of silence after which the peers suspect that the site master is dead."""
    max_lookups: int = 32
    """Maximum simultaneous lookups. Further lookups wait. For searches for holders, the maximum is twice as large."""
    max_waiting: int = 10_000
    max_keys: int = 20_000
    """Maximum keys whose records a node keeps for other nodes."""
    max_holders: int = 64
    """Maximum holders per key. The oldest record is dropped first."""
    max_broadcasts: int = 128
    """Maximum broadcasts that a peer remembers, to recognize repeated messages."""


def read_id(text: Any) -> int:
    """Parses an id. An id has only one valid spelling, so that ids can be compared as text. ``int()`` alone would accept other
    spellings."""
    if type(text) is not str or _ID(text) is None:
        raise MalformedMessage("not an id: %.80r" % (text,))
    return int(text, 16)


def read_contacts(wires: Any, limit: int, known: AbstractSet[str] = frozenset()) -> List[Contact]:
    """Parses contacts. Skips a contact if the text of its id is in ``known``."""
    if type(wires) is not list or len(wires) > limit:
        raise MalformedMessage("not a list of at most %d contacts: %.80r" % (limit, wires))
    return [Contact.read(wire) for wire in wires if type(wire) is not list or not wire or type(wire[0]) is not str or wire[0] not in known]


def read_count(value: Any, limit: int) -> int:
    if type(value) is not int or not 0 <= value <= limit:
        raise MalformedMessage("not a number from 0 to %d: %.80r" % (limit, value))
    return value


def read_seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= MAX_NUMBER:
        raise MalformedMessage("not a number of seconds: %.80r" % (value,))
    return float(value)


def read_fields(message: Sequence[Any], count: int) -> Sequence[Any]:
    """Returns the first ``count`` fields after the kind of a message. Ignores further fields, because a later version possibly sends
    more."""
    if len(message) <= count:
        raise MalformedMessage("a message too short: %.80r" % (message,))
    return message[1 : count + 1]


def read_number(message: Sequence[Any]) -> int:
    """Returns the number of a question. 0 means that the sender wants no answer."""
    return read_count(read_fields(message, 1)[0], MAX_NUMBER)
