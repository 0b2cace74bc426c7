"""Many bulk connections, few threads: whoever asks for something waits for a thread, first come first served.

A connection on which nothing is asked costs no thread. One request is answered at a time; then it is the turn of whoever asked next.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
import termios
import threading
import time
from collections import OrderedDict, deque
from typing import Callable, Deque, Dict, List

from .content_source import IDLE_S, ContentSource, answer
from .transfer_protocol import ByteStream, ConnectionCut, ProtocolViolation, TransferChannel

MOST_STREAMS = 32
LOOK_S = 5.0
GOODBYE_S = 5.0
MOST_COUNTED = 10000
"""Of so many askers and digests is known what they moved; those that moved nothing for longest are forgotten first."""


class TransferTotals:
    """Bytes of contents, holes included."""

    __slots__ = ("into", "out")

    def __init__(self) -> None:
        self.out = 0
        self.into = 0


def unsent(descriptor: int) -> int:
    """Bytes that the kernel keeps for a connection because the other end has not confirmed them; 0 if that cannot be told."""
    try:
        return int.from_bytes(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError):
        return 0


class _Visitor:
    def __init__(self, asker: str, channel: TransferChannel) -> None:
        self.asker = asker
        self.channel = channel
        self.idle_since = 0.0


class TransferServer:
    """``take`` it connections; it closes them when they end, misbehave, or ask nothing for long."""

    def __init__(self, shelf: ContentSource, most_streams: int = MOST_STREAMS, complain: Callable[[str], None] = lambda text: None) -> None:
        self.shelf = shelf
        self.most_streams = most_streams
        self.complain = complain
        self.sent: Callable[[str, int], None] = lambda asker, length: None
        """Told of what went out, to whom, stretch by stretch."""
        self.left: Callable[[str, int], None] = lambda asker, length: None
        """Told when an answer is over how much of what went out has not arrived yet."""
        self.by_asker: OrderedDict[str, TransferTotals] = OrderedDict()
        self.by_digest: OrderedDict[str, TransferTotals] = OrderedDict()
        self._counting = threading.Lock()
        self._changed = threading.Condition()
        self._visitors: Dict[_Visitor, None] = {}
        self._idle: Dict[int, _Visitor] = {}
        self._asking: Deque[_Visitor] = deque()
        self._threads: List[threading.Thread] = []
        self._spare = 0
        self._closed = False
        self._poll = select.epoll()
        self._wake_read, self._wake_write = os.pipe()
        self._poll.register(self._wake_read, select.EPOLLIN)
        self._watcher = threading.Thread(target=self._watch, name="bulk-watcher", daemon=True)
        self._watcher.start()

    def take(self, asker: str, connection: ByteStream) -> None:
        """From now on the connection is ours. Never waits for it."""
        visitor = _Visitor(asker, TransferChannel(connection))
        with self._changed:
            if self._closed:
                connection.close()
            else:
                self._visitors[visitor] = None
                self._receive(visitor)

    def close(self) -> None:
        """Cut everything."""
        with self._changed:
            self._closed = True
            for visitor in self._visitors:
                visitor.channel.abort()
            self._changed.notify_all()
        os.write(self._wake_write, b"x")
        deadline = time.monotonic() + GOODBYE_S
        for thread in [self._watcher, *self._threads]:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._changed:
            for visitor in [*self._idle.values(), *self._asking]:
                self._see_off(visitor)
        self._poll.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def count(self, asker: str, digest: str, out: int, into: int) -> None:
        if out:
            self.sent(asker, out)
        with self._counting:
            for table, key in ((self.by_asker, asker), (self.by_digest, digest)):
                traffic = table.get(key)
                if traffic is None:
                    traffic = table[key] = TransferTotals()
                    if len(table) > MOST_COUNTED:
                        table.popitem(last=False)
                table.move_to_end(key)
                traffic.out += out
                traffic.into += into

    # ---- whose turn it is; all with the lock ----

    def _receive(self, visitor: _Visitor) -> None:
        """If it has asked something, it waits for a thread."""
        if visitor.channel.pending():
            self._queue(visitor)
            return
        visitor.channel.rest()
        visitor.idle_since = time.monotonic()
        self._idle[visitor.channel.fileno()] = visitor
        self._poll.register(visitor.channel.fileno(), select.EPOLLIN)

    def _queue(self, visitor: _Visitor) -> None:
        self._asking.append(visitor)
        if len(self._asking) <= self._spare or len(self._threads) >= self.most_streams:
            self._changed.notify()
            return
        thread = threading.Thread(target=self._work, name="bulk-%d" % len(self._threads), daemon=True)
        try:
            thread.start()
            self._threads.append(thread)
        except RuntimeError as error:
            self.complain("one thread less for bulk connections: %s" % error)

    def _wake(self, descriptor: int) -> _Visitor:
        self._poll.unregister(descriptor)
        return self._idle.pop(descriptor)

    def _see_off(self, visitor: _Visitor) -> None:
        del self._visitors[visitor]
        visitor.channel.close()

    # ---- threads ----

    def _watch(self) -> None:
        """Wait for requests on all connections that wait for nothing else."""
        while not self._closed:
            ready = self._poll.poll(LOOK_S)
            with self._changed:
                for descriptor, _ in ready:
                    if descriptor != self._wake_read:
                        self._queue(self._wake(descriptor))
                long_ago = time.monotonic() - IDLE_S
                for descriptor in [found for found, visitor in self._idle.items() if visitor.idle_since < long_ago]:
                    self._see_off(self._wake(descriptor))

    def _work(self) -> None:
        while True:
            with self._changed:
                self._spare += 1
                while not self._asking and not self._closed:
                    self._changed.wait()
                self._spare -= 1
                if self._closed:
                    return
                visitor = self._asking.popleft()
            good = self._answer(visitor)
            with self._changed:
                if good and not self._closed:
                    self._receive(visitor)
                else:
                    self._see_off(visitor)

    def _answer(self, visitor: _Visitor) -> bool:
        """Whether the connection can be used on."""
        try:
            answer(visitor.channel, self.shelf, visitor.asker, self.count)
            self.left(visitor.asker, unsent(visitor.channel.fileno()))
            return True
        except ProtocolViolation as problem:
            self.complain("dropped a bulk connection of %s: %s" % (visitor.asker, problem))
        except ConnectionCut:
            pass
        except Exception as problem:  # noqa: BLE001 - the edge of a thread: the others shall be served nevertheless
            self.complain("a bulk connection of %s failed: %r" % (visitor.asker, problem))
        return False
