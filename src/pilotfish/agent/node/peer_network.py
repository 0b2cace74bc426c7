"""This agent among its peers: an event loop around the overlay's machine, in a thread of its own, so that peers never disturb the slots.

Peers that cannot be reached are no failure: whoever asks finds fewer of them, and goes on to the site's storage or to the master.
"""

from __future__ import annotations

import os
import resource
import selectors
import socket
import threading
import time
import traceback
from collections import OrderedDict, deque
from typing import Any, Callable, Deque, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ...portable.expressions.worker_properties import worker_properties
from ...portable.transfer.content_cache import ContentCache
from ...portable.transfer.transfer_client import has_ended
from ...portable.transfer.transfer_protocol import ConnectionCut, TransferChannel
from ...portable.transfer.transfer_server import TransferServer
from ...portable.wire.frame_link import FrameLink, LinkLost
from ...portable.wire.frames import FrameError
from ..peers.contacts import Contact, MalformedMessage
from ..peers.site_matching import SiteMatching
from ..peers.site_member import SiteMember
from .agent_machine import WorkerOffer
from .assignment_reader import check_assignment
from .peer_content_source import PeerContentSource
from .peer_handshake import PeerIdentity, dial_peer, node_id, receive_peer

FIND_S = 3.0
FIRST_BACKOFF_S = 5.0
MAX_BACKOFF_S = 600.0
"""Seconds until a peer that could not be reached is tried again; twice as long each time: there may be a firewall between us."""
MAX_BACKOFFS = 1000
"""Maximum number of unreachable peers that are known; those that failed the longest ago are forgotten first."""
MOST_LINKS = 96
MOST_LINKS_OF_MASTER = 1024
"""A site's master speaks to each of its agents, whenever that has room."""
MOST_STRANGERS = 32
DOOR_S = 5.0
"""So long may it take a stranger to show that it is none."""
MOST_KEPT = 8
"""Bulk connections that nobody uses just now, each to another peer."""
MOST_UNSENT = 1000
NEVER = float("inf")
GOODBYE = ["goodbye"]


