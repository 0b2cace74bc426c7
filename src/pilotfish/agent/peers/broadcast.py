"""Sends one message to all peers of a site through a tree, and concatenates the answers, which are lists.

A region consists of all ids with the same prefix. A peer that is responsible for a region divides the region into eight parts by the next
three bits. The peer delegates each part to one peer in that part, so that no peer sends to more than eight peers. The peers *above* a peer
are the origin of the message and all other peers that passed the message on to this peer. Some of the peers above can be in one of the
parts. The message contains the ids of the peers above, so that they do not get the message again.

A peer acknowledges the message at once. The peer answers when all its parts have answered, or at its time limit. The time limit of the peer
of a part is shorter than the time limit of the peer that delegates the part. If the peer of a part refuses, dies or does not answer in
time, a second peer of the part gets the message. The second peer divides the part in the same way. A peer that has already answered the
first peer sends the same answer to the second peer at once. Only the answer of the peer that was asked last counts, so no peer is counted
twice.

Guarantees: if no peer joins, leaves or dies, every peer is reached once and counted once. If peers die, all live peers are still reached
and counted, provided that the deaths are noticed in time. A death is noticed by a lost connection, or because no answer comes within
``timeout_s``. The combined answer always comes before the time limit of the broadcast.

This is a part of ``peer.py``, which lists inputs and effects. Messages
    ["spread", number, name, origin, length, above, seconds, wants_answer, payload]   answer: whether the receiver accepts
    ["gathered", name, length, above, count, result]
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush
from random import Random
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from .contacts import BITS, MAX_NUMBER, NEVER, Contact, MalformedMessage, read_count, read_fields, read_id, read_number, read_seconds
from .kademlia import Kademlia

Part = Tuple[int, Tuple[int, ...]]
"""A region that contains this peer: the length of its prefix, and those peers above this peer that are in the region."""

SPLIT_BITS = 3
CHILD_SHARE = 0.7
"""Time limit of the peer of a part, as a fraction of the time that the delegating peer has left."""
WAIT_SHARE = 0.8
"""Time after which a second peer of the part is asked, as a fraction of the time that the delegating peer has left."""
REMEMBER_FACTOR = 10.0
"""A peer remembers a broadcast for this many times its own time limit. Peers nearer to the origin have longer time limits, so they can send
the broadcast again after the time limit of this peer."""
FORGET: Part = (-1, ())
MAX_DUTIES = 64
MAX_ABOVE = 64
MAX_SECONDS = 3600.0
MAX_NAME = 64


class BroadcastRegion:
    """A part of a region, and the peer in it that was asked to forward the broadcast."""

    __slots__ = ("prefix", "length", "part", "delegate", "due", "asked", "searched", "closed", "count", "result")

    def __init__(self, prefix: int, length: int) -> None:
        self.prefix = prefix
        self.length = length
        self.part: Part = (length, ())
        self.delegate: Optional[Contact] = None
        self.due = NEVER
        self.asked: Set[int] = set()
        self.searched = False
        self.closed = False
        self.count = 0
        self.result: Any = None

    def holds(self, node: int) -> bool:
        return node >> (BITS - self.length) == self.prefix


class RelayDuty:
    """What this peer must do in one region of a broadcast: the peers that it must answer, and the parts of the region."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.deadline = NEVER
        self.parents: Dict[int, Contact] = {}
        self.regions: List[BroadcastRegion] = []
        self.result: Optional[Tuple[int, Any]] = None


class BroadcastState:
    """What this peer knows about one broadcast."""

    def __init__(self, name: str, origin: Contact, wants_answer: bool, payload: Any) -> None:
        self.name = name
        self.origin = origin
        self.wants_answer = wants_answer
        """Whether the host must answer."""
        self.payload = payload
        self.answered = not wants_answer
        self.answer: Any = None
        self.duties: Dict[Part, RelayDuty] = {}
        self.ended = False
        """Whether the broadcast has ended. This peer then remembers only its name."""


