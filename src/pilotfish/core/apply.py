"""Applies facts to the state. Nothing else changes the state. So after a crash, the master can restore the state: it reads the facts from
the journal and applies them again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

from pilotfish.core import state_snapshot
from pilotfish.core.data import intermediate_files, passed_results, replicas, stored_results
from pilotfish.core.learning import speedups
from pilotfish.core.pilots.pilot_records import Pilot, SiteRecord
from pilotfish.core.state import MAX_ANSWERS, MAX_ENDED_WORKERS, FailureCounts, Run, State, Task, Worker
from pilotfish.core.tasks import concurrency_limits, fair_share, multi_node, reruns, speculative_copies
from pilotfish.core.tasks.fair_share import settle
from pilotfish.core.tasks.transitions import dequeue, end, enqueue, mark_if_ended, move, occupy, put_back, release, take_away
from pilotfish.model import facts as f
from pilotfish.model import site as s
from pilotfish.model.ids import INDEX_MASK, task_id
from pilotfish.model.states import (
    ACTIVE,
    ASSIGNED,
    CANCELLED,
    DONE,
    DRAINING,
    ENDED,
    ENDING,
    FAILED,
    LEFT,
    LOST,
    PILOT_STATES,
    PILOT_STEPS,
    READY,
    RUNNING,
    SUBMITTED,
    WAITING,
    WORKER_STATES,
    WORKER_STEPS,
    step,
)
from pilotfish.model.task import CORES, MISSING_INPUT, NO_DIRECTORY, UNIT, Failure

LOSS_DECAY = 0.8
"""The start-up loss of a pilot is its walltime minus the time that its worker has left when it joins. When a pilot joins, the learned
start-up loss of its site becomes the larger of two values: the loss of this pilot, and LOSS_DECAY times the old learned loss."""
SAME_SUBMISSION_S = 1.0
MAX_LOST_S, MAX_LOST = 30.0, 0.1
"""Maximum start-up loss that is learned: MAX_LOST_S seconds plus MAX_LOST times the walltime. A longer loss counts as this maximum, because
a longer loss is probably an exception."""


def apply(state: State, fact: f.Fact, at: float) -> None:
    if at > state.settled_at:
        settle(state, at)
    state.at = at
    _RULES[type(fact)](state, fact, at)


# --- runs -------------------------------------------------------------------------------------------------------------------------


def _run_opened(state: State, fact: f.RunOpened, at: float) -> None:
    run = state.runs[fact.run] = Run(fact.run, fact.uid, fact.options, at)
    state.run_uids[fact.uid] = fact.run
    state.next_run = max(state.next_run, fact.run + 1)
    fair_share.join(state, run)


def _run_options_changed(state: State, fact: f.RunOptionsChanged, at: float) -> None:
    run = state.runs[fact.run]
    before, run.options = run.options, fact.options
    if (before.share, before.weight) != (fact.options.share, fact.options.weight):
        account = run.account
        fair_share.join(state, run)
        fair_share.leave(state, run, account)
    for shape in run.shapes.values():
        shape.priority = run.priority_of(shape.made_from[0])


def _application_advanced(state: State, fact: f.ApplicationAdvanced, at: float) -> None:
    state.runs[fact.run].advanced = fact.cursor


def _run_closed(state: State, fact: f.RunClosed, at: float) -> None:
    run = state.runs[fact.run]
    run.closed = fact.reason
    mark_if_ended(run, at)


def _run_paused(state: State, fact: f.RunPaused, at: float) -> None:
    state.runs[fact.run].paused = fact.paused


def _outputs_taken(state: State, fact: f.OutputsTaken, at: float) -> None:
    run = state.runs[fact.run]
    passed_results.outputs_taken(state, run, run.ended[run.outputs_taken : fact.count])
    run.outputs_taken = fact.count


def _run_forgotten(state: State, fact: f.RunForgotten, at: float) -> None:
    run = state.runs.pop(fact.run)
    del state.run_uids[run.uid]
    replicas.forget_run(state, run)
    fair_share.leave(state, run, run.account)


def _run_cancelled(state: State, fact: f.RunCancelled, at: float) -> None:
    run = state.runs[fact.run]
    run.closed = run.closed or "cancelled"
    for task in run.tasks:
        if task.state < DONE:
            _cancel(state, task, fact, at)
    mark_if_ended(run, at)


# --- tasks ------------------------------------------------------------------------------------------------------------------------


def _specs_added(state: State, fact: f.SpecsAdded, at: float) -> None:
    run = state.runs[fact.run]
    for spec in fact.specs:
        if spec.contents:
            run.spec_contents[len(run.specs)] = replicas.refer_to(state, run, spec.contents)
        run.specs.append(spec)
        run.has_limits = run.has_limits or bool(spec.concurrency_limit[0])
        run.spec_shapes.append(run.shape_for(len(run.specs) - 1))


def _tasks_added(state: State, fact: f.TasksAdded, at: float) -> None:
    run = state.runs[fact.run]
    tasks, shapes, deps = run.tasks, run.spec_shapes, fact.deps
    first = task_id(run.id, len(tasks))
    count = len(fact.specs)
    run.wall_us.extend(repeat(0, count))
    run.cpu_us.extend(repeat(0, count))
    run.rss_kib.extend(repeat(0, count))
    run.end_times.extend(repeat(0.0, count))
    run.last_places.extend(repeat(0, count))
    if fact.costs:
        run.costs.extend(repeat(1.0, len(tasks) - len(run.costs)))
        run.costs.extend(fact.costs)
    if fact.expected_files:
        run.expected_files.update(fact.expected_files)
        passed_results.expect(run, fact.expected_files)
    run.earlier_files.update(fact.earlier_files)
    run.after_any.update(fact.after_any)
    if fact.keys:
        stored_results.add_keys(run, fact.keys)
    for number, spec, payload in zip(range(first, first + count), fact.specs, fact.payloads, strict=True):
        task = Task(number, spec, shapes[spec], payload)
        if number & INDEX_MASK in fact.contents:
            task.contents = replicas.refer_to(state, run, fact.contents[number & INDEX_MASK])
        tasks.append(task)
        if deps:
            _wait_for(run, task, deps.get(number & INDEX_MASK, ()))
        if fact.after_any:
            _wait_for_end(run, task, fact.after_any.get(number & INDEX_MASK, ()))
        if task.waits_for or (run.has_limits and not concurrency_limits.admit(run, task)):
            task.state = WAITING
            run.counts[WAITING] += 1
        else:
            run.counts[READY] += 1
            if run.expected_files:
                intermediate_files.receive(state, task)
            enqueue(state, task)
    state.unfinished += count


def _link_measured(state: State, fact: f.LinkMeasured, at: float) -> None:
    state.forecasts.transferred(fact.site, fact.size, fact.seconds)


def _wait_for(run: Run, task: Task, needed: Any) -> None:
    for index in needed:
        other = run.tasks[index]
        if other.state != DONE:
            task.waits_for += 1
            if other.children is None:
                other.children = []
            other.children.append(task.id & INDEX_MASK)


def _wait_for_end(run: Run, task: Task, needed: Any) -> None:
    for index in needed:
        if run.tasks[index].state < DONE:
            task.waits_for += 1
            run.followers.setdefault(index, []).append(task.id & INDEX_MASK)


def _tasks_assigned(state: State, fact: f.TasksAssigned, at: float) -> None:
    worker = state.workers[fact.worker]
    if not worker.held:
        worker.progress_at = at
    now = len(fact.tasks) - fact.ahead
    if fact.ahead:
        state.prefetching_workers[worker] = None
    for place, number in enumerate(fact.tasks):
        task = state.task(number)
        _begin_attempt(state, task, worker, at)
        needs = task.shape.needs
        if number in fact.cores:
            cores = round(fact.cores[number] * UNIT)
            needs = tuple((name, cores if name == CORES else amount) for name, amount in needs)
        if place < now:
            occupy(worker, task, needs)
        else:
            worker.ahead[task] = needs
    if fact.other_workers:
        multi_node.occupy_nodes(state, fact, at)


def _tasks_delegated(state: State, fact: f.TasksDelegated, at: float) -> None:
    site_master = state.workers[fact.worker]
    for number in fact.tasks:
        task = state.task(number)
        _begin_attempt(state, task, site_master, at)
        site_master.delegated[task] = None


def _begin_attempt(state: State, task: Task, worker: Worker, at: float) -> None:
    dequeue(state, task)
    move(task, ASSIGNED)
    task.attempt += 1
    task.worker = worker
    run = task.shape.run
    run.attempts += 1
    if not run.first_started_at:
        run.first_started_at = at


def _tasks_claimed(state: State, fact: f.TasksClaimed, at: float) -> None:
    worker = state.workers[fact.worker]
    if not worker.held:
        worker.progress_at = at
    for number in fact.tasks:
        task = state.task(number)
        assert task.worker is not None and task in task.worker.delegated, task
        del task.worker.delegated[task]
        task.worker = worker
        needs = task.shape.needs
        if worker.fits(needs):
            occupy(worker, task, needs)
            move(task, RUNNING)  # no later message reports the start
        else:
            worker.ahead[task] = needs


def _tasks_started(state: State, fact: f.TasksStarted, at: float) -> None:
    worker = state.workers[fact.worker]
    for number in fact.tasks:
        task = state.task(number)
        if task.worker is worker:
            move(task, RUNNING)
        worker.started[task] = at
        worker.recalled.pop(task, None)


def _tasks_done(state: State, fact: f.TasksDone, at: float) -> None:
    worker = state.workers[fact.worker]
    columns = zip(fact.tasks, fact.wall_us, fact.cpu_us, fact.rss_kib, fact.outputs, strict=True)
    forecasts = state.forecasts
    run, place = None, 0
    for number, wall_us, cpu_us, rss_kib, output in columns:
        task = state.task(number)
        shape = task.shape
        if state.copies:
            speculative_copies.keep_winner(state, worker, task, at)
        if shape.cores_max:
            speedups.learn(state, worker, task, wall_us / 1e6)
        if state.multi_node_workers:
            multi_node.free_nodes(state, task, at)
        release(worker, task)
        task.output = output
        task.payload = b""
        task.failure = None
        if shape.run is not run:
            run = shape.run
            place = run.place_number(worker)
        _measured(task, place, wall_us, cpu_us, rss_kib)
        shape.learn(wall_us)
        forecasts.task_ended(run.class_of(task.spec), worker.id, worker.site, wall_us / 1e6, run.cost(number & INDEX_MASK))
        if worker.site not in shape.succeeded_sites:
            shape.succeeded_sites[worker.site] = None
        if number in fact.made:
            replicas.record_produced(state, task, worker, fact.made[number])
            intermediate_files.leave(task, fact.made[number])
        if fact.left_out or run.left_out:
            _left_out(task, fact.left_out.get(number, 0))
        end(state, task, DONE, at)
    worker.done += len(fact.tasks)
    worker.streak.clear()
    worker.progress_at = at
    if not worker.ahead:
        state.prefetching_workers.pop(worker, None)


def _measured(task: Task, place: int, wall_us: int, cpu_us: int, rss_kib: int) -> None:
    run, index = task.shape.run, task.id & INDEX_MASK
    run.wall_us[index] = wall_us
    run.cpu_us[index] = cpu_us
    run.rss_kib[index] = rss_kib
    run.last_places[index] = place


def _interrupted(task: Task, worker: Worker, at: float) -> None:
    """Records where an attempt ran and for how long, if the agent sent no report about the end of the attempt."""
    _measured(task, task.shape.run.place_number(worker), round((at - worker.started[task]) * 1e6), 0, 0)


def _left_out(task: Task, size: int) -> None:
    """Records how many output bytes of a task's last attempt are stored nowhere."""
    run, index = task.shape.run, task.id & INDEX_MASK
    if size:
        run.left_out[index] = size
    else:
        run.left_out.pop(index, None)


