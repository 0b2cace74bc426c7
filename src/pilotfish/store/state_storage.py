"""Rebuilds the state of a pool from the journal, even if records are lost. Writes the state to the journal as a snapshot."""

from __future__ import annotations

import logging
import os
import stat
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from pilotfish.core import state_snapshot
from pilotfish.core.apply import apply
from pilotfish.core.state import State
from pilotfish.core.tasks.concurrency_limits import admit_anyway
from pilotfish.core.tasks.speculative_copies import attempts
from pilotfish.core.tasks.transitions import enqueue, move
from pilotfish.errors import IllegalTransition, JournalError
from pilotfish.model import facts as f
from pilotfish.model.ids import INDEX_MASK, run_of
from pilotfish.model.states import DONE, READY, WAITING
from pilotfish.model.task import DAMAGED, Failure, RunOptions, StoredPayload, TaskSpec
from pilotfish.store.journal.journal_reader import JournalReader
from pilotfish.store.journal.journal_writer import Journal

log = logging.getLogger("pilotfish.journal")

OnFact = Callable[[State, f.AnyFact, float], None]
MIN_BYTES = 64 * 1024 * 1024
GROWTH = 3
"""The journal is compacted when it is more than this many times as large as its snapshot."""
LOST = Failure(DAMAGED, "site", "its description was in a damaged part of the journal")
LOST_PAYLOAD = b"\xff\xff\xff\xfflost"
"""Stands for a lost payload of a task. No packed payload begins with these bytes."""
_ABOUT_HOLDERS = (
    f.TasksAssigned,
    f.TasksDelegated,
    f.TasksClaimed,
    f.TasksDuplicated,
    f.TasksStarted,
    f.TasksReturned,
    f.TasksRecalled,
)
_COLUMNS = ("tasks", "wall_us", "cpu_us", "rss_kib", "outputs")


def replay(recovery: JournalReader, on_fact: OnFact | None = None) -> State:
    """Applies all records of a journal and returns the state. ``on_fact`` is called after each applied fact.

    If the journal is damaged, applies all facts that can still be applied, and logs how many facts could not be applied.
    """
    state = State()
    damage = recovery.damage_report
    unusable = 0
    damaged = False
    for record in recovery:
        turn = _decode(record)
        damaged = damaged or bool(damage.gaps or damage.damages)
        for fact in turn.facts:
            if not damaged:
                _apply(state, fact, turn.at)
            elif not apply_repaired(state, fact, turn.at):
                unusable += 1
                continue
            if on_fact is not None:
                on_fact(state, fact, turn.at)
    if damaged or damage.gaps or damage.damages:
        settle(state, state.at)
        log.error("the journal is damaged: %s %s; %d facts after that could not be used", damage.damages, damage.gaps, unusable)
    if damage.cut is not None:
        log.warning("an unfinished write at the end of the journal was cut off: %s", damage.cut)
    return state


def _decode(record: bytes) -> f.TurnRecord:
    try:
        return f.decode_record(record)
    except msgspec.ValidationError as problem:
        raise _of_another_version(problem) from problem


def _apply(state: State, fact: f.AnyFact, at: float) -> None:
    try:
        apply(state, fact, at)
    except (ValueError, TypeError) as problem:
        if isinstance(fact, f.Restored):  # rows of a snapshot have no field names, and a different version can have different fields
            raise _of_another_version(problem) from problem
        raise


def _of_another_version(problem: Exception) -> JournalError:
    text = f"the pool's journal was written by another version of Pilotfish ({problem})"
    return JournalError(text, "Go on with that version, or begin a new pool: pilotfish run --pool NEW ...")


# --- a damaged journal ----------------------------------------------------------------------------------------------------------------

# After a lost record, each fact is repaired before it is applied. First, missing facts that must have come before it are applied. Then the
# parts of the fact that contradict the state are left out. If the record with the result of a task exists, the task is done, even if other
# records about the task were lost. If the description of a task was lost, the task is listed as failed, so that the user learns of the
# loss.


