"""The places of a rehearsal: a link that its transfers share, and a disk that its hosts have in common."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

STREAMS = 4
"""So many transfers share a link at a time; others wait their turn."""

Then = Callable[[], None]


class EventClock(Protocol):
    now: float

    def after(self, seconds: float, act: Callable[..., None], *arguments: object) -> None: ...


class SharedLink:
    """Transfers under way get equal parts of the bandwidth."""

    def __init__(self, clock: EventClock, bandwidth: float, latency_s: float) -> None:
        self._clock = clock
        self._bandwidth = bandwidth
        self._latency_s = latency_s
        self._left: dict[int, float] = {}
        """Bytes that are still to come, by transfer."""
        self._done: dict[int, Then] = {}
        self._waiting: deque[tuple[float, Then]] = deque()
        self._asked = 0
        """Those of which no byte has come yet."""
        self._count = 0
        self._as_of = 0.0
        self._version = 0
        self.moved = 0.0
        self.busy_s = 0.0

    def send(self, size: float, done: Then) -> None:
        """Who waits for the first byte is in nobody's way."""
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
        """Bytes and busy seconds since the last time."""
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
    """Files that are at a place: each comes once over its link, whoever asks."""

    def __init__(self, link: SharedLink, files: tuple[str, ...] = ()) -> None:
        self._link = link
        self._here: dict[str, None] = dict.fromkeys(files)
        self._coming: dict[str, list[Then]] = {}

    def fetch(self, digest: str, size: int, then: Then) -> bool:
        """Call ``then`` when it is here. Whether it is the first to ask for it."""
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
