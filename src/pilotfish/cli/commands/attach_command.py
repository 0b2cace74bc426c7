"""Implements attach: follows a run until the run ends or the user presses Ctrl-C, and prints the outcome."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import click

from pilotfish.cli.commands.status_commands import shown_command, with_parameters
from pilotfish.cli.commands.why_command import show_reasons
from pilotfish.cli.shared_options import json_option, pool_option, run_argument
from pilotfish.cli.terminal.error_messages import NOT_STARTED, SOME_FAILED
from pilotfish.cli.terminal.progress import RunProgress
from pilotfish.cli.terminal.screen import Column, Screen, clean, describe_transfers, duration, plural
from pilotfish.client.session import PoolSession, RunUpdate, connect, find_run, state_of_run, why_manager_failed
from pilotfish.client.task_descriptions import describe
from pilotfish.client.task_output import failure_note, failure_with_output, fetch_output, last_line
from pilotfish.errors import PilotfishError
from pilotfish.model.states import FAILED
from pilotfish.model.task import MISSING_INPUT, NO_DIRECTORY

POLL_S = 0.1
ASK_WHY_AFTER_S = 0.3
ASK_WHY_AGAIN_S = 5.0
RECOUNT_S = 1.0
SHOWN_FAILURES = 5
INCOMPLETE = "incomplete"
CANCELLED = "cancelled"
SEEN_RUNNING = 1000
HOPELESS = frozenset({"too-big", "too-few-nodes", "tags", "requirement", "walltime"})
"""Reasons for waiting that end only if the user changes something."""
SITES_AT_FAULT = frozenset({"no-site", "site-paused", "site-trouble", "batch-limit", "site-unused", "bootstrap"})
QUEUED = "pending"
QUEUE_SHOWN_AFTER_S = 10.0
"""Queued pilots are mentioned only after this many seconds, because short queue waits are normal."""
MAY_CHANGE = SITES_AT_FAULT | {QUEUED, "starting", "site-limit"}
"""Reasons that may end without the user. While one site has such a reason, waiting is useful, even if another site is hopeless."""
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
    """Holds the sums of times of a run and its tasks, as the client measured them."""

    started: float
    elapsed_s: float = 0.0
    first_end_s: float = 0.0
    run_s: float = 0.0
    cpu_s: float = 0.0
    turnaround_s: float = 0.0
    """Seconds from the start of the run to the end of a task, summed over all ended tasks."""
    ended: int = 0

    def note(self, now: float, wall_us: int, cpu_us: int) -> None:
        if not self.ended:
            self.first_end_s = now - self.started
        self.ended += 1
        self.run_s += wall_us / 1e6
        self.cpu_s += cpu_us / 1e6
        self.turnaround_s += now - self.started


@dataclass(slots=True)
class RunOutcome:
    """The state of a run when the client stops following the run."""

    run: int
    counts: dict[str, int]
    tasks: int
    left: str = ""
    """Why the client stopped following an unfinished run: ``interrupted`` or ``hopeless``. If the run ended, it is empty."""
    failures: list[dict[str, str]] = field(default_factory=list)
    """The first failed tasks. ``wrote`` is the last line of output about the failure."""
    parameters: list[str] = field(default_factory=list)
    """Parameter values of the tasks in ``failures``. If the terminal is too narrow for the commands, these values are shown instead."""
    manager_output: str = ""
    """If the run was cancelled: the last output line of its application manager, which may tell the reason."""
    state: str = ""
    """State of the run in one word, as in ``status``."""
    timing: RunTiming = field(default_factory=lambda: RunTiming(time.monotonic()))

    @property
    def bad(self) -> int:
        return self.counts.get("failed", 0) + self.counts.get("cancelled", 0)


class RunFollower:
    """Counts the tasks of a run while the client follows the run."""

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
        if started is not None:
            self.outcome.timing.started = started
        self._recount_at = time.monotonic()
        self._ask_why_at = time.monotonic() + ASK_WHY_AFTER_S
        counts = self.outcome.counts
        progress.total = row["tasks"]
        # A run that this command started is read from its first task, so that the times of all tasks are known.
        self.cursor = 0 if started is not None else sum(counts.get(word, 0) for word in ("done", "failed", "cancelled"))
        if self.cursor:
            progress.begin(row.get("elapsed_s") or 0.0, self.cursor, counts.get("failed", 0))
        if costs:
            progress.work_total = sum(costs)

    def read_running(self) -> None:
        """Read which tasks already run: the master does not report them again. Called before ``watch_run``, it would miss tasks."""
        rows = self._master.ask("tasks", run=self.outcome.run, state="running", limit=SEEN_RUNNING)
        self._running.update(row["index"] for row in rows)
        self.progress.running = len(self._running)

    def apply(self, update: RunUpdate) -> None:
        """Count started and ended tasks. If the update holds an error, no more updates come, and the error is raised."""
        if update.lost is not None:
            raise update.lost
        now = time.monotonic()
        self._running.update(update.began)
        for item in update.ended:
            self._running.discard(item.index)
            self.outcome.timing.note(now, item.wall_us, item.cpu_us)
            self.progress.ended(item.state == FAILED, self.costs[item.index] if self.costs else None)
        self.progress.running = len(self._running)

    def recount(self) -> None:
        """Read the number of tasks and the transfers from the master: an application adds tasks while it runs."""
        if (self._open or self._has_contents) and time.monotonic() >= self._recount_at:
            self._recount_at = time.monotonic() + RECOUNT_S
            row = self._master.ask("run", run=self.outcome.run)
            self._open, self._has_contents = row["state"] == "open", bool(row.get("contents"))
            self.progress.note = describe_transfers(row.get("moving"))
            self.progress.total = self.outcome.tasks = row["tasks"]

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

    def _failure(self, row: dict[str, Any], command: str) -> dict[str, str]:
        wrote = ""
        with suppress(PilotfishError):
            wrote = fetch_output(self._master, row).last_error_line()
        failure = row.get("failure") or {}
        about = {"task": row["id"], "command": command, "cause": failure.get("cause", ""), "blame": failure.get("blame", "")}
        return {**about, "message": failure_note(failure), "wrote": wrote}

    def explain_waiting(self, screen: Screen) -> bool:
        """If no task has started, print the reasons. Return True if waiting is useless."""
        if self._running or self.outcome.timing.ended or time.monotonic() < self._ask_why_at:
            return False
        self._ask_why_at = time.monotonic() + ASK_WHY_AGAIN_S
        answer = self._master.ask("why", run=self.outcome.run)
        codes = {reason["code"] for reason in answer.get("reasons", ())}
        if "starting" in codes:
            self._ask_why_at = time.monotonic() + ASK_WHY_AFTER_S
        early = {QUEUED} if time.monotonic() < self._began_at + QUEUE_SHOWN_AFTER_S else set()
        if codes & WORTH_SHOWING - self._shown_codes - early:
            self._shown_codes |= codes
            self.progress.clear()
            show_reasons(screen, answer)
        return bool(codes & HOPELESS) and not codes & MAY_CHANGE and not self._pilot_expected()

    def _pilot_expected(self) -> bool:
        """Whether a pilot is requested or queued: its worker may be able to run the tasks."""
        pilots = self._master.ask("status").get("pilots", ())
        return any(pilot["state"] in ("requested", "submitted") for pilot in pilots)


def follow(
    master: PoolSession,
    run: int,
    quiet: bool = False,
    costs: list[float] | None = None,
    started: float | None = None,
    single_task: bool = False,
) -> RunOutcome:
    """Follow the run until the run ends or the user presses Ctrl-C. The progress line goes to standard error.

    ``started``: if this command started the run, the time at which the user began to wait. For other runs, the master knows the elapsed
    time. ``single_task``: the run has one task, and only its transfers are shown.
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
            if single_task and not progress.note:
                progress.clear()
            elif not quiet:
                progress.draw()
    except KeyboardInterrupt:
        outcome.left = "interrupted"
    finally:
        progress.clear()
    if started is not None:
        outcome.timing.elapsed_s = time.monotonic() - started
    follower.conclude()
    return outcome