def _tasks_recalled(state: State, fact: f.TasksRecalled, at: float) -> None:
    worker = state.workers[fact.worker]
    for number in fact.tasks:
        worker.recalled[state.task(number)] = None


def _tasks_returned(state: State, fact: f.TasksReturned, at: float) -> None:
    worker = state.workers[fact.worker]
    for number in reversed(fact.tasks):
        task = state.task(number)
        if state.copies and speculative_copies.end_attempt(state, worker, task, at):
            continue
        multi_node.free_nodes(state, task, at)
        take_away(worker, task, at)
        if number in fact.least_s:
            failure_counts = task.failure_counts = task.failure_counts or FailureCounts()
            failure_counts.least_s = max(failure_counts.least_s, fact.least_s[number])
            _reshape(task, failure_counts)
        put_back(state, task)


def _reshape(task: Task, failure_counts: FailureCounts) -> None:
    """Changes the shape of a task. The new shape requests the memory and walltime in ``failure_counts``, because earlier attempts with
    smaller values failed or were cut off."""
    task.shape = task.shape.run.shape_for(task.spec, failure_counts.memory, failure_counts.least_s)


def _attempt_failed(state: State, fact: f.AttemptFailed, at: float) -> None:
    worker = state.workers[fact.worker]
    task = state.task(fact.task)
    failure_counts = task.failure_counts = task.failure_counts or FailureCounts()
    if fact.budget:
        setattr(failure_counts, fact.budget, getattr(failure_counts, fact.budget) + 1)
    continues = bool(state.copies) and speculative_copies.end_attempt(state, worker, task, at)
    worker.failed += 1
    worker.progress_at = at
    _blame(worker, task, fact)
    if continues:
        return
    if any(fact.usage) or task not in worker.started:
        _measured(task, task.shape.run.place_number(worker), *fact.usage)
    else:
        _interrupted(task, worker, at)
    multi_node.free_nodes(state, task, at)
    release(worker, task)
    task.failure = fact.failure
    task.output = fact.output
    if fact.memory:
        failure_counts.memory = fact.memory
        _reshape(task, failure_counts)
    failure_counts.avoid = worker.id if fact.avoid else ""
    failure_counts.suspect = fact.suspect
    if fact.final:
        if fact.made:
            replicas.record_produced(state, task, worker, fact.made)
        _left_out(task, fact.left_out)
        end(state, task, FAILED, at)
    else:
        task.output = b""
        put_back(state, task)


