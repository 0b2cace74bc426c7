"""Simulates links whose transfers share bandwidth, and site disks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

STREAMS = 4
"""Maximum concurrent transfers per link; others are queued."""

Then = Callable[[], None]


class EventClock(Protocol):
    now: float

    def after(self, seconds: float, act: Callable[..., None], *arguments: object) -> None: ...


class SharedLink:
    """A link. Active transfers get equal parts of the bandwidth."""

    def __init__(self, clock: EventClock, bandwidth: float, latency_s: float) -> None:
        self._clock = clock
        self._bandwidth = bandwidth
        self._latency_s = latency_s
        self._left: dict[int, float] = {}
        """Bytes left, by transfer."""
        self._done: dict[int, Then] = {}
        self._waiting: deque[tuple[float, Then]] = deque()
        self._asked = 0
        """Transfers that wait for their first byte."""
        self._count = 0
        self._as_of = 0.0
        self._version = 0
        self.moved = 0.0
        self.busy_s = 0.0

    def send(self, size: float, done: Then) -> None:
        """Starts a transfer. During the latency it uses no bandwidth."""
        self._asked += 1
        if self._latency_s:
            self._clock.after(self._latency_s, self._enter, size, done)
        else:
            self._enter(size, done)

    def _enter(self, size: float, done: Then) -> None:
        self._asked -= 1
        if len(self._left) >= STREAMS:
            self._waiting.append((size, done))
        else:
            self._begin(size, done)

    @property
    def busy(self) -> bool:
        return bool(self._left or self._asked)

    def measure(self) -> tuple[int, float]:
        """Returns bytes and busy seconds since the last call."""
        self._advance()
        moved, busy_s = self.moved, self.busy_s
        self.moved = self.busy_s = 0.0
        return int(moved), busy_s

    def _begin(self, size: float, done: Then) -> None:
        self._advance()
        self._count += 1
        self._left[self._count] = size
        self._done[self._count] = done
        self._schedule()

    def _advance(self) -> None:
        elapsed, self._as_of = self._clock.now - self._as_of, self._clock.now
        if self._left and elapsed > 0:
            part = elapsed * self._bandwidth / len(self._left)
            for number in self._left:
                self._left[number] -= part
            self.moved += elapsed * self._bandwidth
            self.busy_s += elapsed

    def _schedule(self) -> None:
        self._version += 1
        least = min(self._left.values())
        self._clock.after(max(0.0, least) * len(self._left) / self._bandwidth, self._look, self._version)

    def _look(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        least = min(self._left.values())
        over = [number for number, left in self._left.items() if left <= max(least, 0.0) + 1e-6]
        for number in over:
            del self._left[number]
        while self._waiting and len(self._left) < STREAMS:
            self._begin(*self._waiting.popleft())
        if self._left:
            self._schedule()
        for number in over:
            self._done.pop(number)()


class SiteDisk:
    """Files on the shared disk of a site. Each file crosses the link once, for all hosts."""

    def __init__(self, link: SharedLink, files: tuple[str, ...] = ()) -> None:
        self._link = link
        self._here: dict[str, None] = dict.fromkeys(files)
        self._coming: dict[str, list[Then]] = {}

    def fetch(self, digest: str, size: int, then: Then) -> bool:
        """Calls ``then`` when the file is here. Returns true if this is the first request for it."""
        if digest in self._here:
            then()
            return False
        waiting = self._coming.get(digest)
        if waiting is not None:
            waiting.append(then)
            return False
        self._coming[digest] = [then]
        self._link.send(size, lambda: self._arrived(digest))
        return True

    def has(self, digest: str) -> bool:
        return digest in self._here

    def put(self, digest: str) -> None:
        self._here[digest] = None

    def _arrived(self, digest: str) -> None:
        self._here[digest] = None
        for then in self._coming.pop(digest):
            then()