def apply_repaired(state: State, fact: f.AnyFact, at: float) -> bool:
    """Applies a fact that comes after a lost record. First applies missing facts that this fact requires. Returns False if the fact cannot
    be applied."""
    try:
        for part in _repair(state, fact):
            apply(state, part, at)
    except (LookupError, IllegalTransition):
        return False
    return True


def settle(state: State, at: float) -> None:
    """Ends all workers and puts their tasks back into the queue, because it is unknown which tasks they really have. Tasks whose input was
    lost become failed."""
    for worker in list(state.workers.values()):
        held = [task.id for task in worker.tasks]
        if held:
            apply(state, f.TasksReturned(worker.id, held, "the journal was damaged"), at)
        apply(state, f.WorkerEnded(worker.id, True, "the journal was damaged"), at)
    for run in state.runs.values():
        lost = [task.id for task in run.tasks if task.payload == LOST_PAYLOAD and task.state < DONE]
        if lost:
            apply(state, f.TasksSkipped(lost, LOST), at)


def _repair(state: State, fact: Any) -> Iterator[f.Fact]:
    if isinstance(fact, _ABOUT_HOLDERS):
        return  # ``settle`` puts these tasks back into the queue at the end
    numbers = getattr(fact, "tasks", None) or ([fact.task] if isinstance(fact, f.AttemptFailed) else [])
    for run in dict.fromkeys([run_of(number) for number in numbers] + ([fact.run] if hasattr(fact, "run") else [])):
        if run not in state.runs and not isinstance(fact, f.RunOpened):
            yield f.RunOpened(run, f"damaged-{run}", RunOptions(name="damaged"))
    if isinstance(fact, f.SpecsAdded):
        yield from _placeholder_specs(state, fact.run, fact.first)
    elif isinstance(fact, f.TasksRerun):
        yield from _placeholder_specs(state, fact.run, max(fact.specs.values(), default=0) + 1)
    elif isinstance(fact, f.TasksAdded):
        yield from _placeholder_specs(state, fact.run, max(fact.specs, default=0) + 1)
        yield from _placeholder_tasks(state, fact.run, fact.first)
    for number in numbers:
        yield from _placeholder_tasks(state, run_of(number), (number & INDEX_MASK) + 1)
    worker = getattr(fact, "worker", None)
    if worker is not None and worker not in state.workers and not isinstance(fact, f.WorkerJoined):
        yield f.WorkerJoined(worker, "", {"cores": 0.0}, {}, {}, None, 0.0)
    yield from _possible(state, fact)


def _placeholder_specs(state: State, run: int, wanted: int) -> Iterator[f.Fact]:
    known = len(state.runs[run].specs)
    if wanted > known:
        yield f.SpecsAdded(run, known, [TaskSpec("lost")] * (wanted - known))


def _placeholder_tasks(state: State, run: int, wanted: int) -> Iterator[f.Fact]:
    known = len(state.runs[run].tasks)
    if wanted > known:
        yield from _placeholder_specs(state, run, 1)
        missing = wanted - known
        yield f.TasksAdded(run, known, [0] * missing, [LOST_PAYLOAD] * missing, {})


def _possible(state: State, fact: Any) -> Iterator[f.Fact]:
    """Yields the facts that must come before ``fact``, and then ``fact`` without the tasks that have already ended. For a failed attempt,
    there are two cases in which it yields nothing: the failure did not end the task, or the task has already ended."""
    if isinstance(fact, f.TasksDone):
        # A failed or cancelled task can succeed only after a rerun, so the record of a rerun is lost.
        for number in fact.tasks:
            if state.task(number).state > DONE:
                yield f.TasksRerun(run_of(number), [number])
        unfinished = [place for place, number in enumerate(fact.tasks) if state.task(number).state < DONE]
        columns = {name: [getattr(fact, name)[place] for place in unfinished] for name in _COLUMNS}
        fact = msgspec.structs.replace(fact, **columns)
        yield from _assign_to(state, fact.worker, fact.tasks)
    elif isinstance(fact, f.AttemptFailed):
        if not fact.final or state.task(fact.task).state >= DONE:
            return
        yield from _assign_to(state, fact.worker, [fact.task])
    elif isinstance(fact, f.WorkerEnded | f.WorkerJoined) and fact.worker in state.workers:
        worker = state.workers[fact.worker]
        held = [task.id for task in worker.tasks]
        if held:
            yield f.TasksReturned(fact.worker, held, "the journal was damaged")
    elif isinstance(fact, f.TasksReused):
        pairs = [(number, source) for number, source in zip(fact.tasks, fact.sources, strict=True) if _can_reuse(state, number, source)]
        fact = f.TasksReused([number for number, _ in pairs], [source for _, source in pairs])
    elif isinstance(fact, f.TasksSkipped | f.TasksCancelled):
        fact = msgspec.structs.replace(fact, tasks=[number for number in fact.tasks if state.task(number).state < DONE])
    elif isinstance(fact, f.TasksRerun):
        fact = msgspec.structs.replace(fact, tasks=[number for number in fact.tasks if state.task(number).state > DONE])
    yield fact