def exit_status_of(outcome: RunOutcome) -> int:
    """Return the exit status. After Ctrl-C it is 0, because the run continues. If the run cannot start, it is not 0."""
    if outcome.left:
        return NOT_STARTED if outcome.left == "hopeless" else 0
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
            }
        )
    elif outcome.left:
        show_left(screen, outcome)
    else:
        _show_end(screen, outcome)
    return exit_status_of(outcome)


def _show_end(screen: Screen, outcome: RunOutcome) -> None:
    counts, run = outcome.counts, outcome.run
    parts = [f"{counts[word]:,} {word}" for word in ("done", "failed", "cancelled") if counts.get(word)]
    summary = ", ".join(parts) or ("cancelled" if outcome.state == CANCELLED else "nothing to do")
    screen.line(f"Run {run}: {plural(outcome.tasks, 'task')}, {summary} in {duration(outcome.timing.elapsed_s)}.")
    if outcome.state == INCOMPLETE:
        screen.line(f"It is incomplete: its client disconnected before it had sent all tasks. More: pilotfish why {run}")
    if outcome.manager_output:
        screen.line(f"Last output of its application manager: {clean(outcome.manager_output)}")
        screen.line(f"All output:    pilotfish logs {run}")
    if outcome.failures:
        rows = [{**failure, "parameters": text} for failure, text in zip(outcome.failures, outcome.parameters, strict=True)]
        screen.table(with_parameters(screen, FAILURE_COLUMNS, rows), rows)
        screen.line(f"All failures:  pilotfish tasks {run} --state failed")
        if all(failure.get("cause") == NO_DIRECTORY for failure in outcome.failures):
            # Logs and rerun do not help here: the task wrote nothing, and it would fail again in the same way.
            screen.line("Fix:            --sandbox (sandbox=True in Python), and --input FILE (inputs=[...]) for each file that it needs")
        elif all(failure.get("cause") == MISSING_INPUT and failure.get("blame") == "user" for failure in outcome.failures):
            screen.line("Fix:            a new run, with the current files; rerun would use the old ones")
        else:
            screen.line(f"Output:        pilotfish logs {outcome.failures[0]['task']}")
            screen.line(f"Rerun:         pilotfish rerun {run} --failed")


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
@click.option("--quiet", "-q", is_flag=True, help="Hide progress.")
@pool_option
@json_option
def attach(run: str | None, quiet: bool, pool: str, as_json: bool) -> int:
    """Follow a run until it finishes.

    RUN is the number or name of a run; by default the last run. Ctrl-C detaches; the run continues.
    """
    master = connect(pool)
    row = find_run(master, run)
    screen = Screen.of()
    if not as_json and not quiet and row["state"] != "done":
        screen.line(f"Run {row['run']}: {clean(shown_command(row))}")
    outcome = follow(master, row["run"], quiet=quiet or as_json)
    if row["command"].startswith("--dag "):
        from pilotfish.cli.commands.dag_rescue import keep_rescue_of

        keep_rescue_of(master, row, outcome, quiet or as_json)
    return show_outcome(screen, outcome, as_json)