def _blame(worker: Worker, task: Task, fact: f.AttemptFailed) -> None:
    """Adds a failed task to the ``streak`` of its worker. If the task failed only because the site lacks the directory of the task, records
    this for the site instead."""
    if fact.failure.cause == MISSING_INPUT and fact.failure.blame == "site":
        pass  # no worker has the input, so this worker is not to blame
    elif fact.failure.cause != NO_DIRECTORY or fact.avoid:
        worker.streak[fact.task] = None
    elif not fact.final and (task.worker is None or task.worker is worker or task.worker.site != worker.site):
        task.shape.no_directory_sites[worker.site] = None  # the workers of the site can run other tasks


def _tasks_skipped(state: State, fact: f.TasksSkipped, at: float) -> None:
    for number in fact.tasks:
        task = state.task(number)
        task.failure = fact.failure
        task.shape.run.uncounted_failures += 1
        end(state, task, FAILED, at)


def _cancel(state: State, task: Task, fact: f.TasksCancelled | f.RunCancelled, at: float) -> None:
    if task.worker is not None and task in task.worker.started:
        _interrupted(task, task.worker, at)
    multi_node.free_nodes(state, task, at)
    for worker, _ in list(speculative_copies.attempts(state, task)):
        take_away(worker, task, at)
    copy = state.copies.pop(task, None)
    if copy is not None:
        task.attempt = max(task.attempt, copy.attempt)
    task.failure = Failure("cancelled", "user", fact.reason)
    if not fact.keeps_payloads:
        task.payload = b""
    end(state, task, CANCELLED, at)


