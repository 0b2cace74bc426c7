"""Implements cancel, pause, resume, set, rerun and forget."""

from __future__ import annotations

import re
import uuid
from typing import Any

import click

from pilotfish.cli import completions
from pilotfish.cli.commands.attach_command import follow, show_outcome
from pilotfish.cli.commands.dag_rescue import retire_rescues_of
from pilotfish.cli.commands.status_commands import shown_command
from pilotfish.cli.shared_options import deadline_option, json_option, pool_option, run_argument, share_option
from pilotfish.cli.terminal.screen import Screen, plural
from pilotfish.client.session import PoolSession, connect, connect_read_only, find_run, forget_run, state_of_run, task_name
from pilotfish.client.task_descriptions import named_task, write_rerun_register
from pilotfish.errors import BadInput

TASK = re.compile(r"[0-9]*[.][0-9]*")


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

    A task is RUN.INDEX, such as 3.17. The name of a run means the newest run with this name. Running tasks are stopped with all their
    processes.
    """
    screen = Screen.of()
    master = connect_read_only(pool)
    found = {subject: named_task(master, subject) for subject in subjects if "." in subject}
    named = [found.get(subject) or task_name(subject) for subject in subjects if found.get(subject) or TASK.fullmatch(subject)]
    rows = [find_run(master, subject) for subject in subjects if not (found.get(subject) or TASK.fullmatch(subject))]
    if named:
        cancelled = int(master.ask("cancel", tasks=named)["cancelled"])
        ended = len(dict.fromkeys(named)) - cancelled
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

    RUN is the number or name of a run. A name means only the newest run with this name. Files in run-N/, files saved with results --save
    and files that other runs need are kept.
    """
    screen = Screen.of()
    master = connect_read_only(pool)
    for row in [find_run(master, subject) for subject in subjects]:
        forget_run(master, row["run"])
        screen.line(f"Run {row['run']} was deleted.")


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
    """Send the request for an unfinished run and print the text. In the text, {0} stands for the number of the run."""
    row = find_run(master, run)
    if row["state"] == "done":
        Screen.of().line(_has_ended(row))
        return
    master.ask(request, run=row["run"])
    Screen.of().line(text.format(row["run"]))


@click.command("set")
@run_argument(completions.unfinished)
@click.option("--priority", type=int, metavar="N", help="Priority of all its tasks; higher starts first.")
@share_option
@deadline_option
@pool_option
@json_option
def set_options(run: str | None, priority: int | None, share: tuple[str, float] | None, deadline: float | None, **options: Any) -> None:
    """Change the priority, share or deadline of a run.

    Running tasks continue; tasks that start later follow the new values.
    """
    given: dict[str, Any] = {} if priority is None else {"priority": priority}
    if share is not None:
        given.update(share=share[0], weight=share[1])
    if deadline is not None:
        given["deadline"] = deadline
    if not given:
        raise BadInput("nothing was given to change", f"pilotfish set {run or 'RUN'} --priority 5, --share NAME:2 or --deadline 18:00")
    master = connect_read_only(options["pool"])
    row = find_run(master, run)
    if row["state"] == "done":
        raise BadInput(f"run {row['run']} has already ended ({state_of_run(row)})", "Start it again with other options: pilotfish run")
    row = master.ask("set", run=row["run"], **given)
    if options["as_json"]:
        Screen.of().json({**row, "state": state_of_run(row)})
    else:
        Screen.of().line(f"Run {row['run']} changed. See its state: pilotfish status")


def _nothing_failed(row: dict[str, Any]) -> BadInput:
    message = f"run {row['run']} has no failed tasks"
    if not row["counts"].get("cancelled"):
        return BadInput(message, f"See its tasks: pilotfish tasks {row['run']}")
    return BadInput(
        f"{message}, and cancelled ones cannot be run again",
        f"Start it again with its options: pilotfish run ... {shown_command(row)}",
    )


@click.command()
@run_argument(completions.failed)
@click.option("--failed", is_flag=True, default=True, help="Only failed tasks; this is the default.")
@click.option("--detach", is_flag=True, help="Return after submission.")
@click.option("--quiet", "-q", is_flag=True, help="Hide progress.")
@pool_option
@json_option
def rerun(run: str | None, failed: bool, detach: bool, quiet: bool, pool: str, as_json: bool) -> int:
    """Run the failed tasks of a run again.

    The tasks form a new run with its own numbers and results; the first run does not change. If a task never ran because a task that it
    needs failed, it is run, too. Cancelled tasks are not run again.
    """
    master = connect(pool)
    row = find_run(master, run)
    if not row["counts"].get("failed"):
        raise _nothing_failed(row)
    # If the master dies before it answers, the request is sent again. Because of the uid, this does not create a second run.
    answer = master.ask("rerun", run=row["run"], uid=uuid.uuid4().hex)
    write_rerun_register(master, row, answer["run"], answer["tasks"])
    screen = Screen.of()
    if not as_json:
        screen.line(f"Run {answer['run']}: {plural(answer['tasks'], 'task')} of run {row['run']} again.")
    if detach:
        if as_json:
            screen.json({"run": answer["run"], "tasks": answer["tasks"], "state": "submitted"})
        return 0
    outcome = follow(master, answer["run"], quiet=quiet or as_json)
    retire_rescues_of(row, outcome)
    return show_outcome(screen, outcome, as_json)
