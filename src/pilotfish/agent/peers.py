"""This agent among its peers: an event loop around the overlay's machine, in a thread of its own, so that peers never disturb the slots.

Peers that cannot be reached are no failure: whoever asks finds fewer of them, and goes on to the site's storage or to the master.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
import traceback
from collections import OrderedDict, deque
from typing import Any, Callable, Deque, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from .bulk import Channel, Cut
from .cache import Cache
from .frames import FrameError
from .link import Link, LinkLost
from .offer import Offer
from .overlay.contacts import Contact, Malformed
from .overlay.member import Member
from .overlay.properties import worker_properties
from .overlay.site_work import SiteWork
from .peer_door import Identity, dial_peer, node_id, receive_peer
from .peer_shelf import PeerShelf
from .porter import Porter

FIND_S = 3.0
SHUN_S = 60.0
SHUN_MOST_S = 600.0
"""A peer that could not be reached is not tried again for so long, and longer each time: there may be a firewall between us."""
MOST_LINKS = 96
MOST_STRANGERS = 32
MOST_UNSENT = 1000
NEVER = float("inf")
GOODBYE = ["goodbye"]


class Peers:
    """Any thread may call the public methods. Before ``introduce`` there are no peers."""

    def __init__(self, offer: Offer, cache: Cache, workdir: str) -> None:
        self.worker = offer.worker
        self.tell: Callable[..., None] = _nobody
        """Called from our thread with an input of the agent's machine."""
        self.holds: Mapping[str, Any] = {}
        self._offer = offer
        self.me: Optional[Contact] = None
        self._cache = cache
        self._workdir = workdir
        self._listener: Optional[socket.socket] = None
        self._identity: Optional[Identity] = None
        self._porter: Optional[Porter] = None
        self._shelf = PeerShelf(cache)
        self._member: Optional[Member] = None
        self._selector = selectors.DefaultSelector()
        self._inbox: Deque[Tuple[Callable[..., None], Tuple[Any, ...]]] = deque()
        self._links: OrderedDict[int, Link] = OrderedDict()
        self._writing: Dict[int, Link] = {}
        self._unsent: Dict[int, List[Tuple[Sequence[Any], Sequence[Any]]]] = {}
        self._answers: Dict[int, Callable[[List[Contact]], None]] = {}
        self._shunned: Dict[int, Tuple[float, float]] = {}
        """Nodes that could not be reached: until when they are left alone, and for how long that is."""
        self._strangers = 0
        self._left = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    # --- called from outside --------------------------------------------------------------------------------------------------------------

    def listen(self, host: str) -> Optional[List[Any]]:
        """Have a door at this address of ours; our contact, for the master to tell others. None if that is not possible."""
        if self.me is None:
            try:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                self._listener = socket.socket(family, socket.SOCK_STREAM)
                self._listener.bind((host, 0))
                self._listener.listen(128)
                self._listener.setblocking(False)
            except OSError:
                return None
            self.me = Contact(node_id(self.worker), [host, self._listener.getsockname()[1]])
        return self.me.wire

    def introduce(self, header: Sequence[Any]) -> None:
        """The master told us who we are to our peers, and whom to call first. It does so on every connection."""
        if self.me is None or self._left:
            return
        _, site, key, certificate, private_key, contacts, term, master = header[:8]
        if self._identity is None:
            self._identity = Identity(self.worker, bytes.fromhex(key), certificate, private_key, self._workdir)
            self._porter = Porter(self._shelf)
            offer = self._offer
            properties = worker_properties(offer.worker, site, offer.capacity, offer.tags, offer.info)
            work = SiteWork(self.me, offer.worker, properties, self.holds, offer.capacity)
            work.ends_at = NEVER if offer.ends_at is None else offer.ends_at
            self._member = Member.new(work, int.from_bytes(os.urandom(8), "big"), time.monotonic())
            threading.Thread(target=self._run, name="peers", daemon=True).start()
        self._post(self._introduced, list(read_all(contacts)), term, list(read_all([master])) if master else [])

    def lend(self, header: Sequence[Any], body: Any) -> None:
        """Tasks for our site."""
        if self._member is not None:
            self._post(self._member.work.lent, header, bytes(body), time.monotonic())

    def unlend(self, items: Sequence[Sequence[int]], back: bool) -> None:
        if self._member is not None:
            self._post(self._member.work.dropped, items, back, time.monotonic())

    def room(self, free: Dict[str, float]) -> None:
        if self._member is not None:
            self._post(self._member.work.has_room, free, time.monotonic())

    def disconnected(self) -> None:
        """The master cannot be spoken to."""
        if self._member is not None:
            self._post(self._member.work.disconnected)

    def find(self, digest: str) -> List[Contact]:
        """Peers that have it, or are getting it. Waits for the answer, but not for long."""
        if self._member is None or not self._links:
            return []
        found: List[Contact] = []
        answered = threading.Event()

        def take(contacts: List[Contact]) -> None:
            found.extend(contacts)
            answered.set()

        self._post(self._find, digest, take)
        answered.wait(FIND_S)
        return found

    def publish(self, digests: Sequence[str]) -> None:
        """These contents can be had here."""
        if self._member is not None:
            self._post(self._publish, list(digests))

    def withdraw(self, digests: Sequence[str]) -> None:
        if self._member is not None:
            self._post(self._withdraw, list(digests))

    def channel(self, contact: Contact) -> Channel:
        """A bulk connection to a peer. Cut if it cannot be reached."""
        if self._identity is None or self._is_shunned(contact.node):
            raise Cut("it cannot be reached")
        try:
            assert self.me is not None
            channel = Channel(dial_peer(contact, self._identity, ["bulk", self.me.wire]).connection)
        except LinkLost as error:
            self._shun(contact.node)
            raise Cut(str(error)) from None
        self._shunned.pop(contact.node, None)
        return channel

    def _is_shunned(self, node: int) -> bool:
        return self._shunned.get(node, (0.0, 0.0))[0] > time.monotonic()

    def _shun(self, node: int) -> None:
        _, last_s = self._shunned.get(node, (0.0, SHUN_S / 2))
        for_s = min(2 * last_s, SHUN_MOST_S)
        self._shunned[node] = (time.monotonic() + for_s, for_s)

    def leave(self) -> None:
        """Say farewell, if that takes no time."""
        self._left = True
        if self._member is not None:
            done = threading.Event()
            self._post(self._farewell, done)
            done.wait(1.0)

    def _post(self, act: Callable[..., None], *arguments: Any) -> None:
        self._inbox.append((act, arguments))
        try:
            os.write(self._wake_write, b"p")
        except BlockingIOError:
            pass

    # --- the loop -------------------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._member is not None and self._listener is not None
        self._selector.register(self._wake_read, selectors.EVENT_READ, "wake")
        self._selector.register(self._listener, selectors.EVENT_READ, "door")
        while True:
            try:
                self._turn()
            except Exception:  # noqa: BLE001 - the edge of this host: whatever a peer said, the others go on
                traceback.print_exc()

    def _turn(self) -> None:
        assert self._member is not None
        wait_s = max(0.0, self._member.deadline - time.monotonic())
        for key, events in self._selector.select(min(wait_s, 3600.0)):
            if key.data == "wake":
                os.read(self._wake_read, 4096)
            elif key.data == "door":
                self._open_door()
            else:
                self._ready(key.data, events)
        while self._inbox:
            act, arguments = self._inbox.popleft()
            act(*arguments)
        self._perform()

    def _perform(self) -> None:
        assert self._member is not None
        for effect in self._member.turn(time.monotonic()):
            if effect[0] == "tell":
                self._send(effect[1], effect[2], effect[3])
            elif effect[0] == "holders":
                answer = self._answers.pop(effect[1], None)
                if answer is not None:
                    answer(effect[2])
            elif effect[0] == "given":
                self.tell("given", effect[1], effect[2])
            elif effect[0] == "send":
                self.tell("say", effect[1])
            elif effect[0] == "alive":
                self.tell("link_active")

    def _introduced(self, contacts: List[Contact], term: int, master: List[Contact]) -> None:
        assert self._member is not None
        now = time.monotonic()
        self._member.peer.bootstrap(contacts, now)
        for contact in master:
            self._member.peer.appointed(term, contact, now)
        self._member.connected(now)
        self._publish(list(self._cache.contents()))

    def _find(self, digest: str, take: Callable[[List[Contact]], None]) -> None:
        assert self._member is not None
        self._answers[self._member.peer.find(int(digest, 16), time.monotonic())] = take

    def _publish(self, digests: List[str]) -> None:
        assert self._member is not None
        for digest in digests:
            self._member.peer.publish(int(digest, 16), time.monotonic())

    def _withdraw(self, digests: List[str]) -> None:
        assert self._member is not None
        for digest in digests:
            self._member.peer.withdraw(int(digest, 16), time.monotonic())

    def _farewell(self, done: threading.Event) -> None:
        assert self._member is not None
        self._member.peer.leave(time.monotonic())
        self._perform()
        done.set()

    # --- links ----------------------------------------------------------------------------------------------------------------------------

    def _send(self, contact: Contact, header: Sequence[Any], parts: Sequence[Any]) -> None:
        link = self._links.get(contact.node)
        if link is not None:
            self._links.move_to_end(contact.node)
            link.send(header, parts)
            self._flush(contact.node, link)
            return
        unsent = self._unsent.get(contact.node)
        if unsent is None and self._is_shunned(contact.node):
            self._post(self._not_reached, contact.node)
        elif unsent is None:
            self._unsent[contact.node] = [(header, parts)]
            threading.Thread(target=self._dial, args=(contact,), daemon=True).start()
        elif len(unsent) < MOST_UNSENT:
            unsent.append((header, parts))

    def _dial(self, contact: Contact) -> None:
        assert self._identity is not None and self.me is not None
        try:
            link = dial_peer(contact, self._identity, ["peer", self.me.wire])
        except LinkLost:
            self._shun(contact.node)
            self._post(self._not_reached, contact.node)
            return
        link.connection.setblocking(False)
        self._post(self._linked, contact, link)

    def _not_reached(self, node: int) -> None:
        assert self._member is not None
        self._unsent.pop(node, None)
        self._member.unreachable(node, time.monotonic())

    def _open_door(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if self._strangers >= MOST_STRANGERS:
            connection.close()
            return
        self._strangers += 1
        threading.Thread(target=self._receive, args=(connection,), daemon=True).start()

    def _receive(self, connection: socket.socket) -> None:
        assert self._identity is not None and self._porter is not None
        try:
            link, node, greeting = receive_peer(connection, self._identity)
            contact = Contact.read(greeting[1])
            if contact.wire[0] != node:
                raise Malformed("a peer with the id of another one")
            if greeting[0] == "bulk":
                self._shelf.contacts[node] = contact.wire
                self._porter.take(node, link.connection)
            elif greeting[0] == "peer":
                link.connection.setblocking(False)
                self._post(self._linked, contact, link)
            else:
                link.close()
        except (LinkLost, Malformed, IndexError):
            pass
        finally:
            self._post(self._stranger_gone)

    def _stranger_gone(self) -> None:
        self._strangers -= 1

    def _linked(self, contact: Contact, link: Link) -> None:
        if contact.node in self._links:
            self._drop(contact.node)
        self._shunned.pop(contact.node, None)
        link.contact = contact
        self._links[contact.node] = link
        self._selector.register(link, selectors.EVENT_READ, link)
        for header, parts in self._unsent.pop(contact.node, ()):
            link.send(header, parts)
        self._flush(contact.node, link)
        if len(self._links) > MOST_LINKS:
            self._say_goodbye(next(iter(self._links)))
        self._hear(link)  # something may have come with the handshake

    def _ready(self, link: Link, events: int) -> None:
        node = link.contact.node
        if self._links.get(node) is not link:
            return
        if events & selectors.EVENT_WRITE:
            self._flush(node, link)
        if events & selectors.EVENT_READ:
            self._hear(link)

    def _hear(self, link: Link) -> None:
        assert self._member is not None
        contact = link.contact
        try:
            link.has_more = True
            while link.has_more and self._links.get(contact.node) is link:
                for header, body in link.receive():
                    if header[:1] == GOODBYE:
                        self._drop(contact.node)
                        return
                    self._member.heard(contact, header, body, time.monotonic())
        except (LinkLost, FrameError, Malformed):
            self._drop(contact.node)
            self._member.unreachable(contact.node, time.monotonic())

    def _say_goodbye(self, node: int) -> None:
        """We have too many links, and used this one the longest ago. It is no sign of death."""
        self._links[node].send(GOODBYE, [])
        self._flush(node, self._links[node])
        if node in self._links:
            self._drop(node)

    def _flush(self, node: int, link: Link) -> None:
        assert self._member is not None
        try:
            wanted = selectors.EVENT_READ if link.flush() else selectors.EVENT_READ | selectors.EVENT_WRITE
            if (wanted & selectors.EVENT_WRITE != 0) != (node in self._writing):
                self._selector.modify(link, wanted, link)
                if wanted & selectors.EVENT_WRITE:
                    self._writing[node] = link
                else:
                    del self._writing[node]
        except LinkLost:
            self._drop(node)
            self._member.unreachable(node, time.monotonic())

    def _drop(self, node: int) -> None:
        link = self._links.pop(node)
        self._writing.pop(node, None)
        self._selector.unregister(link)
        link.close()


def read_all(contacts: Sequence[Any]) -> Iterator[Contact]:
    for contact in contacts:
        try:
            yield Contact.read(contact)
        except Malformed:
            continue


def _nobody(*what: Any) -> None:
    """Whoever asked does not wait any more."""
