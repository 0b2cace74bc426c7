"""Simulates what a task does to its slot. Nothing is executed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pilotfish.agent.node.attempts import Attempt
from pilotfish.portable.payload_format import split_files
from tests.simulation.world.simulated_tasks import TaskBehaviour, result_of

if TYPE_CHECKING:
    from tests.simulation.world.simulated_node import SimulatedNode

REPORT_DELAY_S = 0.002
BLACK_HOLE_S = 0.01
LOST_A_NODE = "a part of it is gone"


def said_in(attempt: Attempt) -> bytes:
    """Returns the payload without the part that the agent added."""
    return bytes(split_files(memoryview(attempt.payload))[1])


@dataclass(slots=True)
class Execution:
    """An attempt that really started; the oracle compares the journal with these. ``outcome``: empty while it runs."""

    task: int
    attempt: int
    worker: str
    life: int
    began: float
    ended: float = 0.0
    outcome: str = ""
    beside: tuple[str, ...] = ()
    """The other workers of a multi-node attempt."""


class SimulatedSlot:
    """Runs attempts one by one, in order. Finished ones may be reported a little later, several at once."""

    def __init__(self, node: SimulatedNode, number: int) -> None:
        self.node = node
        self.number = number
        self.waiting: deque[Attempt] = deque()
        self.attempt: Attempt | None = None
        self.execution: Execution | None = None
        self.unreported: list[tuple[Execution, Any]] = []
        self.gone = False
        self.condemned = False
        """True if the running task was told to end because it exceeded a limit."""
        self._turn = 0

    # --- requests of the agent ------------------------------------------------------------------------------------------------------

    def give(self, attempts: list[Attempt]) -> None:
        self.waiting.extend(attempts)
        if self.execution is None:
            self._begin()

    def recall(self) -> int:
        count = len(self.waiting)
        self.waiting.clear()
        return count

    def terminate(self) -> None:
        """Sends SIGTERM. Most programs end, some ignore it; in both cases a result comes too late."""
        self.condemned = True
        if self.execution is not None and self.node.world.dice.random() < 0.7:
            self._plan(0.05, ["signal", "task", "ended by signal 15"], "failed")

    def die(self, failure: list[str], outcome: str) -> None:
        """The slot's process is killed. Attempts that it started and did not report are lost."""
        self.gone = True
        self._turn += 1
        begun = len(self.unreported) + (self.execution is not None)
        for execution, _ in self.unreported:
            execution.outcome = "failed"
        if self.execution is not None:
            self._ended(outcome)
        del self.node.slots[self.number]
        self.node.dead_slots[self.number] = None
        self.node.tell("slot_died", self.number, begun, failure, (1000, 1000, 1000))

    def vanish(self, outcome: str) -> None:
        """Everything on the node ends."""
        self.gone = True
        self._turn += 1
        if self.execution is not None:
            self._ended(outcome)

    # --- running --------------------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self.waiting or self.gone:
            return
        world, node = self.node.world, self.node
        self.condemned = False
        self.attempt = attempt = self.waiting.popleft()
        beside = tuple(attempt.spec.launch.get("hosts", ())[1:])
        self.execution = Execution(attempt.task, attempt.attempt, node.worker, node.life, world.now, beside=beside)
        behaviour = world.workloads.behaviour(said_in(attempt))
        world.oracle.began(node, self.execution, attempt)
        if world.oracle.custody.missing(node, attempt.task):
            self._plan(BLACK_HOLE_S, ["disk", "worker", "an input is not in the cache any more"], "failed")
            return
        if world.now < node.black_hole_until:
            self._plan(BLACK_HOLE_S, ["exit", "task", "everything fails here"], "failed")
            return
        if not all(world.nodes[other].alive for other in beside):
            self.bereaved()
            return
        slowness = node.site.slowness * (10.0 if world.now < node.slow_until else 1.0)
        self._plan_behaviour(behaviour, behaviour.duration_s * slowness)

    def _plan_behaviour(self, behaviour: TaskBehaviour, duration_s: float) -> None:
        assert self.attempt is not None
        world, kind = self.node.world, behaviour.kind
        world.workloads.count_execution(self.attempt.task, behaviour)
        if kind == "exit" or (kind == "flaky" and world.workloads.executions(self.attempt.task) <= behaviour.bad_times):
            self._plan(duration_s, ["exit", "task", "ended with exit status 3"], "failed")
        elif kind == "version":
            self._plan(0.001, ["version", "user", "made by another Python"], "failed")
        elif kind == "memory" and self.attempt.amount("memory") < behaviour.memory:
            self._plan(duration_s / 2, ["oom", "task", "used more memory than it asked for"], "failed")
        elif kind == "crash" and world.workloads.executions(self.attempt.task) <= behaviour.bad_times:
            self._at(duration_s / 2, self._crash)
        elif kind == "poison":
            self._at(0.01 if behaviour.swift else duration_s, self._poison)
        elif kind == "hang":
            return
        else:
            self._plan(duration_s, None, "ok")

    def _plan(self, delay_s: float, failure: list[str] | None, outcome: str) -> None:
        self._at(delay_s, self._finish, failure, outcome)

    def _at(self, delay_s: float, act: Any, *arguments: Any) -> None:
        self._turn += 1
        self.node.world.after(delay_s, self._due, self._turn, act, *arguments)

    def _due(self, turn: int, act: Any, *arguments: Any) -> None:
        if turn != self._turn or self.gone:
            return
        if self.node.frozen and self.node.hung:
            if self.node.hung_until < float("inf"):
                self.node.world.at(self.node.hung_until, self._due, turn, act, *arguments)
            return
        act(*arguments)

    def _finish(self, failure: list[str] | None, outcome: str) -> None:
        assert self.attempt is not None and self.execution is not None
        execution, attempt = self.execution, self.attempt
        world = self.node.world
        payload = b"why it failed" if failure else result_of(said_in(attempt), execution)
        made: list[Any] = []
        if failure is None:
            world.oracle.custody.check_present(self.node, attempt.task, "ended")
            made = [[]] if world.workloads.planned(said_in(attempt)).makes else []
        wall_us = round((world.now - execution.began) * 1e6)
        self._ended("failed" if self.condemned else outcome)
        self.unreported.append((execution, (failure, wall_us, wall_us, 1000, payload, *made)))
        if self.waiting and world.scenario.slots_report_late:
            if len(self.unreported) == 1:
                world.after(REPORT_DELAY_S, self._report)
            self._begin()
            return
        # The next attempt starts before the agent is informed about this one, as in a real slot.
        self._begin()
        self._report()

    def _report(self) -> None:
        if self.unreported and not self.gone:
            items = [item for _, item in self.unreported]
            self.unreported = []
            self.node.tell("slot_finished", self.number, items)

    def bereaved(self, noticed: bool = False) -> None:
        """Another node of the running attempt is lost. The attempt fails or hangs; only an attempt whose connections were cut notices at
        once."""
        self._turn += 1
        if noticed and self.node.world.dice.random() < 0.7:
            self._plan(self.node.world.dice.uniform(0.3, 3.0), ["exit", "task", LOST_A_NODE], "failed")

    def _crash(self) -> None:
        self.die(["crash", "task", "ended by signal 11"], "failed")

    def _poison(self) -> None:
        """The task kills its agent, or its whole node."""
        assert self.attempt is not None
        node, world = self.node, self.node.world
        world.oracle.poisoned(self.attempt.task)
        if world.workloads.behaviour(said_in(self.attempt)).fells_node:
            node.crash()
        else:
            node.kill_agent("was killed by signal 9")

    def _ended(self, outcome: str) -> None:
        assert self.execution is not None
        self.execution.ended = self.node.world.now
        self.execution.outcome = outcome
        self.execution = None
        self.attempt = None