def _tasks_cancelled(state: State, fact: f.TasksCancelled, at: float) -> None:
    for number in fact.tasks:
        _cancel(state, state.task(number), fact, at)


# --- workers and pilots -------------------------------------------------------------------------------------------------------------


def _master_started(state: State, fact: f.MasterStarted, at: float) -> None:
    state.epoch = fact.epoch


def _pool_sized(state: State, fact: f.PoolSized, at: float) -> None:
    state.local_cores = fact.cores
    state.sized = True


def _worker_joined(state: State, fact: f.WorkerJoined, at: float) -> None:
    capacity = {name: round(amount * UNIT) for name, amount in fact.capacity.items()}
    worker = Worker(fact.worker, fact.pilot, capacity, at)
    worker.tags, worker.info, worker.ends_at, worker.poll_s = fact.tags, fact.info, fact.ends_at, fact.poll_s
    state.admit(worker)
    pilot = state.pilots.get(fact.pilot)
    worker.site = pilot.site if pilot is not None else ""
    benchmark = worker.info.get("benchmark")
    state.forecasts.joined(worker.id, worker.site, float(benchmark) if isinstance(benchmark, int | float) else 0.0)
    if pilot is None:
        return
    pilot.workers.append(worker.id)
    if worker.python and worker.python not in (pythons := _site(state, pilot.site).pythons):
        pythons.append(worker.python)
    if pilot.state < ACTIVE:
        _move_pilot(pilot, ACTIVE)
    pilot.joined += 1
    if pilot.joined == 1:
        record = _site(state, pilot.site)
        record.bad_starts = 0
        if worker.ends_at is not None and pilot.size.walltime_s:
            lost_s = min(pilot.size.walltime_s - (worker.ends_at - at), MAX_LOST_S + MAX_LOST * pilot.size.walltime_s)
            record.lost_s = max(lost_s, LOSS_DECAY * record.lost_s)
        state.forecasts.waited(pilot.site, at - pilot.requested_at)
        _happened(state, pilot, s.JOINED, at, at - pilot.requested_at)


