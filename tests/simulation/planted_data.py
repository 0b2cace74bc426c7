"""Plants bugs in contents, like ``planted.py``."""

from __future__ import annotations

from typing import Any

import msgspec

from pilotfish.agent.node import agent_machine as agent_machine
from pilotfish.agent.node.attempts import Attempt, AttemptQueue
from pilotfish.agent.node.input_staging import InputStaging
from pilotfish.core import state_snapshot
from pilotfish.core.data import intermediate_files, replicas
from pilotfish.core.machine import Machine
from pilotfish.core.state import Run, State, Worker
from pilotfish.core.workers import agent_messages, site_masters
from pilotfish.model import facts as f
from pilotfish.model import messages as m
from pilotfish.model.contents import ExpectedFile, IntermediateFile
from pilotfish.model.task import DISK
from tests.simulation.planted import PLANTED, Patch, bug

__all__ = ["PLANTED"]

# --- the agent ----------------------------------------------------------------------------------------------------------------------


@bug
def contents_stay_wanted_for_ever(patch: Patch) -> None:
    """Contents are not released when their attempt is returned or killed before it started."""
    release_contents = AttemptQueue._release_contents

    def forgetful(self: AttemptQueue, attempt: Attempt) -> None:
        if not attempt.forgotten:
            release_contents(self, attempt)
        elif self.staged.get(attempt.task) is attempt:
            del self.staged[attempt.task]

    patch.setattr(AttemptQueue, "_release_contents", forgetful)


@bug
def contents_are_released_when_their_task_begins(patch: Patch) -> None:
    """The cache may evict contents that a running task still reads."""
    assign = AttemptQueue._assign

    def careless(self: AttemptQueue, slot: Any, attempt: Attempt) -> None:
        assign(self, slot, attempt)
        if attempt.contents:
            self.released(attempt)

    patch.setattr(AttemptQueue, "_assign", careless)


@bug
def an_attempt_begins_with_one_content_missing(patch: Patch) -> None:
    """An attempt is queued when the first of its contents is present."""

    def hasty(self: InputStaging, digest: str, now: float) -> list[Attempt]:
        self._seen_at[digest] = now
        return list(self._waiting.pop(digest, ()))

    patch.setattr(InputStaging, "arrived", hasty)


@bug
def what_was_evicted_is_believed_to_be_here(patch: Patch) -> None:
    """An eviction is reported to the master, but the agent itself still counts the content as present."""
    changed = InputStaging.changed

    def stubborn(self: InputStaging, gained: Any, lost: Any) -> None:
        seen = dict(self._seen_at)
        changed(self, gained, lost)
        self._seen_at = seen

    patch.setattr(InputStaging, "changed", stubborn)


@bug
def what_was_made_is_not_held(patch: Patch) -> None:
    """A reconnected agent does not report contents that its tasks made."""
    original = InputStaging.finish_upload

    def finish_upload(self: InputStaging, number: int, failure: Any, payload: Any, made: list[Any]) -> Any:
        answer = original(self, number, failure, payload, made)
        for content in made:
            self.holds.pop(content[0])
        return answer

    patch.setattr(InputStaging, "finish_upload", finish_upload)


@bug
def files_that_are_put_away_are_forgotten_by_a_hello(patch: Patch) -> None:
    """A reconnected agent does not report attempts whose outputs are being uploaded."""
    patch.setattr(InputStaging, "holding", lambda self: [])


@bug
def an_agent_leaves_while_it_puts_files_away(patch: Patch) -> None:
    """A drained agent leaves before the outputs of its last task are uploaded."""
    make = InputStaging.__init__

    class Unnoticed(dict[int, Any]):
        def __bool__(self) -> bool:
            return False

    def make_blind(self: InputStaging) -> None:
        make(self)
        self.uploads = Unnoticed()

    patch.setattr(InputStaging, "__init__", make_blind)


# --- the master ---------------------------------------------------------------------------------------------------------------------


