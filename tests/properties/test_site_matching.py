"""Tests site matching for any order of events: no task is assigned twice, beyond free resources, or lost.

With the real core as master, each task counts once even if two agents both believe to be the site master.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish.agent.peers.site_matching import ACKNOWLEDGE_TIMEOUT_S, IDLE_ROUND_S
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.settings import PoolSettings
from pilotfish.model.states import DONE
from tests.support.machine_stage import Stage
from tests.support.site_matching_stage import Agent, Site, spec_row, task_row

UNHURRIED = settings(deadline=None, max_examples=150)
seeds = st.integers(0, 2**32)
sizes = st.lists(st.integers(1, 4).map(float), min_size=1, max_size=7)
LARGE = 8


def lend_some(site: Site, dice: Random, first: int, contents: bool = True) -> int:
    """Some tasks of one or two cores, some with inputs that a worker holds; returns the number of the next task."""
    specs = (spec_row(1), spec_row(2, {"cores": 2.0}), spec_row(3, rank="cores"))
    count = dice.randrange(1, 12)
    rows = []
    for number in range(first, first + count):
        wanted = ((dice.choice("xyz"), dice.randrange(1, 9)),) if contents and dice.random() < 0.4 else ()
        rows.append(task_row(number, spec=dice.randrange(1, 4), contents=wanted))
    site.delegate(1, *rows, specs=specs)
    return first + count


def make_site(cores: list[float], dice: Random) -> Site:
    site = Site(random=dice)
    for number, amount in enumerate([max(2.0, cores[0]), *cores[1:]], 1):
        site.add(number, amount, holds=tuple(name for name in "xyz" if dice.random() < 0.3))
    return site


def end_one(site: Site, dice: Random) -> None:
    busy = [agent for agent in site.living() if agent.has]
    if busy:
        agent = dice.choice(busy)
        agent.end(dice.choice(list(agent.has)))


def assert_it_fits(agent: Agent) -> None:
    assert agent.free >= 0, f"{agent.name} of {agent.cores} cores was given {agent.has}"


@UNHURRIED
@given(sizes, seeds)
def test_no_task_is_assigned_twice_or_beyond_free_resources_and_all_end(cores: list[float], seed: int) -> None:
    dice = Random(seed)
    site = make_site(cores, dice)
    site.on_assignment = assert_it_fits
    site.appoint(1)
    delegated = 0
    for _ in range(200):
        act = dice.random()
        if act < 0.05:
            delegated = lend_some(site, dice, delegated)
        elif act < 0.2:
            end_one(site, dice)
        elif act < 0.25:
            site.now += dice.random() / 10  # less than a lost gift takes in all: what is only late is given again, too
            for agent in site.living():
                site.step(agent)
        else:
            site.happen()
    while site.agents[1].matching.holding() or any(agent.has for agent in site.living()):
        before = site.now
        site.settle(1.0)
        end_one(site, dice)
        assert before < 3000.0
    counts = Counter(task for _, task, _ in site.assignments)
    assert set(counts) == set(range(delegated))
    assert all(count == 1 for count in counts.values()), counts.most_common(2)
    site.settle(IDLE_ROUND_S)
    assert sorted(site.claimed()) == sorted(site.assignments)


@UNHURRIED
@given(sizes, seeds)
def test_deaths_lose_no_task_and_no_worker_has_one_twice(cores: list[float], seed: int) -> None:
    """Tasks that dead workers had acknowledged are claimed for them: the master handles those."""
    dice = Random(seed)
    site = make_site([*cores, 1.0, 1.0], dice)
    site.appoint(1)
    site.settle(IDLE_ROUND_S)
    delegated = 0
    for _ in range(150):
        act = dice.random()
        if act < 0.05:
            delegated = lend_some(site, dice, delegated)
        elif act < 0.2:
            end_one(site, dice)
        elif act < 0.23 and len(site.living()) > 1:
            site.die(dice.choice([agent.me.node for agent in site.living() if agent.me.node != 1]))
        elif act < 0.26:
            site.settle(dice.random() * ACKNOWLEDGE_TIMEOUT_S)
        else:
            site.happen()
    site.settle(2 * IDLE_ROUND_S)
    while site.agents[1].matching.holding() or any(agent.has for agent in site.living()):
        site.settle(2 * IDLE_ROUND_S)
        end_one(site, dice)
        assert site.now < 3000.0
    assert all(max(Counter(agent.got).values(), default=1) == 1 for agent in site.agents.values())
    assert {task for agent in site.agents.values() for task, _ in agent.got} == set(range(delegated))
    assert {task for _, task, _ in site.claimed()} == set(range(delegated))


# --- with the real core -----------------------------------------------------------------------------------------------------------------


class Pool:
    """The real core, and a site to which it delegates; messages arrive at once, unless the test delays them."""

    def __init__(self, agents: int, dice: Random) -> None:
        self.stage = Stage(PoolSettings(matching="distributed", linger_s=1e9, lease_s=1e6))
        self.site = Site(*[1.0] * agents, random=dice)
        self.site._send = self.hear  # type: ignore[method-assign]
        self.link: dict[str, int] = {}
        self.done: Counter[int] = Counter()
        for agent in self.site.living():
            self.link[agent.name] = self.stage.join(agent.name, info={"peer": agent.me.wire})
            agent.matching.linked = True

    def agent_of(self, link: int) -> Agent:
        name = next(name for name, one in self.link.items() if one == link)
        return next(agent for agent in self.site.agents.values() if agent.name == name)

    def hear(self, agent: Agent, header: list[Any]) -> None:
        message = m.decode_from_agent(msgspec.json.encode(header))
        self.perform(self.stage.tell(i.AgentMessage(self.link[agent.name], message)))

    def perform(self, effects: list[e.Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, e.Send) or effect.link not in self.link.values():
                continue
            agent, message = self.agent_of(effect.link), effect.message
            if isinstance(message, m.Delegate):
                header = msgspec.json.decode(msgspec.json.encode(message))
                self.site.needs.update({row[0]: row[3] for row in header[1]})
                body = b"".join(payload for payload in effect.payloads if isinstance(payload, bytes))
                self.site.later(agent, agent, lambda a=agent, h=header, b=body: a.matching.delegated(h, b, self.site.now))  # type: ignore[misc]
            elif isinstance(message, m.Assign):
                for sent in message.tasks:
                    agent.got.append((sent.task, sent.attempt))
                    agent.has[sent.task] = 1.0
            elif isinstance(message, m.Kill):
                for task, attempt in message.items:
                    if task in agent.has and attempt == agent.latest(task):
                        del agent.has[task]

    def finish(self, agent: Agent, task: int) -> None:
        attempt = agent.latest(task)
        agent.end(task)
        item = m.ResultItem(task, attempt, None, 1, 1, 1, 1)
        self.perform(self.stage.tell(i.AgentMessage(self.link[agent.name], m.Results(0, [item]), [b"r"])))


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 6), seeds)
def test_with_two_believed_site_masters_each_task_counts_once(agents: int, seed: int) -> None:
    dice = Random(seed)
    pool = Pool(agents, dice)
    site = pool.site
    tasks = pool.stage.work(count=20)
    pool.perform(pool.stage.effects)
    term = 0
    for _ in range(150):
        act = dice.random()
        if act < 0.08:
            term += dice.random() < 0.7
            master_node = dice.choice(site.living()).me.node
            site.appoint(master_node, max(1, term), *[agent.me.node for agent in site.living() if dice.random() < 0.4])
        elif act < 0.25:
            busy = [agent for agent in site.living() if agent.has]
            if busy:
                agent = dice.choice(busy)
                pool.finish(agent, dice.choice(list(agent.has)))
        elif act < 0.3:
            site.settle(dice.random() * ACKNOWLEDGE_TIMEOUT_S)
        else:
            site.happen()
    # In the end all believe in the same site master.
    site.appoint(1, term + 1)
    for _ in range(500):
        site.settle(2 * IDLE_ROUND_S)
        pool.perform(pool.stage.tell())
        if all(task.state == DONE for task in tasks):
            break
        for agent in site.living():
            for task in list(agent.has):
                pool.finish(agent, task)
    assert all(task.state == DONE for task in tasks), [task for task in tasks if task.state != DONE]
    assert sum(worker.done for worker in pool.stage.machine.state.workers.values()) == len(tasks)
