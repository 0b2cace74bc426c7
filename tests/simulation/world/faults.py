"""Injects faults from the seed, one after the other. Each is counted with the states of the tasks that it hit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model.states import RUNNING, TASK_STATES
from tests.simulation.world.data_faults import DATA_FAULTS, TRANSFERS, moving_at
from tests.simulation.world.fault_scenario import CLIENT_FAULTS, MASTER_FAULTS, NODE_FAULTS
from tests.simulation.world.simulated_master import AFTER_SYNC, AMID_EFFECTS, BEFORE_APPEND, BEFORE_SYNC, MOMENTS, SimulatedMaster
from tests.simulation.world.simulated_network import SimulatedLink
from tests.simulation.world.simulated_node import NEVER, SimulatedNode

if TYPE_CHECKING:
    from tests.simulation.world.fault_world import FaultWorld
    from tests.simulation.world.simulated_node import SimulatedNode

RARE_FACTS = (
    f.TasksReturned,
    f.AttemptFailed,
    f.TasksRecalled,
    f.TasksDuplicated,
    f.TasksCancelled,
    f.RunCancelled,
    f.RunClosed,
    f.WorkerJoined,
    f.WorkerEnded,
    f.WorkerQuarantined,
    f.PilotRequested,
    f.PilotEnding,
    f.PilotEnded,
    f.ReplicasChanged,
)


class FaultInjector:
    def __init__(self, world: FaultWorld) -> None:
        self.world = world
        self.scenario = world.scenario
        self._kinds = list(world.scenario.weights)
        self._weights = list(world.scenario.weights.values())

    def begin(self) -> None:
        self.world.after(1.0, self._next)

    def _next(self) -> None:
        world = self.world
        if world.calm:
            return
        if world.fault_count >= self.scenario.most_faults or world.work_is_over():
            world.calm_down()
            return
        kind = world.dice.choices(self._kinds, self._weights)[0]
        self._inject(kind)
        world.after(world.dice.expovariate(1.0 / self.scenario.fault_gap_s), self._next)

    def _inject(self, kind: str) -> None:
        if kind in NODE_FAULTS or kind in DATA_FAULTS:
            nodes = [node for node in self.world.nodes.values() if node.alive]
            if nodes:
                node = self._victim(nodes)
                states = self._states_at(node)
                if DATA_FAULTS[kind](node) if kind in DATA_FAULTS else _NODE_FAULTS[kind](self, node):
                    self.world.count_fault(kind, states)
        elif kind in MASTER_FAULTS:
            states = self.states_of_all()
            if _MASTER_FAULTS[kind](self):
                self.world.count_fault(kind, states)
        elif kind in CLIENT_FAULTS:
            states = self.states_of_all()
            if _CLIENT_FAULTS[kind](self):
                self.world.count_fault(kind, states)

    def _victim(self, nodes: list[SimulatedNode]) -> SimulatedNode:
        """Chooses a node. Rare, short states are preferred: nodes where tasks wait for cores, nodes with transfers, and nodes of a
        multi-node task that another node was told to start."""
        dice, workers = self.world.dice, self.world.journal.shadow.workers
        if self.scenario.data is not None and dice.random() < 0.5:
            state = dice.choice(TRANSFERS)
            nodes = [node for node in nodes if state in moving_at(node)] or nodes
        if self.scenario.wide and dice.random() < 0.4:
            multi_node_workers = self.world.journal.shadow.multi_node_workers
            beside = {worker.id for task, nodes in multi_node_workers.items() if task.state == RUNNING for worker in nodes[1:]}
            nodes = [node for node in nodes if node.worker in beside] or nodes
        crowded = [node for node in nodes if node.worker in workers and workers[node.worker].ahead]
        return dice.choice(crowded if crowded and dice.random() < 0.5 else nodes)

    # --- coverage -------------------------------------------------------------------------------------------------------------------

    def _states_at(self, node: SimulatedNode) -> list[str]:
        worker = self.world.journal.shadow.workers.get(node.worker)
        if worker is None:
            return ["unknown"]
        states = {TASK_STATES[task.state]: None for task in worker.active}
        if worker.ahead:
            states["ahead"] = None
        if node.machine.results.kept:
            states["finished"] = None
        return [*(list(states) or ["idle"]), *moving_at(node)]

    def states_of_all(self) -> list[str]:
        found: dict[str, None] = {}
        for run in self.world.journal.shadow.runs.values():
            for name, count in zip(TASK_STATES, run.counts, strict=True):
                if count:
                    found[name] = None
        moving = (state for node in self.world.nodes.values() if node.alive for state in moving_at(node))
        return [*(list(found) or ["none"]), *dict.fromkeys(moving)]

    # --- nodes ----------------------------------------------------------------------------------------------------------------------

    def _agent_kill(self, node: SimulatedNode) -> bool:
        node.kill_agent("was killed by signal 9")
        return True

    def _node_crash(self, node: SimulatedNode) -> bool:
        node.crash()
        return True

    def _hang(self, node: SimulatedNode) -> bool:
        node.hang(self.world.dice.uniform(0.1, 0.7) * self.scenario.settings.lease_s, frozen=self.world.dice.random() < 0.5)
        return True

    def _long_hang(self, node: SimulatedNode) -> bool:
        node.hang(self.world.dice.uniform(1.0, 4.0) * self.scenario.settings.lease_s, frozen=self.world.dice.random() < 0.5)
        return True

    def _endless_hang(self, node: SimulatedNode) -> bool:
        if node.worker not in self.world.journal.shadow.workers:
            return False
        node.hang(NEVER, frozen=True)
        return True

    def _slot_kill(self, node: SimulatedNode) -> bool:
        slots = list(node.slots.values())
        if not slots:
            return False
        self.world.dice.choice(slots).die(["slot-lost", "worker", "its slot was killed"], "failed")
        return True

    def _supervisor_kill(self, node: SimulatedNode) -> bool:
        if node.hung:
            return False
        node.tell("stop", "the supervisor is gone")
        return True

    def _eviction(self, node: SimulatedNode) -> bool:
        return self._evict(node, gently=True)

    def _preemption(self, node: SimulatedNode) -> bool:
        return self._evict(node, gently=False)

    def _evict(self, node: SimulatedNode, gently: bool) -> bool:
        """A site takes back all nodes of a pilot, or one of them."""
        together = self.world.sites.neighbours(node)
        for one in together if len(together) > 1 and self.world.dice.random() < 0.3 else [node]:
            one.evict(gently=gently)
        return True

    def _requeue(self, node: SimulatedNode) -> bool:
        """The site kills a pilot and starts it again: an agent with a known name and no memory."""
        return self.world.sites.requeue(node)

    def _slow_node(self, node: SimulatedNode) -> bool:
        node.slow_until = self.world.now + self.world.dice.uniform(5.0, 60.0)
        return True

    def _black_hole(self, node: SimulatedNode) -> bool:
        if node.site.name == "anchor":
            return False
        node.black_hole_until = self.world.now + self.world.dice.uniform(5.0, 60.0)
        return True

    def _link_reset(self, node: SimulatedNode) -> bool:
        if node.link is None:
            return False
        self.world.network.reset(node.link)
        node.troubled(self.world.now + 5.0)
        return True

    def _silent_cut(self, node: SimulatedNode) -> bool:
        if node.link is None:
            return False
        self.world.network.cut_silently(node.link)
        node.cut_off()
        return True

    def _partition(self, node: SimulatedNode) -> bool:
        seconds = self.world.dice.uniform(0.05, 0.7) * self.scenario.settings.lease_s
        node.block(to_master_s=seconds, to_peer_s=seconds)
        return True

    def _long_partition(self, node: SimulatedNode) -> bool:
        seconds = self.world.dice.uniform(1.0, 5.0) * self.scenario.settings.lease_s
        node.block(to_master_s=seconds, to_peer_s=seconds)
        return True

    def _one_way_out(self, node: SimulatedNode) -> bool:
        node.block(to_master_s=self.world.dice.uniform(0.05, 2.0) * self.scenario.settings.lease_s, to_peer_s=0.0)
        return True

    def _one_way_in(self, node: SimulatedNode) -> bool:
        node.block(to_master_s=0.0, to_peer_s=self.world.dice.uniform(0.05, 2.0) * self.scenario.settings.lease_s)
        return True

    def _clogged_link(self, node: SimulatedNode) -> bool:
        """One connection stalls while a new one works: its data may arrive after that of its successor."""
        if node.link is None:
            return False
        if self.world.dice.random() < 0.5:
            self.world.network.reset(node.link)
            node.clog_next_s = self.world.dice.uniform(0.8, 1.6) * self.scenario.settings.lease_s
            node.troubled(self.world.now + 5.0)
            return True
        until = self.world.now + self.world.dice.uniform(0.05, 2.0) * self.scenario.settings.lease_s
        for lane in (node.link.to_master, node.link.to_peer):
            if self.world.dice.random() < 0.7:
                self.world.network.clog(lane, until)
        node.troubled(until)
        return True

    def _swizzle(self, node: SimulatedNode) -> bool:
        """Cuts off all nodes one by one, then reconnects them in a random order. Each cut counts."""
        dice, lease_s = self.world.dice, self.scenario.settings.lease_s
        nodes = [other for other in self.world.nodes.values() if other.alive]
        for number, other in enumerate(nodes):
            seconds = dice.uniform(0.2, 2.0) * lease_s
            self.world.after(number * 0.2, self._cut_off, other, seconds)
        return False

    def _cut_off(self, node: SimulatedNode, seconds: float) -> None:
        if node.alive and not self.world.calm:
            self.world.count_fault("swizzle", self._states_at(node))
            node.block(to_master_s=seconds, to_peer_s=seconds)

    # --- the master -----------------------------------------------------------------------------------------------------------------

    def _master_kill(self) -> bool:
        if self.world.master is None:
            return False
        self.world.master.kill()
        return True

    def _doom(self, moment: str) -> bool:
        """Kills the master at a given step of the next turn, or of the next turn that records a rare fact. It counts when it happens."""
        master, dice = self.world.master, self.world.dice
        if master is not None:
            master.doom, master.doom_fact = moment, dice.choice(RARE_FACTS) if dice.random() < 0.6 else None
        return False

    def _master_kill_in_recovery(self) -> bool:
        """Kills the master, and its successors while they start."""
        if self.world.master is None:
            return False
        dice = self.world.dice
        self.world.recovery_dooms = [dice.choice(MOMENTS) for _ in range(dice.randint(1, 5))]
        self.world.master.kill()
        return True

    def _long_outage(self) -> bool:
        if self.world.master is None:
            return False
        self.world.next_outage_s = self.world.dice.uniform(10.0, 150.0)
        self.world.master.kill()
        return True

    def _zombie_master(self) -> bool:
        if self.world.master is None:
            return False
        self.world.usurp(self.world.dice.uniform(0.1, 2.0), self.world.dice.uniform(5.0, 60.0))
        return True

    def _master_stall(self) -> bool:
        return self._stall(self.world.dice.uniform(0.5, 1.5) * self.scenario.settings.beat_s)

    def _long_stall(self) -> bool:
        return self._stall(self.world.dice.uniform(0.5, 6.0) * self.scenario.settings.lease_s)

    def _stall(self, seconds: float) -> bool:
        if self.world.master is None:
            return False
        self.world.master.stall(seconds)
        self.world.master_troubled(self.world.now + seconds)
        return True

    def _disk_full(self) -> bool:
        if self.world.journal.full:
            return False
        self.world.journal.full = True
        seconds = self.world.dice.uniform(0.5, 40.0)
        self.world.after(seconds, self._disk_free)
        self.world.master_troubled(self.world.now + seconds + 1.0)
        return True

    def _disk_free(self) -> None:
        self.world.journal.full = False

    def _disk_low(self) -> bool:
        """The host reports that the disk is nearly full; the reserve still takes records."""
        if self.world.master is None or self.world.master.machine.journal_full:
            return False
        seconds = self.world.dice.uniform(0.5, 40.0)
        self.world.master.tell(i.JournalSpaceChanged(True))
        self.world.after(seconds, self._space_again)
        self.world.master_troubled(self.world.now + seconds)
        return True

    def _space_again(self) -> None:
        if self.world.master is not None:
            self.world.master.tell(i.JournalSpaceChanged(False))

    def _slow_disk(self) -> bool:
        self.world.slow_disk_until = self.world.now + self.world.dice.uniform(1.0, 20.0)
        self.world.master_troubled(self.world.slow_disk_until + 3.0)
        return True

    def _clock_jump(self) -> bool:
        """Sets the wall clock; this takes effect at the next start of the master."""
        self.world.wall_offset += self.world.dice.choice((-3600.0, 3600.0))
        return True

    # --- clients --------------------------------------------------------------------------------------------------------------------

    def _client_kill(self) -> bool:
        people = [person for person in self.world.people if not person.finished and not person.away]
        if not people:
            return False
        author_s = self.scenario.settings.author_s
        self.world.dice.choice(people).die(self.world.dice.choice((0.1, 1.0, 0.5 * author_s, 0.9 * author_s, 3 * author_s)))
        return True

    def _client_cut(self) -> bool:
        people = [person for person in self.world.people if person.link is not None]
        if not people:
            return False
        link = self.world.dice.choice(people).link
        assert link is not None
        self.world.network.reset(link)
        return True

    def _client_stall(self) -> bool:
        """A client stops reading for a while, and the host pauses its link."""
        master = self.world.master
        people = [person for person in self.world.people if person.link is not None and person.link.host is master]
        if master is None or not people:
            return False
        link = self.world.dice.choice(people).link
        assert link is not None
        if master.links.get(link.number) is not link:
            return False
        master.tell(i.LinkPaused(link.number, True))
        self.world.after(self.world.dice.uniform(0.1, 10.0), self._client_reads, link, master)
        return True

    def _client_reads(self, link: SimulatedLink, master: SimulatedMaster) -> None:
        if master.links.get(link.number) is link:
            master.tell(i.LinkPaused(link.number, False))


_NODE_FAULTS: dict[str, Callable[[FaultInjector, SimulatedNode], bool]] = {
    "agent-kill": FaultInjector._agent_kill,
    "node-crash": FaultInjector._node_crash,
    "hang": FaultInjector._hang,
    "long-hang": FaultInjector._long_hang,
    "endless-hang": FaultInjector._endless_hang,
    "slot-kill": FaultInjector._slot_kill,
    "supervisor-kill": FaultInjector._supervisor_kill,
    "eviction": FaultInjector._eviction,
    "preemption": FaultInjector._preemption,
    "requeue": FaultInjector._requeue,
    "slow-node": FaultInjector._slow_node,
    "black-hole": FaultInjector._black_hole,
    "link-reset": FaultInjector._link_reset,
    "silent-cut": FaultInjector._silent_cut,
    "partition": FaultInjector._partition,
    "long-partition": FaultInjector._long_partition,
    "one-way-out": FaultInjector._one_way_out,
    "one-way-in": FaultInjector._one_way_in,
    "clogged-link": FaultInjector._clogged_link,
    "swizzle": FaultInjector._swizzle,
}
_MASTER_FAULTS: dict[str, Callable[[FaultInjector], bool]] = {
    "master-kill": FaultInjector._master_kill,
    "master-kill-before-append": lambda faults: faults._doom(BEFORE_APPEND),
    "master-kill-before-sync": lambda faults: faults._doom(BEFORE_SYNC),
    "master-kill-after-sync": lambda faults: faults._doom(AFTER_SYNC),
    "master-kill-amid-effects": lambda faults: faults._doom(AMID_EFFECTS),
    "master-kill-in-recovery": FaultInjector._master_kill_in_recovery,
    "long-outage": FaultInjector._long_outage,
    "zombie-master": FaultInjector._zombie_master,
    "master-stall": FaultInjector._master_stall,
    "long-stall": FaultInjector._long_stall,
    "disk-full": FaultInjector._disk_full,
    "disk-low": FaultInjector._disk_low,
    "slow-disk": FaultInjector._slow_disk,
    "clock-jump": FaultInjector._clock_jump,
}
_CLIENT_FAULTS: dict[str, Callable[[FaultInjector], bool]] = {
    "client-kill": FaultInjector._client_kill,
    "client-cut": FaultInjector._client_cut,
    "client-stall": FaultInjector._client_stall,
}
