"""Implements results, and the report of ``run --report``: the results and how the time was spent."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from pilotfish.applications.safe_paths import write_below
from pilotfish.cli.commands.attach_command import RunOutcome
from pilotfish.cli.commands.status_commands import with_parameters
from pilotfish.cli.shared_options import json_option, pool_option, run_argument
from pilotfish.cli.terminal.screen import Column, Screen, duration, plural
from pilotfish.client.session import PoolSession, all_tasks, connect_read_only, find_run
from pilotfish.client.task_descriptions import DescribedTask, DescribedTasks, describe
from pilotfish.client.task_output import fetch_output
from pilotfish.errors import BadInput, PilotfishError

REPORTED_RESULTS = 12


def show_report(screen: Screen, master: PoolSession, outcome: RunOutcome) -> None:
    """Print the results, then the waiting time, run time, overhead and utilisation."""
    rows = master.ask("tasks", run=outcome.run, limit=REPORTED_RESULTS)
    show_results(screen, master, master.ask("run", run=outcome.run), rows)
    workers = master.ask("workers", all=False)
    cores = sum(worker["capacity"].get("cores", 0) for worker in workers) or 1.0
    timing = outcome.timing
    count, offered_s = max(1, timing.ended), max(1e-9, cores * timing.elapsed_s)
    waited_s, overhead_s = (max(0.0, seconds - timing.run_s) / count for seconds in (timing.turnaround_s, offered_s))
    screen.line()
    screen.line("Where the time went")
    screen.fields(
        [
            ("  from start to end", duration(timing.elapsed_s)),
            ("  until the first result", duration(timing.first_end_s)),
            ("  a task waited", f"{duration(waited_s)} on average for a free core"),
            ("  a task ran", f"{duration(timing.run_s / count)} on average, {duration(timing.cpu_s / count)} of it computing"),
            ("  overhead", f"{duration(overhead_s)} of a core per task: starting, sending, waiting for the last one"),
            ("  workers busy", f"{min(1.0, timing.run_s / offered_s):.0%} of {cores:g} core{'' if cores == 1 else 's'}"),
        ]
    )
    screen.line()


# --- results: as a table, as CSV or JSON, or as files ---------------------------------------------------------------------------------

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
"""The task id in two columns, because a program would read the task 1.10 as the number 1.1."""
CSV_COLUMNS = ("state", "exit", "wall_s", "cpu_s", "rss_bytes", "result", "failure", "command")


@click.command()
@run_argument()
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a column for each parameter of the sweep.")
@click.option("--save", "directory", metavar="DIR", help="Write output files to DIR/INDEX/.")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help=f"Show at most N rows.  [default: {SHOWN_RESULTS}; with --csv or --json all]"
)
@pool_option
@json_option
def results(run: str | None, as_csv: bool, directory: str | None, limit: int | None, pool: str, as_json: bool) -> None:
    """Show task results; save output files.

    RUN is the number or name of a run; by default the last run.
    """
    forms = [option for option, given in (("--csv", as_csv), ("--json", as_json), ("--save", directory is not None)) if given]
    if len(forms) > 1:
        raise BadInput(f"{' and '.join(forms)} do not go together", "Give one of them, and the other in a second command.")
    screen = Screen.of()
    master = connect_read_only(pool)
    row = find_run(master, run)
    if directory is not None:
        saved = save_results(master, row["run"], directory, streams=True)
        screen.line(saved.describe(directory, row["run"]))
    elif as_csv or as_json:
        tasks = describe(master, row, all_tasks(master, row["run"], limit=limit))
        if not tasks.known and str(row["command"]).startswith("--"):
            text = f"the parameters of run {row['run']} are unknown: they came from a file that was removed or changed"
            Screen.of(sys.stderr).line(f"warning: {text}")
        if as_csv:
            screen.csv(_csv_rows(master, tasks))
        else:
            screen.json_list(_as_data(master, task, tasks.names) for task in tasks.found)
    else:
        show_results(screen, master, row, list(all_tasks(master, row["run"], limit=limit or SHOWN_RESULTS)))


def show_results(screen: Screen, master: PoolSession, run: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    described = describe(master, run, rows)
    tasks = []
    for task in described.found:
        output, parameters = fetch_output(master, task.row), task.parameters(described.names)
        result = output.failure_line() or output.result_line()
        shown = {"command": task.command, "parameters": parameters, "result": result, "files": " ".join(output.file_names())}
        tasks.append({**task.row, **shown})
    columns = (*RESULT_COLUMNS, FILES) if any(task["files"] for task in tasks) else RESULT_COLUMNS
    screen.table(with_parameters(screen, columns, tasks), tasks)
    if run["tasks"] > len(rows):
        screen.line(f"... and {run['tasks'] - len(rows):,} more: pilotfish results {run['run']} --limit {run['tasks']}")


def _csv_rows(master: PoolSession, tasks: DescribedTasks) -> Iterator[list[object]]:
    fixed = {*CSV_FIRST, *CSV_COLUMNS}
    yield [*CSV_FIRST, *(f"param.{name}" if name in fixed else name for name in tasks.names), *CSV_COLUMNS]
    for task in tasks.found:
        data = _as_data(master, task, tasks.names)
        cells = {**data, "failure": data["note"]}
        values = (data["parameters"].get(name) for name in tasks.names)
        yield [*(task.row[name] for name in CSV_FIRST), *values, *(cells.get(name) for name in CSV_COLUMNS)]


def _as_data(master: PoolSession, task: DescribedTask, names: tuple[str, ...]) -> dict[str, Any]:
    row, output = task.row, fetch_output(master, task.row)
    data = {
        "task": row["id"],
        "label": task.label or None,
        "parameters": dict(zip(names, task.values or (), strict=False)),
        "state": row["state"],
        "command": task.command,
        "wall_s": row.get("wall_s"),
        "cpu_s": row.get("cpu_s"),
        "rss_bytes": row.get("rss_bytes"),
        # The last output line of a failed task is not a result.
        "result": output.result_line() if row["state"] == "done" else None,
        "failure": row.get("failure"),
        "note": output.failure_line() or None,
        "stdout": output.stdout.decode(errors="replace"),
        "stderr": output.stderr.decode(errors="replace"),
        "files": output.file_names(),
    }
    if output.completed is not None:
        data |= {"exit": output.completed.exit, "signal": output.completed.signal}
    if output.has_value:
        data["value"] = repr(output.value)
    return data


class SavedFiles(NamedTuple):
    """Number of files that were written, and number of files that stayed on their workers."""

    files: int = 0
    stayed: int = 0

    def describe(self, directory: str, run: int) -> str:
        parts = [f"{plural(self.files, 'file')} in {directory}/"] if self.files or not self.stayed else []
        parts += [f"{plural(self.stayed, 'file')} stayed on the workers: pilotfish data {run}"] if self.stayed else []
        return "; ".join(parts)


def save_results(master: PoolSession, run: int, directory: str, streams: bool) -> SavedFiles:
    """Write the output files of all tasks to directory/INDEX/. ``streams``: write stdout and stderr too."""
    if os.path.exists(directory) and not os.path.isdir(directory):
        raise BadInput(f"{directory!r} is not a directory", "Give another one: --save DIR")
    saved = stayed = 0
    try:
        for row in all_tasks(master, run):
            if row["state"] not in ("done", "failed"):
                continue
            output, place = fetch_output(master, row), Path(directory) / str(row["index"])
            for name, file in output.completed.files.items() if output.completed is not None else ():
                if file.data is None and (file.path is None or not file.path.exists()):
                    stayed += 1
                else:
                    file.save_below(place, name)
                    saved += 1
            if streams:
                write_below(place, "stdout", output.stdout, 0o644)
                write_below(place, "stderr", output.stderr, 0o644)
                saved += 2
    except OSError as error:
        what = f"{error.filename or directory}: {(error.strerror or str(error)).lower()}"
        raise PilotfishError(
            f"the files of run {run} cannot be written: {what}", f"Elsewhere: pilotfish results {run} --save DIR"
        ) from error
    return SavedFiles(saved, stayed)
