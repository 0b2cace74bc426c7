"""Simulates two sites and a two-step workflow: event heap, clock, sites and client."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from experiments.overlay.overlay_client import OverlayClient
from experiments.overlay.overlay_master import OverlayMaster
from experiments.overlay.overlay_node import OverlayNode
from experiments.overlay.overlay_settings import SITES, OverlayRun
from experiments.overlay.thread_clock import ThreadClock
from pilotfish.model import inputs as i

LATEST_S = 24 * 3600.0
FIRST_LINK = 10


class SiteStorage:
    """A site's storage. All readers share its rate; one reader is limited to ``stream_rate``."""

    def __init__(self, rate: float, stream_rate: float) -> None:
        self._rate = rate
        self._stream_rate = stream_rate
        self._free_at = 0.0

    def done_at(self, size: int, now: float) -> float:
        self._free_at = max(self._free_at, now) + size / self._rate
        return max(self._free_at, now + size / self._stream_rate)


class OverlayWorld:
    def __init__(self, plan: OverlayRun, progress: Callable[[OverlayWorld], None] | None = None) -> None:
        self.plan = plan
        self.around = plan.surroundings
        self.now = 0.0
        self.events = 0
        self.over = False
        self.dice = random.Random(f"overlay {plan.seed}")
        self.storages = {site: SiteStorage(self.around.storage_rate, self.around.storage_stream_rate) for site in SITES}
        self.links: dict[int, OverlayNode] = {}
        self.nodes: dict[int, OverlayNode] = {}
        """Nodes by peer id."""
        self.idle = 0
        """Number of slots without a job."""
        self.stopwatch = ThreadClock()
        """Measures site masters."""
        self.master = OverlayMaster(self)
        self.client = OverlayClient(self)
        self._progress = progress
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    # --- time -------------------------------------------------------------------------------------------------------------------------

    def at(self, moment: float, act: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heappush(self._heap, (moment, self._count, act, arguments))

    def after(self, delay_s: float, act: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heappush(self._heap, (self.now + delay_s, self._count, act, arguments))

    def run(self) -> None:
        self.master.start()
        self.client.connect()
        self.at(self.around.join_s + self.around.settle_s, self.client.begin)
        heap = self._heap
        gc.disable()  # pauses of the collector would count as the master's time
        try:
            while not self.over:
                self.now, _, act, arguments = heappop(heap)
                act(*arguments)
                self.events += 1
                if not self.events % 200_000:
                    self._look()
        finally:
            gc.enable()

    def _look(self) -> None:
        gc.collect()
        if self._progress is not None:
            self._progress(self)
        if self.now > LATEST_S:
            raise RuntimeError(f"after {self.now:.0f} s {self.client.ended} of {self.plan.tasks} tasks have ended")

    # --- pilots -----------------------------------------------------------------------------------------------------------------------

    def start_pilot(self, pilot: str, site: str) -> None:
        self.after(self.around.wan_s, self.master.tell, i.PilotAccepted(pilot, pilot))
        self.after(1.0 + self.around.join_s * self.dice.random(), self._begin, pilot, site)

    def _begin(self, pilot: str, site: str) -> None:
        link = FIRST_LINK + len(self.links)
        node = OverlayNode(self, pilot, site, link)
        self.links[link] = node
        self.nodes[node.me.node] = node
        self.idle += 1
        node.turn()
