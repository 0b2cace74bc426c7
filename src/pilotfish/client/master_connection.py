"""Connects to the Unix socket of a master and exchanges frames.

``dial`` opens a connection; then client and master authenticate each other. ``dial`` can block, but sending and receiving on the open
connection never block. After a connection broke, ``Reconnection`` calls ``dial`` again.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pilotfish.errors import ConnectionFailed
from pilotfish.model import messages
from pilotfish.model.messages import Banner, Message, Prove, Proved, Refused, frame_message
from pilotfish.portable.payload_format import Buffer
from pilotfish.portable.wire.frames import PROTOCOL, FrameError, FrameSplitter, join_small
from pilotfish.portable.wire.handshake import (
    CLIENT,
    DIALLER,
    LISTENER,
    UNIX,
    BadCredentials,
    Claim,
    Credentials,
    make_proof,
    read_credentials,
    verify_proof,
)
from pilotfish.store.pool_directory import PoolDirectory

Frame = tuple[Any, memoryview]

_READ_BYTES = 64 * 1024
_READ_BYTES_LARGE = 1024 * 1024
_JOIN_BELOW = 32 * 1024
"""Parts with fewer bytes are copied into one buffer before sending. The copy costs less time than several buffers in the system call."""
_PARTS_PER_CALL = 64
HANDSHAKE_S = 20.0
_BACK_OFF_S = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds to wait before the second, third, … attempt to reach the master."""
_STEADY_S = 5.0
"""A connection that lasted this many seconds does not count as a failed attempt, even if no answer came over it."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Lets one thread end the wait of a second thread. When ``descriptor`` becomes readable, the waiting thread calls ``is_requested`` to
    find out whether to stop."""

    descriptor: int
    is_requested: Callable[[], bool]

    def pause(self, seconds: float) -> None:
        """Sleeps for ``seconds``, or until ``descriptor`` becomes readable."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        if poll.poll(seconds * 1000):
            os.read(self.descriptor, 64)


class MasterConnection:
    """A connection to a master. Only one thread at a time is allowed to send, and only one to receive."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._inbox = FrameSplitter()
        self._unsent: deque[memoryview] = deque()
        sock.setblocking(False)

    def fileno(self) -> int:
        return self.sock.fileno()

    def trust(self) -> None:
        """Accepts large frames from now on. Call it after the master has authenticated itself."""
        self._inbox.proved = True

    def put(self, buffers: Sequence[Buffer]) -> None:
        """Queues buffers for sending."""
        self._unsent.extend(map(memoryview, join_small(buffers, _JOIN_BELOW)))

    @property
    def waiting(self) -> bool:
        return bool(self._unsent)

    def flush(self) -> None:
        """Sends queued bytes until the queue is empty or the socket accepts no more bytes."""
        unsent = self._unsent
        while unsent:
            try:
                if len(unsent) == 1:
                    sent = self.sock.send(unsent[0])
                else:
                    sent = self.sock.sendmsg([unsent[i] for i in range(min(len(unsent), _PARTS_PER_CALL))])
            except BlockingIOError:
                return
            while unsent and sent >= len(unsent[0]):
                sent -= len(unsent.popleft())
            if sent:
                unsent[0] = unsent[0][sent:]

    def receive(self) -> list[Frame]:
        """Decodes the frames that have arrived and returns them. Raises ConnectionFailed if the master closed the connection."""
        try:
            data = self.sock.recv(_READ_BYTES if self._inbox.missing < _READ_BYTES else _READ_BYTES_LARGE)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionFailed("the master closed the connection")
        try:
            return [(messages.decode_to_client(header), body) for header, body in self._inbox.feed(data)]
        except FrameError as error:
            raise ConnectionFailed(str(error)) from error
        except msgspec.DecodeError as error:
            fix = "use the same version of Pilotfish on both sides"
            raise ConnectionFailed(f"the master sent what cannot be read: {error}", fix) from error

    def close(self) -> None:
        self.sock.close()

    def next_frame(self, deadline: float, interrupt: Interrupt | None = None) -> Message:
        """Waits for a message and returns the message. Use this method only in the handshake, because it drops any further messages that
        have arrived."""
        poll = select.poll()  # select() cannot watch descriptors above 1023
        poll.register(self.sock, select.POLLIN)
        if interrupt is not None:
            poll.register(interrupt.descriptor, select.POLLIN)
        while True:
            ready = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
            if not ready:
                raise ConnectionFailed("the master did not answer in time", "see whether it is busy: pilotfish status")
            if interrupt is not None and interrupt.descriptor in ready:
                os.read(interrupt.descriptor, 64)
                if interrupt.is_requested():
                    raise ConnectionFailed("this client has been closed")
            if self.sock.fileno() in ready and (frames := self.receive()):
                message: Message = frames[0][0]
                return message


