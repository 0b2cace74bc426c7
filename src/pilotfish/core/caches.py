"""What workers say that they hold, whether a run needs it or not. Not part of the state: they say it again on every connection."""

from __future__ import annotations

from collections.abc import Iterable


class Caches:
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