@bug
def a_full_disk_is_charged_to_the_task(patch: Patch) -> None:
    patch.setattr(agent_messages, "DISK", "no such cause")


@bug
def a_full_disk_gets_the_next_task(patch: Patch) -> None:
    """The task goes to another worker, but this worker still gets tasks."""

    def keep(self: agent_machine.AgentMachine, attempt: Attempt, item: Any, now: float) -> None:
        if not attempt.forgotten:
            self.results.keep(attempt, item, now)

    def fail(master: Machine, worker: Worker, item: m.ResultItem, payload: Any) -> None:
        if item.failure is not None and item.failure.cause == DISK and site_masters.find_current(master, worker, item.task, item.attempt):
            master.record(f.TasksReturned(worker.id, [item.task], item.failure.message))
        else:
            failed(master, worker, item, payload)

    failed = agent_messages._failed
    patch.setattr(agent_machine.AgentMachine, "_keep_result", keep)
    patch.setattr(agent_messages, "_failed", fail)


@bug
def holders_are_forgotten_when_a_worker_comes_back(patch: Patch) -> None:
    """A worker's cache report counts only the first time."""
    reconcile = agent_messages._reconcile

    def forget(master: Machine, link: int, worker: Worker, holding: list[tuple[int, int, int]]) -> None:
        if worker.holds:
            master.record(f.ReplicasChanged(worker.id, [], [record.digest for record in worker.holds]))
        reconcile(master, link, worker, holding)

    def deaf(master: Machine, worker: Worker, message: m.CacheReport) -> None:
        if not message.all:
            holds(master, worker, message)

    holds = agent_messages._update_holders
    patch.setattr(agent_messages, "_reconcile", forget)
    patch.setattr(agent_messages, "_update_holders", deaf)


@bug
def what_is_lost_is_still_believed_to_be_held(patch: Patch) -> None:
    holds = agent_messages._update_holders

    def hopeful(master: Machine, worker: Worker, message: m.CacheReport) -> None:
        holds(master, worker, msgspec.structs.replace(message, lost=[], all=False))

    patch.setattr(agent_messages, "_update_holders", hopeful)


@bug
def made_contents_are_not_journaled(patch: Patch) -> None:
    """The live master knows the outputs of a task; a master that reads the journal does not."""

    def record(self: Machine, fact: f.Fact) -> None:
        original(self, fact)
        if isinstance(fact, f.TasksDone) and fact.made:
            self.facts[-1] = msgspec.structs.replace(fact, made={})

    original = Machine.record
    patch.setattr(Machine, "record", record)


@bug
def contents_outlive_their_runs(patch: Patch) -> None:
    """Contents of a forgotten run stay known."""

    def keep(state: State, run: Any) -> None:
        for digest in run.contents:
            state.contents[digest].runs -= 1

    patch.setattr(replicas, "forget_run", keep)


# --- intermediate files -------------------------------------------------------------------------------------------------------------


@bug
def promised_files_are_not_fetched(patch: Patch) -> None:
    """The task gets the names of future files, but its worker does not fetch them."""
    patch.setattr(intermediate_files, "receive", lambda state, task: None)


@bug
def promised_files_are_handed_on_under_the_name_that_they_had(patch: Patch) -> None:
    def unnamed(run: Run, expected: ExpectedFile) -> list[IntermediateFile]:
        return [file for name, file in run.left_files.get(expected.maker, {}).items() if name.startswith(f"{expected.name}/")]

    patch.setattr(intermediate_files, "left_for", unnamed)


@bug
def what_tasks_left_for_others_is_not_in_a_snapshot(patch: Patch) -> None:
    patch.setitem(state_snapshot._RESTORE, "files", lambda state, row: None)


@bug
def only_the_first_attempt_gets_what_was_promised(patch: Patch) -> None:
    """A retry finds an empty directory."""
    inputs_of = intermediate_files.inputs_of
    patch.setattr(intermediate_files, "inputs_of", lambda task: inputs_of(task) if task.attempt < 2 else [])
