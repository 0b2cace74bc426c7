"""One message to all peers of a site, and one answer out of all of theirs, through a tree that is made as the message goes.

Who has to tell a region of the id space (all ids that begin as its own id does, for so many bits) divides it into eight by the next three
bits, and gives each part that is not empty to one peer in it. So nobody sends to more than eight, however large the site is. The part that
the sender itself is in goes to another peer there, with the names of those above who need not be told: they told it.

Whoever takes a part says so at once, and answers when all of its own parts have, or when its time is over; it gives its parts less time
than it has itself. A peer that does not take a part, dies, or does not answer in its time is replaced by another one of that part, which is
answered at once by all that have been told already. Of a part only the answer of the last peer that was given it counts: so nobody is
counted twice.

What holds: in a settled network every peer is told once and counted once. If some die meanwhile, all that live are told and counted, if
those that died are missed (no answer within ``timeout_s``, or a lost connection) while there is time left; in any case the answer is there
in time.

A part of ``peer.py``, which lists inputs and effects. Messages
    ["spread", number, name, origin, length, above, seconds, wanted, payload]   answer: whether it was taken
    ["gathered", name, length, above, count, result]
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush
from random import Random
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from .contacts import (
    BITS,
    MOST_NUMBER,
    NEVER,
    Contact,
    Effect,
    MalformedMessage,
    read_count,
    read_fields,
    read_id,
    read_number,
    read_seconds,
)
from .kademlia import Kademlia

Combine = Callable[[Any, List[Any]], Any]
"""(payload, [answer, …]) -> one answer. Answers are those of peers, or what this made of some."""
Part = Tuple[int, Tuple[int, ...]]
"""(how many bits of our own id begin all ids of the region, who above is in it)"""

SPLIT_BITS = 3
SHARE = 0.7
"""So much of the time one has is given to those below."""
PATIENCE = 0.8
"""So much of it one waits for them; what is left is for a second try with another peer."""
REMEMBER = 10.0
"""So many times its time a broadcast is remembered with all that was answered, for those above who have more time."""
FORGET: Part = (-1, ())
MOST_DUTIES = 64
MOST_ABOVE = 64
MOST_SECONDS = 3600.0
MOST_NAME = 64


class BroadcastRegion:
    """An eighth of what a peer has to tell, and who was given it."""

    __slots__ = ("prefix", "length", "part", "delegate", "due", "tried", "looked", "closed", "count", "result")

    def __init__(self, prefix: int, length: int) -> None:
        self.prefix = prefix
        self.length = length
        self.part: Part = (length, ())
        self.delegate: Optional[Contact] = None
        self.due = NEVER
        self.tried: Set[int] = set()
        self.looked = False
        self.closed = False
        self.count = 0
        self.result: Any = None

    def holds(self, node: int) -> bool:
        return node >> (BITS - self.length) == self.prefix


class RelayDuty:
    """A region this peer was given: whom to answer, and what is expected from whom."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.deadline = NEVER
        self.parents: Dict[int, Contact] = {}
        self.regions: List[BroadcastRegion] = []
        self.result: Optional[Tuple[int, Any]] = None


class BroadcastState:
    """A broadcast as one peer knows it."""

    def __init__(self, name: str, origin: Contact, wanted: bool, payload: Any) -> None:
        self.name = name
        self.origin = origin
        self.wanted = wanted
        """Whether the host is to answer."""
        self.payload = payload
        self.answered = not wanted
        self.answer: Any = None
        self.duties: Dict[Part, RelayDuty] = {}
        self.over = False
        """Only its name is remembered."""


