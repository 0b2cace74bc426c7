"""Connects this agent to the peers of its site. A separate thread does this, so that peers never delay the slots.

If peers cannot be reached, no task fails, because the fetcher gets contents from the storage of the site or from the master instead.
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
from queue import Empty, SimpleQueue
from typing import Any, Callable, Deque, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ...portable.expressions.worker_properties import worker_properties
from ...portable.transfer.content_cache import ContentCache
from ...portable.transfer.content_source import FileReader, PartialFileReader
from ...portable.transfer.incoming_content import IncomingContent, NoSpace
from ...portable.transfer.transfer_client import has_ended
from ...portable.transfer.transfer_protocol import AskElsewhere, ConnectionCut, ContentAbsent, ContentReader, TransferChannel
from ...portable.transfer.transfer_server import TransferServer
from ...portable.wire.frame_link import FrameLink, LinkLost
from ...portable.wire.frames import FrameError
from ..peers.contacts import NEVER, Contact, MalformedMessage
from ..peers.peer import Peer
from ..peers.site_matching import SiteMatching
from .agent_machine import WorkerOffer
from .assignment_reader import check_assignment
from .peer_handshake import PeerIdentity, dial_peer, node_id, receive_peer

FIND_TIMEOUT_S = 3.0
FIRST_BACKOFF_S = 5.0
MAX_BACKOFF_S = 600.0
"""Maximum seconds until an unreachable peer is tried again. The pause doubles each time, because a firewall possibly blocks the peer for
ever."""
MAX_BACKOFFS = 1000
"""Maximum unreachable peers in memory. The peers with the oldest failures are deleted first."""
MAX_LINKS = 96
MAX_LINKS_OF_SITE_MASTER = 1024
"""Maximum links of a site master. It sends to every worker of the site that has free resources."""
MAX_UNAUTHENTICATED = 32
HANDSHAKE_TIMEOUT_S = 5.0
"""Seconds until an unauthenticated peer is disconnected."""
MAX_SPARE_CHANNELS = 8
"""Maximum number of idle transfer connections. There is at most one for each peer."""
MAX_UNSENT = 1000
MAX_READERS = 2
MAX_CONTACTS = 1000
"""Maximum number of stored contacts to which peers can be redirected."""
GOODBYE = ["goodbye"]


class PeerNetwork:
    """The peers of this agent. Any thread may call the public methods. Before ``introduce`` is called, there are no peers."""

    def __init__(self, offer: WorkerOffer, cache: ContentCache, workdir: str) -> None:
        self.worker = offer.worker
        self.notify: Callable[..., None] = lambda *call: None
        """A function that the peer thread calls with the name and the arguments of an input of the agent machine."""
        self.holds: Mapping[str, Any] = {}
        self._offer = offer
        self.me: Optional[Contact] = None
        self._workdir = workdir
        self._listener: Optional[socket.socket] = None
        self._identity: Optional[PeerIdentity] = None
        self._transfer_server: Optional[TransferServer] = None
        self._content_source = PeerContentSource(cache)
        self._peer: Optional[Peer] = None
        self._selector = selectors.DefaultSelector()
        self._inbox: Deque[Callable[[], None]] = deque()
        self._links: OrderedDict[int, FrameLink] = OrderedDict()
        """Links on which this agent sends. Other links are still read until the peer closes them."""
        self._unsent: Dict[int, List[Tuple[Sequence[Any], Sequence[Any]]]] = {}
        self._backoff = PeerBackoff()
        self._spare_channels: OrderedDict[int, TransferChannel] = OrderedDict()
        self._spare_lock = threading.Lock()
        self._unauthenticated: OrderedDict[socket.socket, float] = OrderedDict()
        """connection -> time at which its handshake times out. Only the peer thread closes these sockets. It also shuts them down, and a
        closed socket must not be shut down."""
        self._left = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    # --- for other threads ----------------------------------------------------------------------------------------------------------------

    def listen(self, host: str) -> Optional[List[Any]]:
        """Listens at the local address ``host``. Returns the contact at which peers reach this agent, or None if listening fails."""
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

    def introduce(self, header: Sequence[Any], body: Any = b"") -> None:
        """Handles the message Introduce of the master. The first message has the key of the site, contacts of peers and the site master:
        with these, this agent joins the network of the peers.

        The master sends Introduce on every new connection. Later messages update the contacts and the site master.
        """
        if self.me is None or self._left:
            return
        _, site, key, certificate, private_key, contacts, term, master = header[:8]
        if self._identity is None:
            self._identity = PeerIdentity(self.worker, bytes.fromhex(key), certificate, private_key, self._workdir)
            self._transfer_server = TransferServer(self._content_source)
            offer = self._offer
            properties = worker_properties(offer.worker, site, offer.capacity, offer.tags, offer.info)
            matching = SiteMatching(self.me, offer.worker, properties, self.holds, offer.capacity)
            matching.ends_at = NEVER if offer.ends_at is None else offer.ends_at
            self._peer = Peer(matching, int.from_bytes(os.urandom(8), "big"), time.monotonic())
            threading.Thread(target=self._run, name="peers", daemon=True).start()
        known, masters = list(valid_contacts(contacts)), list(valid_contacts([master])) if master else []
        self._post(lambda: self._introduced(known, term, masters))

    def delegate(self, header: Sequence[Any], body: Any) -> None:
        """Adds tasks that the master delegated to this agent, which is the site master."""
        tasks = bytes(body)
        self._post(lambda: self._overlay.matching.delegated(header, tasks, time.monotonic()))

    def drop_delegated(self, items: Sequence[Sequence[int]], back: bool) -> None:
        self._post(lambda: self._overlay.matching.dropped(items, back))

    def report_free(self, free: Dict[str, float]) -> None:
        self._post(lambda: self._overlay.matching.free_changed(free, time.monotonic()))

    def disconnected(self) -> None:
        """Handles the loss of the connection to the master."""
        if self._peer is not None:
            self._post(self._peer.matching.disconnected)

    def find(self, digest: str) -> List[Contact]:
        """Returns peers that have the content or are fetching it. Waits up to FIND_TIMEOUT_S for the answer."""
        if self._peer is None or not self._links:
            return []
        found: SimpleQueue[List[Contact]] = SimpleQueue()
        self._post(lambda: self._overlay.kademlia.find_holders(int(digest, 16), lambda contacts, at: found.put(contacts), time.monotonic()))
        try:
            return found.get(timeout=FIND_TIMEOUT_S)
        except Empty:
            return []

    def publish(self, digest: str) -> None:
        """Announces a content that peers can fetch here."""
        self._post(lambda: self._overlay.kademlia.publish(int(digest, 16), time.monotonic()))

    def withdraw(self, digest: str) -> None:
        self._post(lambda: self._overlay.kademlia.withdraw(int(digest, 16)))

    def channel(self, contact: Contact) -> TransferChannel:
        """Returns a transfer connection to a peer. Raises ConnectionCut if the peer cannot be reached."""
        with self._spare_lock:
            kept = self._spare_channels.pop(contact.node, None)
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

    def release_channel(self, contact: Contact, channel: TransferChannel) -> None:
        """Keeps a working connection for the next transfer."""
        if channel.fileno() < 0:
            return
        channel.rest()
        with self._spare_lock:
            spare = self._spare_channels.pop(contact.node, None)
            self._spare_channels[contact.node] = channel
            if len(self._spare_channels) > MAX_SPARE_CHANNELS:
                _, spare = self._spare_channels.popitem(last=False)
        if spare is not None:
            spare.close()

    def leave(self) -> None:
        """Leaves the network of the peers. If this takes longer than one second, the agent does not wait for the end."""
        self._left = True
        if self._peer is not None:
            done = threading.Event()
            self._post(lambda: self._leave_overlay(done))
            done.wait(1.0)

    def _post(self, act: Callable[[], None]) -> None:
        """Lets the peer thread call ``act``. Does nothing before the first call of ``introduce``."""
        if self._peer is None:
            return
        self._inbox.append(act)
        try:
            os.write(self._wake_write, b"p")
        except BlockingIOError:
            pass

    # --- event loop -----------------------------------------------------------------------------------------------------------------------

    @property
    def _overlay(self) -> Peer:
        """Returns the Peer of this agent. Only the peer thread calls this method, and the Peer is created before this thread starts."""
        assert self._peer is not None
        return self._peer

    def _run(self) -> None:
        assert self._listener is not None
        self._selector.register(self._wake_read, selectors.EVENT_READ, "wake")
        self._selector.register(self._listener, selectors.EVENT_READ, "listener")
        while True:
            try:
                self._turn()
            except Exception:  # noqa: BLE001 - a message of one peer must not end this thread
                traceback.print_exc()

    def _turn(self) -> None:
        now = time.monotonic()
        while self._unauthenticated and next(iter(self._unauthenticated.values())) <= now:
            self._reject_oldest()
        wait_s = max(0.0, min([self._overlay.deadline, *self._unauthenticated.values()]) - now)
        for key, events in self._selector.select(min(wait_s, 3600.0)):
            if key.data == "wake":
                os.read(self._wake_read, 4096)
            elif key.data == "listener":
                self._accept()
            else:
                self._link_ready(key.data, events)
        while self._inbox:
            self._inbox.popleft()()
        self._perform()

    def _perform(self) -> None:
        for effect in self._overlay.turn(time.monotonic()):
            if effect[0] == "send_to_peer":
                self._send(*effect[1:])
            elif effect[0] == "assigned":
                self.notify("assigned_by_peer", effect[1], effect[2])
            elif effect[0] == "send":
                self.notify("send_to_master", effect[1])
            elif effect[0] == "alive":
                self.notify("link_active")

    def _introduced(self, contacts: List[Contact], term: int, master: List[Contact]) -> None:
        now = time.monotonic()
        self._overlay.kademlia.bootstrap(contacts, now)
        self._overlay.matching.connected()
        for contact in master:
            self._overlay.election.consider_claim(term, contact, now)
        for digest in list(self.holds):
            if int(digest, 16) not in self._overlay.kademlia.published:
                self._overlay.kademlia.publish(int(digest, 16), now)

    def _leave_overlay(self, done: threading.Event) -> None:
        self._overlay.leave(time.monotonic())
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
            self._post(lambda: self._unreachable(contact.node))
        elif unsent is None:
            self._unsent[contact.node] = [(header, parts)]
            if not _start_thread(self._dial, contact):
                self._post(lambda: self._unreachable(contact.node))
        elif len(unsent) < MAX_UNSENT:
            unsent.append((header, parts))

    def _dial(self, contact: Contact) -> None:
        assert self._identity is not None and self.me is not None
        try:
            link = dial_peer(contact, self._identity, ["peer", self.me.wire])
        except LinkLost:
            self._backoff.failed(contact.node)
            self._post(lambda: self._unreachable(contact.node))
            return
        self._post(lambda: self._linked(link))

    def _unreachable(self, node: int) -> None:
        self._unsent.pop(node, None)
        if node not in self._links:  # otherwise, the peer itself has connected to this agent in the meantime
            self._forget(node)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
            self._reject_oldest()
        self._unauthenticated[connection] = time.monotonic() + HANDSHAKE_TIMEOUT_S
        if not _start_thread(self._authenticate, connection):
            self._authenticated(connection, None)

    def _reject_oldest(self) -> None:
        """Disconnects the oldest unauthenticated peer. Its authentication thread then ends."""
        connection, _ = self._unauthenticated.popitem(last=False)
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the peer has disconnected

    def _authenticate(self, connection: socket.socket) -> None:
        assert self._identity is not None
        result = None
        try:
            result = receive_peer(connection, self._identity)
        except LinkLost:
            pass
        self._post(lambda: self._authenticated(connection, result))

    def _authenticated(self, connection: socket.socket, result: Optional[Tuple[FrameLink, str]]) -> None:
        assert self._transfer_server is not None
        in_time = self._unauthenticated.pop(connection, None) is not None
        link, purpose = result if result is not None and in_time else (None, "")
        if link is not None and purpose == "bulk":
            self._content_source.introduce(link.contact.wire)
            self._transfer_server.add_connection(link.contact.wire[0], link.connection)
        elif link is not None and purpose == "peer":
            self._linked(link)
        else:
            connection.close()

    def _linked(self, link: FrameLink) -> None:
        """Adds a link. When two peers dial each other at once, both keep the link that the peer with the lower id dialled."""
        node = link.contact.node
        old = self._links.get(node)
        link.connection.setblocking(False)
        self._selector.register(link, selectors.EVENT_READ, link)
        self._backoff.reached(node)
        if old is not None and old.dialler < link.dialler:
            self._retire(link)
        else:
            self._links[node] = link
            if old is not None:
                self._retire(old)
        for header, parts in self._unsent.pop(node, ()):
            self._links[node].send(header, parts)
        self._flush(self._links[node])
        while len(self._links) > self._max_links():
            self._retire(next(iter(self._links.values())))
        self._link_ready(link, selectors.EVENT_READ)  # some bytes possibly arrived with the handshake

    def _max_links(self) -> int:
        if not self._overlay.matching.is_site_master:
            return MAX_LINKS
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return MAX_LINKS_OF_SITE_MASTER if files < 0 else max(MAX_LINKS, min(MAX_LINKS_OF_SITE_MASTER, files // 2))

    def _link_ready(self, link: FrameLink, events: int) -> None:
        if events & selectors.EVENT_WRITE and link.fileno() >= 0:
            self._flush(link)
        if events & selectors.EVENT_READ and link.fileno() >= 0:
            self._receive(link)

    def _receive(self, link: FrameLink) -> None:
        try:
            link.has_more = True
            while link.has_more:
                for header, body in link.receive():
                    if header[:1] == GOODBYE:
                        self._drop(link)
                        return
                    if header[0] == "assign":
                        check_assignment(header, body)
                    self._overlay.received(link.contact, header, time.monotonic(), body)
            if self._links.get(link.contact.node) is link:
                self._links.move_to_end(link.contact.node)
        except (LinkLost, FrameError, MalformedMessage):
            self._lose(link)

    def _retire(self, link: FrameLink) -> None:
        """Sends a goodbye as the last message on a link. Called if there is a better link to the same peer, or if there are too many links.

        This agent still reads the messages that the peer sent before the peer received the goodbye.
        """
        if self._links.get(link.contact.node) is link:
            del self._links[link.contact.node]
        link.send(GOODBYE, [])
        self._flush(link)

    def _flush(self, link: FrameLink) -> None:
        try:
            events = selectors.EVENT_READ if link.flush() else selectors.EVENT_READ | selectors.EVENT_WRITE
            if self._selector.get_key(link).events != events:
                self._selector.modify(link, events, link)
        except LinkLost:
            self._lose(link)

    def _forget(self, node: int) -> None:
        """Handles the loss of a peer that left or cannot be reached."""
        self._content_source.forget("%064x" % node)
        self._overlay.unreachable(node, time.monotonic())

    def _lose(self, link: FrameLink) -> None:
        if self._drop(link):
            self._forget(link.contact.node)

    def _drop(self, link: FrameLink) -> bool:
        """Closes a link to a peer. Returns True if this agent sent its messages to the peer on this link."""
        self._selector.unregister(link)
        link.close()
        if self._links.get(link.contact.node) is not link:
            return False
        del self._links[link.contact.node]
        return True


class PeerContentSource:
    """Serves the cache of this agent to its peers, including contents that are still arriving.

    If two peers already fetch a content from this agent, each further peer that asks for the content is redirected to these two peers. So
    when all peers need the same file at once, the file is distributed through a tree.
    """

    def __init__(self, cache: ContentCache) -> None:
        self._contacts: OrderedDict[str, Any] = OrderedDict()
        """id -> contact of a peer that can request contents. The latest contact is the last."""
        self._cache = cache
        self._lock = threading.Lock()
        self._readers: Dict[str, List[str]] = {}

    def introduce(self, contact: Any) -> None:
        """Stores the contact, [id, address], of a peer that can request contents from now on."""
        with self._lock:
            self._contacts.pop(contact[0], None)
            self._contacts[contact[0]] = contact
            if len(self._contacts) > MAX_CONTACTS:
                self._contacts.popitem(last=False)

    def forget(self, asker: str) -> None:
        """Forgets a peer that left or cannot be reached, so that no other peer is redirected to this peer."""
        with self._lock:
            self._contacts.pop(asker, None)

    def reading(self, asker: str, digest: str, size: int, no_redirect: bool) -> ContentReader:
        with self._lock:
            readers = self._readers.setdefault(digest, [])
            others = [self._contacts[other] for other in readers if other in self._contacts and other != asker]
            if len(readers) >= MAX_READERS and others:
                raise AskElsewhere(others)
            readers.append(asker)
        try:
            reading = self._open(digest, size)
            reading.on_closed = lambda: self._done(digest, asker)
            return reading
        except BaseException:
            self._done(digest, asker)
            raise

    def _open(self, digest: str, size: int) -> ContentReader:
        path = self._cache.verified_path(digest, size)
        if path is not None:
            return FileReader(path, size, "worker")
        arriving = self._cache.arriving(digest)
        if arriving is not None:
            return PartialFileReader(arriving)
        raise ContentAbsent("it is not here", "worker")

    def _done(self, digest: str, asker: str) -> None:
        with self._lock:
            readers = self._readers[digest]
            readers.remove(asker)
            if not readers:
                del self._readers[digest]

    def incoming(self, asker: str, digest: str, size: int) -> Optional[IncomingContent]:
        raise NoSpace("peers may fetch, not upload")


class PeerBackoff:
    """Pauses before an unreachable peer is tried again. Any thread may call the methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: OrderedDict[int, Tuple[float, float]] = OrderedDict()
        """node -> (end of the pause, length of the pause in seconds). The latest failure is the last."""

    def applies(self, node: int) -> bool:
        """Returns True if this peer must not be tried yet."""
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


def _start_thread(target: Callable[..., None], *arguments: Any) -> bool:
    """Starts a thread; returns False if this node allows no more threads."""
    try:
        threading.Thread(target=target, args=arguments, daemon=True).start()
        return True
    except RuntimeError:
        return False


def valid_contacts(contacts: Sequence[Any]) -> Iterator[Contact]:
    """Yields the contacts that are well-formed."""
    for contact in contacts:
        try:
            yield Contact.read(contact)
        except MalformedMessage:
            continue
