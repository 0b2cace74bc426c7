"""What is under way at a worker, as its beats tell it: how far, how fast, and what it had to get so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

APART_S = 0.5
"""Beats that are closer together than this say nothing about a rate."""

Moving = list[tuple[str, int, int]]
"""Contents that are under way to it or from it: digest, bytes so far, bytes in all."""


@dataclass(slots=True)
class TransferReport:
    """``got``: contents and their bytes that its tasks needed since its agent started, by where they were: here already, at peers, in
    the site's storage or on a shared disk, at the master."""

    moving: Moving = field(default_factory=list)
    got: list[int] = field(default_factory=list)
    at: float = 0.0
    """When it told so last."""
    _before: dict[str, int] = field(default_factory=dict)
    _before_at: float = 0.0
    _next: dict[str, int] = field(default_factory=dict)
    _next_at: float = 0.0

    def heard(self, now: float, moving: Moving) -> None:
        if now - self._next_at >= APART_S:
            self._before, self._before_at = self._next, self._next_at
            self._next, self._next_at = {digest: done for digest, done, _ in moving}, now
        self.moving, self.at = moving, now

    def rate(self, digest: str) -> float | None:
        """Bytes per second over the last beats; None if it was not under way at both, or began anew."""
        before = self._before.get(digest)
        done = next((done for moved, done, _ in self.moving if moved == digest), None)
        if before is None or done is None or done < before:
            return None
        return (done - before) / (self.at - self._before_at)


# What workers say that they hold, whether a run needs it or not. Not part of the state: they say it again on every connection.


class ReportedCaches:
    def __init__(self) -> None:
        self._by_worker: dict[str, dict[str, None]] = {}
        self._by_digest: dict[str, dict[str, None]] = {}

    def holders(self, digest: str) -> Iterable[str]:
        return self._by_digest.get(digest, ())

    def gained(self, worker: str, digests: Iterable[str]) -> None:
        held = self._by_worker.setdefault(worker, {})
        for digest in digests:
            self._by_digest.setdefault(digest, {})[worker] = held[digest] = None

    def lost(self, worker: str, digests: Iterable[str]) -> None:
        held = self._by_worker.get(worker, {})
        for digest in digests:
            if held.pop(digest, worker) is None:
                holders = self._by_digest[digest]
                del holders[worker]
                if not holders:
                    del self._by_digest[digest]

    def has_only(self, worker: str, digests: Iterable[str]) -> None:
        """This is all that it holds."""
        wanted = dict.fromkeys(digests)
        self.lost(worker, [digest for digest in self._by_worker.get(worker, ()) if digest not in wanted])
        self.gained(worker, wanted)

    def gone(self, worker: str) -> None:
        self.lost(worker, list(self._by_worker.get(worker, ())))
        self._by_worker.pop(worker, None)
