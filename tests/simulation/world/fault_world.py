"""Drives machine, agents and clients with injected faults. It has an event heap and a virtual clock; everything outside the code under
test is drawn from the seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from pilotfish.agent.node.agent_machine import DIAL_TIMEOUT_S
from pilotfish.core.policy_interface import Policy, Provisioner
from pilotfish.policies.dispatcher import Dispatcher
from pilotfish.policies.matchers import LocalityMatcher
from pilotfish.policies.speculation import Speculation, forecast
from tests.simulation.checks.oracle import Oracle, Violated
from tests.simulation.world.eager_copies import EagerCopies
from tests.simulation.world.fault_scenario import FaultScenario, ScenarioSite
from tests.simulation.world.faults import FaultInjector
from tests.simulation.world.operator_actions import OperatorActions
from tests.simulation.world.simulated_client import SimulatedClient, SimulatedOperator
from tests.simulation.world.simulated_contents import ContentLibrary
from tests.simulation.world.simulated_disk import SimulatedJournal, SimulatedPayloads
from tests.simulation.world.simulated_master import SimulatedMaster
from tests.simulation.world.simulated_network import SimulatedLink, SimulatedNetwork
from tests.simulation.world.simulated_node import SimulatedNode
from tests.simulation.world.simulated_sites import FixedFleet, SimulatedSites
from tests.simulation.world.simulated_tasks import TaskBehaviours
from tests.support.local_provisioner import LocalProvisioner

MOST_EVENTS = 2_000_000
COMPACT_AFTER = 400
MOST_GUESTS = 20


@dataclass(slots=True)
class WorldReport:
    """Summary of one simulated world."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    coverage: Counter[tuple[str, str]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    events: int = 0
    virtual_s: float = 0.0
    digest: int = 0
    """Checksum of all durable journal records: equal digests mean equal behaviour."""
    digest_without_texts: int = 0
    """The same without messages, for comparing versions whose messages differ."""