def _move_worker(worker: Worker, new: int, reason: str, at: float) -> None:
    worker.state = step(WORKER_STEPS, WORKER_STATES, worker.state, new, worker)
    worker.reason = reason
    worker.history.append((at, WORKER_STATES[new]))


def _worker_draining(state: State, fact: f.WorkerDraining, at: float) -> None:
    _move_worker(state.workers[fact.worker], DRAINING, fact.reason, at)


def _worker_quarantined(state: State, fact: f.WorkerQuarantined, at: float) -> None:
    worker = state.workers[fact.worker]
    worker.quarantined_until = fact.until
    worker.reason = fact.reason
    worker.streak.clear()
    if fact.until:
        state.quarantined[worker] = None
    else:
        state.quarantined.pop(worker, None)
    worker.history.append((at, "quarantined" if fact.until else "cleared"))


def _worker_ended(state: State, fact: f.WorkerEnded, at: float) -> None:
    worker = state.workers.pop(fact.worker)
    state.quarantined.pop(worker, None)
    state.forecasts.left(worker.id)
    state.roomy.pop(worker, None)
    state.prefetching_workers.pop(worker, None)
    _move_worker(worker, LOST if fact.lost else LEFT, fact.reason, at)
    replicas.forget_worker(worker)
    pilot = state.pilots.get(worker.pilot)
    if pilot is not None and worker.id in pilot.workers:
        pilot.workers.remove(worker.id)
    state.ended_workers[worker.id] = worker
    if len(state.ended_workers) > MAX_ENDED_WORKERS:
        state.ended_workers.popitem(last=False)


def _site(state: State, name: str) -> SiteRecord:
    return state.sites.setdefault(name, SiteRecord())


def _happened(state: State, pilot: Pilot, kind: str, at: float, seconds: float = 0.0, cause: str = "") -> None:
    record = _site(state, pilot.site)
    record.events += 1
    reason = pilot.reason if pilot.state == ENDED else ""  # before the end, ``reason`` says why the pilot was requested
    record.history.append(s.SiteEvent(at, pilot.site, kind, pilot.id, seconds, cause, reason))


def _move_pilot(pilot: Pilot, new: int) -> None:
    pilot.state = step(PILOT_STEPS, PILOT_STATES, pilot.state, new, f"pilot {pilot.id}")


def _pilot_requested(state: State, fact: f.PilotRequested, at: float) -> None:
    state.pilots[fact.pilot] = Pilot(
        fact.pilot, fact.site, fact.size, at, reason=fact.reason, replica_of=fact.replica_of, by_user=fact.by_user
    )
    state.next_pilot += 1
    if fact.replica_of:
        state.pilot_replicas[fact.pilot] = None


def _pilot_submitted(state: State, fact: f.PilotSubmitted, at: float) -> None:
    pilot = state.pilots[fact.pilot]
    if not pilot.job:
        _happened(state, pilot, s.SUBMITTED, at, fact.took_s)
    pilot.job = fact.job
    if pilot.state < SUBMITTED:  # otherwise its agent joined before the site answered
        _move_pilot(pilot, SUBMITTED)


def _pilot_ending(state: State, fact: f.PilotEnding, at: float) -> None:
    pilot = state.pilots[fact.pilot]
    pilot.withdrawn = fact.cause
    _move_pilot(pilot, ENDING)


