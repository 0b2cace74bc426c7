"""Keeps the connections of workers, the transfers that workers report, and the contents in the caches of workers.

These data are not part of the state. After a restart of the master, no worker is connected. Each time a worker connects, it reports its
transfers and its cache again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

MIN_INTERVAL_S = 0.5
"""Minimum seconds between two heartbeats from which a transfer rate is computed."""

Moving = list[tuple[str, int, int]]
"""Contents in transfer to or from a worker. Each entry has the digest, the bytes so far and the total bytes."""


@dataclass(slots=True)
class TransferReport:
    """Transfers of one worker. ``input_counts`` has two numbers for each place in ``data_rows.SOURCES``: number and bytes of the inputs
    found there."""

    moving: Moving = field(default_factory=list)
    input_counts: list[int] = field(default_factory=list)
    at: float = 0.0
    """Time of the last report."""
    _before: dict[str, int] = field(default_factory=dict)
    _before_at: float = 0.0
    _next: dict[str, int] = field(default_factory=dict)
    _next_at: float = 0.0

    def update(self, now: float, moving: Moving) -> None:
        if now - self._next_at >= MIN_INTERVAL_S:
            self._before, self._before_at = self._next, self._next_at
            self._next, self._next_at = {digest: done for digest, done, _ in moving}, now
        self.moving, self.at = moving, now

    def rate(self, digest: str) -> float | None:
        """Returns bytes per second between an earlier heartbeat and the last heartbeat; None if the content was not in transfer at both."""
        before = self._before.get(digest)
        done = next((done for moved, done, _ in self.moving if moved == digest), None)
        if before is None or done is None or done < before:
            return None
        return (done - before) / (self.at - self._before_at)


@dataclass(slots=True)
class WorkerConnection:
    """Holds the link (connection number) of a worker, the end of the worker's lease, and the specs that were sent to the worker.

    ``link``: None if the worker is disconnected. ``newest_link``: the link on which the worker's last Hello arrived, even if this link is
    closed now.
    """

    lease_at: float
    link: int | None = None
    newest_link: int = 0
    shares: bool = False
    """Whether the worker can read shared payloads directly from the master's disk."""
    peer: Any = None
    """Address of the worker for other agents of its site, as [id, [host, port]]; None if it has no such address."""
    transfers: TransferReport = field(default_factory=TransferReport)
    sent_specs: dict[int, None] = field(default_factory=dict)
    delegated_specs: dict[int, None] = field(default_factory=dict)
    """Specs that were sent to the worker with delegated tasks."""


class ReportedCaches:
    """Holds which contents are in the cache of each worker, including contents that no run needs."""

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
        """Records that the cache of a worker contains exactly the contents ``digests``."""
        wanted = dict.fromkeys(digests)
        self.lost(worker, [digest for digest in self._by_worker.get(worker, ()) if digest not in wanted])
        self.gained(worker, wanted)

    def forget(self, worker: str) -> None:
        self.lost(worker, list(self._by_worker.get(worker, ())))
        self._by_worker.pop(worker, None)
