"""Delivers messages late, cut or not at all.

Like TCP, a link delivers in order and once, until it ends. A link may be reset (a prefix of the data in transfer still arrives, then both
sides notice), cut silently (a prefix arrives, then nothing, and neither side notices), or clogged in one direction or both (all data
arrives when the clog ends, unless one side has given up before).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tests.simulation.world.fault_world import FaultWorld
    from tests.simulation.world.simulated_master import SimulatedMaster

DIAL = "dial"
CLOSED = "closed"

FORGET_AFTER_S = 90.0
"""Seconds until the operating system gives up a connection that was cut silently."""


class LinkEnd(Protocol):
    """The other end of a link: an agent, its supervisor, or a client."""

    blocked_to_master_until: float
    blocked_to_peer_until: float

    def proved(self, link: SimulatedLink, epoch: int) -> None: ...

    def link_heard(self, link: SimulatedLink, item: Any) -> None: ...

    def link_closed(self, link: SimulatedLink) -> None: ...


class LinkDirection:
    """One direction of a link."""

    __slots__ = ("clogged_until", "dead", "queue", "ready_at")

    def __init__(self, clogged_until: float) -> None:
        self.queue: deque[Any] = deque()
        self.ready_at = 0.0
        self.clogged_until = clogged_until
        self.dead = False


class SimulatedLink:
    __slots__ = ("host", "number", "open_at_master", "open_at_peer", "peer", "role", "to_master", "to_peer")

    def __init__(self, peer: LinkEnd, role: str) -> None:
        self.peer = peer
        self.role = role
        self.number = 0
        self.host: SimulatedMaster | None = None
        self.to_master = LinkDirection(peer.blocked_to_master_until)
        self.to_peer = LinkDirection(peer.blocked_to_peer_until)
        self.open_at_peer = True
        self.open_at_master = False


class SimulatedNetwork:
    def __init__(self, world: FaultWorld, delay_s: float) -> None:
        self.world = world
        self.delay_s = delay_s

    # --- connections ----------------------------------------------------------------------------------------------------------------

    def dial(self, peer: LinkEnd, role: str) -> SimulatedLink:
        link = SimulatedLink(peer, role)
        self.send_to_master(link, DIAL)
        return link

    def send_to_master(self, link: SimulatedLink, item: Any) -> None:
        self._send(link, link.to_master, item)

    def send_to_peer(self, link: SimulatedLink, item: Any) -> None:
        self._send(link, link.to_peer, item)

    def hang_up_peer(self, link: SimulatedLink) -> None:
        """Closes the peer's side: it receives nothing more. The master notices after all data sent before."""
        if link.open_at_peer:
            link.open_at_peer = False
            link.to_peer.queue.clear()
            self._send(link, link.to_master, CLOSED)

    def hang_up_master(self, link: SimulatedLink) -> None:
        if link.open_at_master:
            link.open_at_master = False
            link.to_master.queue.clear()
            self._send(link, link.to_peer, CLOSED)

    # --- delivery -------------------------------------------------------------------------------------------------------------------

    def _send(self, link: SimulatedLink, lane: LinkDirection, item: Any) -> None:
        if lane.dead:
            return
        world = self.world
        lane.queue.append(item)
        arrival = max(world.now + self.delay_s * (0.5 + world.dice.random()), lane.ready_at, lane.clogged_until)
        lane.ready_at = arrival
        world.at(arrival, self._pump, link, lane)

    def _pump(self, link: SimulatedLink, lane: LinkDirection) -> None:
        """Delivers the first item of a direction. There is one call for each item, so delays keep the order."""
        if not lane.queue:
            return
        if lane.clogged_until > self.world.now:
            self.world.at(lane.clogged_until, self._pump, link, lane)
            return
        item = lane.queue.popleft()
        if lane is link.to_peer:
            self._deliver_to_peer(link, item)
        else:
            self._deliver_to_master(link, item)

    def _deliver_to_peer(self, link: SimulatedLink, item: Any) -> None:
        if not link.open_at_peer:
            return
        if item is CLOSED:
            link.open_at_peer = False
            link.peer.link_closed(link)
        elif isinstance(item, int):
            link.peer.proved(link, item)
        else:
            link.peer.link_heard(link, item)

    def _deliver_to_master(self, link: SimulatedLink, item: Any) -> None:
        if item is DIAL:
            link.host = self.world.answering(link)
            if link.host is None:
                self._send(link, link.to_peer, CLOSED)
                return
            link.open_at_master = True
            link.host.arrive(link, item)
        elif link.open_at_master:
            assert link.host is not None
            link.host.arrive(link, item)

    # --- faults ---------------------------------------------------------------------------------------------------------------------

    def reset(self, link: SimulatedLink) -> None:
        """Resets a link: both sides notice, after a prefix of the data in transfer."""
        for lane in (link.to_master, link.to_peer):
            self._truncate(lane)
            self._send(link, lane, CLOSED)

    def cut_silently(self, link: SimulatedLink) -> None:
        """Cuts a link without notice. The operating systems notice much later."""
        for lane in (link.to_master, link.to_peer):
            self._truncate(lane)
            lane.dead = True
        self.world.after(FORGET_AFTER_S * (0.5 + self.world.dice.random()), self._forget, link)

    def _forget(self, link: SimulatedLink) -> None:
        if link.open_at_master and link.host is not None:
            link.host.arrive(link, CLOSED)
        if link.open_at_peer:
            link.open_at_peer = False
            link.peer.link_closed(link)

    def clog(self, lane: LinkDirection, until: float) -> None:
        lane.clogged_until = max(lane.clogged_until, until)
        lane.ready_at = max(lane.ready_at, until)

    def end_at_master(self, link: SimulatedLink) -> None:
        """The master's process died: its system closes the link."""
        link.open_at_master = False
        link.to_master.queue.clear()
        self._truncate(link.to_peer)
        self._send(link, link.to_peer, CLOSED)

    def end_at_peer(self, link: SimulatedLink) -> None:
        """The peer's process died: its system closes the link."""
        link.open_at_peer = False
        link.to_peer.queue.clear()
        self._truncate(link.to_master)
        self._send(link, link.to_master, CLOSED)

    def _truncate(self, lane: LinkDirection) -> None:
        kept = self.world.dice.randint(0, len(lane.queue))
        while len(lane.queue) > kept:
            lane.queue.pop()
