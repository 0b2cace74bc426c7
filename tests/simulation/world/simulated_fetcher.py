"""What a simulated node does about contents: a cache, transfers that take their time, files that are put away. It dies with its agent."""

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
    """``spoiled``: what was there, and has gone without anybody noticing so far."""

    def __init__(self, node: SimulatedNode) -> None:
        self.node = node
        self.world = node.world
        self.disk = node.world.library.disk_for(node.site)
        self.spoiled: dict[str, None] = {}
        self.full_until = 0.0
        self.reported_full = False
        """The machine has heard that something failed for want of room."""
        self._jobs: dict[str, int] = {}
        self._count = 0
        self._putting_away: dict[str, None] = {}
        self.unstowed: dict[int, None] = {}
        """What it was asked to put away, and has not answered yet."""
        node.machine.staging.changed(list(self.disk.contents), [])
        node.machine.staging.held.update(self.disk.held)

    @property
    def full(self) -> bool:
        return self.full_until > self.world.now

    # --- inwards ----------------------------------------------------------------------------------------------------------------------

    def fetch(self, content: list[Any]) -> None:
        self._count += 1
        self._jobs[content[0]] = self._count
        here = content[0] in self.disk.contents
        self._later(0.0 if here else self._duration_s(), self._arrive, content[0], content[1], self._count)

    def unfetch(self, digest: str) -> None:
        self._jobs.pop(digest, None)

    def _arrive(self, digest: str, size: int, job: int) -> None:
        if self._jobs.get(digest) != job:
            return
        if digest not in self.disk.contents:
            if self._cut_off():
                self._later(AGAIN_S, self._arrive, digest, size, job)
                return
            failure = NO_ROOM if self.full else self.world.library.why_absent(self.node, digest)
            if failure is None and not self.world.calm and self.world.dice.random() < UNLUCKY:
                failure = ["missing-input", "worker", "it cannot be put into the cache"]
            if failure is not None:
                del self._jobs[digest]
                self.node.tell("not_fetched", digest, failure)
                return
            self._put(digest, size)
            self.world.report.counts["contents fetched"] += 1
        del self._jobs[digest]
        self.node.tell("fetched", digest)

    # --- outwards ---------------------------------------------------------------------------------------------------------------------

    def stow(self, number: int, payload: bytes) -> None:
        self.unstowed[number] = None
        self._later(self._duration_s() / 2, self._put_away, number, bytes(payload))

    def _put_away(self, number: int, payload: bytes) -> None:
        task, attempt = (int(part) for part in payload.rsplit(b"|", 3)[1:3])
        if self.full:
            self.world.oracle.custody.not_stowed(task, attempt)
            self._stowed(number, NO_ROOM, b"", [])
            return
        made = made_by(self.world.workloads.planned(payload), task, attempt)
        for content, home in made:
            if not home:
                self.disk.held[content.digest] = None
            self._putting_away[content.digest] = None
            self._put(content.digest, content.size)
        self._later(self._duration_s() / 2, self._bring_home, number, payload, made)

    def _bring_home(self, number: int, payload: bytes, made: list[Any]) -> None:
        if any(home for _, home in made) and self._cut_off():
            self._later(AGAIN_S, self._bring_home, number, payload, made)
            return
        for content, home in made:
            del self._putting_away[content.digest]
            self.world.report.counts["contents made"] += 1
            if home:
                self.world.library.home[content.digest] = None
        rows = [[content.digest, content.size, home, True, name_of(place), MODE] for place, (content, home) in enumerate(made)]
        self._stowed(number, None, payload, rows)

    def _stowed(self, number: int, failure: Failure | None, payload: bytes, made: list[Any]) -> None:
        del self.unstowed[number]
        self.node.tell("stowed", number, failure, payload, made)

    def unstow(self, number: int) -> None:
        """Whoever is late brings it nevertheless."""

    def discard(self, payload: bytes) -> None:
        """The files go with the directory in which they lie."""

    def let_go(self, header: list[Any], body: bytes) -> None:
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
        """What may go: nobody counts on it."""
        in_use = {**self.node.machine.staging.wanted, **self._putting_away, **self.disk.held, spared: None}
        return [digest for digest in self.disk.contents if digest not in in_use]

    def evict(self, count: int, spared: str = "") -> bool:
        """Remove what is not in use, and tell the machine."""
        lost = self.idle_contents(spared)[: max(0, count)]
        for digest in lost:
            del self.disk.contents[digest]
        if lost:
            self.world.note(f"{self.node.worker} evicts {[digest[:6] for digest in lost]}")
            self.node.machine.staging.changed([], lost)
        return bool(lost)

    def spoil(self, digest: str) -> None:
        """It goes, and nobody notices until somebody needs it."""
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
        """The master cannot be reached. What has come so far is kept: it only takes longer."""
        blocked_until = max(self.node.blocked_to_master_until, self.node.blocked_to_peer_until)
        return self.world.master is None or blocked_until > self.world.now

    def _later(self, delay_s: float, act: Callable[..., None], *arguments: Any) -> None:
        self.world.after(delay_s, self._due, act, *arguments)

    def _due(self, act: Callable[..., None], *arguments: Any) -> None:
        """A stopped agent carries nothing."""
        if not self.node.alive:
            return
        if self.node.hung:
            if self.node.hung_until < float("inf"):
                self.world.at(self.node.hung_until + 0.001, self._due, act, *arguments)
            return
        act(*arguments)
