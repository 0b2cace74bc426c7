"""Simulates a site in memory for tests of SiteMatching: agents, ordered connections, and a clock that the test advances.

Each agent runs assigned tasks as far as its resources allow and queues the rest, as a real one does. Messages to the master are kept in
``sent``. Broadcasts reach all live agents; answers are combined when all of those have answered.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from pilotfish.agent.peers.contacts import Contact
from pilotfish.agent.peers.site_matching import SiteMatching

SPEC = 7
Row = list[Any]


def spec_row(number: int = SPEC, needs: dict[str, float] | None = None, **messages_of: Any) -> Row:
    """A SentSpec as on the wire, without code."""
    fields = {"requirement": "", "rank": "", "tags": {}, "time_s": 0.0, **messages_of}
    return [
        number,
        "python",
        fields["time_s"],
        needs or {"cores": 1.0},
        {},
        0,
        [],
        fields["requirement"],
        fields["rank"],
        fields["tags"],
    ]


def task_row(task: int, attempt: int = 1, spec: int = SPEC, contents: tuple[tuple[str, int], ...] = ()) -> Row:
    return [task, attempt, spec, 1, 0.0, 0, [[digest, size, "", 0, 0] for digest, size in contents]]


class Agent:
    """One worker. ``has``: assigned tasks that have not ended, oldest first; ``got``: all tasks ever assigned."""

    def __init__(self, site: Site, number: int, cores: float, properties: dict[str, Any], holds: tuple[str, ...]) -> None:
        self.site = site
        self.me = Contact(number, ["127.0.0.1", number])
        self.name = f"w{number}"
        self.cores = cores
        self.matching = SiteMatching(self.me, self.name, properties, dict.fromkeys(holds), {"cores": cores})
        self.has: dict[int, float] = {}
        self.got: list[tuple[int, int]] = []
        self.alive = True

    @property
    def free(self) -> float:
        """Free resources after all queued tasks have started."""
        return self.cores - sum(self.has.values())

    def take(self, header: Row) -> None:
        for task, attempt, spec, *_ in header[2]:
            if attempt <= self.latest(task):
                continue
            self.got.append((task, attempt))
            self.has[task] = self.site.needs[spec].get("cores", 0.0)

    def latest(self, task: int) -> int:
        """The latest attempt of this task; earlier ones that arrive late are ignored."""
        return max((attempt for number, attempt in self.got if number == task), default=0)

    def end(self, task: int) -> None:
        del self.has[task]
        self.site.later(self, self, lambda: self.matching.free_changed({"cores": self.free}, self.site.now))


class Site:
    """``random`` chooses the next event among all possible ones; without it, the oldest."""

    def __init__(self, *cores: float, random: Random | None = None) -> None:
        self.now = 0.0
        self.random = random
        self.needs: dict[int, dict[str, float]] = {}
        self.sent: list[tuple[str, Row]] = []
        self.assignments: list[tuple[str, int, int]] = []
        """(worker, task, attempt) as they were sent."""
        self.agents: dict[int, Agent] = {}
        self.on_assignment: Callable[[Agent], None] = lambda agent: None
        self._links: dict[tuple[int, int], deque[Callable[[], None]]] = {}
        self._rounds: dict[str, tuple[Agent, set[int], list[Any]]] = {}
        for number, amount in enumerate(cores, 1):
            self.add(number, amount)

    def add(self, number: int, cores: float = 1.0, holds: tuple[str, ...] = (), **properties: Any) -> Agent:
        agent = self.agents[number] = Agent(self, number, cores, {**properties, "worker": f"w{number}", "cores": cores}, holds)
        agent.matching.linked = True
        agent.matching.free_changed({"cores": cores}, self.now)
        return agent

    def appoint(self, number: int, term: int = 1, *but: int) -> None:
        """Make an agent site master; all others are informed except ``but``."""
        for agent in self.living():
            if agent.me.node not in but:
                agent.matching.site_master_changed(term, self.agents[number].me)
                self.step(agent)

    def living(self) -> list[Agent]:
        return [agent for agent in self.agents.values() if agent.alive]

    def die(self, number: int) -> None:
        self.agents[number].alive = False
        for agent in self.living():
            agent.matching.unreachable(number)
            self.step(agent)

    def delegate(self, number: int, *rows: Row, specs: tuple[Row, ...] = ()) -> None:
        specs = specs or (spec_row(),)
        self.needs.update({spec[0]: spec[3] for spec in specs})
        agent = self.agents[number]
        agent.matching.delegated(["lend", list(specs), list(rows)], b"x" * len(rows), self.now)
        self.step(agent)

    def messages_of(self, number: int, kind: str) -> list[Row]:
        """Messages of this kind that it sent to the master."""
        return [header for name, header in self.sent if name == f"w{number}" and header[0] == kind]

    def claimed(self) -> list[tuple[str, int, int]]:
        given = [one for _, header in self.sent if header[0] == "claims" for one in header[1]]
        return [(worker, task, attempt) for worker, items in given for task, attempt in items]

    # --- events -----------------------------------------------------------------------------------------------------------------------

    def later(self, sender: Agent, to: Agent, act: Callable[[], None]) -> None:
        def arrive() -> None:
            if to.alive:
                act()
                self.step(to)

        self._links.setdefault((sender.me.node, to.me.node), deque()).append(arrive)

    def step(self, agent: Agent) -> None:
        for effect in agent.matching.turn(self.now):
            getattr(self, f"_{effect[0]}")(agent, *effect[1:])

    def happen(self) -> bool:
        """Deliver one event; False if there is none."""
        waiting = [link for link, acts in self._links.items() if acts]
        if not waiting:
            return False
        self._links[self.random.choice(waiting) if self.random else waiting[0]].popleft()()
        return True

    def settle(self, seconds: float = 0.0) -> None:
        """Deliver all events, and let time pass with a turn at each deadline."""
        until = self.now + seconds
        while True:
            while self.happen():
                pass
            due = min((agent.matching.deadline for agent in self.living()), default=until + 1)
            if due > until:
                break
            self.now = max(self.now, due)
            for agent in self.living():
                self.step(agent)
        self.now = until

    # --- effects ----------------------------------------------------------------------------------------------------------------------

    def _broadcast(self, origin: Agent, payload: Any, seconds: float) -> None:
        name = f"{origin.name}-{len(self._rounds)}"
        self._rounds[name] = (origin, {agent.me.node for agent in self.living()}, [])
        payload = json.loads(json.dumps(payload))
        for agent in self.living():
            self.later(origin, agent, lambda to=agent: to.matching.delivered(name, payload[1], self.now))  # type: ignore[misc]

    def _answer(self, agent: Agent, name: str, answer: Any) -> None:
        origin = self._rounds[name][0]
        answer = json.loads(json.dumps(answer))
        self.later(agent, origin, lambda: self._gather(name, agent.me.node, answer))

    def _gather(self, name: str, node: int, answer: list[Any]) -> None:
        origin, missing, answers = self._rounds[name]
        answers.extend(answer)
        missing.discard(node)
        if not missing & {agent.me.node for agent in self.living()}:
            origin.matching.gathered(answers, self.now)

    def _send_to_peer(self, agent: Agent, contact: Contact, message: Row, parts: tuple[()]) -> None:
        message = json.loads(json.dumps(message))
        self.later(agent, self.agents[contact.node], lambda: self.agents[contact.node].matching.received(agent.me, message, self.now))

    def _assign(self, agent: Agent, contact: Contact, header: Row, parts: list[bytes]) -> None:
        to = self.agents[contact.node]
        self.assignments += [(to.name, row[0], row[1]) for row in header[2]]
        assert b"".join(parts) == b"x" * len(header[2])
        self.later(agent, to, lambda: self._receive(agent, to, json.loads(json.dumps(header))))

    def _receive(self, giver: Agent, to: Agent, header: Row) -> None:
        """The free resources are reported a moment later, by another thread."""
        to.matching.assignment_received(giver.me, header, self.now)
        to.take(header)
        self.later(to, to, lambda: to.matching.free_changed({"cores": to.free}, self.now))
        self.on_assignment(to)

    def _send(self, agent: Agent, header: Row) -> None:
        self.sent.append((agent.name, header))

    def _alive(self, agent: Agent) -> None:
        """The site master has contact with the master."""