class Broadcast:
    """Sends broadcasts of this peer, and forwards broadcasts of other peers.

    ``deliver(state, now)`` is called once for each broadcast; ``state`` is its BroadcastState. ``gathered(state, count, result, now)`` is
    called when a broadcast of this peer ends: ``count`` peers were reached, and ``result`` lists their answers. ``result`` is None if the
    broadcast wants no answers.
    """

    def __init__(self, kademlia: Kademlia, random: Random) -> None:
        self.deliver: Callable[[BroadcastState, float], None] = lambda state, now: None
        self.gathered: Callable[[BroadcastState, int, Any, float], None] = lambda state, count, result, now: None
        self._kademlia = kademlia
        self._me = kademlia.me
        self._random = random
        self._known: OrderedDict[str, BroadcastState] = OrderedDict()
        self._agenda: List[Tuple[float, str, Part]] = []

    @property
    def deadline(self) -> float:
        return self._agenda[0][0] if self._agenda else NEVER

    # --- sending down the tree ------------------------------------------------------------------------------------------------------

    def send_to_all(self, payload: Any, seconds: float, wants_answer: bool, now: float) -> str:
        state = BroadcastState("%016x" % self._random.getrandbits(64), self._me, wants_answer, payload)
        self._remember(state, seconds, now)
        self._take(state, (0, ()), seconds, None, now)
        return state.name

    def on_spread(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        number = read_number(message)
        _, name, origin, length, above, seconds, wants_answer, payload = read_fields(message, 8)
        if type(name) is not str or len(name) > MAX_NAME or type(wants_answer) is not bool:
            raise MalformedMessage("not a broadcast: %.80r" % (message,))
        part = read_part(length, above)
        state = self._known.get(name)
        new = BroadcastState(name, Contact.read(origin), wants_answer, payload) if state is None else state
        seconds = min(read_seconds(seconds), MAX_SECONDS)
        taken = not new.ended and (part in new.duties or len(new.duties) < MAX_DUTIES)
        self._kademlia.requests.answer(sender, number, [taken])
        if state is None:
            self._remember(new, seconds, now)
        if taken:
            self._take(new, part, seconds, sender, now)

    def _remember(self, state: BroadcastState, seconds: float, now: float) -> None:
        self._known[state.name] = state
        heappush(self._agenda, (now + REMEMBER_FACTOR * seconds, state.name, FORGET))
        if len(self._known) > self._kademlia.tuning.max_broadcasts:
            self._known.popitem(last=False)
        self.deliver(state, now)

    def _take(self, state: BroadcastState, part: Part, seconds: float, parent: Optional[Contact], now: float) -> None:
        duty = state.duties.get(part)
        new = duty is None
        if duty is None:
            duty = state.duties[part] = RelayDuty(part)
            duty.regions = self._divide(part[0])
        if parent is not None:
            duty.parents[parent.node] = parent
        if duty.result is not None:
            self._answer(state, duty, duty.result)
            return
        if now + seconds < duty.deadline:
            duty.deadline = now + seconds
            heappush(self._agenda, (duty.deadline, state.name, part))
        for region in duty.regions if new else []:
            self._delegate(state, duty, region, [], now)
        self._conclude(state, duty, now)

    def _divide(self, length: int) -> List[BroadcastRegion]:
        deeper = min(length + SPLIT_BITS, BITS)
        mine = self._me.node >> (BITS - length) << (deeper - length)
        return [BroadcastRegion(mine | eighth, deeper) for eighth in range(1 << (deeper - length))]

    def _delegate(self, state: BroadcastState, duty: RelayDuty, region: BroadcastRegion, found: List[Contact], now: float) -> None:
        """Delegates a part to a peer in this part: a known peer, or a peer in ``found``, the result of a search.

        If there is no such peer, searches for one, provided that the part can have unknown peers: a bucket is full, or a peer of the part
        has failed. After each failed peer, there is at most one search. If the search finds no peer, closes the part: no further peer of
        the part counts as reached.
        """
        contacts, more = self._kademlia.table.within(region.prefix, region.length)
        excluded = region.asked.union(duty.part[1], [self._me.node])
        candidates = [contact for contact in [*contacts, *found] if contact.node not in excluded and region.holds(contact.node)]
        left = duty.deadline - now
        if candidates and left > 0:
            self._assign(state, duty, region, self._random.choice(candidates), now)
        elif (more or region.asked) and not region.searched and left > 0:
            region.searched, region.delegate, region.due = True, None, NEVER
            middle = region.prefix << (BITS - region.length) | self._random.getrandbits(BITS - region.length)
            self._kademlia.look_up(middle, lambda nodes, at: self._found(state, duty, region, nodes, at), now)
        else:
            region.closed, region.delegate = True, None

    def _found(self, state: BroadcastState, duty: RelayDuty, region: BroadcastRegion, nodes: List[Contact], now: float) -> None:
        if not region.closed and region.delegate is None:
            self._delegate(state, duty, region, nodes, now)
            self._conclude(state, duty, now)

    def _assign(self, state: BroadcastState, duty: RelayDuty, region: BroadcastRegion, contact: Contact, now: float) -> None:
        left = duty.deadline - now
        region.delegate, region.searched = contact, False
        region.due = now + left * WAIT_SHARE
        region.asked.add(contact.node)
        heappush(self._agenda, (region.due, state.name, duty.part))
        region.part = (region.length, tuple(node for node in (*duty.part[1], self._me.node) if region.holds(node)))
        message = [state.name, state.origin.wire, *write_part(region.part), left * CHILD_SHARE, state.wants_answer, state.payload]

        def then(answer: Optional[Sequence[Any]], now: float) -> None:
            if (not answer or answer[0] is not True) and region.delegate is contact and not region.closed:
                self._delegate(state, duty, region, [], now)
                self._conclude(state, duty, now)

        self._kademlia.requests.ask(contact, "spread", message, then, now)

    # --- answering up the tree ------------------------------------------------------------------------------------------------------

    def answer(self, name: str, answer: Any, now: float) -> None:
        """Records the answer of this host to a broadcast. If all parts of a region have answered already, answers the peers that delegated
        the region to this peer."""
        state = self._known.get(name)
        if state is None or state.answered or state.ended:
            return
        state.answered, state.answer = True, answer
        for duty in list(state.duties.values()):
            self._conclude(state, duty, now)

    def on_gathered(self, sender: Contact, message: Sequence[Any], now: float) -> None:
        name, length, above, count, result = read_fields(message, 5)
        part = read_part(length, above)
        read_count(count, MAX_NUMBER)
        state = self._known.get(name) if type(name) is str else None
        if state is None:
            return
        for duty in list(state.duties.values()):
            for region in duty.regions:
                if region.part == part and region.delegate is not None and region.delegate.node == sender.node and not region.closed:
                    region.closed, region.count, region.result = True, count, result
            self._conclude(state, duty, now)

    def _conclude(self, state: BroadcastState, duty: RelayDuty, now: float, late: bool = False) -> None:
        """Answers the peers that delegated the region to this peer. Does nothing until the host of this peer has answered and all parts of
        the region have answered or are closed, or until the time limit of this peer has passed (``late``)."""
        if duty.result is not None or not late and not (state.answered and all(region.closed for region in duty.regions)):
            return
        own = state.answered
        count = own + sum(region.count for region in duty.regions)
        result = None
        if state.wants_answer:
            results = [state.answer] * own + [region.result for region in duty.regions if region.count]
            result = [each for answer in results if isinstance(answer, list) for each in answer]
        duty.result = (count, result)
        duty.regions = []
        self._answer(state, duty, duty.result)
        if state.origin.node == self._me.node and duty.part == (0, ()):
            self.gathered(state, count, result, now)

    def _answer(self, state: BroadcastState, duty: RelayDuty, result: Tuple[int, Any]) -> None:
        for parent in duty.parents.values():
            self._kademlia.send(parent, ["gathered", state.name, *write_part(duty.part), *result])
        duty.parents = {}

    # --- time and deaths ------------------------------------------------------------------------------------------------------------

    def turn(self, now: float) -> None:
        while self._agenda and self._agenda[0][0] <= now:
            _, name, part = heappop(self._agenda)
            state = self._known.get(name)
            if state is None:
                continue
            if part == FORGET:
                state.ended, state.payload, state.answer, state.duties = True, None, None, {}
            elif part in state.duties and state.duties[part].result is None:
                self._check_duty(state, state.duties[part], now)

    def _check_duty(self, state: BroadcastState, duty: RelayDuty, now: float) -> None:
        if now >= duty.deadline:
            self._conclude(state, duty, now, late=True)
            return
        for region in duty.regions:
            if not region.closed and region.due <= now:
                self._delegate(state, duty, region, [], now)
        self._conclude(state, duty, now)

    def unreachable(self, node: int, now: float) -> None:
        for state in list(self._known.values()):
            for duty in list(state.duties.values()):
                for region in duty.regions:
                    if region.delegate is not None and region.delegate.node == node and not region.closed:
                        self._delegate(state, duty, region, [], now)
                self._conclude(state, duty, now)


def write_part(part: Part) -> List[Any]:
    return [part[0], ["%064x" % node for node in part[1]]]


def read_part(length: Any, above: Any) -> Part:
    if type(above) is not list or len(above) > MAX_ABOVE:
        raise MalformedMessage("not a list of at most %d ids: %.80r" % (MAX_ABOVE, above))
    return read_count(length, BITS), tuple(read_id(text) for text in above)