def repeated_loss(text: str, pool_directory: Path) -> ConnectionFailed:
    """Returns the error for masters that die one after the other. Its message begins with ``text``. If the last master left a crash report,
    the message also contains the exception from this report."""
    pool = PoolDirectory(pool_directory)
    try:
        reason = pool.crash.read_text("utf-8", "replace")
        return ConnectionFailed(f"{text}; the master ended with {reason}", f"see {pool.log}")
    except OSError:
        return ConnectionFailed(text, "see why: pilotfish doctor")


def dial(pool_directory: Path, interrupt: Interrupt | None = None) -> MasterConnection:
    """Opens an authenticated connection to the master of a pool. Reads the credentials at each call, because a new master possibly has a
    different socket path."""
    file = PoolDirectory(pool_directory).client_credentials
    if not file.exists():
        raise ConnectionFailed(f"there is no pool in {pool_directory}", "start one with: pilotfish run")
    try:
        credentials = read_credentials(file)
    except BadCredentials as error:
        raise ConnectionFailed(error.problem, error.fix or "pilotfish doctor") from error
    path = next((end["path"] for end in credentials.endpoints if end.get("kind") == UNIX), None)
    if path is None:
        raise ConnectionFailed(f"{file} names no Unix socket", "pilotfish doctor")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.settimeout(HANDSHAKE_S)
        sock.connect(path)
        return _prove(MasterConnection(sock), credentials, interrupt)
    except (OSError, ConnectionFailed) as error:
        sock.close()
        if isinstance(error, ConnectionFailed):
            raise
        raise ConnectionFailed(f"no master answers at {path}: {error}", "start one with: pilotfish run") from error


def _prove(connection: MasterConnection, credentials: Credentials, interrupt: Interrupt | None) -> MasterConnection:
    deadline = time.monotonic() + HANDSHAKE_S
    banner = connection.next_frame(deadline, interrupt)
    if not isinstance(banner, Banner):
        raise ConnectionFailed("what answered is no Pilotfish master", "pilotfish doctor")
    if banner.protocol != PROTOCOL:
        raise ConnectionFailed(
            f"the master speaks protocol {banner.protocol}, this is {PROTOCOL}", "stop it with its own version: pilotfish stop"
        )
    claim, nonce = Claim(CLIENT, credentials.key_id, UNIX), secrets.token_hex(32)
    proof = make_proof(credentials.key, DIALLER, claim, (banner.nonce, nonce))
    connection.put(frame_message(Prove(PROTOCOL, CLIENT, credentials.key_id, nonce, proof)))
    connection.flush()
    answer = connection.next_frame(deadline, interrupt)
    if isinstance(answer, Refused):
        raise ConnectionFailed(f"the master refused us: {answer.reason}", "pilotfish doctor")
    if not isinstance(answer, Proved) or not verify_proof(answer.mac, credentials.key, LISTENER, claim, (nonce, banner.nonce)):
        raise ConnectionFailed("the master could not prove that it holds our key", "pilotfish doctor")
    connection.trust()
    return connection


class Reconnection:
    """Reconnects to the master. The first attempt comes at once, and each further attempt comes after a longer pause. The attempts stop
    after ``timeout_s`` seconds. A connection over which no answer came counts as a failed attempt.

    If every master dies before it answers, the master counts as unreachable. Without this rule, the client would repeat a request that
    kills every master, start one master after the other, and wait forever.
    """

    def __init__(self, pool_directory: Path, revive: Callable[[], None] | None, timeout_s: float, interrupt: Interrupt) -> None:
        self._pool_directory = pool_directory
        self._revive = revive
        self._timeout_s = timeout_s
        self._interrupt = interrupt
        self._silent_connections = 0
        """Number of consecutive connections over which no answer came."""
        self._away_since = 0.0
        self._connected_at = time.monotonic()

    def note_answer(self) -> None:
        """Records that the master answered a message."""
        self._silent_connections = 0

    def connect(self) -> MasterConnection:
        """Returns a new connection. Raises ConnectionFailed if no master can be reached in time, or if the interrupt ends the wait."""
        if not self._timeout_s:
            raise ConnectionFailed("the master ended the connection")
        now = time.monotonic()
        if not self._silent_connections or now - self._connected_at > _STEADY_S:
            self._silent_connections, self._away_since = 0, now
        deadline, tries, problem = self._away_since + self._timeout_s, self._silent_connections, None
        while True:
            if tries:
                if time.monotonic() > deadline or self._interrupt.is_requested():
                    raise problem or repeated_loss("every master dies before it answers", self._pool_directory)
                self._interrupt.pause(_BACK_OFF_S[min(tries, len(_BACK_OFF_S)) - 1])
            try:
                if problem is not None and self._revive is not None:
                    self._revive()
                connection = dial(self._pool_directory, self._interrupt)
                break
            except ConnectionFailed as failure:
                problem = failure
            tries += 1
        self._silent_connections += 1
        self._connected_at = time.monotonic()
        return connection