class Broadcast:
    """See the head of this file. ``deliver(told, now)`` is called once for each broadcast, that of this peer itself too, and
    ``gathered(told, count, result)`` at the end of those of this peer."""

    def __init__(self, kademlia: Kademlia, combine: Combine, random: Random, effects: List[Effect]) -> None:
        self.deliver: Callable[[BroadcastState, float], None] = lambda told, now: None
        self.gathered: Callable[[BroadcastState, int, Any], None] = lambda told, count, result: None
        self._kademlia = kademlia
        self._me = kademlia.me
        self._combine = combine
        self._random = random
        self._effects = effects
        self._known: OrderedDict[str, BroadcastState] = OrderedDict()
        self._agenda: List[Tuple[float, str, Part]] = []

    @property
    def deadline(self) -> float:
        return self._agenda[0][0] if self._agenda else NEVER

    # --- the message goes down ------------------------------------------------------------------------------------------------------

    def spread(self, payload: Any, seconds: float, wanted: bool, now: float) -> str:
        told = BroadcastState("%016x" % self._random.getrandbits(64), self._me, wanted, payload)
        self._remember(told, seconds, now)
        self._take(told, (0, ()), seconds, None, now)
        return told.name

    def on_spread(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        number = read_number(message)
        _, name, origin, length, above, seconds, wanted, payload = read_fields(message, 8)
        if type(name) is not str or len(name) > MOST_NAME or type(wanted) is not bool:
            raise MalformedMessage("not a broadcast: %.80r" % (message,))
        part = read_part(length, above)
        told = self._known.get(name)
        new = BroadcastState(name, Contact.read(origin), wanted, payload) if told is None else told
        seconds = min(read_seconds(seconds), MOST_SECONDS)
        taken = not new.over and (part in new.duties or len(new.duties) < MOST_DUTIES)
        self._kademlia.requests.answer(sender, number, [taken])
        if told is None:
            self._remember(new, seconds, now)
        if taken:
            self._take(new, part, seconds, sender, now)

    def _remember(self, told: BroadcastState, seconds: float, now: float) -> None:
        self._known[told.name] = told
        heappush(self._agenda, (now + REMEMBER * seconds, told.name, FORGET))
        if len(self._known) > self._kademlia.tuning.most_broadcasts:
            self._known.popitem(last=False)
        self.deliver(told, now)

    def _take(self, told: BroadcastState, part: Part, seconds: float, parent: Optional[Contact], now: float) -> None:
        duty = told.duties.get(part)
        new = duty is None
        if duty is None:
            duty = told.duties[part] = RelayDuty(part)
            duty.regions = self._divide(part[0])
        if parent is not None:
            duty.parents[parent.node] = parent
        if duty.result is not None:
            self._answer(told, duty, duty.result)
            return
        if now + seconds < duty.deadline:
            duty.deadline = now + seconds
            heappush(self._agenda, (duty.deadline, told.name, part))
        for region in duty.regions if new else []:
            self._delegate(told, duty, region, [], now)
        self._conclude(told, duty, now)

    def _divide(self, length: int) -> List[BroadcastRegion]:
        deeper = min(length + SPLIT_BITS, BITS)
        mine = self._me.node >> (BITS - length) << (deeper - length)
        return [BroadcastRegion(mine | eighth, deeper) for eighth in range(1 << (deeper - length))]

    def _delegate(self, told: BroadcastState, duty: RelayDuty, region: BroadcastRegion, found: List[Contact], now: float) -> None:
        """Give the region to one in it. If none is known although there may be some, because a bucket is full or because those known are
        gone, they are looked for, once each time."""
        contacts, more = self._kademlia.table.within(region.prefix, region.length)
        spared = region.tried.union(duty.part[1], [self._me.node])
        candidates = [contact for contact in [*contacts, *found] if contact.node not in spared and region.holds(contact.node)]
        left = duty.deadline - now
        if candidates and left > 0:
            self._hand(told, duty, region, self._random.choice(candidates), now)
        elif (more or region.tried) and not region.looked and left > 0:
            region.looked, region.delegate, region.due = True, None, NEVER
            middle = region.prefix << (BITS - region.length) | self._random.getrandbits(BITS - region.length)
            self._kademlia.look_up(middle, lambda nodes, at: self._found(told, duty, region, nodes, at), now)
        else:
            region.closed, region.delegate = True, None

    def _found(self, told: BroadcastState, duty: RelayDuty, region: BroadcastRegion, nodes: List[Contact], now: float) -> None:
        if not region.closed and region.delegate is None:
            self._delegate(told, duty, region, nodes, now)
            self._conclude(told, duty, now)

    def _hand(self, told: BroadcastState, duty: RelayDuty, region: BroadcastRegion, contact: Contact, now: float) -> None:
        left = duty.deadline - now
        region.delegate, region.looked = contact, False
        region.due = now + left * PATIENCE
        region.tried.add(contact.node)
        heappush(self._agenda, (region.due, told.name, duty.part))
        region.part = (region.length, tuple(node for node in (*duty.part[1], self._me.node) if region.holds(node)))
        message = [told.name, told.origin.wire, *write_part(region.part), left * SHARE, told.wanted, told.payload]

        def then(answer: Optional[Sequence[Any]], now: float) -> None:
            if (not answer or answer[0] is not True) and region.delegate is contact and not region.closed:
                self._delegate(told, duty, region, [], now)
                self._conclude(told, duty, now)

        self._kademlia.requests.ask(contact, "spread", message, then, now)

    # --- answers come up ------------------------------------------------------------------------------------------------------------

    def answer(self, name: str, answer: Any, now: float) -> None:
        told = self._known.get(name)
        if told is None or told.answered or told.over:
            return
        told.answered, told.answer = True, answer
        for duty in list(told.duties.values()):
            self._conclude(told, duty, now)

    def on_gathered(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        name, length, above, count, result = read_fields(message, 5)
        part = read_part(length, above)
        read_count(count, MOST_NUMBER)
        told = self._known.get(name) if type(name) is str else None
        if told is None:
            return
        for duty in list(told.duties.values()):
            for region in duty.regions:
                if region.part == part and region.delegate is not None and region.delegate.node == sender.node and not region.closed:
                    region.closed, region.count, region.result = True, count, result
            self._conclude(told, duty, now)

    def _conclude(self, told: BroadcastState, duty: RelayDuty, now: float, late: bool = False) -> None:
        """Answer those above, if all below have answered, and the host."""
        if duty.result is not None or not late and not (told.answered and all(region.closed for region in duty.regions)):
            return
        own = told.answered
        count = own + sum(region.count for region in duty.regions)
        result = None
        if told.wanted:
            results = [told.answer] * own + [region.result for region in duty.regions if region.count]
            result = self._combine(told.payload, results)
        duty.result = (count, result)
        duty.regions = []
        self._answer(told, duty, duty.result)
        if told.origin.node == self._me.node and duty.part == (0, ()):
            self.gathered(told, count, result)

    def _answer(self, told: BroadcastState, duty: RelayDuty, result: Tuple[int, Any]) -> None:
        message = ["gathered", told.name, *write_part(duty.part), *result]
        self._effects.extend(("tell", parent, message) for parent in duty.parents.values())
        duty.parents = {}

    # --- time and deaths ------------------------------------------------------------------------------------------------------------

    def turn(self, now: float) -> None:
        while self._agenda and self._agenda[0][0] <= now:
            _, name, part = heappop(self._agenda)
            told = self._known.get(name)
            if told is None:
                continue
            if part == FORGET:
                told.over, told.payload, told.answer, told.duties = True, None, None, {}
            elif part in told.duties and told.duties[part].result is None:
                self._press(told, told.duties[part], now)

    def _press(self, told: BroadcastState, duty: RelayDuty, now: float) -> None:
        if now >= duty.deadline:
            self._conclude(told, duty, now, late=True)
            return
        for region in duty.regions:
            if not region.closed and region.due <= now:
                self._delegate(told, duty, region, [], now)
        self._conclude(told, duty, now)

    def unreachable(self, node: int, now: float) -> None:
        for told in list(self._known.values()):
            for duty in list(told.duties.values()):
                for region in duty.regions:
                    if region.delegate is not None and region.delegate.node == node and not region.closed:
                        self._delegate(told, duty, region, [], now)
                self._conclude(told, duty, now)


def write_part(part: Part) -> List[Any]:
    return [part[0], ["%064x" % node for node in part[1]]]


def read_part(length: Any, above: Any) -> Part:
    if type(above) is not list or len(above) > MOST_ABOVE:
        raise MalformedMessage("not a list of at most %d ids: %.80r" % (MOST_ABOVE, above))
    return read_count(length, BITS), tuple(read_id(text) for text in above)
