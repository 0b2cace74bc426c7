"""Implements results: shows task results as a table, CSV, JSON or a job log, and saves output files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from itertools import tee
from typing import Any

import click

from pilotfish.applications.calls.saved_value import NotPlain, plain
from pilotfish.cli.commands.log_commands import warn_missing
from pilotfish.cli.commands.status_commands import with_parameters
from pilotfish.cli.shared_options import json_option, pool_option, run_argument
from pilotfish.cli.terminal.screen import Column, Screen, duration, plural
from pilotfish.client.descriptions.task_descriptions import DescribedTask, DescribedTasks, describe
from pilotfish.client.outputs.output_delivery import save_outputs
from pilotfish.client.outputs.task_output import TaskOutput, fetch_outputs
from pilotfish.client.session import PoolSession, all_tasks, connect_read_only, find_run, with_usage
from pilotfish.errors import BadInput, Correction

SHOWN_RESULTS = 100
RESULT_COLUMNS = (
    Column("TASK", lambda task: task["id"]),
    Column("STATE", lambda task: task["state"]),
    Column("WALL TIME", lambda task: duration(task.get("wall_s") or None), right=True),
    Column("COMMAND", lambda task: task["command"], elastic=True),
    Column("RESULT", lambda task: task["result"], elastic=True),
)
FILES = Column("FILES", lambda task: task["files"], elastic=True)
CSV_FIRST = ("run", "index")
"""The task id has two columns in CSV, because programs read the id 1.10 as the number 1.1."""
PLACE_AND_TIME = ("worker", "node", "site", "started_at", "ended_at", "attempt")
JOBLOG_COLUMNS = ("Seq", "Host", "Starttime", "JobRuntime", "Send", "Receive", "Exitval", "Signal", "Command")
"""The columns of ``parallel --joblog``."""
CSV_COLUMNS = ("state", "exit", "wall_s", "cpu_s", "rss_bytes", "result", "failure", "command", *PLACE_AND_TIME)


@click.command()
@run_argument()
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a column for each parameter of the sweep.")
@click.option("--joblog", is_flag=True, help="Print CSV with the columns of GNU parallel's --joblog: ended tasks, host, times, status.")
@click.option("--save", "directory", metavar="DIR", help="Write output files and Python values to DIR/INDEX/.")
@click.option("--overwrite", is_flag=True, help="With --save, replace files that other programs made or changed.")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help=f"Show at most N rows.  [default: {SHOWN_RESULTS}; with --csv or --json all]"
)
@pool_option
@json_option
def results(run: str | None, as_csv: bool, joblog: bool, directory: str | None, limit: int | None, **options: Any) -> None:
    """Show task results; save output files and values.

    RUN is the number or name of a run; by default the last run. --save writes the value of a Python call to a file: to value.json if JSON
    can represent the value (a tuple becomes a list), to value.npy if it is a numpy array without Python objects, and to value.pickle in
    all other cases. Two kinds of files in DIR are kept: those that are not from this run, and those that were changed after they were
    saved. --overwrite replaces them.
    """
    as_json: bool = options["as_json"]
    given = {"--csv": as_csv, "--json": as_json, "--joblog": joblog, "--save": directory is not None}
    forms = [option for option, is_given in given.items() if is_given]
    if len(forms) > 1:
        raise BadInput(f"{' and '.join(forms)} do not go together", "Give one of them, and the other in a second command.")
    if options["overwrite"] and directory is None:
        raise BadInput("--overwrite is for saved files, and --save is not given", "Add it: --save DIR")
    screen = Screen.of()
    master = connect_read_only(options["pool"])
    row = find_run(master, run)
    if directory is not None:
        warn_missing(row)
        _save(screen, master, row["run"], directory, options["overwrite"])
    elif joblog:
        screen.csv(_joblog_rows(master, describe(master, row, all_tasks(master, row["run"], limit=limit))))
    elif as_csv or as_json:
        tasks = describe(master, row, with_usage(master, all_tasks(master, row["run"], limit=limit)))
        if not tasks.known and str(row["command"]).startswith("--"):
            is_cut = row.get("incomplete")
            why = "its program ended before it had stored them" if is_cut else "they came from a file that was removed or changed"
            Screen.of(sys.stderr).line(f"warning: the parameters of run {row['run']} are unknown: {why}")
        if as_csv:
            screen.csv(_csv_rows(master, tasks))
        else:
            screen.json_list(_as_data(task, output, tasks.names) for task, output in _with_outputs(master, tasks))
    else:
        show_results(screen, master, row, list(all_tasks(master, row["run"], limit=limit or SHOWN_RESULTS)))


def show_results(screen: Screen, master: PoolSession, run: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    described = describe(master, run, rows)
    tasks = []
    for task, output in _with_outputs(master, described):
        parameters = task.parameters(described.names)
        result = output.failure_line() or output.result_line()
        shown = {"command": task.command, "parameters": parameters, "result": result, "files": " ".join(output.file_names())}
        tasks.append({**task.row, **shown})
    columns = (*RESULT_COLUMNS, FILES) if any(task["files"] for task in tasks) else RESULT_COLUMNS
    screen.table(with_parameters(screen, columns, tasks), tasks)
    if run["tasks"] > len(rows):
        screen.line(f"... and {run['tasks'] - len(rows):,} more: pilotfish results {run['run']} --limit {run['tasks']}")


def _csv_rows(master: PoolSession, tasks: DescribedTasks) -> Iterator[Sequence[object]]:
    fixed = {*CSV_FIRST, *CSV_COLUMNS}
    yield [*CSV_FIRST, *(f"param.{name}" if name in fixed else name for name in tasks.names), *CSV_COLUMNS]
    width = len(tasks.names)
    for task, output in _with_outputs(master, tasks):
        row, done = task.row, output.completed
        values: list[object] = list(task.values or ())
        values += [None] * (width - len(values))
        result = output.cell() if row["state"] == "done" else None
        place = [row.get(name) for name in PLACE_AND_TIME]
        used = row.get("wall_s"), row.get("cpu_s"), row.get("rss_bytes")
        exit_status = done.exit if done is not None else None
        yield [
            *(row["run"], row["index"], *values[:width]),
            *(row["state"], exit_status, *used, result, output.failure_line() or None, task.command, *place),
        ]


def _joblog_rows(master: PoolSession, tasks: DescribedTasks) -> Iterator[Sequence[object]]:
    """Yield the ended tasks as rows of a job log of GNU parallel. Seq counts from 1. Send and Receive are 0, as for jobs without files.
    Exitval is -1 if the task failed for a reason other than its exit status or a signal."""
    yield JOBLOG_COLUMNS
    for task, output in _with_outputs(master, tasks):
        row = task.row
        if row["state"] not in ("done", "failed"):
            continue
        done, failed = output.completed, row["state"] == "failed"
        status, signal = (done.exit or 0, done.signal or 0) if done is not None else (int(failed), 0)
        if failed and not (status or signal):
            status = -1
        times = f"{row.get('started_at') or 0:.3f}", f"{row.get('wall_s') or 0:.3f}"
        yield row["index"] + 1, row.get("node") or "", *times, 0, 0, status, signal, task.command


def _with_outputs(master: PoolSession, tasks: DescribedTasks) -> Iterator[tuple[DescribedTask, TaskOutput]]:
    """Yield each task with its output. Print a warning at the end if parts of outputs are stored nowhere."""
    described, again = tee(tasks.found)
    incomplete = 0
    for task, output in zip(described, fetch_outputs(master, (task.row for task in again)), strict=True):
        incomplete += output.is_incomplete
        yield task, output
    if incomplete:
        text = f"the output of {plural(incomplete, 'task')} is not complete; a line in the output says where and why"
        Screen.of(sys.stderr).line(f"warning: {text}")


def _as_data(task: DescribedTask, output: TaskOutput, names: tuple[str, ...]) -> dict[str, Any]:
    row = task.row
    data = {
        "task": row["id"],
        "label": task.label or None,
        "parameters": dict(zip(names, task.values or (), strict=False)),
        "state": row["state"],
        "command": task.command,
        "wall_s": row.get("wall_s"),
        "cpu_s": row.get("cpu_s"),
        "rss_bytes": row.get("rss_bytes"),
        **{name: row.get(name) for name in PLACE_AND_TIME},
        # For a failed task, the last line of its output is no result.
        "result": output.result_line() if row["state"] == "done" else None,
        "failure": row.get("failure"),
        "note": output.failure_line() or None,
        "stdout": output.stdout.decode(errors="replace"),
        "stderr": output.stderr.decode(errors="replace"),
        **{f"{name}_dropped": stream.dropped for name, stream in output.streams.items()},
        **{f"{name}_file": str(stream.file.path) if stream.file is not None else None for name, stream in output.streams.items()},
        "files": output.file_names(),
    }
    if output.completed is not None:
        data |= {"exit": output.completed.exit, "signal": output.completed.signal}
    if output.has_value:
        data |= _value_as_data(output)
    return data


def _value_as_data(output: TaskOutput) -> dict[str, Any]:
    """Return the value of a call as ``value``, and ``json`` or ``text`` as ``value_form``. With ``json``, the value is JSON data. A value
    that JSON cannot represent is returned as the text that Python shows, with ``text``."""
    try:
        return {"value": plain(output.value), "value_form": "json"}
    except NotPlain:
        return {"value": output.value_text(), "value_form": "text"}


def _save(screen: Screen, master: PoolSession, run: int, directory: str, overwrite: bool) -> None:
    """Write the output files, streams and values of all tasks to directory/INDEX/, and print the number of these files."""
    directory = os.path.expanduser(directory)
    if os.path.exists(directory) and not os.path.isdir(directory):
        raise BadInput(f"{directory!r} is not a directory", Correction("Give another one: --save DIR", directory, f"{directory}-saved"))
    saved = save_outputs(master, run, directory, overwrite)
    parts = [f"{plural(saved.files, 'file')} in {directory}/"] if saved.files or not saved.stayed else []
    parts += [f"{plural(saved.stayed, 'file')} stayed on the workers: pilotfish data {run}"] if saved.stayed else []
    screen.line("; ".join(parts))
    if saved.renamed:
        Screen.of(sys.stderr).line(f"note: {saved.renamed}")
    if problem := saved.error():
        raise problem
