"""Implements attach: shows the progress of a run until the run ends or the user presses Ctrl-C, and prints the outcome."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import click

from pilotfish.cli.commands.status_commands import shown_command, with_parameters
from pilotfish.cli.commands.why_command import show_reasons
from pilotfish.cli.run_commands.live_output import LiveOutput
from pilotfish.cli.shared_options import json_option, pool_option, run_argument
from pilotfish.cli.terminal.error_messages import CANNOT, NOT_STARTED, SOME_FAILED, show_error
from pilotfish.cli.terminal.progress import RunProgress
from pilotfish.cli.terminal.screen import Column, Screen, clean, describe_transfers, duration, plural
from pilotfish.client.descriptions.task_descriptions import describe
from pilotfish.client.outputs.output_delivery import DeliveredFiles, deliver_outputs
from pilotfish.client.outputs.task_output import failure_note, failure_with_output, fetch_output, last_line
from pilotfish.client.session import PoolSession, RunUpdate, connect, find_run, state_of_run, why_manager_failed
from pilotfish.client.waiting_reasons import HOPELESS, QUEUED, SITES_AT_FAULT, STARTING, is_hopeless, reason_codes
from pilotfish.core.explain.rerun_advice import fix_with_options, rerun_command
from pilotfish.errors import PilotfishError
from pilotfish.model.states import FAILED
from pilotfish.model.task import DEPENDENCY, NO_DIRECTORY

POLL_S = 0.1
ASK_WHY_AFTER_S = 0.3
ASK_WHY_AGAIN_S = 5.0
CHECK_DETACHED_S = 2.0
RECOUNT_S = 1.0
SHOWN_FAILURES = 5
INCOMPLETE = "incomplete"
INCOMPLETE_NOTE = "It is incomplete: its program ended before it closed the run, and may have wanted to submit more tasks."
CANCELLED = "cancelled"
SEEN_RUNNING = 1000
QUEUE_SHOWN_AFTER_S = 10.0
"""Queued pilots are mentioned in the progress only after this many seconds, because short queue waits are normal."""
WORTH_SHOWING = (
    HOPELESS | SITES_AT_FAULT | {"no-workers", "held", "disk-full", "quarantine", "paused", "lost-input", "kept-elsewhere", QUEUED}
)

FAILURE_COLUMNS = (
    Column("TASK", lambda failure: failure["task"]),
    Column("COMMAND", lambda failure: failure["command"], elastic=True),
    Column("FAILURE", lambda failure: failure_with_output(failure["message"], failure["wrote"]), elastic=True),
)


@dataclass(slots=True)
class RunTiming:
    """Times of a run, and the number of tasks that ended while the client followed the run."""

    started: float
    elapsed_s: float = 0.0
    ended: int = 0


@dataclass(slots=True)
class RunOutcome:
    """The state of a run at the time when the client stops showing its progress."""

    run: int
    counts: dict[str, int]
    tasks: int
    left: str = ""
    """Why the client stopped following an unfinished run: ``interrupted`` or ``hopeless``. Empty if the run has ended."""
    failures: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the first failed tasks. In each row, ``wrote`` is the last line of standard error, which can be empty."""
    parameters: list[str] = field(default_factory=list)
    """Parameter values of the tasks in ``failures``. These values are shown if the terminal is too narrow for the commands of the tasks."""
    manager_output: str = ""
    """The last output line of the application manager of a cancelled run. It often contains the reason."""
    state: str = ""
    """State of the run in one word, as in ``status``."""
    exit_status: int | None = None
    """Exit status that the FINAL node or the abort of a DAG sets. None if it depends on the tasks."""
    timing: RunTiming = field(default_factory=lambda: RunTiming(time.monotonic()))
    delivered: DeliveredFiles | None = None
    """The copied output files. None if the run has no output files, or if it has not ended."""

    @property
    def bad(self) -> int:
        return self.counts.get("failed", 0) + self.counts.get("cancelled", 0)


