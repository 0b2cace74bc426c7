"""Runs the real agent machine on a simulated node. Supervisor, agent and slots may each die, hang or be cut off."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pilotfish.agent.node.agent_machine import DIAL_TIMEOUT_S, AgentMachine, WorkerOffer
from pilotfish.agent.node.attempts import Attempt
from tests.simulation.world.fault_scenario import ScenarioSite
from tests.simulation.world.simulated_fetcher import SimulatedFetcher
from tests.simulation.world.simulated_network import SimulatedLink
from tests.simulation.world.simulated_slot import SimulatedSlot
from tests.simulation.world.wire_codec import Frame, read_to_agent, write_from_agent

if TYPE_CHECKING:
    from tests.simulation.world.fault_world import FaultWorld

NEVER = float("inf")
GONE_TRIES = 5


class SimulatedNode:
    """One agent from start to end. ``frozen``: the slots are stopped as well, not only the agent."""

    def __init__(self, world: FaultWorld, worker: str, pilot: str, site: ScenarioSite, cores: float) -> None:
        self.world = world
        self.worker = worker
        before = world.nodes.get(worker)
        self.life: int = before.life + 1 if before is not None else 0
        self.pilot = pilot
        self.site = site
        self.alive = True
        self.left_well = False
        self.hung_until = 0.0
        self.frozen = False
        self.slow_until = 0.0
        self.black_hole_until = NEVER if site.black_hole else 0.0
        self.blocked_to_master_until = 0.0
        self.blocked_to_peer_until = 0.0
        self.trouble_until = world.now if self.life else 0.0
        """Time until which a fault, other than one of the master, kept this agent's messages from arriving."""
        self.clog_next_s = 0.0
        """Seconds for which the next connection is clogged right after it was made."""
        self.link: SimulatedLink | None = None
        self.linked_at = 0.0
        self.slots: dict[int, SimulatedSlot] = {}
        self.dead_slots: dict[int, None] = {}
        offer = WorkerOffer(worker, pilot, {"cores": cores, "memory": float(site.memory)})
        offer.tags = dict(site.tags)
        offer.poll_s = site.poll_s
        if site.walltime_s:
            offer.ends_at = world.now + site.walltime_s
        self.capacity = offer.capacity
        self.machine = AgentMachine(offer, world.dice.randrange(1 << 30), world.now)
        self.fetcher = SimulatedFetcher(self)
        self._pending: deque[tuple[SimulatedLink | None, str, tuple[Any, ...]]] = deque()
        self._catching_up = False
        self._wake_at = NEVER
        self.woken_at = -1.0
        self.woken = 0
        self.turn()

    @property
    def hung(self) -> bool:
        return self.hung_until > self.world.now

    # --- the agent's turns ----------------------------------------------------------------------------------------------------------

    def tell(self, what: str, *arguments: Any, link: SimulatedLink | None = None) -> None:
        """Calls a method of the agent machine, now or when the agent is awake again."""
        if not self.alive:
            return
        if self.hung or self._catching_up:
            self._pending.append((link, what, arguments))
            return
        self._say(link, what, arguments)
        self.turn()

    def _say(self, link: SimulatedLink | None, what: str, arguments: tuple[Any, ...]) -> None:
        if link is not None and link is not self.link:
            return  # the agent has closed this link in the meantime
        if what == "unlinked":
            self.link = None
        self.world.oracle.custody.told(self, what, arguments)
        getattr(self.machine, what)(*arguments, self.world.now)

    def turn(self) -> None:
        for effect in self.machine.turn(self.world.now):
            _PERFORM[effect[0]](self, *effect[1:])
        self.world.oracle.custody.turned(self)
        deadline = self.machine.deadline
        if self.alive and deadline < NEVER and (deadline < self._wake_at or self._wake_at <= self.world.now):
            self._wake_at = max(deadline, self.world.now)
            self.world.at(self._wake_at, self._alarm)

    def _alarm(self) -> None:
        if not self.alive or self.world.now < self._wake_at:
            return
        self._wake_at = NEVER
        if not self.hung:
            self.turn()
            self.world.oracle.woke(self)

    # --- links ----------------------------------------------------------------------------------------------------------------------

    def proved(self, link: SimulatedLink, epoch: int) -> None:
        self.linked_at = self.world.now
        if self.clog_next_s:
            self.world.network.clog(link.to_master, self.world.now + self.clog_next_s)
            self.troubled(self.world.now + self.clog_next_s)
            self.clog_next_s = 0.0
        self.tell("linked", epoch, link=link)

    def link_heard(self, link: SimulatedLink, item: Frame) -> None:
        header, body = read_to_agent(item)
        self.tell("received", header, body, link=link)

    def link_closed(self, link: SimulatedLink) -> None:
        self.tell("unlinked", link=link)

    # --- effects of the agent's machine ---------------------------------------------------------------------------------------------

    def _dial(self) -> None:
        self.link = self.world.network.dial(self, "agent")

    def _disconnect(self, reason: str) -> None:
        if self.link is not None:
            self.world.network.hang_up_peer(self.link)
            self.link = None

    def _send(self, header: list[Any], parts: list[Any]) -> None:
        if self.link is not None:
            self.world.network.send_to_master(self.link, write_from_agent(header, parts))

    def _start(self, slot: int, attempts: list[Attempt]) -> None:
        self.world.oracle.custody.given_out(self)
        if slot in self.dead_slots:
            return  # the agent does not know yet that this slot died; these attempts never started
        if slot not in self.slots:
            self.slots[slot] = SimulatedSlot(self, slot)
        self.slots[slot].give(attempts)

    def _recall(self, slot: int) -> None:
        self.world.after(0.001 * self.world.dice.random(), self._recalled, slot)

    def _recalled(self, slot: int) -> None:
        held = self.slots.get(slot)
        if self.alive and held is not None:
            self.tell("slot_returned", slot, held.recall())

    def _terminate(self, slot: int) -> None:
        if slot in self.slots:
            self.slots[slot].terminate()

    def _kill_slot(self, slot: int) -> None:
        """Kills a slot: over a limit, which is reported, or not needed any more, which is not."""
        if slot in self.dead_slots:
            return
        over_limit = self.machine.attempts.slots[slot].stop_failure is not None
        self.slots[slot].die(["killed", "worker", "stopped with force"], "failed" if over_limit else "killed")

    def _peek(self, query: int, slot: int, stream: int, offset: int) -> None:
        self._send(["peeked", query, True, offset], [b"output" * 50])

    def _exit(self, reason: str, code: int) -> None:
        """The agent ends by itself; its supervisor follows."""
        self.left_well = code == 0
        self.world.oracle.custody.left(self, reason)
        if self.link is not None:
            self.world.network.hang_up_peer(self.link)
        self._end("left")
        self.world.sites.node_ended(self, well=code == 0, reason=reason)

    # --- ends -----------------------------------------------------------------------------------------------------------------------

    def _end(self, outcome: str, noticed: bool = True) -> None:
        self.alive = False
        self.link = None
        for slot in self.slots.values():
            slot.vanish(outcome)
        self.slots.clear()
        self.world.library.leave_disk(self.site, self.fetcher.disk)
        self.world.node_gone(self, noticed)

    def kill_agent(self, reason: str) -> None:
        """Simulates kill -9 of the agent: its slots die with it, and the supervisor reports it."""
        if not self.alive:
            return
        if self.link is not None:
            self.world.network.end_at_peer(self.link)
        self._end("died")
        self.world.after(0.03, DeathNotice(self, reason).send)

    def crash(self) -> None:
        """The node loses power: nothing is reported; its site notices some time later."""
        if not self.alive:
            return
        if self.link is not None:
            self.world.network.cut_silently(self.link)
        self._end("died", noticed=False)
        self.world.after(self.site.notice_s * self.world.dice.random(), self._noticed)

    def _noticed(self) -> None:
        self.world.sites.node_ended(self, well=False, reason="the node is gone")

    def evict(self, *, gently: bool) -> None:
        """The site takes the node back, with a SIGTERM that the agent can handle, or without."""
        if not self.alive:
            return
        if gently and not self.hung:
            self.tell("stop", "the site takes this node back")
            return
        self.vanish()
        self.world.sites.node_ended(self, well=False, reason="killed by its site")

    def vanish(self) -> None:
        """Everything on the node is killed at once, including the supervisor."""
        if self.link is not None:
            self.world.network.end_at_peer(self.link)
        self._end("evicted")

    def hang(self, seconds: float, *, frozen: bool) -> None:
        """Simulates SIGSTOP of the agent alone, or of everything on the node."""
        self.frozen = frozen
        self.hung_until = max(self.hung_until, self.world.now + seconds)
        self.troubled(self.hung_until)
        if self.link is not None and self.link.to_peer.dead:
            self.cut_off()
        if seconds < NEVER:
            self.world.at(self.hung_until, self._go_on)

    def _go_on(self) -> None:
        if not self.alive or self.hung:
            return
        self.frozen = False
        self._catching_up = True
        if self.world.dice.random() < 0.5:
            self.turn()
        while self._pending and self.alive:
            self._say(*self._pending.popleft())
        self._catching_up = False
        if self.alive:
            self.turn()

    def block(self, *, to_master_s: float, to_peer_s: float) -> None:
        """Simulates a partition: no data passes in these directions until it ends, on the present link and on new ones."""
        now, network = self.world.now, self.world.network
        self.blocked_to_master_until = max(self.blocked_to_master_until, now + to_master_s)
        self.blocked_to_peer_until = max(self.blocked_to_peer_until, now + to_peer_s)
        if self.link is not None:
            network.clog(self.link.to_master, self.blocked_to_master_until)
            network.clog(self.link.to_peer, self.blocked_to_peer_until)
        self.troubled(max(self.blocked_to_master_until, self.blocked_to_peer_until))

    def cut_off(self) -> None:
        """The link was cut without notice. The agent detects it by silence; only time in which the agent was awake counts."""
        self.troubled(max(self.world.now, self.hung_until) + max(DIAL_TIMEOUT_S, 4 * self.world.scenario.settings.beat_s))

    def troubled(self, until: float) -> None:
        self.trouble_until = max(self.trouble_until, until)


