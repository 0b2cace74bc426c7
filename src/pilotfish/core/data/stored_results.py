"""Finishes a new task at once with the stored result of an equal earlier task.

A client may send a *record* with each task. The record contains a key, and four short hashes: of the code, the arguments, the inputs and
the environment of the task. If two tasks have equal keys, their code, arguments, inputs and environment are equal. The second task can then
reuse the result of the first. The short hashes only serve to explain why no result was reused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from pilotfish.core.data import intermediate_files, replicas
from pilotfish.core.state import Run, State, Task
from pilotfish.core.tasks.transitions import end
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model.contents import KEY_BYTES, KEY_LENGTH, KEY_PARTS, PART_BYTES
from pilotfish.model.ids import INDEX_MASK, run_of, show_task
from pilotfish.model.states import DONE, READY, TASK_STATES, WAITING
from pilotfish.model.task import StoredPayload, sent_bytes

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

MAX_COMPARED = 500_000
"""Maximum earlier tasks that are compared with new tasks to explain why no result was reused. The tasks of the newest runs come first."""
_NO_KEY = bytes(KEY_LENGTH)
"""Stands for the key in the record of a task that never had a key, or whose result was forgotten."""
RERUN_KEY = b"\1" + bytes(KEY_LENGTH - 1)
"""Replaces the key in the record of a task that lost its key at a rerun."""
_ERASED = (_NO_KEY, RERUN_KEY)
_WHY_LOST = {_NO_KEY: "forgotten", RERUN_KEY: "rerun"}


def record_of(run: Run, index: int) -> bytes:
    """Returns the record of a task; empty if the task has no key."""
    record = bytes(run.keys[index * KEY_BYTES : (index + 1) * KEY_BYTES])
    return b"" if not record or record[:KEY_LENGTH] in _ERASED else record


def add_keys(run: Run, keys: bytes) -> None:
    """Appends the records of new tasks. Call it before the tasks are added."""
    run.keys += bytes(len(run.tasks) * KEY_BYTES - len(run.keys)) + keys


def results_forgotten(state: State, fact: f.ResultsForgotten, at: float) -> None:
    """Erases the keys of the tasks of these runs, and equal keys of tasks of other runs. The short hashes stay, for explanations."""
    keys = {record[:KEY_LENGTH] for number in fact.runs for _, record in _records(state.runs[number])}
    for run in state.runs.values():
        erase(run, [index for index, record in _records(run) if record[:KEY_LENGTH] in keys])


def erase(run: Run, indices: Iterable[int], mark: bytes = _NO_KEY) -> None:
    """Replaces the keys of tasks by a mark, so that the results of these tasks are not reused. A rerun also erases keys: input files
    possibly changed since the first submission, and only the client can make new keys."""
    for index in indices:
        if record_of(run, index):
            run.keys[index * KEY_BYTES : index * KEY_BYTES + KEY_LENGTH] = mark


def renew(run: Run, records: Mapping[int, bytes]) -> None:
    """Stores the new records of tasks that run again."""
    for index, record in records.items():
        run.keys[index * KEY_BYTES : (index + 1) * KEY_BYTES] = record


def _records(run: Run) -> Iterator[tuple[int, bytes]]:
    """Yields the index and the record of each task that has a key."""
    for index in range(len(run.keys) // KEY_BYTES):
        record = record_of(run, index)
        if record:
            yield index, record


class ResultIndex:
    """Finds results by key. The index is made only when it is needed. Without reuse of results, it takes no memory."""

    def __init__(self) -> None:
        self._tasks: dict[bytes, int] = {}
        self._read: dict[int, int] = {}
        """For each run: number of entries of ``Run.ended`` that the index has read."""

    def refresh(self, state: State) -> None:
        """Adds the tasks that ended since the last call. If several tasks have the same key, the newest of the tasks that ran counts. Tasks
        that reused a result did not run."""
        for run in state.runs.values():
            # The outputs of an owned run are not kept, so they cannot be reused.
            first = self._read.get(run.id, 0)
            if not run.keys or run.options.owned or first == len(run.ended):
                continue
            self._read[run.id] = len(run.ended)
            for index in run.ended[first if first < len(run.ended) else 0 :]:
                record = record_of(run, index)
                key = record[:KEY_LENGTH]
                if record and run.tasks[index].state == DONE and not (index in run.reused and key in self._tasks):
                    self._tasks[key] = run.tasks[index].id

    def find(self, state: State, record: bytes) -> Task | None:
        """Returns the earlier task whose result a new task with this record can reuse; None if there is no such task. Call ``refresh``
        before this method."""
        key = record[:KEY_LENGTH]
        if key in self._tasks and self._task(state, key) is None:
            # The run was deleted, the key was erased, or the task runs again. Possibly another task has a result for this key.
            self._tasks.clear()
            self._read.clear()
            self.refresh(state)
        task = self._task(state, key)
        return task if task is not None and _has_result(state, task) else None

    def _task(self, state: State, key: bytes) -> Task | None:
        number = self._tasks.get(key)
        task = None if number is None else state.find_task(number)
        is_current = task is not None and task.state == DONE and record_of(task.shape.run, task.id & INDEX_MASK)[:KEY_LENGTH] == key
        return task if is_current else None

    def tasks(self, state: State) -> Iterator[Task]:
        """Yields one task for each key. The output files of this task are possibly lost; only ``find`` checks this."""
        self.refresh(state)
        for key in list(self._tasks):
            task = self._task(state, key)
            if task is not None:
                yield task


def _has_result(state: State, task: Task) -> bool:
    if task.state != DONE:
        return False
    left = task.shape.run.left_files.get(task.id & INDEX_MASK, {})
    known = (state.contents.get(file.digest) for file in left.values())
    return all(content is not None and not content.is_nowhere for content in known)


def reuse(machine: Machine, tasks: Iterable[Task], after: Mapping[int, tuple[float, float]]) -> None:
    """Finishes each new task for which there is a stored result. Concurrency limits do not matter, because no task runs. In three cases, a
    task is not finished:

    * The task waits for a task that this function does not finish.
    * ``after`` has two times for the index of the task. The earlier task ended before the first time or started before the second time.
    * A part of the earlier task's output was not stored, and the two tasks differ in ``max_output``, the limit of stored output.
    """
    machine.result_index.refresh(machine.state)
    found: list[Task] = []
    sources: list[Task] = []
    freed: dict[int, int] = {}
    for task in tasks:
        run, index = task.shape.run, task.id & INDEX_MASK
        may_end = task.state == READY or (task.state == WAITING and task.waits_for == freed.get(index, 0))
        record = record_of(run, index)
        source = machine.result_index.find(machine.state, record) if may_end and record else None
        if source is not None and _is_current(source, *after.get(index, (0.0, 0.0))) and not _could_keep_more(task, source):
            found.append(task)
            sources.append(source)
            for other in (*(task.children or ()), *run.followers.get(index, ())):
                freed[other] = freed.get(other, 0) + 1
    if not found:
        return
    for task, source in zip(found, sources, strict=True):
        machine.release_payload(task.payload)
        if isinstance(source.output, StoredPayload):
            machine.effects.append(e.KeepPayload(source.output))
    machine.record(f.TasksReused([task.id for task in found], [source.id for source in sources]))


def _is_current(source: Task, files_changed_at: float, programs_changed_at: float) -> bool:
    started_at, ended_at = _times(source)
    return ended_at >= files_changed_at and started_at >= programs_changed_at


def _times(task: Task) -> tuple[float, float]:
    """Returns the start and the end of an ended task."""
    run, index = task.shape.run, task.id & INDEX_MASK
    return run.end_times[index] - run.wall_us[index] / 1e6, run.end_times[index]


def _could_keep_more(task: Task, source: Task) -> bool:
    earlier = source.shape.run
    if not earlier.left_out.get(source.id & INDEX_MASK):
        return False
    return task.shape.run.specs[task.spec].launch.get("max_output") != earlier.specs[source.spec].launch.get("max_output")


def reused(state: State, fact: f.TasksReused, at: float) -> None:
    for number, source_number in zip(fact.tasks, fact.sources, strict=True):
        task, source = state.task(number), state.task(source_number)
        run, index = task.shape.run, number & INDEX_MASK
        task.output, task.payload = source.output, b""
        left = source.shape.run.left_files.get(source_number & INDEX_MASK)
        if left:
            run.left_files[index] = left
            replicas.refer_to(state, run, intermediate_files.contents_of(left.values()))
        run.reused[index] = source_number
        left_out = source.shape.run.left_out.get(source_number & INDEX_MASK)
        if left_out:
            run.left_out[index] = left_out
        end(state, task, DONE, at)


def has_results(run: Run) -> bool:
    return next(_records(run), None) is not None


# --- answers to clients ---------------------------------------------------------------------------------------------------------------


def lookup(machine: Machine, records: bytes, explained: bool, new_run: int) -> list[dict[str, Any]]:
    """Returns one row per record. If a result can be reused, the row names the earlier task that has this result. Otherwise, the row names
    the most similar earlier task if ``explained`` is True.

    ``new_run``: the run of the new tasks, or 0 if this run is not known. Results of this run are not reused.
    """
    rows: list[dict[str, Any]] = []
    state = machine.state
    machine.result_index.refresh(state)
    similar = _SimilarTasks(state, new_run) if explained else None
    for first in range(0, len(records), KEY_BYTES):
        record = records[first : first + KEY_BYTES]
        source = machine.result_index.find(state, record)
        if source is not None and source.shape.run.id != new_run:
            started_at, ended_at = _times(source)
            rows.append({"source": show_task(source.id), "started_at": started_at, "ended_at": ended_at})
        else:
            rows.append({"source": None, **(similar.compare(record) if similar is not None else {})})
    return rows


class _SimilarTasks:
    """Finds, for a record, the most similar task in all runs except ``new_run``. Newer runs are searched first."""

    def __init__(self, state: State, new_run: int) -> None:
        self._state = state
        self._same: dict[bytes, Task] = {}
        self._arguments: dict[bytes, Task] = {}
        self._others: dict[bytes, Task] = {}
        for task, record in islice(_keyed_tasks(state, new_run), MAX_COMPARED):
            parts = _parts(record)
            if record[:KEY_LENGTH] not in _ERASED:
                self._same.setdefault(record[:KEY_LENGTH], task)
            self._arguments.setdefault(parts["arguments"], task)
            self._others.setdefault(parts["code"] + parts["inputs"] + parts["environment"], task)

    def compare(self, record: bytes) -> dict[str, Any]:
        parts = _parts(record)
        same = self._same.get(record[:KEY_LENGTH])
        if same is not None:
            lost = same.state == DONE and not _has_result(self._state, same)
            times = dict(zip(("started_at", "ended_at"), _times(same), strict=True)) if same.state == DONE and not lost else {}
            return {"nearest": show_task(same.id), "state": "lost" if lost else TASK_STATES[same.state], "changed": [], **times}
        task = self._arguments.get(parts["arguments"])
        if task is None:
            task = self._others.get(parts["code"] + parts["inputs"] + parts["environment"])
        if task is None:
            return {}
        start = (task.id & INDEX_MASK) * KEY_BYTES
        before = _parts(bytes(task.shape.run.keys[start : start + KEY_BYTES]))
        changed = [name for name in KEY_PARTS if before[name] != parts[name]]
        state = TASK_STATES[task.state] if changed else _WHY_LOST.get(bytes(task.shape.run.keys[start : start + KEY_LENGTH]), "others")
        return {"nearest": show_task(task.id), "state": state, "changed": changed, "code": before["code"].hex()}


def _keyed_tasks(state: State, new_run: int) -> Iterator[tuple[Task, bytes]]:
    """Yields the tasks that have a record, even if its key was erased."""
    for run in reversed(state.runs.values()):
        for index in range(len(run.keys) // KEY_BYTES if run.id != new_run else 0):
            record = bytes(run.keys[index * KEY_BYTES : (index + 1) * KEY_BYTES])
            if any(record[KEY_LENGTH:]):
                yield run.tasks[index], record


def _parts(record: bytes) -> dict[str, bytes]:
    starts = range(KEY_LENGTH, KEY_BYTES, PART_BYTES)
    return {name: record[start : start + PART_BYTES] for name, start in zip(KEY_PARTS, starts, strict=True)}


def unfinished_equals(state: State, run: Run) -> list[dict[str, int]]:
    """Finds unfinished tasks of other runs that are equal to unfinished tasks of this run. Returns a row for each of these other runs, with
    the number of such tasks."""
    keys = {record[:KEY_LENGTH] for index, record in _records(run) if not run.end_times[index]}
    counts = {
        other.id: sum(record[:KEY_LENGTH] in keys for index, record in _records(other) if not other.end_times[index])
        for other in state.runs.values()
        if keys and other is not run and other.unfinished
    }
    return [{"run": number, "tasks": count} for number, count in counts.items() if count]


def rows(machine: Machine) -> list[dict[str, Any]]:
    """Returns one row per run that has results to reuse."""
    counts: dict[int, list[int]] = {}
    for task in machine.result_index.tasks(machine.state):
        row = counts.setdefault(run_of(task.id), [0, 0])
        row[0] += 1
        row[1] += sent_bytes(task.output, whole=True)
    found = []
    for number, (results, size) in sorted(counts.items()):
        options = machine.state.runs[number].options
        found.append({"run": number, "name": options.name, "command": options.command, "results": results, "bytes": size})
    return found
