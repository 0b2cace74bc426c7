"""Tests distributed matching with the real core, agent machines and site matching: whatever messages are lost, all workers get tasks.

Connections to the master are cut, it is restarted, assignments are sent twice, agents lose contact with their site master, and that
changes; then the faults end. Every worker must get tasks, from the master or its site master.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish.agent.node.agent_machine import WELCOMED, AgentMachine, WorkerOffer
from pilotfish.agent.node.attempts import Attempt
from pilotfish.agent.peers.site_matching import IDLE_ROUND_S
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.settings import PoolSettings
from pilotfish.model.task import TaskSpec
from tests.simulation.world.wire_codec import read_from_agent, write_from_agent
from tests.support.machine_stage import Stage
from tests.support.site_matching_stage import Agent, Row, Site

LONG_S = 1e6
"""No worker is lost for silence: these tests are about lost messages."""
AWAY_S = 60.0
"""Longer than agents wait before they dial again."""


class Node:
    """An agent with one core: its machine and its site matching. ``link``: its connection to the master, if any."""

    def __init__(self, pool: Pool, agent: Agent) -> None:
        self.pool = pool
        self.agent = agent
        self.link: int | None = None
        self.running: dict[int, list[Attempt]] = {}
        self.began: list[int] = []
        offer = WorkerOffer(agent.name, "", {"cores": 1.0})
        offer.info["peer"] = agent.me.wire
        self.machine = AgentMachine(offer, agent.me.node, pool.site.now)

    def turn(self) -> None:
        for effect in self.machine.turn(self.pool.site.now):
            getattr(self, f"_{effect[0]}", lambda *_: None)(*effect[1:])

    def _later(self, act: Callable[[], None]) -> None:
        """Peer messages of the machine go through another thread."""
        self.pool.site.later(self.agent, self.agent, act)

    def _dial(self) -> None:
        self.link = self.pool.next_link()
        self.machine.linked(self.pool.stage.machine.state.epoch, self.pool.site.now)
        self.turn()

    def _send(self, header: Row, parts: list[Any]) -> None:
        if self.link is not None:
            self.pool.hear(self.link, *read_from_agent(write_from_agent(header, parts)))

    def _start(self, slot: int, attempts: list[Attempt]) -> None:
        self.running.setdefault(slot, []).extend(attempts)
        self.began += [attempt.task for attempt in attempts]

    def _kill(self, slot: int) -> None:
        del self.running[slot]
        self.machine.slot_died(slot, 1, ["slot-lost", "worker", ""], (0, 0, 0), self.pool.site.now)

    def _recall(self, slot: int) -> None:
        self.machine.slot_returned(slot, 0, self.pool.site.now)

    _terminate = _kill

    def _introduce(self, header: Row, body: Any) -> None:
        self._later(self.agent.matching.connected)

    def _delegate(self, header: Row, body: Any) -> None:
        self._later(lambda: self.agent.matching.delegated(header, bytes(body), self.pool.site.now))

    def _drop_delegated(self, items: list[Row], back: bool) -> None:
        self._later(lambda: self.agent.matching.dropped(items, back))

    def _report_free(self, free: dict[str, float]) -> None:
        self._later(lambda: self.agent.matching.free_changed(free, self.pool.site.now))

    def heard(self, link: int, header: Row, body: bytes) -> None:
        if link == self.link:
            self.machine.received(header, body, self.pool.site.now)
            self.turn()

    def cut(self) -> None:
        if self.link is not None:
            self.link = None
            self.machine.unlinked(self.pool.site.now)
            self._later(self.agent.matching.disconnected)

    def end_all(self) -> None:
        for slot, attempts in list(self.running.items()):
            del self.running[slot]
            self.machine.slot_finished(slot, [(None, 1, 1, 1, b"")] * len(attempts), self.pool.site.now)
        self.turn()


class Pool:
    """Messages of the master to an agent are late, in order; those of agents arrive at once, or never."""

    def __init__(self, agents: int, dice: Random) -> None:
        patient = PoolSettings(matching="distributed", lease_s=LONG_S, beat_s=LONG_S, orphan_s=LONG_S, linger_s=LONG_S)
        self.stage = Stage(patient)
        self.site = Site(*[1.0] * agents, random=dice)
        self.site._send = self._say  # type: ignore[method-assign]
        self.site._receive = self._receive  # type: ignore[method-assign]
        self.assignments: list[tuple[Agent, Agent, Row]] = []
        """(sender, receiver, assignment): one whose receipt was lost is sent again."""
        self.dice = dice
        self.links = 0
        self.nodes = {agent.me.node: Node(self, agent) for agent in self.site.living()}
        for node in self.nodes.values():
            node.agent.matching.linked, node.agent.matching.free = False, {}

    def next_link(self) -> int:
        self.links += 1
        return self.links

    def _say(self, agent: Agent, header: Row) -> None:
        node = self.nodes[agent.me.node]
        node.machine.send_to_master(header, self.site.now)
        node.turn()

    def _receive(self, giver: Agent, to: Agent, header: Row) -> None:
        node = self.nodes[to.me.node]
        self.assignments.append((giver, to, header))
        to.matching.assignment_received(giver.me, header, self.site.now)
        node._later(lambda: self._assigned(node, header))

    def _assigned(self, node: Node, header: Row) -> None:
        node.machine.assigned_by_peer(header, b"x" * len(header[2]), self.site.now)
        node.turn()

    def hear(self, link: int, message: Any, payloads: list[bytes]) -> None:
        self.perform(self.stage.tell(i.AgentMessage(link, message, list(payloads))))

    def perform(self, effects: list[e.Effect]) -> None:
        """As the real master does: first what is to be sent, then all else."""
        by_link = {node.link: node for node in self.nodes.values()}
        for effect in sorted(effects, key=lambda effect: not isinstance(effect, e.Send)):
            header: Row = []
            body = b""
            if isinstance(effect, e.Send):
                header = json.loads(m.encode(effect.message))
                body = b"".join(payload for payload in effect.payloads if isinstance(payload, bytes))
            elif isinstance(effect, e.IntroducePeer):
                header = ["introduce"]
            node = by_link.get(effect.link) if isinstance(effect, e.Send | e.IntroducePeer) else None
            if node is not None and node.link is not None:
                arrive = lambda node=node, link=node.link, header=header, body=body: node.heard(link, header, body)  # noqa: E731
                self.site.later(node.agent, node.agent, arrive)

    # --- faults -----------------------------------------------------------------------------------------------------------------------

    def cut(self, node: Node) -> None:
        link = node.link
        node.cut()
        if link is not None:
            self.perform(self.stage.tell(i.LinkClosed(link)))

    def restart(self) -> None:
        for node in self.nodes.values():
            node.cut()
        self.stage.restart()

    def redial(self) -> None:
        for node in self.dice.sample(list(self.nodes.values()), len(self.nodes)):
            node.turn()

    def lose_sight(self, node: Node, other: Node) -> None:
        node.agent.matching.unreachable(other.agent.me.node)
        self.site.step(node.agent)

    def give_again(self) -> None:
        if self.assignments:
            self._receive(*self.dice.choice(self.assignments))

    def submit(self, count: int) -> None:
        run = self.stage.open_run(f"run{self.stage.machine.state.next_run}")
        self.perform(self.stage.effects)  # a message of the master on an open connection is never lost
        self.stage.submit(run, TaskSpec("python"), count)
        self.perform(self.stage.effects)

    def settle(self, seconds: float) -> None:
        """Deliver all messages, let time pass, and reconnect all agents."""
        self.site.settle(seconds)
        self.redial()
        self.site.settle()
        assert all(node.machine.link == WELCOMED for node in self.nodes.values())


def trouble(pool: Pool, dice: Random) -> None:
    act = dice.random()
    node, other = dice.choice(list(pool.nodes.values())), dice.choice(list(pool.nodes.values()))
    if act < 0.1:
        pool.cut(node)
    elif act < 0.13:
        pool.restart()
    elif act < 0.2:
        pool.lose_sight(node, other)
    elif act < 0.22:
        pool.give_again()
    elif act < 0.27:
        pool.submit(dice.randrange(1, 4))
    elif act < 0.4:
        node.end_all()
    elif act < 0.5:
        pool.site.settle(dice.random() * IDLE_ROUND_S / 2)
    elif act < 0.6:
        pool.site.now += dice.random() * AWAY_S / 10
        pool.redial()
    else:
        pool.site.happen()


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 4), st.integers(0, 2**32))
def test_without_faults_every_worker_gets_tasks(agents: int, seed: int) -> None:
    dice = Random(seed)
    pool = Pool(agents, dice)
    pool.redial()
    term = 1
    pool.site.appoint(dice.randrange(1, agents + 1), term)
    for _ in range(80):
        if dice.random() < 0.05:
            term += 1
            pool.site.appoint(dice.randrange(1, agents + 1), term)
        trouble(pool, dice)
    for _ in range(4):
        pool.settle(AWAY_S)
        for node in pool.nodes.values():
            node.end_all()
    served: set[str] = set()
    for _ in range(10):
        for node in pool.nodes.values():
            node.began.clear()
        pool.submit(2 * agents)
        for _ in range(4):
            pool.settle(IDLE_ROUND_S)
            for node in pool.nodes.values():
                node.end_all()
        served |= {node.agent.name for node in pool.nodes.values() if node.began}
    assert served == {node.agent.name for node in pool.nodes.values()}, "nobody gives work to the others"
