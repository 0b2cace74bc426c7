"""Computes the state of a run as users see it, and explains it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pilotfish.core.data.data_reasons import waits_for_inputs
from pilotfish.core.explain.reasons import Reason, answer, count, make_reason
from pilotfish.core.explain.task_reasons import task_reasons
from pilotfish.core.state import Run, Task
from pilotfish.model.ids import show_task
from pilotfish.model.quantities import show_seconds
from pilotfish.model.states import ASSIGNED, CANCELLED, DONE, FAILED, READY, RUNNING, TASK_STATES, WAITING

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

DEPENDENCY = "dependency"
"""Cause of tasks that failed only because another one failed."""


def status_of(run: Run) -> str:
    """The state of a run in one word: open, waiting, running, paused, done, failed, cancelled or incomplete."""
    if run.finished:
        if run.incomplete:
            return "incomplete"
        if run.counts[FAILED]:
            return "failed"
        # An application whose manager failed may have no task that shows it.
        return "cancelled" if run.counts[CANCELLED] or run.closed == "cancelled" else "done"
    if run.paused:
        return "paused"
    if run.counts[ASSIGNED] or run.counts[RUNNING]:
        return "running"
    return "waiting" if run.tasks else "open"


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
        return [make_reason("open", "all its tasks have ended, and its client may still add some")]
    at_workers = f"{count(run.unfinished, 'task')} {'is' if run.unfinished == 1 else 'are'} at workers"
    return [*_staging(machine, run), make_reason("running", at_workers, "pilotfish workers")]


def _staging(machine: Machine, run: Run) -> list[Reason]:
    """One task that waits at a worker for its inputs, as an example."""
    if not run.contents:
        return []
    for worker in machine.state.workers.values():
        for task in worker.active:
            if task.shape.run is run and (found := waits_for_inputs(machine, task)):
                return [make_reason("staging", f"task {show_task(task.id)} waits: {found.text}", *found.commands)]
    return []


def _deadline(machine: Machine, run: Run) -> list[Reason]:
    """The deadline in seconds from now: the time of day depends on the reader's time zone."""
    deadline = run.options.deadline
    if not deadline:
        return []
    left_s = round(deadline - machine.now)
    text = f"its deadline is in {show_seconds(left_s)}" if left_s > 0 else f"its deadline was {show_seconds(max(1, -left_s))} ago"
    return [Reason("deadline", text, (f"pilotfish predict {run.id}",), {"deadline": deadline})]


# --- finished runs ------------------------------------------------------------------------------------------------------------------


def _done(run: Run) -> Reason:
    return make_reason("done", f"{run.counts[DONE]:,} done, {run.counts[FAILED]:,} failed, {run.counts[CANCELLED]:,} cancelled")


def _incomplete(run: Run) -> Reason:
    text = f"its client disconnected before it had sent all tasks; {len(run.tasks)} arrived, {run.counts[DONE]} of them are done"
    return make_reason("incomplete", text, *([f"again: {run.options.command}"] if run.options.command else []))


def _cancelled(run: Run) -> Reason:
    done, cancelled = run.counts[DONE], run.counts[CANCELLED]
    commands = [f"pilotfish logs {run.id}"] if run.options.application else []
    commands += [f"pilotfish tasks {run.id} --state cancelled"] if cancelled else []
    commands += [f"pilotfish results {run.id}"] if done else []
    return make_reason("cancelled", f"{cancelled:,} of {count(len(run.tasks), 'task')} cancelled, {done:,} done", *commands)


def _failed(run: Run) -> Reason:
    """How many tasks failed, and the most frequent cause. Failures caused by other failed tasks say less."""
    causes: Counter[str] = Counter()
    examples: dict[str, Task] = {}
    for task in run.tasks:
        if task.state == FAILED:
            cause = task.failure.cause if task.failure is not None else "unknown"
            causes[cause] += 1
            examples.setdefault(cause, task)
    dependents = causes.pop(DEPENDENCY, 0) if len(causes) > 1 else 0
    ((cause, number),) = causes.most_common(1)
    example, failed = examples[cause], causes.total() + dependents
    name = show_task(example.id)
    share = "" if number == failed else f", {number:,} of them"
    text = f"{failed:,} of {count(len(run.tasks), 'task')} failed{share} [{cause}], such as {name}: {_note(example)}"
    text += f"; and {dependents:,} that needed {'it' if causes.total() == 1 else 'those that failed'}" if dependents else ""
    text += _given_up(run)
    commands = (f"pilotfish tasks {run.id} --state failed", f"pilotfish logs {name}", f"pilotfish rerun {run.id} --failed")
    return Reason(cause, text, commands, {"task": name, "failed": failed})


def _note(task: Task) -> str:
    """A failure in one line, with the blame when it was not the task's own."""
    failure = task.failure
    if failure is None:
        return "failed"
    message = (failure.message or failure.cause or "failed").splitlines()[0]
    return message if failure.blame == "task" else f"{message} (blame: {failure.blame})"


def _given_up(run: Run) -> str:
    """How many tasks were cancelled because others failed."""
    first = next((task for task in run.tasks if task.state == CANCELLED), None)
    if first is None:
        return ""
    return f"; {run.counts[CANCELLED]:,} cancelled: {first.failure.message if first.failure is not None else 'asked for'}"


_FINISHED = {"done": _done, "failed": _failed, "cancelled": _cancelled, "incomplete": _incomplete}
