"""Runs one life of a master: the host around one Machine. Facts are written and synced before effects leave, as in the live host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pilotfish import plugins
from pilotfish.core.machine import Machine, Turn
from pilotfish.core.state import State
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.facts import TurnRecord, encode_record
from pilotfish.model.task import Payload
from tests.simulation.world.simulated_network import CLOSED, DIAL, SimulatedLink
from tests.simulation.world.wire_codec import read_from_agent, read_from_client, write_to_agent, write_to_client

if TYPE_CHECKING:
    from tests.simulation.world.fault_world import FaultWorld

NEVER = float("inf")
RETRY_FULL_S = 1.0

BEFORE_APPEND, BEFORE_SYNC, AFTER_SYNC, AMID_EFFECTS = "before-append", "before-sync", "after-sync", "amid-effects"
MOMENTS = (BEFORE_APPEND, BEFORE_SYNC, AFTER_SYNC, AMID_EFFECTS)


class SimulatedMaster:
    """A master process. ``usurped``: another master has taken the pool, and records of this one are discarded. ``doom``: step of a turn
    at which it is killed; ``doom_fact``: only in a turn that records such a fact."""

    def __init__(self, world: FaultWorld, state: State, *, doom: str = "", doom_fact: type | None = None) -> None:
        self.world = world
        self.alive = True
        self.usurped = False
        self.doom = doom
        self.doom_fact = doom_fact
        self.machine = Machine(state, world.policy(), world.provisioner(), world.scenario.settings, plugins.traits)
        self.machine.ended_per_message = world.scenario.items_per_message
        self.links: dict[int, SimulatedLink] = {}
        self.inbox: list[i.Input] = []
        self.backlog: list[tuple[SimulatedLink | None, Any]] = []
        self.stalled_until = 0.0
        self.waiting_for_disk = False
        self.idle_turns = 0
        """Turns at one moment without input and output."""
        self._clock_offset = max(world.now + world.wall_offset, state.at) - world.now
        self._turn_due = False
        self._last_turn_at = -1.0
        self._wake_at = NEVER
        self._next_link = 1

    def start(self) -> None:
        self._commit(self.machine.start(self.clock()))

    def clock(self) -> float:
        return self.world.now + self._clock_offset

    @property
    def blocked(self) -> bool:
        return self.waiting_for_disk or self.stalled_until > self.world.now

    # --- input and faults -------------------------------------------------------------------------------------------------------------

    def arrive(self, link: SimulatedLink, item: Any) -> None:
        """Receives data from a link. While the process sleeps or waits for its disk, data stays in the system's buffers."""
        if self.alive:
            if self.blocked:
                self.backlog.append((link, item))
            else:
                self._take(link, item)

    def tell(self, item: i.Input) -> None:
        if self.alive:
            if self.blocked:
                self.backlog.append((None, item))
            else:
                self.inbox.append(item)
                self._soon()

    def stall(self, seconds: float) -> None:
        """The whole process sleeps: a suspended laptop, swapping, or a hanging file system."""
        self.stalled_until = max(self.stalled_until, self.world.now + seconds)
        self.world.at(self.stalled_until, self._wake_up)

    def kill(self) -> None:
        """Simulates kill -9. Unsynced records may be lost."""
        if not self.alive:
            return
        self.alive = False
        for link in self.all_links():
            self.world.network.end_at_master(link)
        self.world.master_died(self)

    def all_links(self) -> list[SimulatedLink]:
        """Returns accepted links and those that wait to be accepted."""
        return [*self.links.values(), *(link for link, item in self.backlog if item is DIAL and link is not None)]

    # --- turns ------------------------------------------------------------------------------------------------------------------------

    def _take(self, link: SimulatedLink, item: Any) -> None:
        if item is DIAL:
            self._accept(link)
            return
        if item is CLOSED:
            if link.open_at_master:
                link.open_at_master = False
                if self.links.pop(link.number, None) is not None:
                    self.inbox.append(i.LinkClosed(link.number))
                    self._soon()
            return
        if not link.open_at_master:
            return
        if link.role == "client":
            client_message, parts = read_from_client(item)
            self.inbox.append(i.ClientMessage(link.number, client_message, [self._keep(part) for part in parts]))
        else:
            agent_message, parts = read_from_agent(item)
            self.inbox.append(i.AgentMessage(link.number, agent_message, [self._keep(part) for part in parts]))
        self._soon()

    def _accept(self, link: SimulatedLink) -> None:
        link.number = self._next_link
        self._next_link += 1
        self.links[link.number] = link
        self.world.network.send_to_peer(link, self.machine.state.epoch)

    def _keep(self, part: bytes) -> Payload:
        return part if self.usurped or len(part) <= self.world.scenario.inline_bytes else self.world.payloads.put(part)

    def _soon(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self.world.after(self.world.scenario.batch_s * self.world.dice.random(), self._turn)

    def _wake_up(self) -> None:
        """Continues after sleep. Timers may expire before sockets are read."""
        if not self.alive or self.blocked:
            return
        self.idle_turns = 0  # many sleeps may end at one moment; this is not a busy loop
        if self.backlog and self.world.dice.random() < 0.5:
            self._run_turn([])
        self._drain_backlog()
        self._turn()

    def _drain_backlog(self) -> None:
        if not self.alive or self.blocked:
            return
        backlog, self.backlog = self.backlog, []
        for link, item in backlog:
            if link is not None:
                self._take(link, item)
            else:
                self.inbox.append(item)

    def _deadline_came(self) -> None:
        if self.world.now < self._wake_at:
            return
        self._wake_at = NEVER
        deadline = self.machine.deadline
        if deadline is not None and deadline <= self.clock():
            self._turn()
        else:
            self._set_alarm()

    def _turn(self) -> None:
        self._turn_due = False
        if self.alive and not self.blocked:
            inbox, self.inbox = self.inbox, []
            self._run_turn(inbox)

    def _run_turn(self, inbox: list[i.Input]) -> None:
        turn = self.machine.handle(inbox, self.clock())
        if inbox or turn.facts or turn.effects or self.world.now > self._last_turn_at + 0.001:
            self.idle_turns = 0
        else:
            self.idle_turns += 1
        self._last_turn_at = self.world.now
        self._commit(turn)

    # --- commit, then effects ---------------------------------------------------------------------------------------------------------

    def _commit(self, turn: Turn) -> None:
        if not self.usurped:
            self.world.oracle.handled(self)
        if not turn.facts or self.usurped:
            self._perform(turn)
            return
        if self._doomed(BEFORE_APPEND, turn):
            return
        self.waiting_for_disk = True
        self._write(turn)

    def _write(self, turn: Turn) -> None:
        if not self.alive:
            return
        if self.usurped:
            self._written(turn)
            return
        if self.world.journal.full:
            self.world.after(RETRY_FULL_S, self._write, turn)
            return
        self.world.journal.append(encode_record(TurnRecord(turn.at, turn.facts)))
        if not self._doomed(BEFORE_SYNC, turn):
            self.world.after(self.world.sync_s(), self._written, turn)

    def _written(self, turn: Turn) -> None:
        if not self.alive:
            return
        if self.stalled_until > self.world.now:
            self.world.at(self.stalled_until, self._written, turn)
            return
        if not self.usurped:
            self.world.journal.sync()
            self.world.oracle.compare(self)
        self.waiting_for_disk = False
        if self._doomed(AFTER_SYNC, turn):
            return
        self._perform(turn)
        if self.alive and not self.blocked:
            self._drain_backlog()
            if self.inbox:
                self._soon()

    def _doomed(self, moment: str, turn: Turn) -> bool:
        if not self._is_doomed(moment, turn):
            return False
        self.world.count_fault(f"master-kill-{moment}", self.world.faults.states_of_all())
        self.kill()
        return True

    def _is_doomed(self, moment: str, turn: Turn) -> bool:
        return self.doom == moment and (self.doom_fact is None or any(isinstance(fact, self.doom_fact) for fact in turn.facts))

    def _perform(self, turn: Turn) -> None:
        effects = turn.effects
        if effects and self._is_doomed(AMID_EFFECTS, turn):
            effects = effects[: self.world.dice.randint(0, len(effects))]
        for effect in effects:
            self._perform_one(effect)
            if not self.alive:
                return
        if turn.effects and self._doomed(AMID_EFFECTS, turn):
            return
        self._set_alarm()

    def _perform_one(self, effect: e.Effect) -> None:
        world = self.world
        if isinstance(effect, e.Send):
            link = self.links.get(effect.link)
            if link is not None:
                self._send(link, effect.message, effect.payloads)
        elif isinstance(effect, e.HangUp):
            link = self.links.pop(effect.link, None)
            if link is not None:
                world.network.hang_up_master(link)
                if world.scenario.tells_of_own_hang_up:
                    self.tell(i.LinkClosed(effect.link))
        elif self.usurped:
            return
        elif isinstance(effect, e.SubmitPilot):
            world.sites.submit(effect.pilot, effect.site, effect.size)
        elif isinstance(effect, e.AdoptPilot):
            world.sites.adopt(effect.pilot, effect.site, effect.size, effect.job)
        elif isinstance(effect, e.CancelPilot):
            world.sites.cancel(effect.pilot)
        elif isinstance(effect, e.ReleasePayload):
            world.payloads.release(effect.stored)
        elif isinstance(effect, e.ReleaseContent):
            world.library.home.pop(effect.digest, None)
        elif isinstance(effect, e.KeepPayload):
            world.payloads.keep(effect.stored)
        elif isinstance(effect, e.Finish):
            self.alive = False
            for link in self.all_links():
                world.network.hang_up_master(link)
            world.master_finished(self)

    def _send(self, link: SimulatedLink, message: m.Message, payloads: list[Payload]) -> None:
        if self.usurped and any(not isinstance(payload, bytes) for payload in payloads):
            return
        body = b"".join([self.world.payloads.get(payload) for payload in payloads])
        if link.role == "client":
            item = write_to_client(message, body, through_json=self.world.scenario.clients_speak_json)
        else:
            item = write_to_agent(message, body)
        self.world.network.send_to_peer(link, item)

    def _set_alarm(self) -> None:
        deadline = self.machine.deadline
        if deadline is None:
            return
        # One microsecond late, so that rounding never puts it before the deadline on the machine's clock.
        wake_at = max(self.world.now, deadline - self._clock_offset + 1e-6)
        if wake_at < self._wake_at or self._wake_at <= self.world.now:
            self._wake_at = wake_at
            self.world.at(wake_at, self._deadline_came)