class RunFollower:
    """Counts the tasks of a run while the client shows the progress of the run."""

    def __init__(
        self,
        master: PoolSession,
        row: dict[str, Any],
        progress: RunProgress,
        costs: list[float] | None = None,
        started: float | None = None,
    ) -> None:
        self.outcome = RunOutcome(row["run"], dict(row["counts"]), row["tasks"])
        self.progress = progress
        self.costs = costs
        self._master = master
        self._running: set[int] = set()
        self._shown_codes: set[str] = set()
        self._began_at = time.monotonic()
        self._open = row["state"] == "open"
        self._has_contents = bool(row.get("contents"))
        self._has_explained_open = False
        self._ask_open_at = 0.0
        if started is not None:
            self.outcome.timing.started = started
        self._recount_at = time.monotonic()
        self._ask_why_at = time.monotonic() + ASK_WHY_AFTER_S
        counts = self.outcome.counts
        progress.total = row["tasks"]
        # If this command started the run, the updates of all its tasks are needed, because they contain the times of the tasks.
        ended = 0 if started is not None else sum(counts.get(word, 0) for word in ("done", "failed", "cancelled"))
        self.cursor = row.get("ends", ended) if ended else 0  # ``ends`` counts a task that was rerun several times
        if ended:
            progress.begin(row.get("elapsed_s") or 0.0, ended, counts.get("failed", 0))
        if costs:
            progress.work_total = sum(costs)

    def read_running(self) -> None:
        """Ask the master which tasks are already running. Call it after ``watch_run``, because the updates report only tasks that start
        later."""
        rows = self._master.ask("tasks", run=self.outcome.run, state="running", limit=SEEN_RUNNING)
        self._running.update(row["index"] for row in rows)
        self.progress.running = len(self._running)

    @property
    def is_running(self) -> bool:
        return bool(self._running)

    def apply(self, update: RunUpdate) -> None:
        """Count the started and ended tasks of an update. If the update contains an error, raise this error, because no more updates will
        come."""
        if update.lost is not None:
            raise update.lost
        self._running.update(update.began)
        for item in update.ended:
            self._running.discard(item.index)
            self.outcome.timing.ended += 1
            self.progress.ended(item.state == FAILED, self.costs[item.index] if self.costs else None)
        self.progress.running = len(self._running)

    def recount(self) -> None:
        """At intervals, ask the master for the number of tasks and for the current transfers, because both can change during the run."""
        if (self._open or self._has_contents) and time.monotonic() >= self._recount_at:
            self._recount_at = time.monotonic() + RECOUNT_S
            row = self._master.ask("run", run=self.outcome.run)
            self._open, self._has_contents = row["state"] == "open", bool(row.get("contents"))
            self.progress.note = describe_transfers(row.get("moving"))
            self.progress.total = self.outcome.tasks = row["tasks"]

    def explain_open(self, screen: Screen) -> None:
        """If all tasks have ended, but the run still waits for its program to return, print once how long it will wait."""
        if self._has_explained_open or not self._open or self._running or time.monotonic() < self._ask_open_at:
            return
        self._ask_open_at = time.monotonic() + RECOUNT_S
        answer = self._master.ask("why", run=self.outcome.run)
        if any("ends_in_s" in (reason.get("data") or {}) for reason in answer.get("reasons", ())):
            self._has_explained_open = True
            self.progress.clear()
            screen.line(clean(answer["sentence"]))

    def conclude(self) -> None:
        """Read the final state from the master."""
        outcome = self.outcome
        row = self._master.ask("run", run=outcome.run)
        outcome.counts, outcome.tasks, outcome.state = dict(row["counts"]), row["tasks"], state_of_run(row)
        if row["counts"].get("failed"):
            rows = self._master.ask("tasks", run=outcome.run, state="failed", limit=SHOWN_FAILURES)
            tasks = describe(self._master, row, rows)
            found = list(tasks.found)
            outcome.failures = [self._failure(task.row, task.command) for task in found]
            outcome.parameters = [task.parameters(tasks.names) for task in found]
        elif outcome.state == CANCELLED:
            outcome.manager_output = last_line(why_manager_failed(self._master, row))
        if outcome.timing.elapsed_s <= 0:
            outcome.timing.elapsed_s = row.get("elapsed_s") or max(0.0, (row.get("ended_at") or 0.0) - (row.get("opened_at") or 0.0))

    def _failure(self, row: dict[str, Any], command: str) -> dict[str, Any]:
        wrote = ""
        with suppress(PilotfishError):
            wrote = fetch_output(self._master, row).last_error_line()
        failure = row.get("failure") or {}
        about = {"task": row["id"], "command": command, "cause": "", "blame": "", **failure}
        return {**about, "message": failure_note(failure), "wrote": wrote}

    def explain_waiting(self, screen: Screen) -> bool:
        """Print the reasons why no task has started. Return True if waiting is useless, because nothing can run the tasks."""
        if self._running or self.outcome.timing.ended or time.monotonic() < self._ask_why_at:
            return False
        self._ask_why_at = time.monotonic() + ASK_WHY_AGAIN_S
        answer = self._master.ask("why", run=self.outcome.run)
        codes = reason_codes(answer)
        if STARTING in codes:
            self._ask_why_at = time.monotonic() + ASK_WHY_AFTER_S
        early = {QUEUED} if time.monotonic() < self._began_at + QUEUE_SHOWN_AFTER_S else set()
        if codes & WORTH_SHOWING - self._shown_codes - early:
            self._shown_codes |= codes
            self.progress.clear()
            show_reasons(screen, answer)
        return is_hopeless(self._master, answer)