def _pilot_ended(state: State, fact: f.PilotEnded, at: float) -> None:
    pilot = state.pilots.pop(fact.pilot)
    state.pilot_replicas.pop(pilot.id, None)
    site = _site(state, pilot.site)
    if not pilot.joined and not fact.well:
        # If pilots were submitted together and refused together, they count as one failed start.
        site.bad_starts += not site.bad_starts or at - site.last_bad_at > SAME_SUBMISSION_S
        site.last_bad_at = at
        site.last_bad = fact.reason
    asked_for = pilot.state == ENDING
    _move_pilot(pilot, ENDED)
    pilot.reason = fact.reason
    if fact.cause == s.EXPIRED:
        _happened(state, pilot, s.EXPIRED, at)
    elif not fact.well or pilot.withdrawn == s.DIED:
        died = pilot.withdrawn == s.DIED  # after the pilot died, its batch job was cancelled only to clean up
        _happened(state, pilot, s.FAILED, at, cause=s.DIED if died else fact.cause)
    elif pilot.joined:
        _happened(state, pilot, s.SUCCEEDED, at)
    elif asked_for:
        _happened(state, pilot, s.WITHDRAWN, at, at - pilot.requested_at, pilot.withdrawn)


def _site_held(state: State, fact: f.SiteHeld, at: float) -> None:
    site = _site(state, fact.site)
    site.held = fact.reason
    site.bad_starts = 0
    if not fact.reason:
        site.events += 1
        site.history.append(s.SiteEvent(at, fact.site, s.RELEASED, ""))


def _site_described(state: State, fact: f.SiteDescribed, at: float) -> None:
    record = _site(state, fact.name)
    if record.site != fact.site:
        record.pythons = []
    record.site, record.leaving = fact.site, fact.leaving


def _site_wanted(state: State, fact: f.SiteUseChanged, at: float) -> None:
    _site(state, fact.site).wanted = fact.pilots


def _key_revoked(state: State, fact: f.KeyRevoked, at: float) -> None:
    state.revoked[fact.key_id] = None


def _request_answered(state: State, fact: f.RequestAnswered, at: float) -> None:
    state.answers[fact.request] = fact.answer
    if len(state.answers) > MAX_ANSWERS:
        del state.answers[next(iter(state.answers))]


_RULES: dict[type, Callable[[State, Any, float], None]] = {
    f.MasterStarted: _master_started,
    f.PoolSized: _pool_sized,
    f.RunOpened: _run_opened,
    f.SpecsAdded: _specs_added,
    f.TasksAdded: _tasks_added,
    f.ApplicationAdvanced: _application_advanced,
    f.RunClosed: _run_closed,
    f.RunPaused: _run_paused,
    f.RunOptionsChanged: _run_options_changed,
    f.OutputsTaken: _outputs_taken,
    f.RunForgotten: _run_forgotten,
    f.TasksAssigned: _tasks_assigned,
    f.LinkMeasured: _link_measured,
    f.TasksDelegated: _tasks_delegated,
    f.TasksClaimed: _tasks_claimed,
    f.TasksDuplicated: speculative_copies.duplicated,
    f.TasksStarted: _tasks_started,
    f.TasksDone: _tasks_done,
    f.TasksReused: stored_results.reused,
    f.ResultsForgotten: stored_results.results_forgotten,
    f.TasksRecalled: _tasks_recalled,
    f.TasksReturned: _tasks_returned,
    f.AttemptFailed: _attempt_failed,
    f.TasksSkipped: _tasks_skipped,
    f.TasksCancelled: _tasks_cancelled,
    f.RunCancelled: _run_cancelled,
    f.TasksRerun: reruns.reopened,
    f.WorkerJoined: _worker_joined,
    f.WorkerDraining: _worker_draining,
    f.WorkerQuarantined: _worker_quarantined,
    f.WorkerEnded: _worker_ended,
    f.ReplicasChanged: replicas.changed,
    f.PilotRequested: _pilot_requested,
    f.PilotSubmitted: _pilot_submitted,
    f.PilotEnding: _pilot_ending,
    f.PilotEnded: _pilot_ended,
    f.SiteHeld: _site_held,
    f.SiteDescribed: _site_described,
    f.SiteUseChanged: _site_wanted,
    f.KeyRevoked: _key_revoked,
    f.RequestAnswered: _request_answered,
    f.Restored: state_snapshot.restore,
}
