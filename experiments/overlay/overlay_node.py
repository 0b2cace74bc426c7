"""Runs the real agent machine and site member, with one slot, a cache and a network card."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from experiments.overlay.overlay_client import file_of
from pilotfish.agent.node.agent_machine import AgentMachine, WorkerOffer
from pilotfish.agent.node.attempts import Attempt
from pilotfish.agent.node.peer_handshake import node_id
from pilotfish.agent.node.peer_network import valid_contacts
from pilotfish.agent.peers.contacts import Contact
from pilotfish.agent.peers.peer import Peer
from pilotfish.agent.peers.site_matching import SiteMatching
from pilotfish.portable.expressions.worker_properties import worker_properties
from tests.simulation.world.wire_codec import Frame, read_to_agent, write_from_agent

if TYPE_CHECKING:
    from experiments.overlay.overlay_world import OverlayWorld

NEVER = float("inf")
MATCHING = ("room", "gathered")
"""Messages after which a site master may have to match tasks."""


class SlotIdle:
    """End of the last job of a slot, and whether other jobs were ready then."""

    __slots__ = ("at", "given_at", "others_ready")

    def __init__(self, at: float, others_ready: bool) -> None:
        self.at = at
        self.given_at = at
        self.others_ready = others_ready


class OverlayNode:
    def __init__(self, world: OverlayWorld, worker: str, site: str, link: int) -> None:
        self.world = world
        self.worker = worker
        self.site = site
        self.link = link
        self.me = Contact(node_id(worker), [worker, 1])
        offer = WorkerOffer(worker, worker, {"cores": 1.0})
        if world.plan.has_table:
            offer.info["peer"] = self.me.wire
        self.machine = AgentMachine(offer, link, world.now)
        self.member: Peer | None = None
        self.cache: dict[str, int] = {}
        self.delays: list[tuple[float, float]] = []
        """Seconds from the end of a job to the start of the next, and the part until the next job was known here. Only while other jobs
        were ready."""
        self.reads_here = self.reads_of_peers = self.reads_of_storage = 0
        self.member_s = 0.0
        """Seconds of work of the site member."""
        self.peer_messages = 0
        self._free_at = 0.0
        """Time at which the network card has sent everything queued."""
        self._said_at = 0.0
        """Time at which the site member has handled everything received."""
        self._ended: SlotIdle | None = None
        self._answers: list[tuple[str, int, list[Contact]]] = []
        """Searches for holders that ended in this turn: digest, size and holders."""
        self._machine_at = self._member_at = NEVER

    # --- the agent's machine ----------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        now = self.world.now
        for effect in self.machine.turn(now):
            getattr(self, "_" + effect[0])(*effect[1:])
        deadline = self.machine.deadline
        if deadline < NEVER and (deadline < self._machine_at or self._machine_at <= now):
            self._machine_at = max(deadline, now)
            self.world.at(self._machine_at, self._machine_alarm)

    def _machine_alarm(self) -> None:
        if self.world.now >= self._machine_at:
            self._machine_at = NEVER
            self.turn()

    def heard_master(self, frame: Frame) -> None:
        header, body = read_to_agent(frame)
        if header[0] == "assign":
            self._assigned()
        self.machine.received(header, body, self.world.now)
        self.turn()

    def _assigned(self) -> None:
        if self._ended is not None:
            self._ended.given_at = self.world.now

    def _dial(self) -> None:
        self.world.after(4 * self.world.around.wan_s, self._linked)

    def _linked(self) -> None:
        self.machine.linked(self.world.master.machine.state.epoch, self.world.now)
        self.turn()

    def _send(self, header: list[Any], parts: list[Any]) -> None:
        kind = "started" if header[0] == "beat" and header[1] else header[0]
        self.world.after(self.world.around.wan_s, self.world.master.heard_agent, self.link, kind, write_from_agent(header, parts))

    def _disconnect(self, reason: str) -> None:
        raise RuntimeError(f"{self.worker} hangs up: {reason}")

    def _exit(self, reason: str, code: int) -> None:
        raise RuntimeError(f"{self.worker} ends: {reason}")

    # --- jobs -------------------------------------------------------------------------------------------------------------------------

    def _start(self, slot: int, attempts: list[Attempt]) -> None:
        world = self.world
        (attempt,) = attempts
        job = int(bytes(attempt.payload))
        begins_at = world.now + world.around.start_s
        ended, self._ended = self._ended, None
        if ended is not None and ended.others_ready:
            self.delays.append((begins_at - ended.at, ended.given_at - ended.at))
        world.idle -= 1
        world.client.ready[world.client.site_of(job)] -= 1
        seconds = world.client.seconds(job)
        world.at(begins_at + seconds, self._finished, slot, job, seconds)

    def _finished(self, slot: int, job: int, seconds: float) -> None:
        world = self.world
        ready = world.client.ready
        self._ended = SlotIdle(world.now, ready[""] + ready[self.site] > world.idle)
        world.idle += 1
        payload = f"{file_of(job)} {self.site}".encode()
        self.machine.slot_finished(slot, [(None, int(seconds * 1e6), int(seconds * 1e6), 1000, payload, True)], world.now)
        self.turn()

    # --- files ------------------------------------------------------------------------------------------------------------------------

    def _upload(self, number: int, payload: Any) -> None:
        size = self.world.around.file_bytes
        self.world.after(size / self.world.around.disk_rate, self._uploaded, number, payload, size)

    def _uploaded(self, number: int, payload: Any, size: int) -> None:
        digest = payload.decode().split()[0]
        self._has(digest, size)
        self.machine.uploaded(number, None, payload, [[digest, size, False, True, "", 0]], self.world.now)
        self.turn()

    def _has(self, digest: str, size: int) -> None:
        self.cache[digest] = size
        if self.member is not None:
            self.member.kademlia.publish(int(digest, 16), self.world.now)
            self._member_turn()

    def _fetch(self, content: list[Any]) -> None:
        digest, size = content[:2]
        if digest in self.cache:
            self.reads_here += 1
            self.world.after(0.0, self._fetched, digest, size)
        elif self.member is not None:
            self.member.kademlia.find_holders(
                int(digest, 16), lambda contacts, at: self._answers.append((digest, size, contacts)), self.world.now
            )
            self._member_turn()
        else:
            self._read_storage(digest, size)

    def _cancel_fetch(self, digest: str) -> None:
        """The transfer continues; the file is cached when it arrives."""

    def _cancel_upload(self, number: int) -> None:
        """The upload continues; the file is stored."""

    def _holders(self, digest: str, size: int, contacts: list[Contact]) -> None:
        having = [node for node in (self.world.nodes[contact.node] for contact in contacts) if digest in node.cache]
        if not having:
            self._read_storage(digest, size)
            return
        self.reads_of_peers += 1
        done_at = having[0].sent_at(size) + 3 * self.world.around.lan_s
        self.world.at(done_at, self._fetched, digest, size)

    def sent_at(self, size: int) -> float:
        self._free_at = max(self._free_at, self.world.now) + size / self.world.around.peer_rate
        return self._free_at

    def _read_storage(self, digest: str, size: int) -> None:
        self.reads_of_storage += 1
        self.world.at(self.world.storages[self.site].done_at(size, self.world.now), self._fetched, digest, size)

    def _fetched(self, digest: str, size: int) -> None:
        if digest not in self.cache:
            self._has(digest, size)
        self.machine.fetched(digest, self.world.now)
        self.turn()

    # --- site member ------------------------------------------------------------------------------------------------------------------

    def _introduce(self, header: list[Any], body: Any) -> None:
        now = self.world.now
        if self.member is None:
            offer = self.machine.offer
            properties = worker_properties(self.worker, header[1], offer.capacity, offer.tags, offer.info)
            matching = SiteMatching(self.me, self.worker, properties, self.machine.staging.holds, offer.capacity)
            self.member = Peer(matching, self.link, now, self.world.plan.tuning)
        contacts, term, master = header[5:8]
        self.member.kademlia.bootstrap(list(valid_contacts(contacts)), now)
        self.member.matching.connected()
        for contact in valid_contacts([master] if master else []):
            self.member.election.consider_claim(term, contact, now)
        self._member_turn()

    def _delegate(self, header: list[Any], body: Any) -> None:
        assert self.member is not None
        self.member.matching.delegated(header, bytes(body), self.world.now)
        self._member_turn()

    def _drop_delegated(self, items: list[list[int]], back: bool) -> None:
        if self.member is not None:
            self.member.matching.dropped(items, back)
            self._member_turn()

    def _report_free(self, free: dict[str, float]) -> None:
        assert self.member is not None
        self.member.matching.free_changed(free, self.world.now)
        self._member_turn()

    def heard_peer(self, sender: Contact, header: Any, body: bytes) -> None:
        if self.member is None:
            return
        self.peer_messages += 1
        measured = header[0] in MATCHING and self.member.matching.is_site_master and not self.world.around.message_s
        if measured:
            self.world.stopwatch.begin()
        self.member.received(sender, header, self.world.now, body)
        self._member_turn(measured)

    def _member_turn(self, measured: bool = False) -> None:
        """Runs one turn of the site member. ``measured``: a site master decides and others wait for it, so its time counts."""
        member, world = self.member, self.world
        assert member is not None
        now = world.now
        effects = member.turn(now)
        deadline = member.deadline
        if measured:
            seconds = world.stopwatch.end() * world.around.member_factor
            self.member_s += seconds
            self._said_at = max(self._said_at, now) + seconds
        elif self._said_at < now:
            self._said_at = now
        self._perform_member(effects)
        if deadline < NEVER and (deadline < self._member_at or self._member_at <= now):
            self._member_at = max(deadline, now)
            world.at(self._member_at, self._member_alarm)

    def _member_alarm(self) -> None:
        if self.world.now >= self._member_at:
            self._member_at = NEVER
            self._member_turn()

    def _perform_member(self, effects: list[Any]) -> None:
        world = self.world
        arrives_at = self._said_at + world.around.lan_s
        for effect in effects:
            kind = effect[0]
            if kind == "send_to_peer":
                header = json.loads(json.dumps(effect[2])) if world.plan.through_json else effect[2]
                body = b"".join(effect[3]) if effect[3] else b""
                world.at(arrives_at, world.nodes[effect[1].node].heard_peer, self.me, header, body)
            elif kind == "assigned":
                world.at(self._said_at, self._take_assigned, effect[1], effect[2])
            elif kind == "send":
                world.at(self._said_at, self._say, effect[1])
            elif kind == "alive":
                self.machine.link_active(world.now)
        for answer in self._answers:
            world.at(self._said_at, self._holders, *answer)
        self._answers = []

    def _take_assigned(self, header: Any, body: Any) -> None:
        self._assigned()
        self.machine.assigned_by_peer(header, body, self.world.now)
        self.turn()

    def _say(self, header: Any) -> None:
        self.machine.send_to_master(header, self.world.now)
        self.turn()
