"""Explains why a task, worker or run is in its state, and collects warnings for the whole pool."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pilotfish.core.data import data_reasons
from pilotfish.core.explain.reasons import Reason, answer, count, make_reason, show_amount
from pilotfish.core.explain.rerun_advice import MISSING_FILE_HINT, command_to_resume, failure_row, fix_with_options, rerun_command
from pilotfish.core.explain.site_reasons import credential_rows, never_long_enough, site_reasons, state_reason, too_few_nodes
from pilotfish.core.state import FailureCounts, Run, Task, TaskShape, Worker
from pilotfish.core.tasks import run_deadlines
from pilotfish.core.tasks.fair_share import ShareAccount, typical_s, weighted_usage
from pilotfish.core.workers.python_versions import other_python_fix
from pilotfish.errors import nearest
from pilotfish.model.ids import INDEX_MASK, show_task
from pilotfish.model.quantities import show_bytes, show_seconds
from pilotfish.model.site import LOCAL
from pilotfish.model.states import (
    ASSIGNED,
    CANCELLED,
    DONE,
    DRAINING,
    FAILED,
    PILOT_STATES,
    READY,
    RUNNING,
    TASK_STATES,
    WAITING,
    WORKER_STATES,
)
from pilotfish.model.task import CORES, DEPENDENCY, MEMORY, MISSING_INPUT, NO_DIRECTORY, UNIT, Failure
from pilotfish.portable.expressions.evaluation import Expression
from pilotfish.portable.expressions.worker_properties import lacks_quotes

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

MAX_RESTARTS = 4
MAX_SHOWN_NEEDED = 5
MAX_SHOWN_CUT_OFF = 3
NO_WORKER_CODES = (
    "no-workers",
    "starting",
    "held",
    "too-big",
    "too-few-nodes",
    "tags",
    "requirement",
    "python",
    "site",
    "walltime",
    NO_DIRECTORY,
)
"""Codes that mean: no present worker can take the task."""


def explain_task(machine: Machine, task: Task) -> dict[str, Any]:
    return answer(f"task {show_task(task.id)}", TASK_STATES[task.state], task_reasons(machine, task))


def task_reasons(machine: Machine, task: Task) -> list[Reason]:
    """Returns why a task is in its state. The most important reason comes first."""
    name = show_task(task.id)
    if task.state == WAITING:
        return [_waits_for_others(task) if task.waits_for else _waits_for_limit(task)]
    if task.state == READY:
        return _ready_reasons(machine, task)
    if task.state in (ASSIGNED, RUNNING):
        return _assigned_reasons(machine, task)
    if task.state == FAILED:
        failure = task.failure
        assert failure is not None
        text = f"{failure.message or failure.cause}{data_reasons.maker_of_missing(task)} [{failure.cause}, blame: {failure.blame}]"
        return [make_reason(failure.cause, text, *_after_failure(machine, task, failure))]
    if task.state == CANCELLED:
        return [make_reason("cancelled", _cancel_reason(task))]
    source = task.shape.run.reused.get(task.id & INDEX_MASK)
    how = (
        f"it succeeded at attempt {task.attempt}"
        if source is None
        else f"it has the result of task {show_task(source)}, which did the same"
    )
    return [make_reason("done", how, f"pilotfish logs {name}")]


def _waits_for_others(task: Task) -> Reason:
    index = task.id & INDEX_MASK
    tasks, any_end = task.shape.run.tasks, task.shape.run.after_any.get(index, ())
    needed = [other for other in tasks if other.children and index in other.children and other.state != DONE]
    needed += [tasks[other] for other in any_end if tasks[other].state < DONE]
    shown = ", ".join(f"{show_task(other.id)} ({TASK_STATES[other.state]})" for other in needed[:MAX_SHOWN_NEEDED])
    text = f"it needs {count(task.waits_for, 'other task')} first: {shown}"
    return make_reason("waits", text, f"pilotfish why {show_task(needed[0].id)}")


def _waits_for_limit(task: Task) -> Reason:
    run = task.shape.run
    name, most = run.specs[task.spec].concurrency_limit
    current = run.limits[name].admitted
    text = f"at most {count(most, 'task')} with the limit {name!r} run at the same time, and {current} are ready or running"
    return make_reason("limit", text, f"pilotfish tasks {run.id}")


def _after_failure(machine: Machine, task: Task, failure: Failure) -> list[str]:
    if failure.cause == MISSING_INPUT:
        return data_reasons.fixes_for_missing_input(machine, task)
    root = _root_of_failure(task) if failure.cause == DEPENDENCY else task
    look = f"logs {show_task(task.id)}" if root is task else f"why {show_task(root.id)}"
    failures = [row for row in (failure_row(root) or failure_row(task),) if row]
    advice = (fix_with_options(task.shape.run.id, failures), f"pilotfish {look}", rerun_command(task.shape.run.id, failures))
    return [text for text in advice if text] + _missing_file_hint(task)


def _missing_file_hint(task: Task) -> list[str]:
    """Returns advice for a program that failed in a sandbox: if a file is missing there, a rerun does not help. The client removes the
    advice if the output of the task names no missing file."""
    spec = task.shape.run.specs[task.spec]
    in_sandbox = spec.kind == "exec" and spec.launch.get("sandbox") and task.failure is not None and task.failure.cause == "exit"
    return [MISSING_FILE_HINT] if in_sandbox else []


def _root_of_failure(task: Task) -> Task:
    """Returns the failed or cancelled task because of which ``task`` was skipped. If ``task`` was not skipped, returns ``task``."""
    # A task needs only earlier tasks, so one pass is enough for a chain of any length.
    for other in reversed(task.shape.run.tasks[: task.id & INDEX_MASK]):
        if task.failure is None or task.failure.cause != DEPENDENCY:
            break
        if other.children and task.id & INDEX_MASK in other.children and other.state in (FAILED, CANCELLED):
            task = other
    return task


def _assigned_reasons(machine: Machine, task: Task) -> list[Reason]:
    """Returns why a task that is at a worker has not ended."""
    assert task.worker is not None
    reasons = [make_reason("placed", f"attempt {task.attempt} is at worker {task.worker.id}", f"pilotfish tail -f {show_task(task.id)}")]
    others = machine.state.multi_node_workers.get(task, ())[1:]
    if others:
        text = f"it also uses {', '.join(worker.id for worker in others)}; their hosts are in $PILOTFISH_HOSTFILE"
        reasons.append(make_reason("several-nodes", text, "pilotfish workers"))
    copy = machine.state.copies.get(task)
    if copy is not None and copy.worker is not None:
        text = f"attempt {copy.attempt} is at worker {copy.worker.id} as well, as a speculative copy: the first result counts"
        reasons.append(make_reason("copied", text, f"pilotfish tasks {task.shape.run.id}"))
    if task in task.worker.delegated:
        where = f"site {task.worker.site}" if task.worker.site else "workers of no site"
        text = f"it is delegated to {where}: its site master, worker {task.worker.id}, assigns it when a worker has room"
        reasons = [make_reason("lent", text, "pilotfish workers")]
    waits = None if task.state == RUNNING else data_reasons.lost_input(machine, task) or data_reasons.waits_for_inputs(machine, task)
    data = waits or data_reasons.waits_for_outputs(machine, task)
    unreachable = None
    if machine.link_of(task.worker.id) is None:
        text = f"worker {task.worker.id} is disconnected; after {machine.settings.lease_s:g} s of silence the task runs elsewhere"
        unreachable = make_reason("out-of-reach", text, "pilotfish workers")
    return [reason for reason in (unreachable, cut_off(task), data) if reason is not None] + reasons


def _ready_reasons(machine: Machine, task: Task) -> list[Reason]:
    run, state = task.shape.run, machine.state
    reasons: list[Reason] = []
    if machine.inspect_only:
        return [make_reason("stopped", "the pool was stopped, and was not resumed since", f"pilotfish attach {run.id}")]
    if machine.journal_full:
        reasons.append(make_reason("disk-full", "the disk of the journal is full, so nothing new is started", "pilotfish doctor"))
    if run.paused:
        reasons.append(make_reason("paused", f"run {run.id} is paused", f"pilotfish resume {run.id}"))
    reasons += _fit_reasons(machine, task)
    about_kept = data_reasons.lost_input(machine, task) or data_reasons.kept_elsewhere(machine, task) if state.workers else None
    reasons += [about_kept] if about_kept is not None else []
    if task.suspect:
        text = "workers died while they ran it, so it must run alone and waits for an idle worker"
        reasons.append(make_reason("suspect", text, "pilotfish workers"))
    if not reasons:
        ahead = sum(len(shape.queue) for shape in state.ready if shape.priority >= task.shape.priority)
        others = count(max(ahead - 1, 0), "other task")
        text = f"all workers that could run it are busy; {others} ready as well"
        turn = _waits_for_turn(machine, task)
        reasons += [turn] if turn is not None else []
        planned = machine.policy.why(task)
        reasons.append(make_reason("planned", planned, "pilotfish data") if planned else make_reason("busy", text))
    return reasons


def _fit_reasons(machine: Machine, task: Task) -> list[Reason]:
    """Returns why no present worker takes the task. If no present worker can ever take the task, the answer starts with the reasons why
    sites start no suitable worker."""
    found = _worker_reasons(machine, task)
    sites = site_reasons(machine, task.shape) if found and found[0].code in NO_WORKER_CODES else []
    return [*sites, *([] if task.shape.run.options.sites else found)] if sites else found


def _worker_reasons(machine: Machine, task: Task) -> list[Reason]:
    workers = [worker for worker in machine.state.workers.values() if worker.state < DRAINING]
    if not workers:
        return [no_workers(machine)]
    shape = task.shape
    able = [worker for worker in workers if worker.could_fit(shape.needs)]
    if not able:
        return [too_big(machine, shape.needs)]
    if (lack := unmet(shape, able)) is not None:
        return [lack]
    if (lack := _other_python(shape, able)) is not None:
        return [lack]
    tagged = [worker for worker in able if worker.qualifies(shape)]
    if not tagged and any(worker.site in shape.no_directory_sites for worker in able):
        return [make_reason(NO_DIRECTORY, "no present worker has its directory", "run it again with --sandbox, and --input for its files")]
    if not tagged and shape.run.options.sites:
        return [make_reason("site", f"no worker is at {' or '.join(shape.run.options.sites)}", "pilotfish sites")]
    if not tagged:
        wanted = ", ".join(f"{name}={value}" for name, value in shape.tags)
        return [make_reason("tags", f"no worker has the tags {wanted}", "pilotfish workers --json  (shows the tags)")]
    in_time = [worker for worker in tagged if worker.has_time(shape, machine.now)]
    if not in_time:
        may_take = f"the {shape.time_s:g} s that it may take"
        text = f"every worker that fits ends before {'what it needs: it was cut off once' if shape.least_s > shape.time_s else may_take}"
        return [make_reason("walltime", text, "ask for less with --time" if shape.time_s else "pilotfish workers")]
    if (lack := too_few_nodes(machine, shape, in_time)) is not None:
        return [lack]
    usable = [worker for worker in in_time if not worker.quarantined_until]
    if not usable:
        return [make_reason("quarantine", f"all workers that fit are in quarantine: {in_time[0].reason}", _end_quarantine(in_time[0]))]
    reached = [worker for worker in usable if machine.link_of(worker.id) is not None]
    if not reached:
        return [make_reason("out-of-reach", "no worker that fits is connected", "pilotfish workers")]
    if too_few_nodes(machine, shape, reached) is not None:
        text = f"it asks for {shape.nodes} nodes of one pilot, and too few of those that fit are connected"
        return [make_reason("out-of-reach", text, "pilotfish workers")]
    return []


def no_workers(machine: Machine) -> Reason:
    state = machine.state
    site = state.sites.get(LOCAL)
    if site is not None and site.held:
        return state_reason(machine, LOCAL, site)
    if state.local_cores <= 0:
        return make_reason("no-workers", "the pool has no workers", "pilotfish workers --local-cores 2")
    names = ", ".join(f"{pilot.id} ({PILOT_STATES[pilot.state]})" for pilot in state.pilots.values())
    return make_reason("starting", "no worker has joined yet" + (f"; starting: {names}" if names else ""), "pilotfish status")


def too_big(machine: Machine, needs: tuple[tuple[str, int], ...]) -> Reason:
    """Explains that no worker has enough of some resources. For each of these resources, the text names the largest amount at a worker. If
    each resource alone is available in the needed amount, the text says that no worker has enough of all resources together."""
    lacks, commands = [], []
    for name, amount in needs:
        largest = max((worker.capacity.get(name, 0) for worker in machine.state.workers.values()), default=0)
        if largest < amount:
            lacks.append(f"{show_amount(name, amount)} asked for, the largest worker has {show_amount(name, largest)}")
            if name == CORES:
                commands.append(_more_cores(machine, -(-amount // UNIT)))
    if not lacks:
        lacks.append("no single worker has enough of everything at once")
    return make_reason("too-big", "; ".join(lacks), "ask for less (--cores, --memory, --gpus, --resource)", *commands)


def _more_cores(machine: Machine, wanted: int) -> str:
    """Returns a text for users: how to get a worker with this number of cores. If the present workers show that this machine has fewer
    cores, the text says how to add a site. Otherwise, the text is the command that requests cores of this machine."""
    here = [int(worker.info.get("cores", wanted)) for worker in machine.state.workers.values() if worker.site in ("", LOCAL)]
    if here and max(here) < wanted:
        return f"this machine has {count(max(here), 'core')}; for larger machines, add a site: pilotfish site add --help"
    return f"pilotfish workers --local-cores {wanted}"


def _other_python(shape: TaskShape, able: list[Worker]) -> Reason | None:
    """Explains that no worker at an allowed site has the version of Python that pickled the calls. Returns None if a worker has this
    version."""
    sites = shape.run.options.sites
    workers = [worker for worker in able if not sites or worker.site in sites]
    if not shape.python or not workers or any(worker.python in ("", shape.python) for worker in workers):
        return None
    versions = " or ".join(dict.fromkeys(worker.python for worker in workers))
    text = f"the calls need Python {shape.python}, and every worker has Python {versions}"
    return make_reason("python", text, other_python_fix(shape.python), "pilotfish workers --json  (shows their Python)")


def unmet(shape: TaskShape, able: list[Worker]) -> Reason | None:
    """Explains that no large enough worker at an allowed site meets the requirement of the tasks. ``able``: the workers that are large
    enough. Returns None if one of these workers meets the requirement, if there is no requirement, or if no worker is left to check."""
    sites = shape.run.options.sites
    workers = [worker for worker in able if not sites or worker.site in sites]
    if shape.requirement is None or not workers or any(shape.requirement.holds(worker.properties) for worker in workers):
        return None
    text = f"no worker meets its requirement {shape.requirement}: {_unmet_clauses(shape.requirement, workers)}"
    text += "".join(_suggestion(name, shape.requirement, workers) for name in shape.requirement.names)
    return make_reason("requirement", text, "ask for less with --require", "pilotfish workers --json  (shows their properties)")


def _suggestion(name: str, requirement: Expression, workers: list[Worker]) -> str:
    """Returns the last part of a message about an unknown name in a requirement: the property that the user probably meant, or the advice
    to write the name in quotes. Returns an empty text if there is no advice."""
    known = dict.fromkeys(name for worker in workers for name in worker.properties)
    if name in known:
        return ""
    near = nearest(name, known)
    if near:
        return f"; for {name}, did you mean {near}?"
    return f'; write a text in quotes: "{name}"' if lacks_quotes(name, requirement, [worker.properties for worker in workers]) else ""


def _unmet_clauses(requirement: Expression, workers: list[Worker]) -> str:
    parts = requirement.clauses
    failing = {worker.id: [part for part in parts if not part.holds(worker.properties)] for worker in workers}
    nearest = min(workers, key=lambda worker: len(failing[worker.id]))
    names = dict.fromkeys(name for part in failing[nearest.id] for name in part.names)
    has = ", ".join(_value(name, nearest.properties.get(name)) for name in names)
    if len(workers) == 1:
        return f"the only worker, {nearest.id}, fails {_joined([str(part) for part in failing[nearest.id]])} ({has})"
    failures = []
    for part in parts:
        count = sum(not part.holds(worker.properties) for worker in workers)
        if count:
            failures.append(f"{part} fails at {'all' if count == len(workers) else f'{count} of'} {len(workers)} workers")
    return f"{_joined(failures)}; nearest is {nearest.id} ({has})"


def _joined(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _value(name: str, value: Any) -> str:
    if value is None:
        return f"no {name}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{name} {show_bytes(value) if name == MEMORY else f'{value:g}'}"
    return f'{name} "{value}"'


def _end_quarantine(worker: Worker) -> str:
    return f"pilotfish workers --end-quarantine {worker.id}"


def explain_worker(machine: Machine, worker: Worker) -> dict[str, Any]:
    subject, state = f"worker {worker.id}", WORKER_STATES[worker.state]
    if worker.id not in machine.state.workers:
        return answer(subject, state, [make_reason("ended", worker.reason, "pilotfish workers --all")])
    reasons = []
    if worker.quarantined_until:
        left = worker.quarantined_until - machine.now
        reasons.append(make_reason("quarantine", f"{worker.reason}; it ends in {left:.0f} s", _end_quarantine(worker)))
    if machine.link_of(worker.id) is None:
        reasons.append(make_reason("out-of-reach", "it is not connected; it is lost when its lease runs out", "pilotfish workers"))
    if not reasons:
        text = f"it runs {count(len(worker.active), 'task')} and has {len(worker.ahead)} waiting there"
        reasons.append(make_reason("busy" if worker.held else "idle", text))
    return answer(subject, state, reasons)


def _waits_for_turn(machine: Machine, task: Task) -> Reason | None:
    """Explains which run or share comes before this task, and names the command that changes the order. Returns None if no other run or
    share comes before this task."""
    shape = task.shape
    live = [other for other in machine.state.ready if not other.run.paused]
    others = [other for other in live if other.run is not shape.run and other.priority >= shape.priority]
    higher = max(others, key=lambda other: other.priority, default=shape)
    if higher.priority > shape.priority:
        text = f"run {higher.run.id} has a higher priority ({higher.priority}, not {shape.priority}), and tasks that are ready"
        return make_reason("priority", text, f"pilotfish set {shape.run.id} --priority {higher.priority}")
    return _late(machine, shape.run, others) or _less_served(shape, live)


def _late(machine: Machine, run: Run, others: list[TaskShape]) -> Reason | None:
    pool = run_deadlines.pool_cores(machine.state)

    def in_danger(one: Run) -> bool:
        return run_deadlines.needed(one, machine.now, pool) > one.occupied

    before = in_danger(run)
    for other in dict.fromkeys(shape.run for shape in others):
        if other.options.deadline and in_danger(other) and not (before and run.options.deadline <= other.options.deadline):
            text = f"run {other.id} would miss its deadline, and goes first until it is on time"
            return make_reason("deadline", text, f"pilotfish set {other.id} --deadline none")
    return None


def _less_served(shape: TaskShape, live: list[TaskShape]) -> Reason | None:
    alike = [other for other in live if other.priority == shape.priority]
    typical = typical_s([shape, *alike])
    own = shape.run.account
    first = min(typical, key=lambda account: weighted_usage(account, typical[account]))
    if first is own or weighted_usage(first, typical[first]) >= weighted_usage(own, typical[own]):
        return None
    text = f"{_named(first)} comes first: it recently used less of the pool for its weight than {_named(own)}"
    return make_reason("share", text, f"pilotfish set {shape.run.id} --share {own.name or 'NAME'}:{2 * own.weight:g}")


def _named(account: ShareAccount) -> str:
    return f"share {account.name}" if account.name else "the runs that name no share"


def cut_off(task: Task) -> Reason | None:
    """Explains why a task was started many times: each time, its worker ended too early, or the worker gave the task back. These starts use
    up no retries. Returns None if there were only a few of these starts."""
    counts = task.failure_counts or FailureCounts()
    charged = counts.failures + counts.losses + counts.deaths + counts.crashes + counts.ooms
    if task.attempt - charged <= MAX_RESTARTS:
        return None
    text = f"task {show_task(task.id)} was started {task.attempt} times: each time its worker ended first or returned it"
    return make_reason("cut-off", text, "pilotfish sites", "give pilots more time: pilotfish site set NAME walltime=DURATION")


# --- runs ---------------------------------------------------------------------------------------------------------------------------


def status_of(run: Run) -> str:
    """Returns the state of a run in one word: open, waiting, running, paused, done, failed, cancelled or incomplete."""
    if run.finished:
        if run.incomplete:
            return "incomplete"
        if run.counts[FAILED]:
            return "failed"
        # When the manager of an application fails, its run can be cancelled although no task is.
        return "cancelled" if run.counts[CANCELLED] or run.closed == "cancelled" else "done"
    if run.paused:
        return "paused"
    if run.counts[ASSIGNED] or run.counts[RUNNING]:
        return "running"
    return "waiting" if run.unfinished else "open"


def explain_run(machine: Machine, run: Run) -> dict[str, Any]:
    subject, state = f"run {run.id}", status_of(run)
    if run.finished:
        return answer(subject, state, [_FINISHED[state](run)])
    return answer(subject, state, [*_unfinished(machine, run), *_deadline(machine, run)])


def _unfinished(machine: Machine, run: Run) -> list[Reason]:
    if run.paused:
        return [make_reason("paused", "a user paused it", f"pilotfish resume {run.id}")]
    for wanted in (READY, WAITING):
        first = next((task for task in run.tasks if task.state == wanted), None)
        if first is not None:
            found = task_reasons(machine, first)
            text = f"task {show_task(first.id)} is {TASK_STATES[first.state]}: {found[0].text}"
            return [make_reason("tasks", text), *found, *_staging(machine, run)]
    if not run.unfinished:
        return [_open(machine, run)]
    at_workers = f"{count(run.unfinished, 'task')} {'is' if run.unfinished == 1 else 'are'} at workers"
    return [*_staging(machine, run), make_reason("running", at_workers, "pilotfish workers")]


def _open(machine: Machine, run: Run) -> Reason:
    """Describes an open run without unfinished tasks, and whether the program that submitted the tasks is still connected. If the program
    is disconnected, ``ends_in_s`` in the data is the time until the master closes the run."""
    if run.id in machine.subscriptions.authors or run.options.application:
        return make_reason("open", "all its tasks have ended, and its program may still add some")
    gone = "all its tasks have ended; its program ended or lost its connection before it closed the run"
    if machine.inspect_only:
        return make_reason("open", f"{gone}; when the pool runs again, the run ends if the program does not come back")
    gone_s = machine.now - machine.subscriptions.disconnected_at.get(run.id, machine.now)
    left_s = max(1, round(machine.settings.author_s - gone_s))
    text = f"{gone}, and the run ends in {show_seconds(left_s)} if the program does not come back"
    return Reason("open", text, (), {"ends_in_s": left_s})


def _staging(machine: Machine, run: Run) -> list[Reason]:
    """Returns the reason of one example task that waits at a worker for inputs; empty if no task of the run waits for inputs."""
    if not run.contents:
        return []
    for worker in machine.state.workers.values():
        for task in worker.active:
            if task.shape.run is run and (found := data_reasons.waits_for_inputs(machine, task)):
                return [make_reason("staging", f"task {show_task(task.id)} waits: {found.text}", *found.commands)]
    return []


def _deadline(machine: Machine, run: Run) -> list[Reason]:
    """Describes the deadline of a run in seconds from now. A time of day would depend on the reader's time zone."""
    deadline = run.options.deadline
    if not deadline:
        return []
    left_s = round(deadline - machine.now)
    text = f"its deadline is in {show_seconds(left_s)}" if left_s > 0 else f"its deadline was {show_seconds(max(1, -left_s))} ago"
    return [Reason("deadline", text, (f"pilotfish predict {run.id}",), {"deadline": deadline})]


