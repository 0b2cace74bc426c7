"""Measures bytes per second to each site: bytes that were sent, and the time during which any were on their way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pilotfish.model import inputs as i

READ_EVERY_S = 2.0
"""Seconds between two readings while something is sent."""
MIN_BYTES = 32_768
"""Minimum bytes of a measurement: fewer may all be in buffers of this machine."""


class LinkMeter:
    """Threads that send count here. ``busy`` is called when sending starts and no reading is due."""

    def __init__(self, site_of: Callable[[str], str], busy: Callable[[], object]) -> None:
        self._site_of = site_of
        self._busy = busy
        self._lock = threading.Lock()
        self._bytes: dict[str, int] = {}
        self._active: dict[str, int] = {}
        self._since: dict[str, float] = {}
        """Time up to here is counted."""
        self._seconds: dict[str, float] = {}
        self._reading_due = False
        """A reading is due."""

    def count_start(self, site: str) -> None:
        with self._lock:
            first, self._reading_due = not self._reading_due, True
            self._active[site] = self._active.get(site, 0) + 1
            self._since.setdefault(site, time.monotonic())
        if first:
            self._busy()

    def count_sent(self, asker: str, length: int) -> None:
        """Count one piece, and the time since the last one."""
        site = self._site_of(asker)
        with self._lock:
            if site in self._active:
                self._bytes[site] = self._bytes.get(site, 0) + length
                self._count_time(site)

    def count_end(self, site: str) -> None:
        with self._lock:
            self._count_time(site)
            self._active[site] -= 1
            if not self._active[site]:
                del self._active[site], self._since[site]

    def take_back(self, asker: str, length: int) -> None:
        """Take back bytes that are still in buffers of this machine: if nothing follows them, their time is not known."""
        site = self._site_of(asker)
        with self._lock:
            if length and site in self._bytes and site not in self._active:
                self._bytes[site] -= length

    def read(self) -> tuple[list[i.TransferMeasured], bool]:
        """Measurements since the last reading, and whether something is being sent, so that another reading is due."""
        with self._lock:
            measured = [
                i.TransferMeasured(site, self._bytes[site], seconds) for site, seconds in self._seconds.items() if self._is_enough(site)
            ]
            for site in [*self._seconds]:
                if self._is_enough(site) or site not in self._active:
                    del self._seconds[site]
                    self._bytes.pop(site, None)
            self._reading_due = bool(self._active)
            return measured, self._reading_due

    def _is_enough(self, site: str) -> bool:
        return self._bytes.get(site, 0) >= MIN_BYTES and self._seconds[site] > 0

    def _count_time(self, site: str) -> None:
        if site in self._since:
            now = time.monotonic()
            self._seconds[site] = self._seconds.get(site, 0.0) + now - self._since[site]
            self._since[site] = now
