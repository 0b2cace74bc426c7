"""Compares journal and clients with the truth: it knows the real state of every node and link.

* nothing is lost: an accepted task stays and reaches one final state; results reported to clients never change
* once: an attempt starts at most once; a result is applied at most once, and only that of the current attempt
* efficiency: a task runs again only if its earlier attempt failed, its worker is gone, or its client allows one speculative copy;
  a worker is given up only for a reason
* resources: a running task has the recorded resources; a multi-node task has them at all its workers
* blame: only a task that was alone when its worker died is convicted
* liveness: after the last fault all work ends within a bound, and no capacity is idle while a task could use it
* replay: the journal gives the live state; explanation: every waiting task has a reason
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec.json import encode as encode_json

from pilotfish.agent.node.attempts import Attempt
from pilotfish.core.data.replicas import can_get_inputs
from pilotfish.core.state import State
from pilotfish.core.tasks.speculative_copies import attempt_at
from pilotfish.core.workers.leases import RECONNECT_S
from pilotfish.model import facts as f
from pilotfish.model.facts import TurnRecord
from pilotfish.model.ids import INDEX_MASK, run_of, show_task
from pilotfish.model.states import ASSIGNED, DONE, ENDING
from pilotfish.portable.payload_format import split_files
from tests.simulation.checks.content_checks import ContentChecks
from tests.simulation.checks.end_checks import check_end
from tests.simulation.checks.multi_node_checks import MultiNodeChecks
from tests.simulation.checks.reason_checks import check_explanations, check_idle_capacity, could_take
from tests.support.state_check import check, fingerprint

_SENTENCE = re.compile(rb'"(?:[^"\\ ]|\\.)* (?:[^"\\]|\\.)*"')
"""Matches a JSON string with a space in it: a message, never a code or a name."""

if TYPE_CHECKING:
    from tests.simulation.world.fault_world import FaultWorld
    from tests.simulation.world.simulated_client import SimulatedClient
    from tests.simulation.world.simulated_master import SimulatedMaster
    from tests.simulation.world.simulated_node import SimulatedNode
    from tests.simulation.world.simulated_slot import Execution

MOST_IDLE_TURNS = 20
ANSWER_WITHIN_S = 15.0
STALE_S = 1.0
ENDING_S = 8.0
MOST_UNCHARGED = 5
"""Maximum worker deaths that are not charged to the task, because the worker was already leaving."""


class Violated(AssertionError):
    """An invariant is violated: a bug."""


class Oracle:
    def __init__(self, world: FaultWorld) -> None:
        self.world = world
        self.custody = ContentChecks(world)
        self.multi_node = MultiNodeChecks(world)
        self.calm_since = 0.0
        self.settle_s = 1.0 + 8 * world.scenario.delay_s
        """Seconds after a disturbance in which violations are tolerated; longer than any message takes."""
        self.executions: dict[int, list[Execution]] = {}
        self.ended_workers: dict[str, str] = {}
        self.applied: dict[int, int] = {}
        self.charges: Counter[tuple[int, str]] = Counter()
        """Number of charges by task and kind, by the journal."""
        self.copies: dict[tuple[int, int], None] = {}
        """Attempts that are speculative copies: (task, attempt)."""
        self.reruns: dict[int, int] = {}
        """For each task that was rerun: the number of its last attempt before the last rerun."""
        self.rerun_keys: dict[int, bytes] = {}
        """The new record of each task that was rerun; empty: it lost its record."""
        self.deaths_caused: dict[int, int] = {}
        self.convicted: dict[int, str] = {}
        self.person_of_run: dict[int, SimulatedClient] = {}
        self._since: dict[tuple[object, ...], float] = {}
        self._decided_at = 0.0
        """Time of the decision whose facts are being made durable."""
        self._turns = 0
        self._records = 0

    # --- turns of the master --------------------------------------------------------------------------------------------------------

    def handled(self, process: SimulatedMaster) -> None:
        """Handles a turn of the machine whose facts are not durable yet."""
        self._decided_at = self.world.now
        self._turns += 1
        if process.idle_turns > MOST_IDLE_TURNS:
            raise Violated(f"{process.idle_turns} turns in a row without anything to do: the deadline lies in the past")
        if self._turns % self.world.scenario.check_every == 0:
            self._look_closely(process)

    def _look_closely(self, process: SimulatedMaster) -> None:
        machine = process.machine
        check(machine.state)
        check_explanations(machine)
        check_idle_capacity(machine)
        if self.world.master_trouble_until < self.world.now - self.settle_s:
            self._check_ahead(process)
            self._check_useless(process)
            self._check_endings(process)
            self.multi_node.check(machine)
        now = self.world.now
        for number, (kind, asked_at) in self.world.operator.asked.items():
            if now - max(asked_at, self.world.master_trouble_until) > ANSWER_WITHIN_S:
                raise Violated(f"question {number} ({kind}) has had no answer for {now - asked_at:.0f} s")

    def durable(self, record: bytes, turn: TurnRecord) -> None:
        """Handles durable facts, even if their master died before it knew."""
        world = self.world
        world.report.digest = zlib.crc32(record, world.report.digest)
        world.report.digest_without_texts = zlib.crc32(_SENTENCE.sub(b'""', encode_json(turn)), world.report.digest_without_texts)
        for fact in turn.facts:
            if world.trace is not None:
                world.note(f"  {str(fact)[:300]}")
            rule = _FACTS.get(type(fact))
            if rule is not None:
                rule(self, fact, turn)

    def compare(self, process: SimulatedMaster) -> None:
        """Compares states when all facts of this master are durable."""
        self._records += 1
        if self._records % self.world.scenario.compare_every == 0:
            self._compare(process.machine.state)

    def _compare(self, state: State) -> None:
        if fingerprint(state) != fingerprint(self.world.journal.shadow):
            raise Violated("replaying the journal does not give the live state: " + difference(state, self.world.journal.shadow))

    def recovered(self, state: State) -> None:
        """A new master has read the journal."""
        check(state)
        self._compare(state)
        self._since.clear()
        for person in self.world.people:
            if person.run and not person.finished:
                run = state.runs.get(person.run)
                known = len(run.tasks) if run is not None else -1
                if known < person.accepted_ever:
                    raise Violated(f"{person.plan.uid}: {person.accepted_ever} tasks were accepted, {known} are left after a restart")

    # --- facts ----------------------------------------------------------------------------------------------------------------------

    def _tasks_done(self, fact: f.TasksDone, turn: TurnRecord) -> None:
        for number, output in zip(fact.tasks, fact.outputs, strict=True):
            self.applied[number] = self.applied.get(number, 0) + 1
            if self.applied[number] > 1:
                raise Violated(f"task {show_task(number)}: a result was applied twice")
            said = self.world.payloads.get(output).rsplit(b"|", 3)[1:]
            attempt = self.world.journal.shadow.task(number).attempt
            if said != [b"%d" % number, b"%d" % attempt, fact.worker.encode()]:
                raise Violated(f"task {show_task(number)}, attempt {attempt} at {fact.worker}: the result of {said} was taken for it")
            self.multi_node.done(number)
            self.world.report.counts["copies that won"] += (number, attempt) in self.copies
        self.custody.done(fact)

    def _attempt_failed(self, fact: f.AttemptFailed, turn: TurnRecord) -> None:
        self.charges[fact.task, fact.budget] += 1
        self.custody.failed(fact)
        self.multi_node.failed(fact)
        if fact.budget == "deaths":
            node = self.world.nodes[fact.worker]
            together = node.site.nodes > 1 and not node.alive  # if a multi-node pilot fails, it is not known which of its nodes died
            if not node.life and (node.alive or node.left_well) and not together:
                truth = "lives" if node.alive else "left"
                raise Violated(f"task {show_task(fact.task)} was charged with the death of {fact.worker}, which {truth}")
        if fact.failure.cause == "poison":
            self._convicted(fact, turn)

    def _convicted(self, fact: f.AttemptFailed, turn: TurnRecord) -> None:
        self.convicted[fact.task] = fact.worker
        others = [
            number
            for other in turn.facts
            if isinstance(other, f.TasksReturned | f.AttemptFailed) and other.worker == fact.worker
            for number in (other.tasks if isinstance(other, f.TasksReturned) else [other.task])
            if number != fact.task
        ]
        if others:
            raise Violated(f"task {show_task(fact.task)} was convicted although {len(others)} others were on {fact.worker}")
        deaths = self.charges[fact.task, "deaths"]
        if deaths < 3:
            raise Violated(f"task {show_task(fact.task)} was convicted after {deaths} deaths")

    def _tasks_rerun(self, fact: f.TasksRerun, turn: TurnRecord) -> None:
        for number in fact.tasks:
            task = self.world.journal.shadow.task(number)
            if number in self.applied:
                raise Violated(f"task {show_task(number)} was rerun although it succeeded")
            self.reruns[number] = task.attempt
            self.rerun_keys[number] = fact.keys.get(number, b"")
            self.deaths_caused.pop(number, None)
            for charge in [charge for charge in self.charges if charge[0] == number]:
                del self.charges[charge]
        self.world.report.counts["reruns"] += len(fact.tasks)

    def _tasks_assigned(self, fact: f.TasksAssigned, turn: TurnRecord) -> None:
        self.multi_node.assigned(fact)

    def _tasks_returned(self, fact: f.TasksReturned, turn: TurnRecord) -> None:
        self.multi_node.returned(fact)

    def _tasks_duplicated(self, fact: f.TasksDuplicated, turn: TurnRecord) -> None:
        state = self.world.journal.shadow
        for number in fact.tasks:
            task = state.task(number)
            if task.shape.run.options.speculate is False:
                raise Violated(f"task {show_task(number)} was copied, against the will of its person")
            self.copies[number, state.copies[task].attempt] = None
            self.world.report.counts["copies"] += 1

    def _worker_ended(self, fact: f.WorkerEnded, turn: TurnRecord) -> None:
        self.ended_workers[fact.worker] = fact.reason
        node = self.world.nodes[fact.worker]
        if not node.alive or "revoked" in fact.reason or (self.world.stopping and "stopped" in fact.reason):
            return
        if "no work and no client" in fact.reason and not self.world.journal.shadow.unfinished:
            return
        settings = self.world.scenario.settings
        lease_s = max(settings.lease_s, RECONNECT_S, 3 * node.site.poll_s)
        # While the master's disk takes seconds per turn, agents give up waiting for the welcome and reconnect repeatedly.
        trouble_until = max(node.trouble_until, self.world.slow_disk_until)
        if "silent" in fact.reason and trouble_until >= self._decided_at - lease_s - 1.0:
            return
        raise Violated(f"worker {fact.worker} was given up without need: {fact.reason}")

    def _run_closed(self, fact: f.RunClosed, turn: TurnRecord) -> None:
        if "gone" in fact.reason:
            self._check_gone(fact.run, fact.reason)

    def _run_cancelled(self, fact: f.RunCancelled, turn: TurnRecord) -> None:
        if "gone" in fact.reason:
            self._check_gone(fact.run, fact.reason)

    def _check_gone(self, run: int, reason: str) -> None:
        person = self.person_of_run.get(run)
        if person is None:
            return
        author_s = self.world.scenario.settings.author_s
        gone_s = 0.0 if person.present else self._decided_at - person.left_at
        if gone_s < author_s - 1.0:
            raise Violated(f"run {run} was ended ({reason}) when its client had been gone for {gone_s:.1f} s, not {author_s:g}")

    # --- nodes ----------------------------------------------------------------------------------------------------------------------

    def began(self, node: SimulatedNode, execution: Execution, attempt: Attempt) -> None:
        """An attempt has really started."""
        world, task = self.world, execution.task
        world.note(f"{node.worker} begins {show_task(task)} attempt {execution.attempt}")
        world.report.counts["executions"] += 1
        earlier = self.executions.setdefault(task, [])
        for other in earlier:
            if other.attempt == execution.attempt:
                raise Violated(f"attempt {execution.attempt} of task {show_task(task)} was begun by {other.worker} and by {node.worker}")
            reborn = other.life < world.nodes[other.worker].life
            excused = other.outcome == "failed" or other.worker in self.ended_workers or reborn
            excused |= other.attempt <= self.reruns.get(task, 0)
            excused |= (task, execution.attempt) in self.copies and other.worker != node.worker
            excused |= any(name in self.ended_workers for name in other.beside)
            # An agent that hung may begin an attempt that was given up, because its worker, or one beside it, has ended since.
            if not excused and not any(name in self.ended_workers for name in (node.worker, *execution.beside)):
                raise Violated(
                    f"task {show_task(task)} runs again on {node.worker} (attempt {execution.attempt}), "
                    f"although attempt {other.attempt} on {other.worker} is {other.outcome or 'running'} and {other.worker} is not gone"
                )
        earlier.append(execution)
        self._check_needed(node, task, attempt)
        self._check_room(node)
        self.multi_node.began(node, execution, attempt)
        self.multi_node.molded(execution, attempt)
        self.multi_node.check_room(node)
        self.custody.check_present(node, task, "begins")

    def lost(self, task: int) -> int:
        return self.charges[task, "losses"] + self.charges[task, "deaths"]

    def woke(self, node: SimulatedNode) -> None:
        """Counts turns that the agent machine requested. An endless sequence at one moment would be a busy loop in a live agent."""
        if node.woken_at < self.world.now:
            node.woken_at, node.woken = self.world.now, 0
        node.woken += 1
        if node.woken > MOST_IDLE_TURNS:
            raise Violated(f"agent {node.worker} asks for {node.woken} turns at one moment")

    def _check_needed(self, node: SimulatedNode, number: int, attempt: Attempt) -> None:
        person = self.person_of_run.get(run_of(number))
        if person is not None:
            tasks = self.world.journal.shadow.runs[person.run].tasks
            for needed in person.plan.tasks[number & INDEX_MASK].needs:
                if tasks[needed].state != DONE:
                    raise Violated(f"task {show_task(number)} was begun before {tasks[needed]}, which it needs")
            self.custody.check_handed(node, number, person.plan, split_files(memoryview(attempt.payload))[0])

    def _check_room(self, node: SimulatedNode) -> None:
        used: dict[str, float] = {}
        for slot in node.slots.values():
            if slot.attempt is not None:
                for name, amount in slot.attempt.needs:
                    used[name] = used.get(name, 0.0) + amount
        for name, amount in used.items():
            if amount > node.capacity[name] + 1e-6:
                raise Violated(f"{node.worker} runs {amount:g} {name} of {node.capacity[name]:g}")

    def poisoned(self, task: int) -> None:
        """A task has killed its worker. Earlier deaths must have been charged to it, otherwise it would continue for ever."""
        uncharged = self.deaths_caused.get(task, 0) - self.lost(task)
        if uncharged > MOST_UNCHARGED:
            raise Violated(f"task {show_task(task)} has killed {self.deaths_caused[task]} workers, and {uncharged} of them cost it nothing")
        self.deaths_caused[task] = self.deaths_caused.get(task, 0) + 1
        self.world.report.counts["poisoned agents"] += 1

    # --- time limits ------------------------------------------------------------------------------------------------------------------

    def lasts(self, what: tuple[object, ...], holds: bool, most_s: float) -> bool:
        """Returns whether a condition has been observed for longer than allowed."""
        if not holds:
            self._since.pop(what, None)
            return False
        now = self.world.now
        return now - max(self._since.setdefault(what, now), self.world.master_trouble_until) > most_s

    def _troubled(self, worker: str) -> bool:
        node = self.world.nodes[worker]
        return not node.alive or node.trouble_until > self.world.now - self.settle_s

    def _check_ahead(self, process: SimulatedMaster) -> None:
        """Checks that no worker is idle for long while prefetched tasks wait at a worker without progress."""
        machine = process.machine
        workers = machine._policy_view().workers
        idle = [worker for worker in workers if not worker.held]
        for worker in workers:
            waiting = [task for task in worker.ahead if task.state == ASSIGNED]
            waits = any(
                could_take(machine, other, task.shape) and can_get_inputs(machine.state, task, other.site)
                for task in waiting
                for other in idle
            )
            stuck = waits and machine.now - worker.progress_at > STALE_S
            if self.lasts(("ahead", worker.id), stuck and not self._troubled(worker.id), self.settle_s):
                raise Violated(f"{len(worker.ahead)} tasks wait at {worker.id}, which has not got on for long, while {idle[0].id} idles")

    def _check_useless(self, process: SimulatedMaster) -> None:
        """Checks that no worker runs finished or reassigned attempts for long. A polling worker is informed at its next poll."""
        state = process.machine.state
        for worker in process.machine._policy_view().workers:
            for slot in self.world.nodes[worker.id].slots.values():
                execution = slot.execution
                if execution is not None and not slot.condemned:
                    task = state.find_task(execution.task)
                    wanted = task is not None and attempt_at(state, worker, task) == execution.attempt
                    name = ("useless", execution.task, execution.attempt)
                    if self.lasts(name, not wanted and not self._troubled(worker.id), self.settle_s + worker.poll_s):
                        raise Violated(f"{worker.id} has long been running attempt {execution.attempt} of {task}, which nobody wants")

    def _check_endings(self, process: SimulatedMaster) -> None:
        """Checks that quarantines end in time, and pilots when requested."""
        machine = process.machine
        for worker in machine.state.workers.values():
            if 0 < worker.quarantined_until < machine.now - self.settle_s:
                raise Violated(f"the quarantine of {worker.id} should have ended {machine.now - worker.quarantined_until:.0f} s ago")
        for pilot in machine.state.pilots.values():
            job = self.world.sites.jobs.get(pilot.id)
            there = job is not None and (not job.nodes or any(node.alive for node in job.nodes))
            if self.lasts(("ending", pilot.id), pilot.state == ENDING and there, ENDING_S):
                raise Violated(f"pilot {pilot.id} was to end {ENDING_S:g} s ago and is still there")

    # --- clients --------------------------------------------------------------------------------------------------------------------

    def opened(self, person: SimulatedClient) -> None:
        self.person_of_run[person.run] = person

    def refused(self, person: SimulatedClient, text: str) -> None:
        run = self.world.journal.shadow.runs.get(person.run)
        if run is None or not run.closed:
            raise Violated(f"{person.plan.uid} was refused although its run is open: {text}")

    # --- the end --------------------------------------------------------------------------------------------------------------------

    def waiting(self) -> None:
        """Checks that all work finishes in time after the last fault."""
        if self.world.now - self.calm_since > self.world.patience_s():
            raise Violated(f"{self._unfinished()} {self.world.now - self.calm_since:.0f} s after the last fault")

    def _unfinished(self) -> str:
        state = self.world.journal.shadow
        waiting = [task for run in state.runs.values() for task in run.tasks if task.state < DONE]
        people = [person.plan.uid for person in self.world.people if not person.finished]
        still_open = [run.id for run in state.runs.values() if not run.finished]
        return f"{len(waiting)} tasks are not final ({waiting[:3]}), {people} wait, runs {still_open} are not finished"

    def settled(self, process: SimulatedMaster) -> None:
        """Checks the final state, after all acknowledgements have arrived."""
        machine = process.machine
        check(machine.state)
        self._compare(machine.state)
        check_end(self.world, machine)
        self.custody.settled(machine)

    def emptied(self) -> None:
        self.world.payloads.compare(self.world.journal.shadow)
        check(self.world.journal.shadow)
        self.custody.emptied(self.world.journal.shadow)

    def finishing(self, since: float) -> None:
        if self.world.now - max(since, self.world.master_trouble_until) > self.world.scenario.settings.linger_s + 60.0:
            raise Violated("the master does not end by itself although nobody needs it")

    def master_finished(self, process: SimulatedMaster) -> None:
        state = process.machine.state
        if state.unfinished and not self.world.stopping:
            raise Violated(f"the master ended with {state.unfinished} tasks to do")


def difference(one: State, other: State) -> str:
    """Describes the first difference of two states."""
    from pilotfish.core import state_snapshot

    for left, right in zip(state_snapshot.dump(one), state_snapshot.dump(other), strict=False):
        if left != right:
            return _first_difference(left.kind, left.row, right.row)
    return "one of them has more"


def _first_difference(where: str, left: Any, right: Any) -> str:
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for place, (one, other) in enumerate(zip(left, right, strict=True)):
            if one != other:
                return _first_difference(f"{where}[{place}]", one, other)
    return f"{where}: {str(left)[:200]} / {str(right)[:200]}"


_FACTS: dict[type, Any] = {
    f.TasksRerun: Oracle._tasks_rerun,
    f.TasksAssigned: Oracle._tasks_assigned,
    f.TasksReturned: Oracle._tasks_returned,
    f.TasksDone: Oracle._tasks_done,
    f.AttemptFailed: Oracle._attempt_failed,
    f.TasksDuplicated: Oracle._tasks_duplicated,
    f.WorkerEnded: Oracle._worker_ended,
    f.RunClosed: Oracle._run_closed,
    f.RunCancelled: Oracle._run_cancelled,
}

__all__ = ["INDEX_MASK", "Oracle", "Violated", "difference", "run_of"]
