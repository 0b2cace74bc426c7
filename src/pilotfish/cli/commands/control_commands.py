"""Implements cancel, pause, resume, set and forget."""

from __future__ import annotations

from typing import Any

import click

from pilotfish.cli import completions
from pilotfish.cli.named_subjects import read_subjects, runs_with_name
from pilotfish.cli.shared_options import deadline_option, json_option, pool_option, run_argument, share_option, sites_option
from pilotfish.cli.terminal.screen import Screen, clean, plural
from pilotfish.client.descriptions.site_selection import read_selection
from pilotfish.client.session import PoolSession, connect, connect_read_only, find_run, forget_run, state_of_run
from pilotfish.errors import BadInput


@click.command()
@click.argument(
    "subjects",
    nargs=-1,
    required=True,
    metavar="RUN|TASK...",
    shell_complete=completions.complete_run(completions.unfinished, with_tasks=True),
)
@pool_option
def cancel(subjects: tuple[str, ...], pool: str) -> None:
    """Cancel a run or some of its tasks.

    A task is RUN.INDEX, such as 3.17; 3.5-9 are five tasks, and 2-10 are the runs 2 to 10. The name of a run means the newest run
    with this name. Running tasks are stopped with all their processes.
    """
    screen = Screen.of()
    master = connect_read_only(pool)
    named, rows = read_subjects(master, subjects)
    if named:
        cancelled = int(master.ask("cancel", tasks=named)["cancelled"])
        ended = len(named) - cancelled
        too_late = f" {plural(ended, 'task')} had already ended: see pilotfish tasks {named[0].partition('.')[0]}" if ended else ""
        screen.line(f"Cancelled {plural(cancelled, 'task')}.{too_late}")
    for row in rows:
        if row["state"] == "done":
            screen.line(_has_ended(row))
            continue
        answer = master.ask("cancel", run=row["run"])
        screen.line(f"Cancelled run {row['run']}: {plural(answer['cancelled'], 'task')} that had not ended.")


@click.command()
@click.argument("subjects", nargs=-1, required=True, metavar="RUN...", shell_complete=completions.complete_run())
@pool_option
def forget(subjects: tuple[str, ...], pool: str) -> None:
    """Delete finished runs and their stored results.

    RUN is the number or name of a run, or a range of numbers, such as 2-10. A name means only the newest run with this name. These
    files are not deleted: files in run-N/ and at other destinations, files saved with results --save, and files that other runs need.
    """
    screen = Screen.of()
    master = connect_read_only(pool)
    named, rows = read_subjects(master, subjects)
    if named:
        raise BadInput(
            f"{named[0]} is a task, and only whole runs can be deleted", f"Delete its run: pilotfish forget {named[0].split('.')[0]}"
        )
    for row in sorted(rows, key=lambda row: row["state"] == "done"):  # unfinished runs first: their error prevents any deletion
        forget_run(master, row["run"])
        screen.line(f"Run {row['run']} was deleted.")
    for name in dict.fromkeys(row["name"] for row in rows if row["name"] in subjects):
        if others := runs_with_name(master, name):
            numbers = " ".join(map(str, others))
            screen.line(
                f"{plural(len(others), 'other run')} with the name {clean(name)} {'is' if len(others) == 1 else 'are'} kept: {numbers}"
            )


def _has_ended(row: dict[str, Any]) -> str:
    return f"Run {row['run']} has already ended ({state_of_run(row)})."


@click.command()
@run_argument(completions.unfinished)
@pool_option
def pause(run: str | None, pool: str) -> None:
    """Start no more tasks of a run; running tasks continue."""
    _change(connect_read_only(pool), run, "pause", "Run {0} is paused. Resume it: pilotfish resume {0}")


@click.command()
@run_argument(completions.unfinished)
@pool_option
def resume(run: str | None, pool: str) -> None:
    """Resume a paused run."""
    _change(connect(pool), run, "resume", "Run {0} resumed. Follow it: pilotfish attach {0}")


def _change(master: PoolSession, run: str | None, request: str, text: str) -> None:
    """Send a request about an unfinished run to the master, then print ``text``. In ``text``, {0} stands for the number of the run."""
    row = find_run(master, run)
    if row["state"] == "done":
        Screen.of().line(_has_ended(row))
        return
    master.ask(request, run=row["run"])
    Screen.of().line(text.format(row["run"]))


@click.command("set")
@run_argument(completions.unfinished)
@click.option("--priority", type=int, metavar="N", help="Priority of all tasks of the run; higher starts first.")
@share_option
@deadline_option
@sites_option
@pool_option
@json_option
def set_options(run: str | None, priority: int | None, share: tuple[str, float] | None, deadline: float | None, **options: Any) -> None:
    """Change the priority, share, deadline or sites of a run.

    Running tasks continue; tasks that start later use the new values. With --site, tasks that are assigned to
    workers of other sites but have not started are assigned again.
    """
    given: dict[str, Any] = {} if priority is None else {"priority": priority}
    if share is not None:
        given.update(share=share[0], weight=share[1])
    if deadline is not None:
        given["deadline"] = deadline
    selection = read_selection(options["sites"])
    if selection.names:
        given["sites"] = list(selection.names)
    if not given:
        example = f"Give --priority, --share, --deadline or --site, such as: pilotfish set {run or 'last'} --priority 5"
        raise BadInput("nothing was given to change", example)
    master = connect_read_only(options["pool"])
    row = find_run(master, run)
    if row["state"] == "done":
        raise BadInput(f"run {row['run']} has already ended ({state_of_run(row)})", "Start it again with other options: pilotfish run")
    selection.switch(master.ask)
    row = master.ask("set", run=row["run"], **given)
    if options["as_json"]:
        Screen.of().json({**row, "state": state_of_run(row)})
    else:
        Screen.of().line(f"Run {row['run']} changed. See its state: pilotfish status")
