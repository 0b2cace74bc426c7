"""Simulates batch systems: they accept, start, fail to start and kill pilots, and may fail to report it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pilotfish.core.pilots.factory_interface import PilotProposal
from pilotfish.core.pilots.pilot_records import Pilot
from pilotfish.core.policy_interface import HoldProposal
from pilotfish.core.state import State
from pilotfish.model import inputs as i
from pilotfish.model.site import PilotSize
from tests.simulation.world.fault_scenario import ScenarioSite
from tests.simulation.world.simulated_node import SimulatedNode

if TYPE_CHECKING:
    from tests.simulation.world.fault_world import FaultWorld
    from tests.simulation.world.simulated_master import SimulatedMaster

KILL_AFTER_S = 5.0
SUBMIT_S = 0.05
NODE_JOIN_WAIT_S = 30.0
"""Maximum seconds between the joins of the nodes of one pilot."""


class FixedFleet:
    """A factory for simulations: a fixed number of pilots per site while there is work."""

    def __init__(self, sites: list[ScenarioSite]) -> None:
        self._sites = [site for site in sites if not site.guest]

    def propose(self, state: State, now: float) -> list[PilotProposal | HoldProposal]:
        if not state.unfinished:
            return []
        wishes: list[PilotProposal | HoldProposal] = []
        for site in self._sites:
            present = sum(1 for pilot in state.pilots.values() if pilot.site == site.name and not _is_maimed(state, pilot, now))
            if present < site.count and now >= self._not_before(state, site.name):
                size = PilotSize(site.cores, site.nodes)
                wishes += [PilotProposal(site.name, size, "simulated") for _ in range(site.count - present)]
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


def _is_maimed(state: State, pilot: Pilot, now: float) -> bool:
    """Returns whether a multi-node pilot has one node left, which is of no use to multi-node tasks."""
    if pilot.size.nodes == 1 or len(pilot.workers) != 1:
        return False
    return now > state.workers[pilot.workers[0]].joined_at + NODE_JOIN_WAIT_S


@dataclass(slots=True)
class SimulatedJob:
    """A pilot as its site knows it. ``nodes``: nodes whose end the site has not noticed; ``booting``: number of nodes that have not
    started."""

    number: str
    site: ScenarioSite
    size: PilotSize
    nodes: list[SimulatedNode] = field(default_factory=list)
    booting: int = 0
    starts: int = 0
    well: bool = True
    cancelled: bool = False


class SimulatedSites:
    def __init__(self, world: FaultWorld, shapes: list[ScenarioSite]) -> None:
        self.world = world
        self.shapes = {shape.name: shape for shape in shapes}
        self.jobs: dict[str, SimulatedJob] = {}
        self._ever_submitted: dict[str, None] = {}
        self._count = 0

    # --- requests of the master -----------------------------------------------------------------------------------------------------

    def submit(self, pilot: str, site: str, size: PilotSize) -> None:
        self._count += 1
        self._ever_submitted[pilot] = None
        job = self.jobs[pilot] = SimulatedJob(f"job{self._count}", self.shapes[site], size)
        self.world.after(SUBMIT_S, self._accepted, pilot, job)
        self._start(pilot, job)

    def adopt(self, pilot: str, site: str, size: PilotSize, number: str) -> None:
        job = self.jobs.get(pilot)
        if job is not None:
            self.world.after(SUBMIT_S, self._accepted, pilot, job)
        elif number or pilot in self._ever_submitted:
            self._tell(i.PilotEndReported(pilot, False, "ended while no master watched", witnessed=False))
        else:
            self.submit(pilot, site, size)

    def cancel(self, pilot: str) -> None:
        job = self.jobs.get(pilot)
        if job is None:
            self._tell(i.PilotEndReported(pilot, True, "was not running"))
            return
        job.cancelled = True
        job.booting = 0
        if not job.nodes:
            self._ended(pilot, True, "cancelled before it began")
            return
        for node in list(job.nodes):
            node.tell("stop", "its pilot was cancelled")
        self.world.after(KILL_AFTER_S, self._press, job, self.world.master)

    # --- life of a pilot --------------------------------------------------------------------------------------------------------------

    def _accepted(self, pilot: str, job: SimulatedJob) -> None:
        if self.jobs.get(pilot) is job:
            self._tell(i.PilotAccepted(pilot, job.number))

    def _start(self, pilot: str, job: SimulatedJob) -> None:
        """Starts each node after its own boot time."""
        job.starts += 1
        job.well = True
        job.booting = job.size.nodes
        for number in range(job.size.nodes):
            self.world.after(job.site.boot_s * (0.5 + self.world.dice.random()), self._boot, pilot, job, job.starts, number)

    def _boot(self, pilot: str, job: SimulatedJob, start: int, number: int) -> None:
        if self.jobs.get(pilot) is not job or job.starts != start or not job.booting:
            return
        job.booting -= 1
        if self.world.dice.random() < job.site.bad_start and not self.world.calm:
            self.world.count_fault("bad-start")
            self._one_less(pilot, job, False, "its bootstrap failed")
            return
        worker = pilot if job.size.nodes == 1 else f"{pilot}.{number}{'abcdefgh'[job.starts % 8]}"  # an agent also has its own number
        node = self.world.nodes[worker] = SimulatedNode(self.world, worker, pilot, job.site, job.size.cores)
        job.nodes.append(node)

    def _press(self, job: SimulatedJob, canceller: SimulatedMaster | None) -> None:
        """Kills a pilot that ignored SIGTERM. Only the master that sent SIGTERM sends SIGKILL."""
        for node in list(job.nodes):
            if node.alive and canceller is self.world.master:
                node.evict(gently=False)

    def requeue(self, node: SimulatedNode) -> bool:
        job = self.jobs.get(node.pilot)
        if job is None or job.cancelled:
            return False
        for one in job.nodes:
            if one.alive:
                one.vanish()
        job.nodes = []
        self._start(node.pilot, job)
        return True

    def neighbours(self, node: SimulatedNode) -> list[SimulatedNode]:
        """Returns the live nodes of a node's pilot, including itself."""
        job = self.jobs.get(node.pilot)
        return [one for one in job.nodes if one.alive] if job is not None else [node]

    def node_ended(self, node: SimulatedNode, *, well: bool, reason: str) -> None:
        """A node has ended, and its site knows."""
        if node.site.guest:
            self.world.guest_ended(node.site)
        elif (job := self.jobs.get(node.pilot)) is not None and node in job.nodes:
            job.nodes.remove(node)
            self._one_less(node.pilot, job, well, reason)

    def _one_less(self, pilot: str, job: SimulatedJob, well: bool, reason: str) -> None:
        """A pilot ends with the last of its nodes; it succeeded if all of them did."""
        job.well = job.well and well
        if not job.nodes and not job.booting:
            self._ended(pilot, job.well or job.cancelled, reason)

    def _ended(self, pilot: str, well: bool, reason: str) -> None:
        del self.jobs[pilot]
        self._tell(i.PilotEndReported(pilot, well, reason))

    def _tell(self, item: i.Input) -> None:
        """Reports to the master. Reports are lost while it is dead; the next one polls again."""
        if self.world.master is not None:
            self.world.master.tell(item)
