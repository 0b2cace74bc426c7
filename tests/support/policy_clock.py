"""Simulates agents whose tasks take an exact time, to measure how a pool is shared without running one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from pilotfish.core.machine import Turn
from pilotfish.core.state import Run, Task
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.task import TaskSpec
from tests.support.machine_stage import Stage


class Clockwork(Stage):
    """``lasts_s``: seconds that a task takes. Each agent starts its tasks in the order in which it got them."""

    def __init__(self, lasts_s: Callable[[Task], float] = lambda task: 0.05) -> None:
        self.min_walltime_s = lasts_s
        self.cores: dict[int, int] = {}
        self.waiting: dict[int, deque[Task]] = {}
        self.ends: list[tuple[float, int, int, int]] = []
        self.used: dict[str, float] = {}
        """Core-seconds of ended tasks, by the share of their run."""
        super().__init__()

    def _take(self, turn: Turn) -> list[e.Effect]:
        """As in Stage, but without a check of the whole state: there are too many turns."""
        self.effects = turn.effects
        for effect in turn.effects:
            if isinstance(effect, e.Send) and isinstance(effect.message, m.Assign):
                for sent in effect.message.tasks:
                    self.held.setdefault(effect.link, {})[sent.task] = sent.attempt
                    self.waiting.setdefault(effect.link, deque()).append(self.machine.state.task(sent.task))
        for link in self.waiting:
            self._start(link, turn.at)
        return turn.effects

    def _start(self, link: int, at: float) -> None:
        while self.waiting[link] and self.cores[link]:
            task = self.waiting[link].popleft()
            self.cores[link] -= 1
            heappush(self.ends, (at + self.min_walltime_s(task), task.id, link, round(self.min_walltime_s(task) * 1e6)))

    def hire(self, worker: str, cores: int) -> None:
        self.cores[self.links + 1] = cores
        self.join(worker, cores=float(cores))

    def add(self, count: int, share: str = "", weight: float = 0.0, deadline: float = 0.0, priority: int = 0) -> Run:
        tasks = self.work(TaskSpec("python", priority=priority), count, share=share, weight=weight, deadline=deadline)
        return tasks[0].shape.run

    def go(self, seconds: float) -> None:
        """Let the agents work for this time."""
        until = self.now + seconds
        while self.ends and self.ends[0][0] <= until:
            at, number, link, wall_us = heappop(self.ends)
            task = self.machine.state.task(number)
            share = task.shape.run.options.share
            self.used[share] = self.used.get(share, 0.0) + wall_us / 1e6
            self.cores[link] += 1
            self.now = max(at, self.now)
            item = m.ResultItem(number, self.held[link].pop(number), None, wall_us, wall_us, 1000, 1)
            self.tell(i.AgentMessage(link, m.Results(0, [item]), [b"r"]), after_s=0.0)
        self.now = max(self.now, until)
        beats = [i.AgentMessage(link, m.Heartbeat([])) for link in self.machine.agent_links]
        self.tell(*beats, after_s=0.0)

    def part(self, share: str) -> float:
        """This share's part of all core-seconds."""
        return self.used.get(share, 0.0) / sum(self.used.values())

    def forget_what_was_used(self) -> None:
        self.used = {}
