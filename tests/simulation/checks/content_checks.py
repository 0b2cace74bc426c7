"""Checks that contents are where they must be.

Inputs are present while an attempt runs, outputs are known to the master, holders are recorded, unneeded contents are released, and a
full disk is not charged to a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pilotfish.core.machine import Machine
from pilotfish.core.state import State
from pilotfish.core.workers.agent_messages import MAX_FULL_DISKS
from pilotfish.model import facts as f
from pilotfish.model.contents import ProducedContent
from pilotfish.model.ids import INDEX_MASK, run_of, show_task, task_id
from pilotfish.model.states import DONE
from tests.simulation.world.simulated_contents import MODE, made_by, name_of

if TYPE_CHECKING:
    from tests.simulation.world.fault_world import FaultWorld
    from tests.simulation.world.simulated_node import SimulatedNode
    from tests.simulation.world.simulated_tasks import PersonPlan

SETTLED_S = 30.0


class ContentMisplaced(AssertionError):
    """A content is not where it must be, or is recorded where it is not: a bug."""


class ContentChecks:
    def __init__(self, world: FaultWorld) -> None:
        self.world = world

    # --- nodes ------------------------------------------------------------------------------------------------------------------------

    def missing(self, node: SimulatedNode, task: int) -> list[str]:
        """Returns the contents that a task needs and that are not on the node's disk."""
        return [digest for digest in needed(self.world.journal.shadow, task) if digest not in node.fetcher.disk.contents]

    def check_present(self, node: SimulatedNode, task: int, when: str) -> None:
        missing = [digest for digest in self.missing(node, task) if digest not in node.fetcher.spoiled]
        if missing:
            raise ContentMisplaced(
                f"task {show_task(task)} {when} at {node.worker}, where {len(missing)} of its contents are not: {missing[0][:6]}"
            )

    def check_handed(self, node: SimulatedNode, task: int, plan: PersonPlan, handed: list[Any]) -> None:
        """Checks that a starting attempt gets exactly its intermediate files, under the right names."""
        expected = []
        planned = plan.tasks[task & INDEX_MASK]
        for maker in planned.uses if planned.is_promised else ():
            number = task_id(run_of(task), maker)
            known = self.world.journal.shadow.task(number)
            if known.state != DONE:
                raise ContentMisplaced(f"task {show_task(task)} begins, and {known} has not made what it was promised")
            made = made_by(plan.tasks[maker], number, known.attempt)
            expected += [[f"{maker}/{place}", MODE, content.digest, content.size] for place, (content, _) in enumerate(made)]
        self.world.report.counts["files handed on"] += len(expected)
        if handed != expected:
            raise ContentMisplaced(f"task {show_task(task)} was promised {expected} and given {handed}")
        here = {**node.fetcher.disk.contents, **node.fetcher.spoiled}
        absent = [name for name, _, digest, _ in expected if digest not in here]
        if absent:
            raise ContentMisplaced(f"task {show_task(task)} begins at {node.worker}, where {absent} is not")

    def told(self, node: SimulatedNode, what: str, arguments: tuple[Any, ...]) -> None:
        """Watches inputs of the agent machine for failures such as a full disk. An attempt that is being stopped reports nothing."""
        failures: list[Any] = []
        if what in ("not_fetched", "uploaded"):
            failures = [arguments[1]]
        elif (
            what == "slot_finished"
            and arguments[0] in node.machine.attempts.slots
            and not node.machine.attempts.slots[arguments[0]].stop_stage
        ):
            failures = [item[0] for item in arguments[1]]
        for failure in failures:
            if failure is not None and failure[0] in ("disk", "missing-input"):
                self.world.report.counts[f"{failure[0]} failures"] += 1
                node.fetcher.reported_full |= failure[0] == "disk"

    def given_out(self, node: SimulatedNode) -> None:
        """Checks attempts that the agent machine gives to a slot."""
        if node.fetcher.reported_full:
            raise ContentMisplaced(f"{node.worker} said that its disk is full, and goes on beginning tasks")

    def turned(self, node: SimulatedNode) -> None:
        """Checks that an agent without attempts and unacknowledged results wants no contents."""
        attempts, staging = node.machine.attempts, node.machine.staging
        if staging.needed and not (attempts.live or attempts.busy or node.machine.results.kept or node.machine.exited):
            raise ContentMisplaced(f"{node.worker} has nothing to do and wants {len(staging.needed)} contents")

    def left(self, node: SimulatedNode, reason: str) -> None:
        """Checks that a drained agent finishes its uploads before it leaves."""
        if reason == node.machine.draining and node.fetcher.unfinished_uploads:
            raise ContentMisplaced(
                f"{node.worker} has left ({reason}) before it had uploaded the files of {len(node.fetcher.unfinished_uploads)} tasks"
            )

    def upload_failed(self, task: int, attempt: int) -> None:
        """Marks an execution as failed because its outputs could not be stored."""
        for execution in self.world.oracle.executions[task]:
            if execution.attempt == attempt:
                execution.outcome = "failed"

    # --- facts ------------------------------------------------------------------------------------------------------------------------

    def done(self, fact: f.TasksDone) -> None:
        for number, output in zip(fact.tasks, fact.outputs, strict=True):
            payload = self.world.payloads.get(output)
            attempt = self.world.journal.shadow.task(number).attempt
            truth = made_by(self.world.workloads.planned(payload), number, attempt)
            expected = [
                ProducedContent(one.digest, one.size, at_master, True, name_of(place), MODE) for place, (one, at_master) in enumerate(truth)
            ]
            if fact.made.get(number, []) != expected:
                raise ContentMisplaced(f"task {show_task(number)} has made {expected}, the master has heard of {fact.made.get(number)}")
            lost = [made.digest for made in expected if made.at_master and made.digest not in self.world.library.home]
            if lost:
                raise ContentMisplaced(f"task {show_task(number)} is done, and {lost} did not come home")

    def failed(self, fact: f.AttemptFailed) -> None:
        if fact.failure.cause == "disk" and self.world.journal.shadow.task(fact.task).attempt < MAX_FULL_DISKS:
            raise ContentMisplaced(f"task {show_task(fact.task)} was charged ({fact.budget}) with the full disk of {fact.worker}")

    def was_withdrawn(self, task: int) -> bool:
        """Returns whether a client has changed a file that the task needs."""
        return any(digest in self.world.library.removed for digest in needed(self.world.journal.shadow, task))

    # --- the end ----------------------------------------------------------------------------------------------------------------------

    def settled(self, machine: Machine) -> None:
        """Checks that no contents are wanted and all holders are recorded, after all runs finished."""
        for node in self.world.nodes.values():
            connection = machine.connections.get(node.worker)
            # An agent that has just joined still has to report what an earlier agent left on the disk of its node.
            disturbed_at = max(node.trouble_until, node.linked_at, self.world.master_trouble_until)
            quiet = disturbed_at < self.world.now - SETTLED_S
            if not node.alive or node.hung or connection is None or connection.link is None or not quiet:
                continue
            staging = node.machine.staging
            if staging.needed or staging.uploads:
                raise ContentMisplaced(f"{node.worker} wants {list(staging.needed)} and uploads {list(staging.uploads)} when all is over")
            self._check_holds(node, machine.state)
            needless = [digest for digest in node.fetcher.disk.held if digest not in machine.state.contents]
            if needless:
                raise ContentMisplaced(f"{node.worker} keeps {needless} for nobody")

    def _check_holds(self, node: SimulatedNode, state: State) -> None:
        believed = {record.digest for record in state.workers[node.worker].holds}
        truth = {digest for digest in (*node.fetcher.disk.contents, *node.fetcher.spoiled) if digest in state.contents}
        if believed - truth:
            raise ContentMisplaced(f"{node.worker} is believed to hold {sorted(believed - truth)}, and does not")
        if truth - believed:
            raise ContentMisplaced(f"{node.worker} holds {sorted(truth - believed)}, and the master does not know it")

    def emptied(self, state: State) -> None:
        if not state.runs and state.contents:
            raise ContentMisplaced(f"all runs are forgotten, and {len(state.contents)} contents are still known")


def needed(state: State, number: int) -> dict[str, None]:
    """Returns the contents that a task needs, by the journal."""
    task = state.find_task(number)
    if task is None:
        return {}
    records = (*task.shape.run.spec_contents.get(task.spec, ()), *task.contents)
    return {record.digest: None for record in records}