class PeerNetwork:
    """Any thread may call the public methods. Before ``introduce`` there are no peers."""

    def __init__(self, offer: WorkerOffer, cache: ContentCache, workdir: str) -> None:
        self.worker = offer.worker
        self.tell: Callable[..., None] = _nobody
        """Called from our thread with an input of the agent's machine."""
        self.holds: Mapping[str, Any] = {}
        self._offer = offer
        self.me: Optional[Contact] = None
        self._workdir = workdir
        self._listener: Optional[socket.socket] = None
        self._identity: Optional[PeerIdentity] = None
        self._porter: Optional[TransferServer] = None
        self._shelf = PeerContentSource(cache)
        self._member: Optional[SiteMember] = None
        self._selector = selectors.DefaultSelector()
        self._inbox: Deque[Tuple[Callable[..., None], Tuple[Any, ...]]] = deque()
        self._links: OrderedDict[int, FrameLink] = OrderedDict()
        """Those that we send on. What comes is heard on others too, until the other side has closed them."""
        self._unsent: Dict[int, List[Tuple[Sequence[Any], Sequence[Any]]]] = {}
        self._answers: Dict[int, Callable[[List[Contact]], None]] = {}
        self._backoff = PeerBackoff()
        self._kept: OrderedDict[int, TransferChannel] = OrderedDict()
        self._keeping = threading.Lock()
        self._strangers: OrderedDict[socket.socket, float] = OrderedDict()
        """Who stands in the door, and until when it may. They are closed by our own thread only: it must not shut down what was closed."""
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
            self._identity = PeerIdentity(self.worker, bytes.fromhex(key), certificate, private_key, self._workdir)
            self._porter = TransferServer(self._shelf)
            offer = self._offer
            properties = worker_properties(offer.worker, site, offer.capacity, offer.tags, offer.info)
            work = SiteMatching(self.me, offer.worker, properties, self.holds, offer.capacity)
            work.ends_at = NEVER if offer.ends_at is None else offer.ends_at
            self._member = SiteMember.new(work, int.from_bytes(os.urandom(8), "big"), time.monotonic())
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

    def channel(self, contact: Contact) -> TransferChannel:
        """A bulk connection to a peer. Cut if it cannot be reached."""
        with self._keeping:
            kept = self._kept.pop(contact.node, None)
        if kept is not None:
            if not has_ended(kept):
                return kept
            kept.close()
        if self._identity is None or self.me is None or self._backoff.applies(contact.node):
            raise ConnectionCut("it cannot be reached")
        try:
            channel = TransferChannel(dial_peer(contact, self._identity, ["bulk", self.me.wire]).connection)
        except LinkLost as error:
            self._backoff.failed(contact.node)
            raise ConnectionCut(str(error)) from None
        self._backoff.reached(contact.node)
        return channel

    def give_back(self, contact: Contact, channel: TransferChannel) -> None:
        """For whoever wants something of this peer next, if it is still good."""
        if channel.fileno() < 0:
            return
        channel.rest()
        with self._keeping:
            spare = self._kept.pop(contact.node, None)
            self._kept[contact.node] = channel
            if len(self._kept) > MOST_KEPT:
                _, spare = self._kept.popitem(last=False)
        if spare is not None:
            spare.close()

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
        now = time.monotonic()
        while self._strangers and next(iter(self._strangers.values())) <= now:
            self._show_out()
        wait_s = max(0.0, min([self._member.deadline, *self._strangers.values()]) - now)
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
        self._publish([digest for digest in list(self.holds) if not self._member.peer.publishes(int(digest, 16))])

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
            self._flush(link)
            return
        unsent = self._unsent.get(contact.node)
        if unsent is None and self._backoff.applies(contact.node):
            self._post(self._not_reached, contact.node)
        elif unsent is None:
            self._unsent[contact.node] = [(header, parts)]
            if not _begin(self._dial, contact):
                self._post(self._not_reached, contact.node)
        elif len(unsent) < MOST_UNSENT:
            unsent.append((header, parts))

    def _dial(self, contact: Contact) -> None:
        assert self._identity is not None and self.me is not None
        try:
            link = dial_peer(contact, self._identity, ["peer", self.me.wire])
        except LinkLost:
            self._backoff.failed(contact.node)
            self._post(self._not_reached, contact.node)
            return
        self._post(self._linked, link)

    def _not_reached(self, node: int) -> None:
        self._unsent.pop(node, None)
        if node not in self._links:  # or it has reached us meanwhile
            self._forget(node)

    def _open_door(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if len(self._strangers) >= MOST_STRANGERS:
            self._show_out()
        self._strangers[connection] = time.monotonic() + DOOR_S
        if not _begin(self._receive, connection):
            self._received(connection, None)

    def _show_out(self) -> None:
        """The stranger that has stood longest in the door. Its thread is woken by this."""
        connection, _ = self._strangers.popitem(last=False)
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it went by itself

    def _receive(self, connection: socket.socket) -> None:
        assert self._identity is not None
        try:
            self._post(self._received, connection, receive_peer(connection, self._identity))
        except LinkLost:
            self._post(self._received, connection, None)

    def _received(self, connection: socket.socket, visit: Optional[Tuple[FrameLink, str]]) -> None:
        assert self._porter is not None
        in_time = self._strangers.pop(connection, None) is not None
        link, purpose = visit if visit is not None and in_time else (None, "")
        if link is not None and purpose == "bulk":
            self._shelf.introduce(link.contact.wire)
            self._porter.take(link.contact.wire[0], link.connection)
        elif link is not None and purpose == "peer":
            self._linked(link)
        else:
            connection.close()

    def _linked(self, link: FrameLink) -> None:
        """Two that dial each other at once have two links: both keep the one that the lower id dialled."""
        node = link.contact.node
        old = self._links.get(node)
        link.connection.setblocking(False)
        self._selector.register(link, selectors.EVENT_READ, link)
        self._backoff.reached(node)
        if old is not None and old.dialler < link.dialler:
            self._part_with(link)
        else:
            self._links[node] = link
            if old is not None:
                self._part_with(old)
        for header, parts in self._unsent.pop(node, ()):
            self._links[node].send(header, parts)
        self._flush(self._links[node])
        while len(self._links) > self._most_links():
            self._part_with(next(iter(self._links.values())))
        self._ready(link, selectors.EVENT_READ)  # something may have come with the handshake

    def _most_links(self) -> int:
        assert self._member is not None
        if not self._member.work.is_master:
            return MOST_LINKS
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return MOST_LINKS_OF_MASTER if files < 0 else max(MOST_LINKS, min(MOST_LINKS_OF_MASTER, files // 2))

    def _ready(self, link: FrameLink, events: int) -> None:
        if events & selectors.EVENT_WRITE and link.fileno() >= 0:
            self._flush(link)
        if events & selectors.EVENT_READ and link.fileno() >= 0:
            self._hear(link)

    def _hear(self, link: FrameLink) -> None:
        assert self._member is not None
        try:
            link.has_more = True
            while link.has_more:
                for header, body in link.receive():
                    if header[:1] == GOODBYE:
                        self._drop(link)
                        return
                    if header[0] == "assign":
                        check_assignment(header, body)
                    self._member.heard(link.contact, header, body, time.monotonic())
            if self._links.get(link.contact.node) is link:
                self._links.move_to_end(link.contact.node)
        except (LinkLost, FrameError, MalformedMessage):
            self._lose(link)

    def _part_with(self, link: FrameLink) -> None:
        """There is a better one, or there are too many and this one was used the longest ago. It is no sign of death, and what the other
        side has sent before it knows of this is heard."""
        if self._links.get(link.contact.node) is link:
            del self._links[link.contact.node]
        link.send(GOODBYE, [])
        self._flush(link)

    def _flush(self, link: FrameLink) -> None:
        try:
            wanted = selectors.EVENT_READ if link.flush() else selectors.EVENT_READ | selectors.EVENT_WRITE
            if self._selector.get_key(link).events != wanted:
                self._selector.modify(link, wanted, link)
        except LinkLost:
            self._lose(link)

    def _forget(self, node: int) -> None:
        """A peer has left or cannot be reached."""
        assert self._member is not None
        self._shelf.forget("%064x" % node)
        self._member.unreachable(node, time.monotonic())

    def _lose(self, link: FrameLink) -> None:
        if self._drop(link):
            self._forget(link.contact.node)

    def _drop(self, link: FrameLink) -> bool:
        """Whether it is one that we sent on."""
        self._selector.unregister(link)
        link.close()
        if self._links.get(link.contact.node) is not link:
            return False
        del self._links[link.contact.node]
        return True


class PeerBackoff:
    """Peers that could not be reached, and how long they are left alone. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: OrderedDict[int, Tuple[float, float]] = OrderedDict()
        """node -> (end of the pause, its seconds), the latest failure last"""

    def __len__(self) -> int:
        return len(self._until)

    def applies(self, node: int) -> bool:
        """Whether the peer is to be left alone now."""
        with self._lock:
            return self._until.get(node, (0.0, 0.0))[0] > time.monotonic()

    def failed(self, node: int) -> None:
        now = time.monotonic()
        with self._lock:
            _, last_s = self._until.pop(node, (0.0, FIRST_BACKOFF_S / 2))
            pause_s = min(2 * last_s, MAX_BACKOFF_S)
            self._until[node] = (now + pause_s, pause_s)
            oldest = next(iter(self._until))
            while len(self._until) > MAX_BACKOFFS or self._until[oldest][0] < now - MAX_BACKOFF_S:
                del self._until[oldest]
                oldest = next(iter(self._until))

    def reached(self, node: int) -> None:
        with self._lock:
            self._until.pop(node, None)


def _begin(work: Callable[..., None], *arguments: Any) -> bool:
    """In a thread, if this machine allows us one more."""
    try:
        threading.Thread(target=work, args=arguments, daemon=True).start()
        return True
    except RuntimeError:
        return False


def read_all(contacts: Sequence[Any]) -> Iterator[Contact]:
    for contact in contacts:
        try:
            yield Contact.read(contact)
        except MalformedMessage:
            continue


def _nobody(*what: Any) -> None:
    """Whoever asked does not wait any more."""