def _done(run: Run) -> Reason:
    return make_reason("done", f"{run.counts[DONE]:,} done, {run.counts[FAILED]:,} failed, {run.counts[CANCELLED]:,} cancelled")


def _incomplete(run: Run) -> Reason:
    submitted = f"it submitted {count(len(run.tasks), 'task')}, {run.counts[DONE]:,} of them done"
    text = f"its program ended or lost its connection before it closed the run: {submitted}, and may have wanted to submit more"
    command = command_to_resume(run.options.name, run.options.command)
    return make_reason("incomplete", text, *([command] if command else []))


def _cancelled(run: Run) -> Reason:
    done, cancelled = run.counts[DONE], run.counts[CANCELLED]
    commands = [f"pilotfish logs {run.id}"] if run.options.application else []
    commands += [f"pilotfish tasks {run.id} --state cancelled"] if cancelled else []
    commands += [f"pilotfish results {run.id}"] if done else []
    return make_reason("cancelled", f"{cancelled:,} of {count(len(run.tasks), 'task')} cancelled, {done:,} done", *commands)


def _failed(run: Run) -> Reason:
    """Explains how many tasks of the run failed, and the most frequent cause. A skipped task has the cause ``dependency``. This cause
    counts as the most frequent cause only if there is no other cause."""
    causes: Counter[str] = Counter()
    examples: dict[str, Task] = {}
    by_limit: dict[tuple[str, TaskShape], Task] = {}
    for task in run.tasks:
        if task.state == FAILED:
            cause = task.failure.cause if task.failure is not None else "unknown"
            causes[cause] += 1
            examples.setdefault(cause, task)
            by_limit.setdefault((cause, task.shape), task)
    dependents = causes.pop(DEPENDENCY, 0) if len(causes) > 1 else 0
    ((cause, number),) = causes.most_common(1)
    example, failed = examples[cause], causes.total() + dependents
    name = show_task(example.id)
    share = "" if number == failed else f", {number:,} of them"
    text = f"{failed:,} of {count(len(run.tasks), 'task')} failed{share} [{cause}], such as {name}: {_note(example)}"
    text += f"; and {dependents:,} that needed {'it' if causes.total() == 1 else 'those that failed'}" if dependents else ""
    text += _given_up(run)
    failures = [row for row in map(failure_row, by_limit.values()) if row]
    again = rerun_command(run.id, failures, some_cancelled=bool(run.counts[CANCELLED]))
    fix = fix_with_options(run.id, failures)
    commands = [
        *([fix] if fix else []),
        f"pilotfish tasks {run.id} --state failed",
        f"pilotfish logs {name}",
        *([again] if again else []),
        *_missing_file_hint(example),
    ]
    return Reason(cause, text, tuple(commands), {"task": name, "failed": failed})


