"""Plants bugs: mutations of the core, of the agent machine, or of the order of writes.

A simulation that does not find these would not find real bugs either. Each entry describes the bug as a bug report would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from pilotfish.agent.node import agent_machine
from pilotfish.agent.node import pending_results as agent_results
from pilotfish.core import apply, machine, state_snapshot
from pilotfish.core.clients import client_messages, pool_commands
from pilotfish.core.clients.subscriptions import Subscription
from pilotfish.core.machine import Machine, Turn
from pilotfish.core.policy_interface import AssignmentProposal, RecallProposal
from pilotfish.core.state import State, Task, Worker
from pilotfish.core.tasks import reruns, retry_rules
from pilotfish.core.tasks.transitions import release
from pilotfish.core.workers import agent_messages, leases
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.states import DONE, RUNNING
from pilotfish.model.task import Failure
from pilotfish.policies import dispatcher
from tests.simulation.world.simulated_master import SimulatedMaster

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Planted:
    name: str
    plant: Callable[[Patch], None]


PLANTED: list[Planted] = []


def bug(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    PLANTED.append(Planted(plant.__name__.replace("_", "-"), plant))
    return plant


# --- master and agents --------------------------------------------------------------------------------------------------------------


@bug
def results_are_not_fenced(patch: Patch) -> None:
    """A result of any attempt and worker is accepted for an unfinished task."""

    def accept(master: Machine, link: int, worker: Worker, message: m.Results, payloads: list[Any]) -> None:
        good = [pair for pair in zip(message.items, payloads, strict=True) if pair[0].failure is None]
        found = [(master.state.find_task(pair[0].task), pair) for pair in good]
        done = {task: pair for task, pair in found if task is not None and task.state < DONE}
        if done:
            agent_messages._done(master, worker, done)
        master.send(link, m.Acked(message.first, message.first + len(message.items) - 1))

    patch.setattr(agent_messages, "_results", accept)


@bug
def lost_assignments_stay_leased(patch: Patch) -> None:
    """An assignment that never reached the worker is not returned when the agent sends hello."""
    reconcile = agent_messages._reconcile

    def pretend(master: Machine, link: int, worker: Worker, holding: list[tuple[int, int, int]]) -> None:
        known = {(number, attempt) for number, attempt, _ in holding}
        unknown = [(task.id, task.attempt) for task in (*worker.active, *worker.ahead) if (task.id, task.attempt) not in known]
        reconcile(master, link, worker, [*holding, *((number, attempt, m.QUEUED) for number, attempt in unknown)])

    patch.setattr(agent_messages, "_reconcile", pretend)


@bug
def running_work_is_not_adopted(patch: Patch) -> None:
    """After a reconnection the running attempts of the agent are killed and assigned again."""
    reconcile = agent_messages._reconcile

    def disown(master: Machine, link: int, worker: Worker, holding: list[tuple[int, int, int]]) -> None:
        for task in worker.active:
            if task.state == RUNNING:
                master.state.runs[task.id >> 32].counts[RUNNING] -= 1
                master.state.runs[task.id >> 32].counts[2] += 1
                task.state = 2
        reconcile(master, link, worker, [item for item in holding if item[2] != m.STARTED])
        started = [(number, attempt) for number, attempt, stage in holding if stage == m.STARTED]
        if started:
            master.send(link, m.Kill(started))

    patch.setattr(agent_messages, "_reconcile", disown)


@bug
def what_nobody_wants_is_not_killed(patch: Patch) -> None:
    """A reconnected agent continues attempts that were reassigned to other workers."""
    reconcile = agent_messages._reconcile

    def tolerate(master: Machine, link: int, worker: Worker, holding: list[tuple[int, int, int]]) -> None:
        before = len(master.effects)
        reconcile(master, link, worker, holding)
        master.effects[before:] = [
            effect for effect in master.effects[before:] if not (isinstance(effect, e.Send) and isinstance(effect.message, m.Kill))
        ]

    patch.setattr(agent_messages, "_reconcile", tolerate)


@bug
def a_late_hello_is_believed(patch: Patch) -> None:
    """A delayed hello from an abandoned connection replaces the newer one."""
    hello = agent_messages._hello

    def believe(master: Machine, link: int, message: m.Hello) -> None:
        connection = master.connections.get(message.worker)
        if connection is not None:
            connection.newest_link = 0
        hello(master, link, message)

    patch.setattr(agent_messages, "_hello", believe)


@bug
def a_recall_is_forgotten(patch: Patch) -> None:
    """Tasks at a worker without progress are recorded as recalled, but the worker is not informed."""

    def forget(master: Machine, recall: Any) -> bool:
        tasks = [task for task in recall.tasks if task.worker is recall.worker and task.state == 2]
        if tasks:
            master.record(f.TasksRecalled(recall.worker.id, [task.id for task in tasks]))
        return True

    patch.setitem(machine._PROPOSALS, RecallProposal, forget)


@bug
def failures_are_acknowledged_and_dropped(patch: Patch) -> None:
    """The result of a failed attempt is acknowledged and then ignored."""
    patch.setattr(agent_messages, "_failed", lambda *_: None)


# --- lost workers -------------------------------------------------------------------------------------------------------------------


@bug
def a_lease_never_expires(patch: Patch) -> None:
    patch.setattr(leases, "lease_expired", lambda *_: None)


@bug
def the_tasks_of_a_lost_worker_are_forgotten(patch: Patch) -> None:
    def lose(master: Machine, worker: Worker, reason: str, *, died: bool) -> None:
        leases.end_worker(master, worker, lost=True, reason=reason)

    patch.setattr(leases, "lose_worker", lose)


@bug
def the_masters_own_sleep_is_not_forgiven(patch: Patch) -> None:
    """A master that slept mistakes its own silence for that of its workers."""
    patch.setattr(leases, "extend_all", lambda master: None)


@bug
def a_full_run_meets_a_dying_worker(patch: Patch) -> None:
    """If the death of a worker makes a run exceed its maximum failures, the other tasks of that worker fail once more."""

    def lose(master: Machine, worker: Worker, reason: str, *, died: bool) -> None:
        started = list(worker.active)
        if worker.ahead:
            master.record(f.TasksReturned(worker.id, [task.id for task in worker.ahead], reason))
        for task in started:
            master.fail_attempt(retry_rules.judge_death(master.state, worker, task, reason, died))
        leases.end_worker(master, worker, lost=True, reason=reason)

    patch.setattr(leases, "lose_worker", lose)


@bug
def an_orderly_leave_is_taken_for_a_death(patch: Patch) -> None:
    """Tasks are charged for walltime ends and draining."""
    patch.setattr(leases, "leave", lambda master, worker, reason, *_: leases.lose_worker(master, worker, reason, died=True))


@bug
def a_cancelled_pilot_is_forgotten_over_a_restart(patch: Patch) -> None:
    """A pilot whose cancellation was pending when the master died is adopted and never cancelled."""
    start = Machine.start

    def adopt_only(self: Machine, now: float) -> Turn:
        turn = start(self, now)
        turn.effects[:] = [effect for effect in turn.effects if not isinstance(effect, e.CancelPilot)]
        return turn

    patch.setattr(Machine, "start", adopt_only)


@bug
def a_quarantine_has_no_end(patch: Patch) -> None:
    patch.setattr(leases, "quarantine_expired", lambda *_: None)


# --- blame --------------------------------------------------------------------------------------------------------------------------


@bug
def retries_have_no_end(patch: Patch) -> None:
    judge = retry_rules.judge

    def patient(*arguments: Any, **named: Any) -> f.AttemptFailed:
        return msgspec.structs.replace(judge(*arguments, **named), final=False)

    patch.setattr(agent_messages, "judge", patient)


@bug
def suspects_run_beside_others(patch: Patch) -> None:
    """A suspected poison task is placed at any worker with free resources."""

    def place(view: Any, workers: list[Worker], proposals: list[Any]) -> list[Worker]:
        for task in view.state.suspects:
            able = next((worker for worker in workers if worker.suits(task.shape, view.now) and worker.fits(task.shape.needs)), None)
            if able is not None:
                proposals.append(AssignmentProposal(able, [task]))
                return [worker for worker in workers if worker is not able]
        return workers

    patch.setattr(dispatcher, "_place_suspects", place)


@bug
def poison_is_convicted_by_company(patch: Patch) -> None:
    """Three deaths convict a task, even if other tasks ran on the worker."""
    judge_death = retry_rules.judge_death

    def rash(state: Any, worker: Worker, task: Task, reason: str, died: bool) -> f.AttemptFailed:
        fact = judge_death(state, worker, task, reason, died)
        deaths = task.failure_counts.deaths if task.failure_counts else 0
        if died and deaths >= 2:
            return msgspec.structs.replace(fact, final=True, suspect=False, failure=Failure("poison", "task", "it was there again"))
        return msgspec.structs.replace(fact, suspect=False)

    patch.setattr(leases, "judge_death", rash)
    patch.setattr(agent_messages, "judge_death", rash)


@bug
def a_swift_poison_costs_nothing(patch: Patch) -> None:
    """Only tasks that were reported running are charged with the loss of a worker."""

    def lose(master: Machine, worker: Worker, reason: str, *, died: bool) -> None:
        held = [*worker.active, *worker.ahead]
        master.record(f.TasksReturned(worker.id, [task.id for task in held if task.state != RUNNING], reason))
        for task in held:
            if task.worker is worker:
                master.fail_attempt(retry_rules.judge_death(master.state, worker, task, reason, died))
        leases.end_worker(master, worker, lost=True, reason=reason)

    patch.setattr(leases, "lose_worker", lose)


@bug
def an_end_that_nobody_saw_counts_as_a_death(patch: Patch) -> None:
    """A pilot that ended while no master watched makes its tasks suspects."""
    gone = machine._HANDLERS[i.PilotEndReported]

    def assume(master: Machine, item: i.PilotEndReported) -> None:
        gone(master, msgspec.structs.replace(item, witnessed=True))

    patch.setitem(machine._HANDLERS, i.PilotEndReported, assume)


@bug
def a_suspect_that_fits_nowhere_holds_up_the_others(patch: Patch) -> None:
    """Suspects are placed strictly in order, and a worker is reserved even if the first suspect can never run there."""

    def place(view: Any, workers: list[Worker], proposals: list[Any]) -> list[Worker]:
        suspects = [task for task in view.state.suspects if not task.shape.run.paused]
        used: dict[str, None] = {}
        for task in suspects:
            empty = [worker for worker in workers if not worker.held and worker.id not in used]
            found = next((worker for worker in empty if worker.suits(task.shape, view.now)), None)
            if found is None:
                break
            used[found.id] = None
            proposals.append(AssignmentProposal(found, [task]))
        if suspects and not used:
            able = [worker for worker in workers if worker.could_fit(suspects[0].shape.needs)]
            used.update({min(able, key=lambda worker: worker.held).id: None} if able else {})
        return [worker for worker in workers if worker.id not in used]

    patch.setattr(dispatcher, "_place_suspects", place)


# --- clients ------------------------------------------------------------------------------------------------------------------------


@bug
def a_repeated_submission_counts_twice(patch: Patch) -> None:
    submit = client_messages._submit

    def gullible(master: Machine, link: int, message: m.Submit, payloads: list[Any]) -> None:
        run = master.state.runs.get(message.run)
        known = len(run.tasks) if run is not None else 0
        if run is not None and 0 < message.first < known and not run.closed:
            message = msgspec.structs.replace(message, first=known, deps={})
        submit(master, link, message, payloads)

    patch.setitem(client_messages._HANDLERS, m.Submit, gullible)


@bug
def a_watcher_starts_from_the_beginning(patch: Patch) -> None:
    """The cursor of a reconnected client is ignored."""

    def rewind(master: Machine, link: int, message: m.Watch, payloads: list[Any]) -> None:
        master.subscriptions.links[link][message.run] = Subscription(0, message.payloads)

    patch.setitem(client_messages._HANDLERS, m.Watch, rewind)


@bug
def a_client_that_came_back_counts_as_gone(patch: Patch) -> None:
    """The timer of an earlier absence closes the run."""
    expired = client_messages.author_expired

    def hasty(master: Machine, key: str) -> None:
        master.subscriptions.disconnected_at.pop(int(key), None)
        master.subscriptions.disconnected_at[int(key)] = master.now - master.settings.author_s
        expired(master, key)

    patch.setattr(client_messages, "author_expired", hasty)


def _stop_nothing(master: Machine, tasks: Iterable[Task]) -> None:
    for task in tasks:
        if task.shape.run.options.owned:
            master.release_payload(task.payload)


@bug
def cancelled_tasks_run_on(patch: Patch) -> None:
    patch.setattr(pool_commands, "_stop_at_workers", _stop_nothing)


@bug
def a_look_at_the_output_is_never_answered(patch: Patch) -> None:
    """A request for the output of a task is never answered if its worker dies first."""
    patch.setattr(client_messages, "peek_expired", lambda *_: None)


@bug
def a_rerun_numbers_its_attempts_from_one(patch: Patch) -> None:
    """A result of a cancelled attempt can count for a rerun attempt with the same number."""
    renew = reruns._renew

    def careless(state: State, task: Task, fact: f.TasksRerun) -> None:
        renew(state, task, fact)
        task.attempt = 0

    patch.setattr(reruns, "_renew", careless)


@bug
def a_former_end_of_a_rerun_task_is_reported_too(patch: Patch) -> None:
    patch.setattr(reruns, "_supersede", lambda run, indices: setattr(run, "superseded", run.superseded + len(indices)))


@bug
def a_rerun_task_keeps_its_old_key(patch: Patch) -> None:
    """The result of the new files is reused for the old files."""
    patch.setattr(reruns, "_renew_keys", lambda *_: None)


@bug
def the_payload_of_a_cancelled_task_is_not_kept(patch: Patch) -> None:
    stop = pool_commands._stop_at_workers

    def careless(master: Machine, tasks: Iterable[Task]) -> None:
        known = list(tasks)
        stop(master, known)
        for task in known:
            if not task.shape.run.options.owned:
                master.release_payload(task.payload)

    patch.setattr(pool_commands, "_stop_at_workers", careless)


@bug
def the_next_turn_lies_in_the_past(patch: Patch) -> None:
    """The policy asks for a turn at a past time, and the host loops without end."""

    def hasty(self: dispatcher.Dispatcher, view: Any) -> float | None:
        held_up = [worker for worker in view.workers if worker.ahead]
        if view.state.ready or not held_up or all(worker.held for worker in view.workers):
            return None
        return float(min(worker.progress_at for worker in held_up) + dispatcher.STALE_S)

    patch.setattr(dispatcher.Dispatcher, "next_look_at", hasty)
    patch.setattr(machine, "MIN_DECISION_INTERVAL_S", -1e9)


# --- state and journal --------------------------------------------------------------------------------------------------------------


@bug
def acknowledged_before_durable(patch: Patch) -> None:
    """Effects leave before their facts are synced."""
    commit = SimulatedMaster._commit

    def eager(self: SimulatedMaster, turn: Turn) -> None:
        if turn.facts and not self.usurped:
            self._perform(Turn(turn.at, [], turn.effects))
            turn = Turn(turn.at, turn.facts, [])
        if self.alive:
            commit(self, turn)

    patch.setattr(SimulatedMaster, "_commit", eager)


@bug
def freed_room_is_not_given_back(patch: Patch) -> None:
    def stingy(worker: Worker, task: Task) -> None:
        free = dict(worker.free)
        release(worker, task)
        if not worker.ahead and not worker.active:
            worker.free = free

    patch.setattr(apply, "release", stingy)


@bug
def dependencies_are_ignored(patch: Patch) -> None:
    patch.setattr(apply, "_wait_for", lambda run, task, needed: 0)


@bug
def a_decision_is_not_journaled(patch: Patch) -> None:
    """The state changes without a fact: only the live master knows of started tasks."""

    def record(self: Machine, fact: f.Fact) -> None:
        apply.apply(self.state, fact, self.now)
        if not isinstance(fact, f.TasksStarted):
            self.facts.append(fact)

    patch.setattr(Machine, "record", record)


@bug
def a_snapshot_leaves_something_out(patch: Patch) -> None:
    """Consecutive failures of a worker do not survive a compaction."""
    restore = state_snapshot._RESTORE["worker"]

    def forgetful(state: Any, row: Any) -> None:
        restore(state, [*row[:3], []])

    patch.setitem(state_snapshot._RESTORE, "worker", forgetful)


@bug
def a_payload_is_given_up_twice(patch: Patch) -> None:
    submit = client_messages._submit

    def twice(master: Machine, link: int, message: m.Submit, payloads: list[Any]) -> None:
        run = master.state.runs.get(message.run)
        if run is not None and message.first < len(run.tasks):
            for payload in payloads[len(message.specs) :][: len(run.tasks) - message.first]:
                master.release_payload(payload)
        submit(master, link, message, payloads)

    patch.setitem(client_messages._HANDLERS, m.Submit, twice)


# --- the agent ----------------------------------------------------------------------------------------------------------------------


@bug
def the_agent_forgets_results_when_it_reconnects(patch: Patch) -> None:
    def forget(self: agent_results.PendingResults) -> None:
        self.kept.clear()
        self.unsent.clear()

    patch.setattr(agent_results.PendingResults, "resend_all", forget)


@bug
def the_agent_keeps_its_results_to_itself(patch: Patch) -> None:
    """Finished attempts are missing in the hello, so the master assigns them again."""
    patch.setattr(agent_results.PendingResults, "holding", lambda self: [])


@bug
def the_agent_believes_an_old_master(patch: Patch) -> None:
    """Epochs are ignored."""
    linked = agent_machine.AgentMachine.linked

    def trusting(self: agent_machine.AgentMachine, epoch: int, now: float) -> None:
        self.epoch = min(self.epoch, epoch)
        linked(self, epoch, now)

    patch.setattr(agent_machine.AgentMachine, "linked", trusting)


@bug
def the_agent_does_not_hear_kill(patch: Patch) -> None:
    patch.setitem(agent_machine.AgentMachine._HANDLERS, "kill", lambda *_: None)


@bug
def the_agent_never_gives_up_a_silent_master(patch: Patch) -> None:
    """The agent waits for a silently lost connection until the worker counts as lost."""
    patch.setattr(agent_machine, "SILENT_HEARTBEATS", 1_000_000)


@bug
def the_agent_spins(patch: Patch) -> None:
    """The agent requests a turn at once, without end, while tasks wait behind a long one."""
    next_deadline = agent_machine.AgentMachine._next_deadline

    def impatient(self: agent_machine.AgentMachine) -> float:
        if self.attempts.queue and self.attempts.busy:
            return min(slot.started_at for slot in self.attempts.busy.values())
        return next_deadline(self)

    patch.setattr(agent_machine.AgentMachine, "_next_deadline", impatient)
