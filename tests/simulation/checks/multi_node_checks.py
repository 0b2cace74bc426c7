"""Checks room and workers of multi-node tasks, and cores of moldable ones.

A multi-node task has its resources at all its workers, which belong to one pilot. It ends with the loss of one worker, and the loss is
not charged as its own failure. It does not starve. A moldable task has a number of cores in its range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pilotfish.agent.node.attempts import Attempt
from pilotfish.core.machine import Machine
from pilotfish.core.state import State, Task, TaskShape, Worker
from pilotfish.core.tasks.multi_node import can_get_inputs, hosted_tasks
from pilotfish.core.tasks.speculative_copies import attempt_at
from pilotfish.core.workers.leases import RECONNECT_S
from pilotfish.model import facts as f
from pilotfish.model.ids import show_task
from pilotfish.model.task import CORES, UNIT
from pilotfish.policies.multi_node_placement import RESERVE_AFTER_S
from tests.simulation.checks.reason_checks import could_take
from tests.simulation.world.simulated_slot import LOST_A_NODE

if TYPE_CHECKING:
    from tests.simulation.world.fault_world import FaultWorld
    from tests.simulation.world.simulated_node import SimulatedNode
    from tests.simulation.world.simulated_slot import Execution


class MultiNodeViolation(AssertionError):
    """A multi-node task lacks resources, or keeps some that it must not: a bug."""


class MultiNodeChecks:
    def __init__(self, world: FaultWorld) -> None:
        self.world = world
        self._gangs: dict[int, tuple[int, list[str]]] = {}
        """Assigned multi-node tasks: attempt and workers, by the journal."""
        self._waiting: dict[tuple[object, ...], tuple[tuple[str, ...], float]] = {}
        """Waiting task shapes: present workers, and since when they are the same."""

    # --- facts ------------------------------------------------------------------------------------------------------------------------

    def assigned(self, fact: f.TasksAssigned) -> None:
        state = self.world.journal.shadow
        for number, others in fact.other_workers.items():
            task = state.task(number)
            self._gangs[number] = (task.attempt, [fact.worker, *others])
            self._waiting.pop(_name(task.shape), None)
            self.world.oracle.lasts(("passed over", *_name(task.shape)), False, 0.0)
            self.world.report.counts["gangs"] += 1

    def done(self, number: int) -> None:
        if self._gangs.pop(number, None) is not None:
            self.world.report.counts["gangs that ended"] += 1

    def returned(self, fact: f.TasksReturned) -> None:
        for number in fact.tasks:
            self._given_up(number)

    def failed(self, fact: f.AttemptFailed) -> None:
        attempt, workers = self._gangs.get(fact.task, (0, []))
        if not attempt:
            return
        if fact.budget == "deaths":
            raise MultiNodeViolation(f"task {show_task(fact.task)} has {workers}, and was charged with the death of {fact.worker} alone")
        dead = [name for name in workers if not self.world.nodes[name].alive]
        if fact.failure.cause == "worker-lost" and not dead and not self._was_cut_off(workers) and "revoked" not in fact.failure.message:
            raise MultiNodeViolation(
                f"task {show_task(fact.task)} was charged with the loss of {fact.worker}, and all of {workers} are well"
            )
        if fact.budget == "failures" and fact.failure.message == LOST_A_NODE and not self._is_hard_to_tell(workers):
            raise MultiNodeViolation(
                f"task {show_task(fact.task)} was charged with a failure of its own, when {dead} of {workers} were gone"
            )
        self._given_up(fact.task)

    def _given_up(self, number: int) -> None:
        attempt, workers = self._gangs.pop(number, (0, []))
        if attempt and not all(self.world.nodes[name].alive for name in workers):
            self.world.report.counts["gangs that lost a node"] += 1

    def _was_cut_off(self, workers: Sequence[str]) -> bool:
        nodes = [self.world.nodes[name] for name in workers]
        return any(node.life or node.trouble_until > 0 or node.worker in self.world.oracle.ended_workers for node in nodes)

    def _is_hard_to_tell(self, workers: Sequence[str]) -> bool:
        """Returns whether the cause could not be known: the loss of a polling worker is not noticed in time, or a worker or the master
        was impaired."""
        now, nodes = self.world.now, [self.world.nodes[name] for name in workers]
        if nodes[0].site.poll_s:
            return True
        settle_s = self.world.oracle.settle_s + 5.0
        return self.world.master_trouble_until > now - settle_s or any(node.trouble_until > now - settle_s for node in nodes)

    # --- nodes ------------------------------------------------------------------------------------------------------------------------

    def began(self, node: SimulatedNode, execution: Execution, attempt: Attempt) -> None:
        """Only the first worker of an attempt is told to start it, and knows the others."""
        task = self.world.journal.shadow.find_task(execution.task)
        nodes = task.shape.nodes if task is not None else 1
        hosts = attempt.spec.launch.get("hosts", [])
        if nodes == 1 and not hosts:
            return
        if len(set(hosts)) != nodes or hosts[0] != node.worker:
            raise MultiNodeViolation(f"{task} wants {nodes} nodes, and was told {hosts} at {node.worker}")
        pilots = {self.world.nodes[host].pilot for host in hosts}
        if len(pilots) > 1 or pilots == {""}:
            raise MultiNodeViolation(f"{task} has {hosts}, which are not of one pilot")
        known = [worker.id for worker in self.world.journal.shadow.multi_node_workers.get(task, ())] if task is not None else []
        if task is not None and known and task.attempt == execution.attempt and known != hosts:
            raise MultiNodeViolation(f"{task} was told {hosts}, and has {known}")

    def molded(self, execution: Execution, attempt: Attempt) -> None:
        """Checks that a moldable task has a number of cores in its range."""
        task = self.world.journal.shadow.find_task(execution.task)
        request = self.world.journal.shadow.spec_of(task).request if task is not None else None
        cores = attempt.amount(CORES)
        if request is not None and request.cores_max:
            if not request.cores <= cores <= request.cores_max:
                raise MultiNodeViolation(f"{task} asks for {request.cores:g} to {request.cores_max:g} cores, and has {cores:g}")
            self.world.report.counts["moldable tasks that got more than the least"] += cores > request.cores

    def check_room(self, node: SimulatedNode) -> None:
        """Checks that running attempts have the recorded resources, and that the node is not overcommitted."""
        state = self.world.journal.shadow
        worker = state.workers.get(node.worker)
        if worker is None:
            return
        used: dict[str, float] = {}
        running = [slot.attempt for slot in node.slots.values() if slot.attempt is not None]
        running = [attempt for attempt in running if _counts(state, worker, attempt)]
        for attempt in running:
            task = state.task(attempt.task)
            known = {name: amount / UNIT for name, amount in worker.active.get(task) or worker.ahead.get(task, ())}
            if known != dict(attempt.needs):
                raise MultiNodeViolation(f"{task} has {dict(attempt.needs)} at {node.worker}, and the journal says {known}")
        amounts = [need for attempt in running for need in attempt.needs]
        amounts += [(name, amount / UNIT) for task in hosted_tasks(worker) for name, amount in worker.active[task]]
        for name, amount in amounts:
            used[name] = used.get(name, 0.0) + amount
        for name, amount in used.items():
            if amount > node.capacity[name] + 1e-6:
                raise MultiNodeViolation(f"{node.worker} has promised {amount:g} {name} of {node.capacity[name]:g}")

    # --- time limits ------------------------------------------------------------------------------------------------------------------

    def check(self, machine: Machine) -> None:
        oracle, settings = self.world.oracle, self.world.scenario.settings
        for task, workers in machine.state.multi_node_workers.items():
            lost = [worker for worker in workers if not self.world.nodes[worker.id].alive]
            lease_s = max(settings.lease_s, RECONNECT_S, *(3 * worker.poll_s for worker in workers))
            if oracle.lasts(("a node less", task.id, task.attempt), bool(lost), lease_s + settings.beat_s + oracle.settle_s):
                raise MultiNodeViolation(f"{task} goes on without {lost}")
        for shape in (shape for run in machine.state.runs.values() for shape in run.shapes.values() if shape.nodes > 1):
            waits = shape in machine.state.ready and not machine.journal_full and self._has_room(machine, shape)
            if oracle.lasts(("passed over", *_name(shape)), waits, RESERVE_AFTER_S + 1.0 + oracle.settle_s):
                raise MultiNodeViolation(f"{next(iter(shape.queue))} waits, and there are {shape.nodes} nodes of one pilot that have room")
            if self._is_starved(machine, shape):
                raise MultiNodeViolation(f"{next(iter(shape.queue))} has waited for {self._patience_s:.0f} s, and nobody makes room for it")

    def _is_starved(self, machine: Machine, shape: TaskShape) -> bool:
        """Returns whether the same workers were present for so long that all their earlier tasks must have ended, while no other task had
        precedence."""
        state, workers = machine.state, machine._policy_view().workers
        waits = shape in state.ready and not shape.run.paused and not machine.journal_full and not state.suspects
        waits = waits and all(other is shape or (other.nodes == 1 and other.priority <= shape.priority) for other in state.ready)
        waits = waits and self._most_together(machine, shape, workers) >= shape.nodes
        here = tuple(worker.id for worker in workers)
        known, since = self._waiting.pop(_name(shape), ((), self.world.now))
        if waits:
            since = since if here == known else self.world.now
            self._waiting[_name(shape)] = here, since
        return waits and self.world.now - max(since, self.world.master_trouble_until) > self._patience_s

    @property
    def _patience_s(self) -> float:
        """Maximum seconds for everything that started before."""
        scenario = self.world.scenario
        slowest = max(site.slowness for site in scenario.sites) * (10.0 if "slow-node" in scenario.weights else 1.0)
        longest_s = slowest * max(task.behaviour.duration_s for plan in scenario.people for task in plan.tasks)
        rest_s = 3 * max(site.poll_s for site in scenario.sites) + 6 * scenario.settings.lease_s + 30.0
        return RESERVE_AFTER_S + longest_s + rest_s + (3 * scenario.data.longest_s if scenario.data is not None else 0.0)

    @staticmethod
    def _most_together(machine: Machine, shape: TaskShape, workers: Sequence[Worker]) -> int:
        """Returns the maximum number of suitable workers of one pilot."""
        able = [worker for worker in workers if worker.pilot and could_take(machine, worker, shape) and not worker.runs_suspect]
        near = {worker.site: any(can_get_inputs(machine.state, task, worker.site) for task in shape.queue) for worker in able}
        return max(Counter(worker.pilot for worker in able if near[worker.site]).values(), default=0)

    def _has_room(self, machine: Machine, shape: TaskShape) -> bool:
        """Returns whether more workers of one pilot have free resources than may be reserved for other tasks."""
        if shape.run.paused:
            return False
        state = machine.state
        others = [other for other in state.ready if other is not shape and not other.run.paused]
        kept = bool(state.suspects) + sum(other.nodes for other in others)
        roomy = [worker for worker in machine._policy_view().workers if worker.fits(shape.needs)]
        return self._most_together(machine, shape, roomy) >= shape.nodes + kept


def _name(shape: TaskShape) -> tuple[object, ...]:
    return shape.run.id, shape.made_from


def _counts(state: State, worker: Worker, attempt: Attempt) -> bool:
    task: Task | None = state.find_task(attempt.task)
    return task is not None and attempt_at(state, worker, task) == attempt.attempt
