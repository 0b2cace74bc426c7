"""Implements cache list and cache forget. Both commands are about results that ``run --resume`` and ``cache=True`` can reuse."""

from __future__ import annotations

import click

from pilotfish.cli import completions
from pilotfish.cli.commands.status_commands import shown_command
from pilotfish.cli.named_subjects import read_subjects
from pilotfish.cli.shared_options import json_option, pool_option
from pilotfish.cli.terminal.error_messages import SuggestingGroup
from pilotfish.cli.terminal.screen import Column, Screen, size
from pilotfish.client.session import connect_read_only
from pilotfish.errors import BadInput

COLUMNS = (
    Column("RUN", lambda row: row["run"], right=True),
    Column("NAME", lambda row: row["name"] or "-"),
    Column("RESULTS", lambda row: f"{row['results']:,}", right=True),
    Column("SIZE", lambda row: size(row["bytes"]), right=True),
    Column("COMMAND", shown_command, elastic=True),
)


@click.group(cls=SuggestingGroup)
def cache() -> None:
    """List or forget results that later runs can reuse.

    To reuse results, use pilotfish run --resume, or resume=True or cache=True in Python.
    """


@cache.command("list")
@pool_option
@json_option
def list_results(pool: str, as_json: bool) -> None:
    """List the runs that have results to reuse."""
    screen = Screen.of()
    rows = connect_read_only(pool).ask("cache")
    if as_json:
        screen.json(rows)
    elif rows:
        screen.table(COLUMNS, rows)
    else:
        screen.line("No run has results to reuse.")


@cache.command()
@click.argument("subjects", nargs=-1, metavar="[RUN...]", shell_complete=completions.complete_run())
@click.option("--all", "every", is_flag=True, help="Forget the results of all runs.")
@pool_option
def forget(subjects: tuple[str, ...], every: bool, pool: str) -> None:
    """Stop reusing the results of these runs.

    RUN is the number or name of a run, or a range of numbers, such as 2-10. The runs are kept, and pilotfish results still shows their
    results.
    """
    if bool(subjects) == every:
        raise BadInput("name the runs, or give --all" + (", not both" if every else ""), "See them: pilotfish cache list")
    master = connect_read_only(pool)
    named, rows = read_subjects(master, subjects)
    if named:
        run = named[0].partition(".")[0]
        raise BadInput(f"{named[0]} is a task, and not a run", f"Forget the results of its run: pilotfish cache forget {run}")
    forgotten = master.ask("cache_forget", runs=[row["run"] for row in rows])["forgotten"]
    screen = Screen.of()
    if not forgotten:
        screen.line("There was nothing to forget.")
    for run in forgotten:
        screen.line(f"Tasks like those of run {run} will run again.")
