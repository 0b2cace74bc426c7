"""Simulates two things: links, on which concurrent transfers share the bandwidth, and shared disks of sites."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

STREAMS = 4
"""Maximum number of concurrent transfers per link. Further transfers wait in a queue."""

Callback = Callable[[], None]


class EventClock(Protocol):
    now: float

    def after(self, seconds: float, action: Callable[..., None], *arguments: object) -> None: ...


class SharedLink:
    """Simulates one link. All concurrent transfers get equal parts of the bandwidth."""

    def __init__(self, clock: EventClock, bandwidth: float, latency_s: float) -> None:
        self.clock = clock
        self._bandwidth = bandwidth
        self._latency_s = latency_s
        self._bytes_left: dict[int, float] = {}
        """For each transfer: the number of bytes that are still to be sent."""
        self._done: dict[int, Callback] = {}
        self._waiting: deque[tuple[float, Callback]] = deque()
        self._starting = 0
        """Number of transfers that wait for their first byte."""
        self._count = 0
        self._updated_at = 0.0
        self._version = 0
        self.moved = 0.0
        self.busy_s = 0.0

    def send(self, size: float, done: Callback) -> None:
        """Starts a transfer. It uses no bandwidth before the latency has passed."""
        self._starting += 1
        if self._latency_s:
            self.clock.after(self._latency_s, self._enter, size, done)
        else:
            self._enter(size, done)

    def _enter(self, size: float, done: Callback) -> None:
        self._starting -= 1
        if len(self._bytes_left) >= STREAMS:
            self._waiting.append((size, done))
        else:
            self._begin(size, done)

    @property
    def busy(self) -> bool:
        return bool(self._bytes_left or self._starting)

    def measure(self) -> tuple[int, float]:
        """Returns two numbers since the last call of this method: the bytes that were sent, and the seconds in which the link was busy."""
        self._advance()
        moved, busy_s = self.moved, self.busy_s
        self.moved = self.busy_s = 0.0
        return int(moved), busy_s

    def _begin(self, size: float, done: Callback) -> None:
        self._advance()
        self._count += 1
        self._bytes_left[self._count] = size
        self._done[self._count] = done
        self._schedule()

    def _advance(self) -> None:
        elapsed, self._updated_at = self.clock.now - self._updated_at, self.clock.now
        if self._bytes_left and elapsed > 0:
            part = elapsed * self._bandwidth / len(self._bytes_left)
            for number in self._bytes_left:
                self._bytes_left[number] -= part
            self.moved += elapsed * self._bandwidth
            self.busy_s += elapsed

    def _schedule(self) -> None:
        self._version += 1
        least = min(self._bytes_left.values())
        self.clock.after(max(0.0, least) * len(self._bytes_left) / self._bandwidth, self._check, self._version)

    def _check(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        least = min(self._bytes_left.values())
        over = [number for number, left in self._bytes_left.items() if left <= max(least, 0.0) + 1e-6]
        for number in over:
            del self._bytes_left[number]
        while self._waiting and len(self._bytes_left) < STREAMS:
            self._begin(*self._waiting.popleft())
        if self._bytes_left:
            self._schedule()
        for number in over:
            self._done.pop(number)()


@dataclass(slots=True, frozen=True)
class SimulatedTransfer:
    """The transfer of one file to one site."""

    digest: str
    requested_at: float
    arrived_at: float


class SiteDisk:
    """The files on the shared disk of a site. Each file is sent to the site only once, for all hosts."""

    def __init__(self, link: SharedLink, files: tuple[str, ...] = ()) -> None:
        self._link = link
        self._files: dict[str, None] = dict.fromkeys(files)
        self._requested: dict[str, tuple[float, list[Callback]]] = {}
        """For each file in transfer: the time of the first request, and the callbacks of all requests."""
        self.transfers: list[SimulatedTransfer] = []

    def fetch(self, digest: str, size: int, callback: Callback) -> bool:
        """Calls ``callback`` when the file has arrived, or at once if the file is already there. Returns True if this is the first request
        for the file."""
        if digest in self._files:
            callback()
            return False
        if digest in self._requested:
            self._requested[digest][1].append(callback)
            return False
        self._requested[digest] = self._link.clock.now, [callback]
        self._link.send(size, lambda: self._arrived(digest))
        return True

    def has(self, digest: str) -> bool:
        return digest in self._files

    def _arrived(self, digest: str) -> None:
        requested_at, callbacks = self._requested.pop(digest)
        self._files[digest] = None
        self.transfers.append(SimulatedTransfer(digest, requested_at, self._link.clock.now))
        for callback in callbacks:
            callback()