class DeathNotice:
    """The supervisor's report to the master when its agent died."""

    def __init__(self, node: SimulatedNode, reason: str) -> None:
        self.node = node
        self.reason = reason
        self.tries = 0
        self.blocked_to_master_until = node.blocked_to_master_until
        self.blocked_to_peer_until = node.blocked_to_peer_until

    def send(self) -> None:
        self.tries += 1
        self.node.world.network.dial(self, "agent")

    def proved(self, link: SimulatedLink, epoch: int) -> None:
        network = self.node.world.network
        network.send_to_master(link, write_from_agent(["gone", self.node.worker, self.reason], []))
        network.hang_up_peer(link)
        self._end()

    def link_heard(self, link: SimulatedLink, item: Any) -> None:
        return

    def link_closed(self, link: SimulatedLink) -> None:
        if self.tries < GONE_TRIES:
            self.node.world.after(0.5 * self.tries, self.send)
        else:
            self._end()

    def _end(self) -> None:
        self.node.world.sites.node_ended(self.node, well=False, reason=self.reason)


def _fetcher_effect(kind: str) -> Callable[..., None]:
    return lambda node, *arguments: getattr(node.fetcher, kind)(*arguments)


_PERFORM: dict[str, Any] = {
    "dial": SimulatedNode._dial,
    "disconnect": SimulatedNode._disconnect,
    "send": SimulatedNode._send,
    "start": SimulatedNode._start,
    "recall": SimulatedNode._recall,
    "terminate": SimulatedNode._terminate,
    "kill": SimulatedNode._kill_slot,
    "peek": SimulatedNode._peek,
    "exit": SimulatedNode._exit,
    **{kind: _fetcher_effect(kind) for kind in ("fetch", "cancel_fetch", "upload", "cancel_upload", "discard", "release")},
    **dict.fromkeys(("introduce", "delegate", "drop_delegated", "report_free"), lambda *_: None),
}