def follow(
    master: PoolSession,
    run: int,
    quiet: bool = False,
    costs: list[float] | None = None,
    started: float | None = None,
    live: LiveOutput | None = None,
) -> RunOutcome:
    """Follow the run until it ends or the user presses Ctrl-C, with a progress line on standard error. After the end of the run, copy its
    output files.

    ``costs``: costs of the tasks, if this command knows them. ``started``: for a run that this command started, the time at which the user
    began to wait. For any other run, the master knows the elapsed time. ``live``: if the run has only one task, shows its output. With
    ``live``, the progress line is shown only during transfers.
    """
    screen = Screen.of(sys.stderr)
    progress = RunProgress(screen, time.monotonic)
    follower = RunFollower(master, master.ask("run", run=run), progress, costs, started)
    outcome = follower.outcome
    watcher = master.watch_run(run, follower.cursor)
    follower.read_running()
    try:
        while True:
            update = watcher.next(POLL_S)
            if update is not None:
                follower.apply(update)
                if update.finished:
                    break
            elif follower.explain_waiting(screen):
                outcome.left = "hopeless"
                break
            follower.recount()
            follower.explain_open(screen)
            if live is not None and not progress.note:
                progress.clear()
                if follower.is_running:
                    live.poll()
            elif not quiet:
                progress.draw()
        if not outcome.left:
            progress.clear()
            outcome.delivered = deliver_outputs(master, run)
    except KeyboardInterrupt:
        outcome.left = "interrupted"
    finally:
        progress.clear()
    if started is not None:
        outcome.timing.elapsed_s = time.monotonic() - started
    follower.conclude()
    return outcome


def status_of_detached(master: PoolSession, run: int) -> int:
    """Return the exit status of a command that does not follow its run: NOT_STARTED if nothing can run the tasks, otherwise 0. If nothing
    can run the tasks, print the reasons. Wait at most CHECK_DETACHED_S for the first worker of the pool."""
    began = time.monotonic()
    while True:
        answer, row = master.ask("why", run=run), master.ask("run", run=run)
        ended = () if row.get("reopened_at") else ("done", "failed")  # before a rerun, tasks have ended
        if any(row["counts"][state] for state in ("assigned", "running", *ended)):
            return 0
        hopeless, waited_s = is_hopeless(master, answer), time.monotonic() - began
        if not hopeless and (STARTING not in reason_codes(answer) or waited_s >= CHECK_DETACHED_S):
            return 0
        if hopeless and waited_s >= ASK_WHY_AFTER_S:
            show_reasons(Screen.of(sys.stderr), answer)
            return NOT_STARTED
        time.sleep(POLL_S)


def exit_status_of(outcome: RunOutcome) -> int:
    """Return the exit status of the command: 0 if all tasks succeeded, SOME_FAILED if some did not, NOT_STARTED if nothing can run the
    tasks. After Ctrl-C, it is 0, because the run continues. A DAG can set a different exit status."""
    if outcome.left:
        return NOT_STARTED if outcome.left == "hopeless" else 0
    if outcome.exit_status is not None:
        return outcome.exit_status
    return SOME_FAILED if outcome.bad or outcome.state in (INCOMPLETE, CANCELLED) else 0


