"""Listens for connections, limits their number and authenticates them.

TLS runs on memory buffers and not in asyncio, for two reasons. First, the limits for a connection must hold already before its TLS
handshake. Second, an idle connection must need little memory.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from pilotfish.errors import BadInput, ConnectionFailed
from pilotfish.model import messages as m
from pilotfish.portable.payload_format import Buffer
from pilotfish.portable.transfer.transfer_server import TransferServer
from pilotfish.portable.wire.frames import PROTOCOL, FrameError, FrameSplitter, join_small
from pilotfish.portable.wire.handshake import AGENT, CLIENT, DIALLER, LISTENER, UNIX, Claim, make_proof, verify_proof
from pilotfish.portable.wire.tls_stream import TlsSession, TlsStream
from pilotfish.store.keyring import Keyring

PROOF_DEADLINE_S = 10.0
"""Seconds until an unauthenticated connection is closed."""
MAX_UNAUTHENTICATED = 128
"""Maximum number of unauthenticated connections. If there are more, the oldest one is closed."""
READ_BYTES = 256 * 1024
JOIN_BELOW_BYTES = 16 * 1024
"""Parts with fewer bytes than this are sent together in one TLS record."""
HIGH_WATER_BYTES = 4 * 1024 * 1024
UNSENT_BYTES = 32 * 1024
"""Maximum number of unsent bytes of a content in the buffer of the kernel. The bandwidth meter counts these bytes as sent. So a larger
number would distort the measured bandwidth."""


@dataclass
class EndpointRules:
    """Roles and networks that one endpoint admits."""

    roles: tuple[str, ...]
    subnets: tuple[str, ...] = ()
    context: ssl.SSLContext | None = None

    def admits(self, address: str) -> bool:
        peer = ipaddress.ip_address(address)
        return any(peer in ipaddress.ip_network(subnet) for subnet in self.subnets)


class Admission:
    """The data that all connections share: keys, unauthenticated connections, and callbacks of the master."""

    def __init__(
        self, keyring: Keyring, receive: Callable[[EndpointLink, m.Message, memoryview], None], closed: Callable[[EndpointLink], None]
    ) -> None:
        self.keyring = keyring
        self.receive = receive
        self.closed = closed
        self.epoch = 0
        self.revoked: dict[str, None] = {}
        self.received_all: Callable[[], None] = lambda: None
        """Is called after all messages of one read have been passed to ``receive``."""
        self.paused: Callable[[EndpointLink, bool], None] = lambda link, paused: None
        self.warn: Callable[[str], None] = lambda text: None
        self.transfer_server: TransferServer | None = None
        """Serves connections of agents that transfer contents."""
        self.pilot_of: Callable[[str], str | None] = lambda worker: None
        """Returns the pilot of a worker; None if the worker is unknown."""
        self.unauthenticated: dict[EndpointLink, asyncio.TimerHandle] = {}
        self.buffer = memoryview(bytearray(READ_BYTES))
        """Read buffer of all connections. The data of a read is copied out of this buffer before the next read."""
        self.numbers = count(1)
        """Gives each connection its number."""

    def enter(self, link: EndpointLink) -> None:
        if len(self.unauthenticated) >= MAX_UNAUTHENTICATED:
            next(iter(self.unauthenticated)).drop("too many unauthenticated connections")
        loop = asyncio.get_running_loop()
        self.unauthenticated[link] = loop.call_later(PROOF_DEADLINE_S, link.drop, "no proof in time")

    def leave(self, link: EndpointLink) -> None:
        timer = self.unauthenticated.pop(link, None)
        if timer is not None:
            timer.cancel()


class EndpointLink(asyncio.BufferedProtocol):
    """One accepted connection."""

    def __init__(self, admission: Admission, rules: EndpointRules) -> None:
        self.admission = admission
        self.rules = rules
        self.number = next(admission.numbers)
        self.role = ""
        self.key_id = ""
        self.is_local = False
        """Whether the process at the other end runs on this machine and stops if this machine stops. True for pilots that this master
        started here, and for the client of a private pool. Messages to such a process are sent before the facts are synced to disk."""
        self.transport: asyncio.Transport | None = None
        self._received = False
        self._inbox = FrameSplitter()
        self._nonce = secrets.token_hex(32)
        self._outbox: list[Buffer] = []
        self._session: TlsSession | None = None
        self._handshake_done = rules.context is None
        self._binding = UNIX

    # --- asyncio's side ---------------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        sock = transport.get_extra_info("socket")
        self.admission.enter(self)
        if not self._admitted(sock, transport.get_extra_info("peername")):
            self.drop("not admitted from there")
            return
        if self.rules.context is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._session = TlsSession(self.rules.context.wrap_bio(incoming, outgoing, server_side=True), incoming, outgoing)
            self._binding = self.admission.keyring.fingerprint
        else:
            self._greet()

    def _admitted(self, sock: Any, peer: Any) -> bool:
        if self.rules.context is not None:
            return bool(peer) and self.rules.admits(peer[0])
        _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return uid in (os.geteuid(), 0)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.admission.buffer

    def buffer_updated(self, count: int) -> None:
        data = self.admission.buffer[:count]
        try:
            if self._session is None:
                self._take(bytes(data))
            else:
                self._decrypt(*self._session, data)
        except (ConnectionFailed, FrameError, ssl.SSLError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
            self.drop(f"{type(problem).__name__}: {problem}")
        self.admission.received_all()

    def connection_lost(self, exc: Exception | None) -> None:
        self.admission.leave(self)
        if self.transport is not None:
            self.transport = None
            self.admission.closed(self)

    def pause_writing(self) -> None:
        self.admission.paused(self, True)

    def resume_writing(self) -> None:
        self.admission.paused(self, False)

    # --- TLS --------------------------------------------------------------------------------------------------------------------------

    def _decrypt(self, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, data: memoryview) -> None:
        incoming.write(data)
        if not self._handshake_done:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                return
            finally:
                self._flush_tls(outgoing)
            self._handshake_done = True
            self._greet()
        pieces: list[bytes] = []
        try:
            # Decrypted data is never larger than the input, so a buffer of that size is enough.
            while self.transport is not None and (room := incoming.pending or tls.pending()):
                piece = tls.read(room)
                if not piece:
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        if pieces:
            self._take(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _flush_tls(self, outgoing: ssl.MemoryBIO) -> None:
        if outgoing.pending and self.transport is not None:
            self.transport.write(outgoing.read())

    # --- frames -----------------------------------------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        frames = iter(self._inbox.feed(data))
        for header, body in frames:
            if not self.role:
                self._prove(header)
            elif self.role == AGENT:
                message = m.decode_from_agent(header)
                if type(message) is m.Bulk:
                    self._hand_over(message.worker, frames)
                    return
                self._received = True
                self.admission.receive(self, message, body)
            else:
                self._take_from_client(header, body)
            if self.transport is None:
                return

    def _take_from_client(self, header: memoryview, body: memoryview) -> None:
        try:
            message = m.decode_from_client(header)
        except msgspec.ValidationError as problem:
            # The master does not close the connection, because the client would reconnect and send the same message again.
            kind, number, *_ = [*msgspec.json.decode(header, type=list), None, None]
            query = number if kind == "ask" and isinstance(number, int) else -1
            self.send(m.Problem(query, BadInput.code, f"the master cannot use {kind!r}: {problem}", "use the same version of both"))
            self.flush()
        else:
            self.admission.receive(self, message, body)

    def _hand_over(self, worker: str, unread: Iterable[tuple[memoryview, memoryview]]) -> None:
        """Gives the connection to the transfer server. ``unread``: frames that have arrived already and that the transfer server must
        handle."""
        server, transport = self.admission.transfer_server, self.transport
        if server is None or transport is None or self._received or transport.get_write_buffer_size():
            raise ConnectionFailed("unexpected connection for contents")
        pilot = self.admission.pilot_of(worker)
        if self.key_id not in (AGENT, f"pilot:{pilot}"):
            if pilot is not None:
                raise ConnectionFailed(f"worker {worker} is of pilot {pilot}")
            worker = self.key_id
        sock = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        if self._session is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        connection = TlsStream(sock, self._session, self._inbox.rest(unread))
        self.transport = None
        transport.abort()
        server.add_connection(worker or self.key_id, connection)

    def _greet(self) -> None:
        self.send(m.Banner(PROTOCOL, self._nonce))
        self.flush()

    def _prove(self, header: memoryview) -> None:
        prove = m.decode_from_client(header)
        if not isinstance(prove, m.Prove):
            raise ConnectionFailed("a message before authentication")
        if prove.protocol != PROTOCOL:
            self._refuse(f"this master has protocol {PROTOCOL}, the peer has {prove.protocol}: use the same version on both sides")
            return
        admission = self.admission
        key = admission.keyring.key(prove.key_id)
        claim = Claim(prove.role, prove.key_id, self._binding)
        is_proved = verify_proof(prove.mac, key, DIALLER, claim, (self._nonce, prove.nonce))
        allowed = prove.role in self.rules.roles and _fits(prove.role, prove.key_id) and prove.key_id not in admission.revoked
        if not is_proved or not allowed:
            admission.warn(f"refused {prove.role!r} with key {prove.key_id!r}")
            self._refuse("wrong or revoked key")
            return
        self.role, self.key_id = prove.role, prove.key_id
        self._inbox.proved = True
        admission.leave(self)
        self.send(m.Proved(make_proof(key, LISTENER, claim, (prove.nonce, self._nonce)), admission.epoch))
        self.flush()

    def _refuse(self, reason: str) -> None:
        self.send(m.Refused(reason))
        self.hang_up()

    def send(self, message: m.Message, parts: Sequence[Buffer] = ()) -> None:
        """Queues a message. ``flush`` sends all queued messages together."""
        self._outbox.extend(m.frame_message(message, parts))

    def seal(self) -> None:
        """Encrypts the queued messages. ``flush`` sends them."""
        if self._session is None or not self._outbox:
            return
        outbox, self._outbox = self._outbox, []
        try:
            for buffer in join_small(outbox, JOIN_BELOW_BYTES):
                if buffer:
                    self._session.tls.write(buffer)
        except ssl.SSLError as problem:
            self.drop(str(problem))

    def flush(self) -> None:
        self.seal()
        outbox, self._outbox = self._outbox, []
        if self.transport is None:
            return
        if self._session is not None:
            self._flush_tls(self._session.outgoing)
        elif outbox:
            self.transport.writelines(outbox)

    def drop(self, reason: str) -> None:
        """Closes this connection at once. Other connections are not affected."""
        self.admission.leave(self)
        if self.transport is not None:
            if self.role:
                self.admission.warn(f"dropped {self.role} {self.key_id}: {reason}")
            self.transport.abort()

    def hang_up(self) -> None:
        """Closes the connection after all queued messages are sent."""
        self.flush()
        if self.transport is not None:
            self.transport.close()


def _fits(role: str, key_id: str) -> bool:
    """Returns whether a key belongs to a role. The key of an agent is only for agents, and the key of a client only for clients."""
    return key_id == CLIENT if role == CLIENT else key_id == AGENT or key_id.startswith("pilot:")
