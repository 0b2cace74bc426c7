"""Sends and receives frames over an authenticated connection without blocking.

Only ``dial`` blocks. The agent calls ``dial`` in a thread, so that slots never wait for a slow network. ``dial`` returns a FrameLink after
each side has proved to the other side that it has the key.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from typing import Any, Deque, Dict, Iterator, List, Sequence

from .frames import PROTOCOL, Frame, FrameError, FrameReader, frame_buffers, join_small
from .handshake import AGENT, DIALLER, LISTENER, UNIX, Claim, Credentials, make_proof, verify_proof
from .tls_stream import TlsStream, secure

DIAL_TIMEOUT_S = 10.0
READ_AT_ONCE = 4 * 1024 * 1024
WRITE_AT_ONCE = 256 * 1024
SOCKET_BUFFER = 1024 * 1024
TLS_RECORD = 16 * 1024


class LinkLost(Exception):
    """The connection was lost or could not be made."""


class Rejected(Exception):
    """The master refuses this agent; the argument is its reason."""


def dial(credentials: Credentials, timeout_s: float = DIAL_TIMEOUT_S) -> FrameLink:
    link = connect(credentials, timeout_s)
    link.connection.setblocking(False)
    return link


def connect(credentials: Credentials, timeout_s: float) -> FrameLink:
    """Tries the endpoints of the credentials in their order, until one proves that it has the key. Returns a blocking link to it."""
    failures = []
    for endpoint in credentials.endpoints:
        try:
            return _connect(endpoint, credentials, timeout_s)
        except (OSError, LinkLost, FrameError, ValueError, KeyError) as error:
            failures.append("%s: %s" % (endpoint.get("path") or "%s:%s" % (endpoint.get("host"), endpoint.get("port")), error))
    raise LinkLost("no master could be reached (%s)" % "; ".join(failures))


def _connect(endpoint: Dict[str, Any], credentials: Credentials, timeout_s: float) -> FrameLink:
    if endpoint["kind"] == "unix":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    elif endpoint["kind"] != "tls":
        raise LinkLost("an endpoint of unknown kind %r" % endpoint["kind"])
    else:
        sock = socket.create_connection((endpoint["host"], int(endpoint["port"])), timeout_s)
    try:
        sock.settimeout(timeout_s)
        if endpoint["kind"] == "unix":
            sock.connect(endpoint["path"])
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)
            stream, binding = TlsStream(sock, None), UNIX
        else:
            keep_alive(sock)
            binding = str(endpoint["fingerprint"]).lower()
            stream = secure(sock, binding)
        link = FrameLink(stream)
        link.epoch = prove(link, credentials.key, AGENT, credentials.key_id, binding)
        return link
    except BaseException:
        sock.close()
        raise


def keep_alive(connection: socket.socket) -> None:
    """Enables keep-alive, so that the loss of the other machine is detected after about 15 s, even if no data are sent."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 15000)):
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def prove(link: FrameLink, key: bytes, role: str, key_id: str, binding: str) -> int:
    """Performs the dialler's part of the handshake. Returns the epoch of the master, which grows with each start of a master."""
    banner = link.wait_for_frame()
    if banner[0] != "pilotfish" or banner[1] != PROTOCOL:
        raise LinkLost("it speaks %r, we speak pilotfish %d; use the same version on both sides" % (banner[:2], PROTOCOL))
    claim, theirs, ours = Claim(role, key_id, binding), str(banner[2]), os.urandom(32).hex()
    link.send_now(["prove", PROTOCOL, role, key_id, ours, make_proof(key, DIALLER, claim, (theirs, ours))])
    answer = link.wait_for_frame()
    if answer[0] == "refused":
        raise Rejected(str(answer[1]))
    if answer[0] != "proved" or not verify_proof(answer[1], key, LISTENER, claim, (ours, theirs)):
        raise LinkLost("it does not have our key")
    link.reader.proved = True
    return int(answer[2])


class FrameLink:
    """Sends and receives frames over an authenticated connection. Heartbeats are sent before other waiting frames. Otherwise, a large
    transfer could delay a heartbeat for longer than the lease."""

    def __init__(self, connection: TlsStream) -> None:
        self.connection = connection
        self.reader = FrameReader()
        self.epoch = 0
        self.has_more = False
        self.contact: Any = None
        self.dialler = 0
        """For a link to a peer: the id of the side that dialled, which can be this agent. ``contact`` names the peer."""
        self._urgent: Deque[List[Any]] = deque()
        self._waiting: Deque[List[Any]] = deque()
        self._current: Deque[memoryview] = deque()

    def fileno(self) -> int:
        return self.connection.fileno()

    def close(self) -> None:
        self.connection.close()

    def send_now(self, header: Sequence[Any]) -> None:
        """Sends one frame during the handshake, within the time limit of the connection."""
        for buffer in frame_buffers(header, []):
            self.connection.sendall(buffer)

    def wait_for_frame(self) -> List[Any]:
        """Waits for one frame during the handshake, within the time limit of the connection."""
        while True:
            for header, _ in self.reader.frames():
                return header
            count = self.connection.recv_into(self.reader.room())
            if count == 0:
                raise LinkLost("it hung up during the handshake")
            self.reader.received(count)

    def receive(self) -> Iterator[Frame]:
        """Yields the frames that have arrived. If ``has_more`` is true afterwards, call ``receive`` again before you wait."""
        total = 0
        reader = self.reader
        self.has_more = False
        yield from reader.frames()
        while total < READ_AT_ONCE:
            room = reader.room()
            try:
                count = self.connection.recv_into(room)
            except BlockingIOError:
                return
            except OSError as error:
                raise LinkLost(str(error)) from None
            if count == 0:
                raise LinkLost("the master hung up")
            total += count
            reader.received(count)
            yield from reader.frames()
            if count < min(len(room), TLS_RECORD):
                return  # probably all data are read; if not, the selector reports the rest at once
        self.has_more = True

    def send(self, header: Sequence[Any], parts: Sequence[Any]) -> None:
        (self._urgent if header[0] == "beat" else self._waiting).append(frame_buffers(header, parts))

    def flush(self) -> bool:
        """Writes until nothing is left or the connection accepts no more bytes. Returns True if nothing is left."""
        while True:
            if not self._current and not self._take_next():
                return True
            chunk = self._current[0]
            try:
                count = self.connection.send(chunk)
            except BlockingIOError:
                return False
            except OSError as error:
                raise LinkLost(str(error)) from None
            if count == len(chunk):
                self._current.popleft()
            else:
                self._current[0] = chunk[count:]

    def _take_next(self) -> bool:
        """Splits the next frames into pieces, because TLS must repeat a failed write with equal bytes. Returns False if no frame waits."""
        buffers: List[Any] = []
        size = 0
        while size < WRITE_AT_ONCE and (self._urgent or self._waiting):
            taken = (self._urgent or self._waiting).popleft()
            size += sum(map(len, taken))
            buffers += taken
        for buffer in join_small(buffers, WRITE_AT_ONCE // 4):
            view = memoryview(buffer).cast("B")
            self._current.extend(view[start : start + WRITE_AT_ONCE] for start in range(0, len(view), WRITE_AT_ONCE))
        return bool(self._current)