class FaultWorld:
    def __init__(self, scenario: FaultScenario) -> None:
        self.scenario = scenario
        self.now = 0.0
        self.dice = random.Random(f"world {scenario.seed}")
        self.report = WorldReport(scenario.seed)
        self.fault_count = 0
        self.calm = False
        self.stopping = False
        """True after an operator asked the master to stop, even with unfinished work."""
        self.over = False
        self.master: SimulatedMaster | None = None
        self.zombie: SimulatedMaster | None = None
        self.recovery_dooms: list[str] = []
        self.next_outage_s = 0.0
        self.wall_offset = 0.0
        self.slow_disk_until = 0.0
        self.master_trouble_until = 0.0
        """Time until which the master was impaired: asleep, without disk, or just started."""
        self.trace: list[str] | None = None
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._finished = False
        self._guests = 0
        self.oracle = Oracle(self)
        self.journal = SimulatedJournal(self.oracle.durable)
        self.payloads = SimulatedPayloads()
        self.network = SimulatedNetwork(self, scenario.delay_s)
        self.workloads = TaskBehaviours(scenario.people)
        self.library = ContentLibrary(self)
        self.nodes: dict[str, SimulatedNode] = {}
        self.sites = SimulatedSites(self, self._shapes())
        self.people = [SimulatedClient(self, plan) for plan in scenario.people]
        self.operator = SimulatedOperator(self)
        self.steering = OperatorActions(self)
        self.faults = FaultInjector(self)

    def _shapes(self) -> list[ScenarioSite]:
        shapes = self.scenario.sites
        if self.scenario.fixed_strategy:
            shapes = [*shapes, ScenarioSite("local", memory=shapes[0].memory, tags=shapes[0].tags)]
        return shapes

    def policy(self) -> Policy:
        eagerness = self.scenario.copies
        if eagerness:
            return EagerCopies(eagerness, random.Random(f"copies {self.scenario.seed} {self.now}"))
        return Dispatcher(LocalityMatcher(), Speculation(eagerness is not None, forecast))

    def provisioner(self) -> Provisioner:
        return LocalProvisioner() if self.scenario.fixed_strategy else FixedFleet(self.scenario.sites)

    # --- time -----------------------------------------------------------------------------------------------------------------------

    def at(self, moment: float, act: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heappush(self._heap, (moment, self._count, act, arguments))

    def after(self, delay_s: float, act: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + delay_s, act, *arguments)

    def run(self) -> WorldReport:
        """Simulates until all work is finished and all checks have passed."""
        self._begin()
        heap = self._heap
        while not self.over:
            self.now, _, act, arguments = heappop(heap)
            act(*arguments)
            self.report.events += 1
            if self.report.events > MOST_EVENTS:
                raise Violated(f"{MOST_EVENTS} events and no end")
        self.report.virtual_s = self.now
        return self.report

    def _begin(self) -> None:
        self.start_master()
        for person in self.people:
            self.after(2.0 * self.dice.random(), person.connect)
        self.operator.connect()
        for site in self.scenario.sites:
            if site.guest:
                for _ in range(site.count):
                    self._invite(site)
        self.steering.begin()
        self.faults.begin()

    def note(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:10.4f} {text}")

    # --- masters --------------------------------------------------------------------------------------------------------------------

    def start_master(self) -> None:
        if self.master is not None:
            return
        if len(self.journal.records) > COMPACT_AFTER or self.dice.random() < 0.3:
            self.journal.compact()
        state = self.journal.recover()
        self._finished = False
        self.oracle.recovered(state)
        self.payloads.adopt(state)
        doom = self.recovery_dooms.pop() if self.recovery_dooms else ""
        self.master = SimulatedMaster(self, state, doom=doom)
        self.note(f"MASTER starts, epoch {state.epoch + 1} {doom}")
        self.master_troubled(self.now)
        self.master.start()

    def master_died(self, process: SimulatedMaster) -> None:
        if process is not self.master:
            return
        self.note("MASTER dies")
        self._crash_disk()
        self.master = None
        outage_s, self.next_outage_s = self.next_outage_s or 10 ** self.dice.uniform(-1.5, 1.0), 0.0
        self.after(0.1 if self.recovery_dooms else outage_s, self.start_master)

    def _crash_disk(self) -> None:
        lost, torn = self.journal.crash(self.dice)
        if lost:
            self.count_fault("torn-tail" if torn else "lost-tail")

    def master_finished(self, process: SimulatedMaster) -> None:
        """Handles a master that ended by itself, because it had no work and no clients. Its pilots end with it; the next client starts a
        new one."""
        if process is self.master:
            self.note("MASTER finishes")
            self.master = None
            self._finished = True
            self.oracle.master_finished(process)
            for pilot in list(self.sites.jobs):
                self.sites.cancel(pilot)

    def usurp(self, resume_after_s: float, awake_s: float) -> None:
        """Replaces a master that is cut off and believed dead. The old one still answers some connections."""
        old = self.master
        assert old is not None
        if self.zombie is not None:
            self.zombie.kill()
        for link in old.all_links():
            self.network.cut_silently(link)
            if isinstance(link.peer, SimulatedNode):
                link.peer.cut_off()
            else:
                if isinstance(link.peer, SimulatedClient):
                    link.peer.cut_off()
                self.after(2.0, self._abandon, link)
        old.usurped = True
        old.stall(resume_after_s)
        self._crash_disk()
        self.zombie, self.master = old, None
        self.note("MASTER is usurped")
        self.after(0.5, self.start_master)
        self.after(awake_s, old.kill)

    def _abandon(self, link: SimulatedLink) -> None:
        if link.open_at_peer:
            link.open_at_peer = False
            link.peer.link_closed(link)

    def answering(self, link: SimulatedLink) -> SimulatedMaster | None:
        """Returns the master that accepts this connection. A zombie reaches only agents that know a newer epoch; its lock keeps it from
        all others."""
        zombie, peer = self.zombie, link.peer
        if zombie is not None and zombie.alive and isinstance(peer, SimulatedNode) and peer.machine.epoch > zombie.machine.state.epoch:
            if self.dice.random() < 0.5:
                peer.troubled(self.now + DIAL_TIMEOUT_S)
                return zombie
        if self.master is None and self._finished and link.role == "client":
            self.start_master()
        return self.master

    def patience_s(self) -> float:
        """Returns the maximum time from the last fault to the end: the longest active fault, then all work one by one on one slow core,
        with every retry."""
        settings = self.scenario.settings
        work_s = sum(task.behaviour.duration_s * 3 + 3.0 for plan in self.scenario.people for task in plan.tasks)
        think_s = sum(plan.think_s for plan in self.scenario.people)
        waits_s = 10 * settings.lease_s + 2 * settings.quarantine_s + 4 * settings.author_s + 400.0
        if data := self.scenario.data:
            work_s += sum((data.longest_s + 1.0) * len(plan.tasks) for plan in self.scenario.people)
        return waits_s + think_s + 6 * work_s

    def master_troubled(self, until: float) -> None:
        self.master_trouble_until = max(self.master_trouble_until, until)

    def sync_s(self) -> float:
        if self.now < self.slow_disk_until:
            return self.dice.uniform(0.05, 3.0)
        return self.scenario.sync_s

    # --- guests ---------------------------------------------------------------------------------------------------------------------

    def _invite(self, site: ScenarioSite) -> None:
        if self._guests < MOST_GUESTS and not self.over:
            self._guests += 1
            name = f"{site.name}-guest{self._guests}"
            self.nodes[name] = SimulatedNode(self, name, "", site, site.cores)

    def guest_ended(self, site: ScenarioSite) -> None:
        if not self.calm:
            self.after(5.0 * self.dice.random(), self._invite, site)

    def node_gone(self, node: SimulatedNode, noticed: bool) -> None:
        self.note(f"node {node.worker} is gone")
        for other in self.nodes.values() if self.scenario.wide else ():
            for slot in list(other.slots.values()):
                if slot.execution is not None and node.worker in slot.execution.beside:
                    slot.bereaved(noticed)

    # --- faults ---------------------------------------------------------------------------------------------------------------------

    def count_fault(self, kind: str, states: list[str] | None = None) -> None:
        self.note(f"FAULT {kind} {states}")
        self.fault_count += 1
        self.report.faults[kind] += 1
        for state in states or ():
            self.report.coverage[kind, state] += 1

    def work_is_over(self) -> bool:
        return all(person.finished for person in self.people)

    def calm_down(self) -> None:
        """Ends fault injection. Active faults end as planned; from now on all work must finish in time."""
        if not self.calm:
            self.note("CALM")
            self.calm = True
            self.recovery_dooms.clear()
            self.oracle.calm_since = self.now
            self.steering.wind_up()
