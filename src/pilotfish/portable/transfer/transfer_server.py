"""Serves many transfer connections with few threads, in the order of their requests.

An idle connection needs no thread. A thread answers one request, then it serves the next connection in the queue.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
import termios
import threading
import time
from collections import deque
from typing import Callable, Deque, Dict, List

from ..wire.tls_stream import TlsStream
from .content_source import IDLE_S, ContentSource, answer
from .transfer_protocol import ConnectionCut, ProtocolViolation, TransferChannel

MAX_STREAMS = 32
IDLE_CHECK_S = 5.0
CLOSE_TIMEOUT_S = 5.0


def unsent(descriptor: int) -> int:
    """Returns the number of sent bytes that the other side has not confirmed yet; 0 if this is unknown."""
    try:
        return int.from_bytes(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError):
        return 0


class _ServedConnection:
    def __init__(self, asker: str, channel: TransferChannel) -> None:
        self.asker = asker
        self.channel = channel
        self.idle_since = 0.0


class TransferServer:
    """Serves connections given to ``add_connection``. Closes a connection that has ended, violates the protocol, or is idle for long."""

    def __init__(self, source: ContentSource, max_streams: int = MAX_STREAMS, log: Callable[[str], None] = lambda text: None) -> None:
        self.source = source
        self.max_streams = max_streams
        self.log = log
        self.on_sent: Callable[[str, int], None] = lambda asker, length: None
        """Called for each extent that was sent, with asker and length."""
        self.on_unconfirmed: Callable[[str, int], None] = lambda asker, length: None
        """Called after each answer, with asker and the number of bytes that are not confirmed yet."""
        self._changed = threading.Condition()
        self._connections: Dict[_ServedConnection, None] = {}
        self._idle: Dict[int, _ServedConnection] = {}
        self._waiting: Deque[_ServedConnection] = deque()
        self._threads: List[threading.Thread] = []
        self._spare = 0
        self._closed = False
        self._poll = select.epoll()
        self._wake_read, self._wake_write = os.pipe()
        self._poll.register(self._wake_read, select.EPOLLIN)
        self._watcher = threading.Thread(target=self._watch, name="transfer-watcher", daemon=True)
        self._watcher.start()

    def add_connection(self, asker: str, connection: TlsStream) -> None:
        """Starts to serve a connection. This method never blocks."""
        served = _ServedConnection(asker, TransferChannel(connection))
        with self._changed:
            if self._closed:
                connection.close()
            else:
                self._connections[served] = None
                self._wait_or_queue(served)

    def close(self) -> None:
        """Cuts all connections and stops the threads."""
        with self._changed:
            self._closed = True
            for served in self._connections:
                served.channel.abort()
            self._changed.notify_all()
        os.write(self._wake_write, b"x")
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in [self._watcher, *self._threads]:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._changed:
            for served in [*self._idle.values(), *self._waiting]:
                self._close_connection(served)
        self._poll.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def count(self, asker: str, digest: str, out: int, into: int) -> None:
        """Reports the sent bytes of an extent to ``on_sent``. ``out``: bytes sent; ``into``: bytes received, which are not reported."""
        if out:
            self.on_sent(asker, out)

    # --- queue; call with the lock held ----

    def _wait_or_queue(self, served: _ServedConnection) -> None:
        """Queues the connection if a request has arrived. Otherwise watches the connection until a request arrives."""
        if served.channel.pending():
            self._queue(served)
            return
        served.channel.rest()
        served.idle_since = time.monotonic()
        self._idle[served.channel.fileno()] = served
        self._poll.register(served.channel.fileno(), select.EPOLLIN)

    def _queue(self, served: _ServedConnection) -> None:
        self._waiting.append(served)
        if len(self._waiting) <= self._spare or len(self._threads) >= self.max_streams:
            self._changed.notify()
            return
        thread = threading.Thread(target=self._serve_loop, name="transfer-%d" % len(self._threads), daemon=True)
        try:
            thread.start()
            self._threads.append(thread)
        except RuntimeError as error:
            self.log("one thread less for transfer connections: %s" % error)

    def _wake(self, descriptor: int) -> _ServedConnection:
        self._poll.unregister(descriptor)
        return self._idle.pop(descriptor)

    def _close_connection(self, served: _ServedConnection) -> None:
        del self._connections[served]
        served.channel.close()

    # --- threads ---------------------------

    def _watch(self) -> None:
        """Watches idle connections for requests. Closes connections that are idle for too long."""
        while not self._closed:
            ready = self._poll.poll(IDLE_CHECK_S)
            with self._changed:
                for descriptor, _ in ready:
                    if descriptor != self._wake_read:
                        self._queue(self._wake(descriptor))
                long_ago = time.monotonic() - IDLE_S
                for descriptor in [found for found, served in self._idle.items() if served.idle_since < long_ago]:
                    self._close_connection(self._wake(descriptor))

    def _serve_loop(self) -> None:
        while True:
            with self._changed:
                self._spare += 1
                while not self._waiting and not self._closed:
                    self._changed.wait()
                self._spare -= 1
                if self._closed:
                    return
                served = self._waiting.popleft()
            good = self._answer(served)
            with self._changed:
                if good and not self._closed:
                    self._wait_or_queue(served)
                else:
                    self._close_connection(served)

    def _answer(self, served: _ServedConnection) -> bool:
        """Answers one request. Returns True if the connection can be used again."""
        try:
            answer(served.channel, self.source, served.asker, self.count)
            self.on_unconfirmed(served.asker, unsent(served.channel.fileno()))
            return True
        except ProtocolViolation as problem:
            self.log("dropped a transfer connection of %s: %s" % (served.asker, problem))
        except ConnectionCut:
            pass
        except Exception as problem:  # noqa: BLE001 - this thread must survive, because it serves other connections, too
            self.log("a transfer connection of %s failed: %r" % (served.asker, problem))
        return False
