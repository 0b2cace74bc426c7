"""Writes the state as facts and restores the state. When the journal is compacted, these facts replace the whole history."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Iterator
from dataclasses import astuple
from typing import Any

import msgspec

from pilotfish.core.data import passed_results
from pilotfish.core.pilots.pilot_records import Pilot, SiteRecord
from pilotfish.core.state import SUPERSEDED, ContentRecord, FailureCounts, Run, SpeculativeCopy, State, Task, Worker
from pilotfish.core.tasks import concurrency_limits, fair_share
from pilotfish.core.tasks.transitions import enqueue
from pilotfish.model import facts as f
from pilotfish.model.contents import ExpectedFile, IntermediateFile
from pilotfish.model.ids import task_id
from pilotfish.model.site import PilotSize, Site, SiteEvent
from pilotfish.model.states import DONE, READY
from pilotfish.model.task import Failure, Payload, RunOptions, TaskSpec

TASKS_PER_ROW = 5_000


def dump(state: State, without: Container[int] = ()) -> Iterator[f.Restored]:
    """Yields facts that make an empty state equal to this state when they are applied. ``without``: numbers of runs to leave out."""
    yield f.Restored("pool", [state.epoch, state.next_run, state.next_pilot, state.local_cores, state.sized, list(state.revoked)])
    for name, site in state.sites.items():
        *plain, history = (getattr(site, field) for field in SiteRecord.__slots__)
        yield f.Restored("site", [name, *plain, list(history)])
    for pilot in state.pilots.values():
        yield f.Restored("pilot", [getattr(pilot, name) for name in Pilot.__slots__])
    for row in state.forecasts.rows():
        yield f.Restored("forecast", row)
    contents = [[*msgspec.to_builtins(record.content), record.at_master, record.maker] for record in state.contents.values()]
    for first in range(0, len(contents), TASKS_PER_ROW):
        yield f.Restored("contents", contents[first : first + TASKS_PER_ROW])
    for run in (run for number, run in state.runs.items() if number not in without):
        yield f.Restored("run", _run_row(run))
        for first in range(0, len(run.tasks), TASKS_PER_ROW):
            yield f.Restored("tasks", [run.id, first, [_task_row(task) for task in run.tasks[first : first + TASKS_PER_ROW]]])
        if run.after_any:
            yield f.Restored("after_any", [run.id, list(run.after_any.items())])
        for kind, attribute in _FILES.items():
            known = getattr(run, attribute)
            rows = [[index, *(files.values() if kind == "left" else files)] for index, files in known.items()]
            for first in range(0, len(rows), TASKS_PER_ROW):
                yield f.Restored("files", [run.id, kind, rows[first : first + TASKS_PER_ROW]])
    for worker in (*state.workers.values(), *state.ended_workers.values()):
        yield f.Restored("worker", _worker_row(worker))
    if state.copies:
        yield f.Restored("twins", [_copy_row(task, copy) for task, copy in state.copies.items()])
    if state.multi_node_workers:
        yield f.Restored("gangs", [[task.id, [worker.id for worker in workers]] for task, workers in state.multi_node_workers.items()])
    if state.answers:
        yield f.Restored("answers", [[request, answer] for request, answer in state.answers.items()])
    if state.speedups:
        yield f.Restored("speedups", [[name, [[cores, *row] for cores, row in known.items()]] for name, known in state.speedups.items()])
    for shape in state.ready:
        yield f.Restored("queue", [task.id for task in shape.queue])
    yield f.Restored("queue", [task.id for task in state.suspects])
    # Shares come last, because each restored fact before this one charges the shares for the time since ``settled_at``.
    yield f.Restored("shares", [state.settled_at, [[account.name, account.weight, account.used] for account in state.shares.values()]])


def restore(state: State, fact: f.Restored, at: float) -> None:
    _RESTORE[fact.kind](state, fact.row)


def _run_row(run: Run) -> list[Any]:
    shapes = [
        [*shape.made_from, list(shape.no_directory_sites), list(shape.succeeded_sites), shape.mean_us, shape.samples]
        for shape in run.shapes.values()
    ]
    times = [run.opened_at, run.first_started_at, run.ended_at]
    columns = [run.ended.tolist(), run.wall_us.tolist(), run.cpu_us.tolist(), run.rss_kib.tolist(), run.costs.tolist()]
    progress = [run.closed, run.paused, run.advanced, run.outputs_taken, run.attempts]
    ends = [run.end_times.tolist(), run.last_places.tolist(), run.places]
    since_rerun = [run.idle_s, run.uncounted_failures, list(run.left_out.items())]
    results = [bytes(run.keys), list(run.reused.items()), run.reopened_at]
    return [run.id, run.uid, run.options, times, *progress, run.specs, columns, shapes, list(run.contents), ends, *since_rerun, *results]


def _restore_run(state: State, row: Any) -> None:
    number, uid, options, times, closed, paused, advanced, taken, attempts, specs, columns, shapes, contents, *newer = row
    run = Run(number, uid, msgspec.convert(options, RunOptions), times[0])
    _, run.first_started_at, run.ended_at = times
    run.closed, run.paused, run.advanced, run.outputs_taken, run.attempts = closed, paused, advanced, taken, attempts
    run.specs = msgspec.convert(specs, list[TaskSpec])
    run.has_limits = any(spec.concurrency_limit[0] for spec in run.specs)
    for spec, memory, least_s, no_directory_sites, succeeded_sites, mean, samples in shapes:
        shape = run.shape_for(spec, memory, least_s)
        shape.no_directory_sites, shape.succeeded_sites = dict.fromkeys(no_directory_sites), dict.fromkeys(succeeded_sites)
        shape.mean_us, shape.samples = mean, samples
    run.spec_shapes = [run.shape_for(spec) for spec in range(len(run.specs))]
    counted: tuple[array[int], ...] = (run.ended, run.wall_us, run.cpu_us, run.rss_kib)
    *counts, costs = columns
    for column, values in zip(counted, counts, strict=True):
        column.extend(values)
    run.costs.extend(costs)
    run.superseded = run.ended.count(SUPERSEDED)
    if newer:
        end_times, last_places, places = newer[0]
        run.restore_places(places)
    else:  # an older version wrote the snapshot
        end_times = last_places = [0] * len(run.wall_us)
    if len(newer) > 1:
        run.idle_s, run.uncounted_failures = newer[1:3]
    if len(newer) > 3:
        run.left_out = dict(newer[3])
    if len(newer) > 4:
        run.keys.extend(newer[4])
        run.reused.update(newer[5])
    if len(newer) > 6:
        run.reopened_at = newer[6]
    run.end_times.extend(end_times)
    run.last_places.extend(last_places)
    run.contents = dict.fromkeys(contents)
    for digest in contents:
        state.contents[digest].runs += 1
    run.spec_contents = {
        place: tuple(state.contents[content.digest] for content in spec.contents) for place, spec in enumerate(run.specs) if spec.contents
    }
    state.runs[number] = run
    state.run_uids[uid] = number
    fair_share.join(state, run)


def _task_row(task: Task) -> list[Any]:
    """Returns a task as a row. Most rows are short, because most tasks have only a spec, a payload and a state."""
    row: list[Any] = [task.spec, task.state, task.attempt, task.payload, task.output]
    if task.failure or task.failure_counts or task.waits_for or task.children or task.contents:
        row += [task.failure, task.failure_counts and astuple(task.failure_counts), task.waits_for, task.children]
        row.append([record.digest for record in task.contents])
    return row


def _payload(value: Any) -> Payload:
    return value if isinstance(value, bytes) else msgspec.convert(value, Payload)


def _restore_tasks(state: State, row: Any) -> None:
    number, first, rows = row
    run = state.runs[number]
    for index, task_row in enumerate(rows, first):
        spec, task_state, attempt, payload, output = task_row[:5]
        task = Task(task_id(number, index), spec, run.spec_shapes[spec], _payload(payload))
        task.state, task.attempt, task.output = task_state, attempt, _payload(output)
        run.tasks.append(task)
        run.counts[task_state] += 1
        if len(task_row) > 5:
            _restore_rest(run, task, *task_row[5:9])
            task.contents = tuple(state.contents[digest] for digest in task_row[9])
        concurrency_limits.restore(run, task)
    state.unfinished += sum(1 for task in run.tasks[first:] if task.state < DONE)


def _restore_rest(run: Run, task: Task, failure: Any, failure_counts: Any, waits_for: int, children: list[int] | None) -> None:
    task.failure = failure and msgspec.convert(failure, Failure)
    task.waits_for, task.children = waits_for, children
    if failure_counts:
        task.failure_counts = FailureCounts(*failure_counts)
        task.shape = run.shape_for(task.spec, task.failure_counts.memory, task.failure_counts.least_s)


def _restore_after_any(state: State, row: Any) -> None:
    number, rows = row
    run = state.runs[number]
    for index, needed in rows:
        run.after_any[index] = needed
        for other in needed:
            if run.tasks[other].state < DONE:
                run.followers.setdefault(other, []).append(index)


_FILES = {"awaited": "expected_files", "left": "left_files", "handed": "earlier_files"}
"""Kinds of files in snapshot rows, with the attributes of a run that hold these files."""


def _restore_files(state: State, row: Any) -> None:
    number, kind, rows = row
    run = state.runs[number]
    for index, *files in rows:
        if kind == "awaited":
            run.expected_files[index] = msgspec.convert(files, tuple[ExpectedFile, ...])
        elif kind == "left":
            run.left_files[index] = {file.name: file for file in msgspec.convert(files, list[IntermediateFile])}
        else:
            run.earlier_files[index] = msgspec.convert(files, tuple[IntermediateFile, ...])
    if kind == "awaited":
        passed_results.restore(run, [row[0] for row in rows])


def _worker_row(worker: Worker) -> list[Any]:
    plain = [getattr(worker, name) for name in _WORKER_FIELDS]
    held = [[[task.id, needs] for task, needs in tasks.items()] for tasks in (worker.active, worker.ahead)]
    recalled, delegated = ([task.id for task in tasks] for tasks in (worker.recalled, worker.delegated))
    started = [[task.id, at] for task, at in worker.started.items()]
    return [plain, held, recalled, list(worker.streak), [record.digest for record in worker.holds], delegated, started]


_WORKER_FIELDS = [
    "id",
    "pilot",
    "capacity",
    "joined_at",
    "site",
    "state",
    "free",
    "tags",
    "info",
    "ends_at",
    "poll_s",
    "progress_at",
    "done",
    "failed",
    "quarantined_until",
    "reason",
    "history",
]


def _restore_worker(state: State, row: Any) -> None:
    plain, held, recalled, streak, holds, delegated, started = row
    worker = Worker(*plain[:4])
    for name, value in zip(_WORKER_FIELDS[4:], plain[4:], strict=True):
        setattr(worker, name, value)
    worker.history = [(at, what) for at, what in worker.history]
    for target, tasks in zip((worker.active, worker.ahead), held, strict=True):
        for number, needs in tasks:
            task = state.task(number)
            task.worker = worker
            target[task] = tuple((name, amount) for name, amount in needs)
            if target is worker.active:
                fair_share.add_occupied(task.shape.run, fair_share.cores_of(target[task]))
    worker.recalled = {state.task(number): None for number in recalled}
    worker.started = {state.task(number): at for number, at in started}
    worker.streak = dict.fromkeys(streak)
    for number in delegated:
        task = state.task(number)
        task.worker = worker
        worker.delegated[task] = None
    for digest in holds:
        record = state.contents[digest]
        record.holders[worker.id] = worker.holds[record] = None
    if worker.alive:
        state.admit(worker)
    else:
        state.ended_workers[worker.id] = worker


def _copy_row(task: Task, copy: SpeculativeCopy) -> list[Any]:
    assert task.worker is not None, task
    return [task.id, task.worker.id, copy.worker.id if copy.worker is not None else "", copy.attempt]


def _restore_copies(state: State, rows: Any) -> None:
    """Restores which of the two workers of a task has the speculative copy."""
    for number, first, second, attempt in rows:
        task = state.task(number)
        task.worker = state.workers[first]
        state.copies[task] = SpeculativeCopy(state.workers[second] if second else None, attempt)


def _restore_multi_node(state: State, rows: Any) -> None:
    """Restores the workers of multi-node tasks. The first worker received the task."""
    for number, names in rows:
        task = state.task(number)
        state.multi_node_workers[task] = [state.workers[name] for name in names]
        task.worker = state.multi_node_workers[task][0]


def _restore_speedups(state: State, rows: Any) -> None:
    for name, known in rows:
        state.speedups[name] = {cores: (samples, mean_s) for cores, samples, mean_s in known}


def _restore_contents(state: State, rows: Any) -> None:
    for digest, size, path, mtime_ns, inode, at_master, maker in rows:
        state.contents[digest] = ContentRecord(digest, size, path, mtime_ns, inode, at_master, maker)


def _restore_pool(state: State, row: Any) -> None:
    state.epoch, state.next_run, state.next_pilot, state.local_cores, state.sized, revoked = row
    state.revoked = dict.fromkeys(revoked)


def _restore_site(state: State, row: Any) -> None:
    name, *plain, history = row
    record = state.sites[name] = SiteRecord(*plain)
    record.site = msgspec.convert(record.site, Site | None)
    record.history.extend(msgspec.convert(history, list[SiteEvent]))


def _restore_pilot(state: State, row: Any) -> None:
    pilot = Pilot(*row)
    pilot.size = msgspec.convert(pilot.size, PilotSize)
    state.pilots[pilot.id] = pilot
    if pilot.replica_of:
        state.pilot_replicas[pilot.id] = None


def _restore_queue(state: State, row: Any) -> None:
    for number in row:
        task = state.task(number)
        assert task.state == READY, task
        enqueue(state, task)


def _restore_shares(state: State, row: Any) -> None:
    state.settled_at, rows = row
    for name, weight, used in rows:
        account = state.shares[name]
        account.weight, account.used = weight, used


_RESTORE: dict[str, Callable[[State, Any], None]] = {
    "pool": _restore_pool,
    "site": _restore_site,
    "pilot": _restore_pilot,
    "contents": _restore_contents,
    "run": _restore_run,
    "tasks": _restore_tasks,
    "after_any": _restore_after_any,
    "files": _restore_files,
    "worker": _restore_worker,
    "twins": _restore_copies,
    "gangs": _restore_multi_node,
    "answers": lambda state, rows: state.answers.update(rows),
    "speedups": _restore_speedups,
    "queue": _restore_queue,
    "forecast": lambda state, row: state.forecasts.restore(row),
    "shares": _restore_shares,
}
