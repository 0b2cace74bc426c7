"""Places that run pilots: they accept, boot, fail to boot, take away and forget to tell, like batch systems do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pilotfish.core.proposals import Hold
from pilotfish.core.prospects import PilotWish
from pilotfish.core.state import State
from pilotfish.model import inputs as i
from pilotfish.model.site import PilotSize
from pilotfish.sim.nodes import Node
from pilotfish.sim.scenario import SiteShape

if TYPE_CHECKING:
    from pilotfish.sim.master import MasterProcess
    from pilotfish.sim.world import World

KILL_AFTER_S = 5.0
SUBMIT_S = 0.05


class Fleet:
    """A strategy for simulations: so many pilots at each site as long as there is work."""

    def __init__(self, sites: list[SiteShape]) -> None:
        self._sites = [site for site in sites if not site.guest]

    def propose(self, state: State, now: float) -> list[PilotWish | Hold]:
        if not state.unfinished:
            return []
        wishes: list[PilotWish | Hold] = []
        for site in self._sites:
            present = sum(1 for pilot in state.pilots.values() if pilot.site == site.name)
            if present < site.count and now >= self._not_before(state, site.name):
                wishes += [PilotWish(site.name, PilotSize(site.cores), "simulated") for _ in range(site.count - present)]
        return wishes

    def standings(self, state: State, now: float) -> dict[str, dict[str, object]]:
        return {}

    def next_look_at(self, state: State, now: float) -> float | None:
        if not state.unfinished:
            return None
        moments = [self._not_before(state, site.name) for site in self._sites]
        return min((moment for moment in moments if moment > now), default=None)

    @staticmethod
    def _not_before(state: State, name: str) -> float:
        site = state.sites.get(name)
        return site.last_bad_at + 0.5 * 2.0 ** min(site.bad_starts, 6) if site is not None and site.bad_starts else 0.0


@dataclass(slots=True)
class Job:
    """A pilot as its site knows it."""

    number: str
    site: SiteShape
    cores: float
    node: Node | None = None
    cancelled: bool = False


class Sites:
    def __init__(self, world: World, shapes: list[SiteShape]) -> None:
        self.world = world
        self.shapes = {shape.name: shape for shape in shapes}
        self.jobs: dict[str, Job] = {}
        self._ever_submitted: dict[str, None] = {}
        self._count = 0

    # --- what the master asks -------------------------------------------------------------------------------------------------------

    def submit(self, pilot: str, site: str, cores: float) -> None:
        self._count += 1
        self._ever_submitted[pilot] = None
        job = self.jobs[pilot] = Job(f"job{self._count}", self.shapes[site], cores)
        self.world.after(SUBMIT_S, self._accepted, pilot, job)
        self.world.after(job.site.boot_s * (0.5 + self.world.dice.random()), self._boot, pilot, job)

    def adopt(self, pilot: str, site: str, cores: float, number: str) -> None:
        job = self.jobs.get(pilot)
        if job is not None:
            self.world.after(SUBMIT_S, self._accepted, pilot, job)
        elif number or pilot in self._ever_submitted:
            self._tell(i.PilotGone(pilot, False, "ended while no master watched", witnessed=False))
        else:
            self.submit(pilot, site, cores)

    def cancel(self, pilot: str) -> None:
        job = self.jobs.get(pilot)
        if job is None:
            self._tell(i.PilotGone(pilot, True, "was not running"))
            return
        job.cancelled = True
        if job.node is None:
            self._ended(pilot, True, "cancelled before it began")
            return
        job.node.tell("stop", "its pilot was cancelled")
        self.world.after(KILL_AFTER_S, self._press, job, self.world.master)

    # --- what happens -----------------------------------------------------------------------------------------------------------------

    def _accepted(self, pilot: str, job: Job) -> None:
        if self.jobs.get(pilot) is job:
            self._tell(i.PilotAccepted(pilot, job.number))

    def _boot(self, pilot: str, job: Job) -> None:
        if self.jobs.get(pilot) is not job:
            return
        if self.world.dice.random() < job.site.bad_start and not self.world.calm:
            self.world.count_fault("bad-start")
            self._ended(pilot, False, "its bootstrap failed")
            return
        job.node = self.world.nodes[pilot] = Node(self.world, pilot, pilot, job.site, job.cores)

    def _press(self, job: Job, canceller: MasterProcess | None) -> None:
        """It did not listen to a TERM. Only the master that sent it still thinks of the KILL."""
        if job.node is not None and job.node.alive and canceller is self.world.master:
            job.node.evict(gently=False)

    def requeue(self, node: Node) -> bool:
        job = self.jobs.get(node.pilot)
        if job is None or job.cancelled:
            return False
        node.vanish()
        job.node = None
        self.world.after(job.site.boot_s * (0.5 + self.world.dice.random()), self._boot, node.pilot, job)
        return True

    def node_ended(self, node: Node, *, well: bool, reason: str) -> None:
        """All of a node is gone, and its site knows."""
        if node.site.guest:
            self.world.guest_ended(node.site)
        elif node.pilot in self.jobs and self.jobs[node.pilot].node is node:
            self._ended(node.pilot, well or self.jobs[node.pilot].cancelled, reason)

    def _ended(self, pilot: str, well: bool, reason: str) -> None:
        del self.jobs[pilot]
        self._tell(i.PilotGone(pilot, well, reason))

    def _tell(self, item: i.Input) -> None:
        """Nobody hears it while the master is dead; the next one asks again."""
        if self.world.master is not None:
            self.world.master.tell(item)
