"""Simulates caches and transfers of a node. The fetcher dies with its agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.world.simulated_contents import MODE, Failure, made_by, name_of

if TYPE_CHECKING:
    from tests.simulation.world.simulated_node import SimulatedNode

AGAIN_S = 1.0
UNLUCKY = 0.01
SHORTEST_S = 0.005

NO_ROOM: Failure = ["disk", "worker", "the disk is full"]


class SimulatedFetcher:
    """The fetcher of a node. ``spoiled``: contents whose loss has not been noticed yet."""

    def __init__(self, node: SimulatedNode) -> None:
        self.node = node
        self.world = node.world
        self.disk = node.world.library.disk_for(node.site)
        self.spoiled: dict[str, None] = {}
        self.full_until = 0.0
        self.reported_full = False
        """True if a full disk was reported to the machine."""
        self._fetches: dict[str, int] = {}
        self._count = 0
        self._storing: dict[str, None] = {}
        self.unfinished_uploads: dict[int, None] = {}
        """Uploads without an answer yet."""
        node.machine.staging.changed(list(self.disk.contents), [])
        node.machine.staging.held.update(self.disk.held)

    @property
    def full(self) -> bool:
        return self.full_until > self.world.now

    # --- fetching ---------------------------------------------------------------------------------------------------------------------

    def fetch(self, content: list[Any]) -> None:
        self._count += 1
        self._fetches[content[0]] = self._count
        here = content[0] in self.disk.contents
        self._later(0.0 if here else self._duration_s(), self._arrive, content[0], content[1], self._count)

    def cancel_fetch(self, digest: str) -> None:
        self._fetches.pop(digest, None)

    def _arrive(self, digest: str, size: int, number: int) -> None:
        if self._fetches.get(digest) != number:
            return
        if digest not in self.disk.contents:
            if self._cut_off():
                self._later(AGAIN_S, self._arrive, digest, size, number)
                return
            failure = NO_ROOM if self.full else self.world.library.why_absent(self.node, digest)
            if failure is None and not self.world.calm and self.world.dice.random() < UNLUCKY:
                failure = ["missing-input", "worker", "it cannot be put into the cache"]
            if failure is not None:
                del self._fetches[digest]
                self.node.tell("not_fetched", digest, failure)
                return
            self._put(digest, size)
            self.world.report.counts["contents fetched"] += 1
        del self._fetches[digest]
        self.node.tell("fetched", digest)

    # --- uploading --------------------------------------------------------------------------------------------------------------------

    def upload(self, number: int, payload: bytes) -> None:
        self.unfinished_uploads[number] = None
        self._later(self._duration_s() / 2, self._store, number, bytes(payload))

    def _store(self, number: int, payload: bytes) -> None:
        task, attempt = (int(part) for part in payload.rsplit(b"|", 3)[1:3])
        if self.full:
            self.world.oracle.custody.upload_failed(task, attempt)
            self._uploaded(number, NO_ROOM, b"", [])
            return
        made = made_by(self.world.workloads.planned(payload), task, attempt)
        for content, home in made:
            if not home:
                self.disk.held[content.digest] = None
            self._storing[content.digest] = None
            self._put(content.digest, content.size)
        self._later(self._duration_s() / 2, self._send_to_master, number, payload, made)

    def _send_to_master(self, number: int, payload: bytes, made: list[Any]) -> None:
        if any(home for _, home in made) and self._cut_off():
            self._later(AGAIN_S, self._send_to_master, number, payload, made)
            return
        for content, home in made:
            del self._storing[content.digest]
            self.world.report.counts["contents made"] += 1
            if home:
                self.world.library.home[content.digest] = None
        rows = [[content.digest, content.size, home, True, name_of(place), MODE] for place, (content, home) in enumerate(made)]
        self._uploaded(number, None, payload, rows)

    def _uploaded(self, number: int, failure: Failure | None, payload: bytes, made: list[Any]) -> None:
        del self.unfinished_uploads[number]
        self.node.tell("uploaded", number, failure, payload, made)

    def cancel_upload(self, number: int) -> None:
        """Late uploads finish all the same."""

    def discard(self, payload: bytes) -> None:
        """The files are removed with their directory."""

    def release(self, header: list[Any], body: bytes) -> None:
        for digest in header[1]:
            self.disk.held.pop(digest, None)

    # --- the cache --------------------------------------------------------------------------------------------------------------------

    def _put(self, digest: str, size: int) -> None:
        self.disk.contents[digest] = size
        self.spoiled.pop(digest, None)
        data = self.world.scenario.data
        assert data is not None
        self.evict(len(self.disk.contents) - data.room, spared=digest)

    def idle_contents(self, spared: str = "") -> list[str]:
        """Contents that may be evicted."""
        in_use = {**self.node.machine.staging.needed, **self._storing, **self.disk.held, spared: None}
        return [digest for digest in self.disk.contents if digest not in in_use]

    def evict(self, count: int, spared: str = "") -> bool:
        """Evict contents that are not in use, and inform the machine."""
        lost = self.idle_contents(spared)[: max(0, count)]
        for digest in lost:
            del self.disk.contents[digest]
        if lost:
            self.world.note(f"{self.node.worker} evicts {[digest[:6] for digest in lost]}")
            self.node.machine.staging.changed([], lost)
        return bool(lost)

    def spoil(self, digest: str) -> None:
        """Remove a content so that it is noticed only when it is needed."""
        self.disk.held.pop(digest, None)
        del self.disk.contents[digest]
        self.spoiled[digest] = None

    # --- time -------------------------------------------------------------------------------------------------------------------------

    def _duration_s(self) -> float:
        data, dice = self.world.scenario.data, self.world.dice
        assert data is not None
        duration_s = SHORTEST_S * float((data.longest_s / SHORTEST_S) ** dice.random())
        return duration_s + AGAIN_S * dice.random() if dice.random() < data.cut_share else duration_s

    def _cut_off(self) -> bool:
        """Whether the master cannot be reached. A received part is kept: the transfer only takes longer."""
        blocked_until = max(self.node.blocked_to_master_until, self.node.blocked_to_peer_until)
        return self.world.master is None or blocked_until > self.world.now

    def _later(self, delay_s: float, act: Callable[..., None], *arguments: Any) -> None:
        self.world.after(delay_s, self._due, act, *arguments)

    def _due(self, act: Callable[..., None], *arguments: Any) -> None:
        """A stopped agent transfers nothing."""
        if not self.node.alive:
            return
        if self.node.hung:
            if self.node.hung_until < float("inf"):
                self.world.at(self.node.hung_until + 0.001, self._due, act, *arguments)
            return
        act(*arguments)