def show_outcome(screen: Screen, outcome: RunOutcome, as_json: bool = False) -> int:
    """Print the outcome and return the exit status."""
    if as_json:
        screen.json(
            {
                "run": outcome.run,
                "state": outcome.state,
                "left": outcome.left,
                "tasks": outcome.tasks,
                "counts": outcome.counts,
                "failures": outcome.failures,
                "elapsed_s": round(outcome.timing.elapsed_s, 3),
                **({} if outcome.delivered is None else outcome.delivered.as_data()),
            }
        )
    elif outcome.left:
        show_left(screen, outcome)
    else:
        _show_end(screen, outcome)
        if outcome.delivered is not None and outcome.delivered.describe():
            screen.line(outcome.delivered.describe())
    return final_status(outcome, exit_status_of(outcome), as_json)


def final_status(outcome: RunOutcome, status: int, as_json: bool = False) -> int:
    """Print an error if output files were not copied. Return ``status``. If ``status`` is 0, return the status of the printed error
    instead."""
    problem = outcome.delivered.error() if outcome.delivered is not None else None
    if problem is None:
        return status
    show_error(problem, as_json)
    return status or CANNOT


def _show_end(screen: Screen, outcome: RunOutcome) -> None:
    counts, run = outcome.counts, outcome.run
    parts = [f"{counts[word]:,} {word}" for word in ("done", "failed", "cancelled") if counts.get(word)]
    summary = ", ".join(parts) or ("cancelled" if outcome.state == CANCELLED else "nothing to do")
    screen.line(f"Run {run}: {plural(outcome.tasks, 'task')}, {summary} in {duration(outcome.timing.elapsed_s)}.")
    if outcome.state == INCOMPLETE:
        screen.line(f"{INCOMPLETE_NOTE} More: pilotfish why {run}")
    if outcome.manager_output:
        screen.line(f"Last output of its application manager: {clean(outcome.manager_output)}")
        screen.line(f"All output:    pilotfish logs {run}")
    if outcome.failures:
        rows = [{**failure, "parameters": text} for failure, text in zip(outcome.failures, outcome.parameters, strict=True)]
        screen.table(with_parameters(screen, FAILURE_COLUMNS, rows), rows)
        screen.line(f"All failures:  pilotfish tasks {run} --state failed")
        if {failure["cause"] for failure in outcome.failures} - {DEPENDENCY} != {NO_DIRECTORY}:  # such a task wrote nothing
            screen.line(f"Output:        pilotfish logs {outcome.failures[0]['task']}")
        command = rerun_command(run, outcome.failures, some_cancelled=bool(counts.get("cancelled")))
        if fix := fix_with_options(run, outcome.failures):
            screen.line(f"Fix:           {clean(fix)}")
        elif command:
            screen.line(f"Rerun:         {command}")


def show_left(screen: Screen, outcome: RunOutcome) -> None:
    if outcome.left == "interrupted":
        ended = outcome.counts.get("done", 0) + outcome.bad
        screen.line(f"Left run {outcome.run}. The work goes on: {ended:,} of {plural(outcome.tasks, 'task')} so far.")
    else:
        screen.line(f"Run {outcome.run} is kept, and starts as soon as something fits.")
    screen.line(f"  come back   pilotfish attach {outcome.run}")
    screen.line("  look        pilotfish status")
    screen.line(f"  cancel it   pilotfish cancel {outcome.run}")


@click.command()
@run_argument()
@click.option("--overwrite", is_flag=True, help="Replace existing files at the destinations of output files.")
@click.option("--quiet", "-q", is_flag=True, help="Hide progress.")
@pool_option
@json_option
def attach(run: str | None, overwrite: bool, quiet: bool, pool: str, as_json: bool) -> int:
    """Follow a run until it finishes, then copy its output files.

    RUN is the number or name of a run; by default the last run. Ctrl-C detaches; the run continues.
    """
    master = connect(pool)
    row = find_run(master, run)
    screen = Screen.of()
    if not as_json and not quiet and row["state"] != "done":
        screen.line(f"Run {row['run']}: {clean(shown_command(row))}")
    outcome = follow(master, row["run"], quiet=quiet or as_json)
    if overwrite and outcome.delivered is not None:
        outcome.delivered = deliver_outputs(master, row["run"], overwrite=True)
    if row["command"].startswith("--dag "):
        from pilotfish.cli.run_commands.dag_rescue import keep_rescue_of

        keep_rescue_of(master, row, outcome, quiet or as_json)
    status = show_outcome(screen, outcome, as_json)
    if outcome.tasks == 1 and outcome.counts.get("done") and not (as_json or quiet or outcome.left):
        screen.line(f"Output:        pilotfish logs {outcome.run}.0")
    return status