def _note(task: Task) -> str:
    """Returns the failure of a task in one line. If something other than the task is to blame, the line says what."""
    failure = task.failure
    if failure is None:
        return "failed"
    message = (failure.message or failure.cause or "failed").splitlines()[0]
    return message if failure.blame == "task" else f"{message} (blame: {failure.blame})"


def _given_up(run: Run) -> str:
    """Returns a text: how many tasks were cancelled, and why the first of them was cancelled; empty if no task was cancelled."""
    first = next((task for task in run.tasks if task.state == CANCELLED), None)
    if first is None:
        return ""
    return f"; {run.counts[CANCELLED]:,} cancelled: {_cancel_reason(first)}"


def _cancel_reason(task: Task) -> str:
    reason = task.failure.message if task.failure is not None else ""
    return "a user cancelled it" if reason in ("", "asked for") else reason


_FINISHED = {"done": _done, "failed": _failed, "cancelled": _cancelled, "incomplete": _incomplete}


# --- the pool -----------------------------------------------------------------------------------------------------------------------


def warnings(machine: Machine) -> list[Reason]:
    """Returns what users should know even if they do not ask."""
    state = machine.state
    found: list[Reason] = []
    if machine.journal_full:
        found.append(make_reason("disk-full", "the disk of the journal is full: new tasks are refused", "pilotfish doctor"))
    if machine.history_damaged:
        text = "a part of the journal could not be read when this master started: tasks may be missing from runs, or may run again"
        found.append(make_reason("damaged", text, "pilotfish status  (compare how many tasks each run has with what you submitted)"))
    for name, site in state.sites.items():
        if site.held:
            found.append(make_reason("held", f"site {name} is held: {site.held}", f"pilotfish doctor {name}".removesuffix(" local")))
        rows = [row for row in credential_rows(machine, name) if row["warn"] or not row["usable"]]
        found += [make_reason("credential", f"site {name}: {row['text']}", row["renew"]) for row in rows]
    for worker in state.workers.values():
        if worker.quarantined_until:
            found.append(make_reason("quarantine", f"worker {worker.id} is in quarantine: {worker.reason}", _end_quarantine(worker)))
    cut = [reason for worker in state.workers.values() for task in worker.active if (reason := cut_off(task))]
    found += cut[:MAX_SHOWN_CUT_OFF]
    for shape in state.ready:
        if shape.min_walltime_s and (reason := never_long_enough(machine, shape)):
            text = f"{count(len(shape.queue), 'task')} of run {shape.run.id}: {reason.text}"
            found.append(make_reason("walltime", text, *reason.commands))
    if state.workers:
        for shape in state.ready:
            if shape.run.options.sites and LOCAL not in shape.run.options.sites:
                continue  # ``why`` explains this for each site
            able = [worker for worker in state.workers.values() if worker.could_fit(shape.needs)]
            lack = unmet(shape, able) if able else too_big(machine, shape.needs)
            if lack is not None:
                text = f"{count(len(shape.queue), 'task')} of run {shape.run.id}: {'' if able else 'no worker fits: '}{lack.text}"
                found.append(make_reason(lack.code, text, *lack.commands))
    return found