def _can_reuse(state: State, number: int, source_number: int) -> bool:
    source = state.find_task(source_number)
    return state.task(number).state == READY and source is not None and source.state == DONE


def _assign_to(state: State, worker: str, tasks: list[int]) -> Iterator[f.Fact]:
    """Yields the facts that assign ``tasks`` to ``worker``. The worker ran these tasks, but possibly the record of their assignment is
    lost."""
    ready = []
    for number in tasks:
        task = state.task(number)
        for holder in [holder.id for holder, _ in attempts(state, task) if holder.id != worker]:
            yield f.TasksReturned(holder, [number], "the journal was damaged")
        if task.state == WAITING:
            # The task ran, so the tasks that it needs succeeded. The records about them are lost.
            task.waits_for = 0
            admit_anyway(task.shape.run, task)
            move(task, READY)
            enqueue(state, task)
        if task.state == READY:
            ready.append(number)
    if ready:
        yield f.TasksAssigned(worker, ready, len(ready), {})


# --- snapshots ------------------------------------------------------------------------------------------------------------------------


def stored_payloads(state: State) -> list[StoredPayload]:
    """Returns all references of the state to payloads in the payload store."""
    found: list[Any] = []
    for run in state.runs.values():
        found.extend(spec.code for spec in run.specs)
        for task in run.tasks:
            if type(task.payload) is not bytes or type(task.output) is not bytes:
                found.extend((task.payload, task.output))
    return [payload for payload in found if isinstance(payload, StoredPayload)]


class Compaction:
    """Writes snapshots, so that the journal does not grow without limit. A forked child process writes each snapshot.

    The child writes the state at the time of the fork. The master continues at the same time, without locks or pauses.
    """

    def __init__(self, journal: Journal, state: State) -> None:
        self.overdue = False
        """Whether to write a snapshot at once: the journal is damaged, or other programs changed its files. Only a snapshot repairs it."""
        self._journal = journal
        self._state = state
        self._child = 0
        self._writer: Any = None

    def compact_if_due(self, now: float) -> None:
        if self._child:
            self._collect(os.WNOHANG)
        elif self.overdue or self._journal.size_bytes > max(MIN_BYTES, GROWTH * self._journal.snapshot_bytes):
            self._begin(now)

    def _begin(self, now: float) -> None:
        self._writer = self._journal.begin_snapshot()
        self._child = os.fork()
        if self._child == 0:
            status = 1
            try:
                _close_sockets()
                for fact in state_snapshot.dump(self._state):
                    self._writer.write([f.encode_record(f.TurnRecord(now, [fact]))])
                self._writer.commit()
                status = 0
            except BaseException:  # noqa: BLE001 - the child must end here after any error
                traceback.print_exc()
            finally:
                os._exit(status)

    def _collect(self, options: int) -> None:
        pid, status = os.waitpid(self._child, options)
        if not pid:
            return
        self._child = 0
        if status == 0:
            self._journal.finish_snapshot(self._writer)
            self.overdue = False
        else:
            self._journal.abandon_snapshot(self._writer)

    def end(self) -> None:
        if self._child:
            self._collect(0)


def _close_sockets() -> None:
    """Closes inherited sockets in the child. If the master dies before its child, an open socket would make clients wait at a port that
    nobody serves."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.close(int(name))
