"""Runs failed and cancelled tasks of a run again. The tasks stay in the same run and keep their indices.

A rerun task starts without failure counts. Its next attempt gets the next attempt number, so that a late result of an earlier attempt never
counts. ``Run.ended`` lists the ends of tasks: SUPERSEDED replaces the earlier end of a rerun task, and its next end is appended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pilotfish.core.data import intermediate_files, passed_results, replicas, stored_results
from pilotfish.core.state import SUPERSEDED, Run, State, Task
from pilotfish.core.tasks import concurrency_limits
from pilotfish.core.tasks.transitions import enqueue, move
from pilotfish.model import facts as f
from pilotfish.model.ids import INDEX_MASK
from pilotfish.model.states import CANCELLED, FAILED, READY, WAITING
from pilotfish.model.task import DAMAGED, DEPENDENCY

UNSUCCESSFUL = (FAILED, CANCELLED)


def is_skipped(task: Task) -> bool:
    """Returns whether a task did not run because a task that it needs did not succeed."""
    return task.state == FAILED and task.failure is not None and task.failure.cause == DEPENDENCY


def has_payload(task: Task) -> bool:
    """Returns whether the payload of an unsuccessful task still exists. It does not exist if it was in a damaged part of the journal. The
    payloads of some cancelled tasks were deleted."""
    is_lost = task.failure is not None and task.failure.cause == DAMAGED
    return not is_lost and (task.state == FAILED or task.payload != b"")


def with_dependencies(run: Run, chosen: Iterable[Task]) -> list[Task]:
    """Returns three kinds of tasks, in order of index: the chosen tasks, the unsuccessful tasks that the chosen tasks need, and the skipped
    tasks that can run after the other two kinds."""
    parents = _unsuccessful_parents(run)
    found = {task.id & INDEX_MASK: None for task in chosen}
    wanted = list(found)
    while wanted:
        for parent in parents.get(wanted.pop(), ()):
            if parent not in found:
                found[parent] = None
                wanted.append(parent)
    # A task needs only earlier tasks, so one pass finds chains of any length.
    for index in sorted(parents):
        if index not in found and is_skipped(run.tasks[index]) and all(parent in found for parent in parents[index]):
            found[index] = None
    return [run.tasks[index] for index in sorted(found)]


def _unsuccessful_parents(run: Run) -> dict[int, list[int]]:
    """Returns for each task, by its index, the indices of the failed and cancelled tasks that it needs."""
    parents: dict[int, list[int]] = {}
    for index, task in enumerate(run.tasks):
        if task.children and task.state in UNSUCCESSFUL:
            for child in task.children:
                parents.setdefault(child, []).append(index)
    return parents


def needs(run: Run, tasks: list[Task]) -> Iterator[tuple[int, list[int], list[tuple[int, str, str]]]]:
    """Yields a row for each task in ``tasks`` that needs other tasks in ``tasks``. The row has the index of the task, the indices of the
    needed tasks, and the files that the needed tasks leave for the task. A file has three values: the index of the task that makes it, its
    name in that task, and its name in the task of the row."""
    indices = {task.id & INDEX_MASK for task in tasks}
    parents = _unsuccessful_parents(run)
    for index in sorted(indices):
        files = [(file.maker, file.name, file.target) for file in run.expected_files.get(index, ()) if file.maker in indices]
        others = (*parents.get(index, ()), *(maker for maker, _, _ in files))
        needed = dict.fromkeys(other for other in others if other in indices)
        if needed:
            yield index, list(needed), files


# --- how facts change it ----------------------------------------------------------------------------------------------------------


def reopened(state: State, fact: f.TasksRerun, at: float) -> None:
    run = state.runs[fact.run]
    tasks = [state.task(number) for number in fact.tasks]
    if run.finished and run.first_started_at:
        run.idle_s += at - run.ended_at
        run.reopened_at = at
    if run.finished:
        run.ended_at, run.paused = 0.0, False
    concurrency_limits.forget_ended(run)
    indices = [number & INDEX_MASK for number in fact.tasks]
    _renew_keys(run, tasks, {number & INDEX_MASK: record for number, record in fact.keys.items()})
    passed_results.expect(run, {index: run.expected_files[index] for index in indices if index in run.expected_files})
    _supersede(run, {task.id & INDEX_MASK for task in tasks})
    for task in tasks:
        _renew(state, task, fact)
    _wait_for_ends(run, {task.id & INDEX_MASK: None for task in tasks})
    for task in tasks:
        if task.waits_for or (run.has_limits and not concurrency_limits.admit(run, task)):
            move(task, WAITING)
        else:
            move(task, READY)
            if run.expected_files:
                intermediate_files.receive(state, task)
            enqueue(state, task)
    state.unfinished += len(tasks)
    run.uncounted_failures = run.counts[FAILED]


def _renew_keys(run: Run, tasks: list[Task], records: dict[int, bytes]) -> None:
    """Stores the new records of rerun tasks. Rerun tasks without a new record lose their keys. If the key of a task changes, the
    unsuccessful tasks that need this task lose their keys too, because their keys contain the old key."""
    changed = [task for task in tasks if records.get(task.id & INDEX_MASK) != stored_results.record_of(run, task.id & INDEX_MASK)]
    stale = {child for task in changed for child in task.children or () if run.tasks[child].state in UNSUCCESSFUL}
    stored_results.erase(run, (*stale, *(task.id & INDEX_MASK for task in tasks)), stored_results.RERUN_KEY)
    stored_results.renew(run, records)


def _supersede(run: Run, indices: set[int]) -> None:
    for number, index in enumerate(run.ended):
        if index in indices:
            run.ended[number] = SUPERSEDED
    run.superseded += len(indices)


def _renew(state: State, task: Task, fact: f.TasksRerun) -> None:
    """Forgets the failures of a task and what was learned from them, because the user has possibly fixed the causes."""
    run = task.shape.run
    task.output, task.failure, task.failure_counts = b"", None, None
    task.spec = fact.specs.get(task.id, task.spec)
    task.shape = run.spec_shapes[task.spec]
    task.shape.no_directory_sites.clear()
    task.payload = fact.payloads.get(task.id, task.payload)
    if task.id in fact.contents:
        task.contents = replicas.refer_to(state, run, fact.contents[task.id])
    run.end_times[task.id & INDEX_MASK] = 0.0
    run.left_out.pop(task.id & INDEX_MASK, None)


def _wait_for_ends(run: Run, again: dict[int, None]) -> None:
    """Makes a task wait again if it must run after a task that now runs again (``after_any``)."""
    for index, needed in run.after_any.items():
        for other in needed:
            if other in again:
                run.followers.setdefault(other, []).append(index)
                run.tasks[index].waits_for += 1
