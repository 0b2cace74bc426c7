"""Implements rerun: runs failed and cancelled tasks of a run again, with the current versions of the files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from pilotfish.cli import completions
from pilotfish.cli.named_subjects import read_subjects
from pilotfish.cli.run_commands.attach_command import follow, show_outcome, status_of_detached
from pilotfish.cli.run_commands.dag_rescue import keep_rescue_of
from pilotfish.cli.shared_options import json_option, note_time_unit, pool_option, sites_option
from pilotfish.cli.terminal.screen import Screen, clean, plural
from pilotfish.client.descriptions.site_selection import read_selection
from pilotfish.client.rerun_preparation import LIMITS, PreparedRerun, prepare_rerun, shown_files
from pilotfish.client.session import PoolSession, connect, find_run
from pilotfish.errors import BadInput


@click.command()
@click.argument("subjects", nargs=-1, metavar="[RUN|TASK...]", shell_complete=completions.complete_run(completions.unsuccessful, True))
@click.option("--failed", "state", flag_value="failed", help="Only failed tasks.")
@click.option("--cancelled", "state", flag_value="cancelled", help="Only cancelled tasks.")
@click.option("--time", metavar="DURATION", help="New time limit per task, such as 90s or 1h30m.")
@click.option("--memory", metavar="SIZE", help="New memory limit per task, such as 2G.")
@click.option("--retries", type=click.IntRange(min=0), metavar="N", help="New number of retries after a failure.")
@click.option("--cores", metavar="N|A-B", help="New number of cores per task, or a range for moldable tasks.")
@sites_option
@click.option("--detach", is_flag=True, help="Return after submission.")
@click.option("--quiet", "-q", is_flag=True, help="Hide progress.")
@pool_option
@json_option
def rerun(subjects: tuple[str, ...], state: str | None, detach: bool, quiet: bool, as_json: bool, **options: Any) -> int:
    """Run failed and cancelled tasks of a run again.

    RUN is the number or name of a run; by default the last run. A task is RUN.INDEX, such as 3.17, and 3.5-9 are five tasks. All
    selected tasks must belong to one run. The tasks keep their run and their numbers, so pilotfish results shows the last attempt of each
    task.

    The tasks use the current versions of input files, scripts and imported modules; the command prints which files changed. Two kinds of
    tasks run too: tasks that never ran because they need a selected task, and failed or cancelled tasks that a selected task needs.
    """
    selection = read_selection(options["sites"])
    limits = {name: options[name] for name in LIMITS if options[name] is not None}
    master = connect(options["pool"])
    wanted = _selected(master, subjects, state)
    prepared = prepare_rerun(master, wanted, limits)
    if not quiet:
        note_time_unit(options["time"])
    row = find_run(master, str(prepared.run))
    selection.switch(master.ask)
    prepared.send(master, selection.names or None)
    screen = Screen.of()
    if not as_json:
        _show_start(screen, prepared)
    if detach:
        if as_json:
            files = list(prepared.changed_files)
            screen.json({"run": prepared.run, "tasks": len(prepared.tasks), "changed_files": files, "state": "submitted"})
        return status_of_detached(master, prepared.run)
    started = time.monotonic()
    outcome = follow(master, prepared.run, quiet=quiet or as_json)
    outcome.timing.elapsed_s = time.monotonic() - started  # only the time of this rerun, not of the whole run
    keep_rescue_of(master, row, outcome, quiet or as_json)
    return show_outcome(screen, outcome, as_json)


def _selected(master: PoolSession, subjects: Sequence[str], state: str | None) -> dict[str, Any]:
    """Return the arguments of the request to the master that select tasks: a run, and either ids of tasks or their state."""
    tasks, runs = read_subjects(master, subjects)
    numbers = dict.fromkeys(task.partition(".")[0] for task in tasks)
    if len(runs) + len(numbers) > 1:
        raise BadInput(f"{' '.join(subjects)} are of several runs", f"Rerun one run at a time: pilotfish rerun {subjects[0]}")
    if tasks and state is not None:
        raise BadInput(f"--{state} does not go with single tasks", f"Leave it out: pilotfish rerun {' '.join(subjects)}")
    if tasks:
        return {"run": next(iter(numbers)), "tasks": tasks}
    row = runs[0] if runs else find_run(master, None)
    return {"run": row["run"], **({"state": state} if state is not None else {})}


def _show_start(screen: Screen, prepared: PreparedRerun) -> None:
    screen.line(f"Run {prepared.run}: {plural(len(prepared.tasks), 'task')} again.")
    if prepared.changed_files:
        changed = list(prepared.changed_files)
        screen.line(f"Changed since the last try: {clean(', '.join(shown_files(changed)))}")
    if prepared.unchanged_functions:
        names = ", ".join(shown_files(list(prepared.unchanged_functions)))
        which = "which runs as it was" if len(prepared.unchanged_functions) == 1 else "which run as they were"
        screen.line(f"note: the main program defined {clean(names)}, {which}; to use its current code, start the program again")
    if prepared.deleted:
        screen.line(f"note: {plural(prepared.deleted, 'cancelled task')} cannot run again, because their arguments were deleted")
