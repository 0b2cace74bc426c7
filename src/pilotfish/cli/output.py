"""logs, tail, results: what tasks wrote and gave.

Bytes go through unchanged to a file or a pipe. On a terminal control characters are made visible, so that no task can drive it;
``--raw`` lets them through.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from pilotfish.applications.below import write_below
from pilotfish.applications.executable import Completed, decode_completed
from pilotfish.applications.outcome import decode_value
from pilotfish.applications.parcel import unpack
from pilotfish.cli.complaints import SOME_FAILED
from pilotfish.cli.listing import failure_note
from pilotfish.cli.options import json_option, pool_option, run_argument
from pilotfish.cli.pool import Master, all_tasks, connect, find_run, task_name
from pilotfish.cli.recipe import with_commands
from pilotfish.cli.render import Column, Screen, clean, duration, plural
from pilotfish.errors import BadInput

POLL_S = 0.3
STREAMS = {"stdout": 1, "stderr": 2}
ENDED = ("done", "failed", "cancelled")
SHOWN_RESULTS = 100
RESULT_COLUMNS = (
    Column("TASK"),
    Column("STATE"),
    Column("TIME", right=True),
    Column("COMMAND", elastic=True),
    Column("RESULT", elastic=True),
    Column("FILES", elastic=True),
)


class TaskOutput:
    """What one ended task left, whatever kind it is of."""

    def __init__(self, row: dict[str, Any], payload: bytes) -> None:
        self.row = row
        self.stdout = self.stderr = b""
        self.traceback = ""
        self.completed: Completed | None = None
        self.value: object = None
        self.has_value = False
        if not payload:
            return
        if row.get("kind") == "exec":
            self.completed = decode_completed(payload)
            self.stdout, self.stderr = self.completed.stdout, self.completed.stderr
            return
        parts = unpack(payload)
        if len(parts) >= 4:
            self.traceback = _traceback(bytes(parts[0]))
            self.stdout, self.stderr = bytes(parts[2]), bytes(parts[3])
        if row["state"] == "done":
            outcome = decode_value(payload)
            self.value, self.has_value = (outcome.value, True) if outcome.error is None else (outcome.error, True)

    def headline(self) -> str:
        """The result in one line: a value, the last line of the output, or what went wrong."""
        if self.row.get("failure"):
            return failure_note(self.row["failure"]).splitlines()[0]
        if self.has_value:
            return repr(self.value)
        lines = self.stdout.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def file_names(self) -> list[str]:
        return list(self.completed.files) if self.completed is not None else []


def _traceback(meta: bytes) -> str:
    """The traceback that a Python call left over there, if it raised."""
    try:
        said = json.loads(meta) if meta else {}
    except ValueError:
        return ""
    return str(said.get("traceback") or "")


def fetch_output(master: Master, row: dict[str, Any]) -> TaskOutput:
    if row["state"] not in ("done", "failed"):
        return TaskOutput(row, b"")
    _, payload = master.ask_bytes("payload", task=row["id"], which="result")
    return TaskOutput(row, payload)


def write_bytes(data: bytes, stream: Any, raw: bool) -> None:
    """Bytes of a task to a stream of ours."""
    if not data:
        return
    stream.flush()
    if raw or not stream.isatty():
        stream.buffer.write(data)
    else:
        lines = data.decode(errors="replace").split("\n")
        stream.write("\n".join(clean(line.replace("\t", "    ")) for line in lines))
    stream.flush()


# --- logs ---------------------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("subject", required=False, metavar="[TASK|RUN]")
@click.option("--stdout", "only", flag_value="stdout", help="Only its standard output.")
@click.option("--stderr", "only", flag_value="stderr", help="Only its standard error output.")
@click.option("--failed", is_flag=True, help="Of a run: only the tasks that failed.")
@click.option("--raw", is_flag=True, help="Let control characters through to the terminal.")
@pool_option
def logs(subject: str | None, only: str | None, failed: bool, raw: bool, pool: str) -> None:
    """Print what a task wrote.

    A task is RUN.INDEX, such as 3.17. Of a whole run the outputs come one after the other, each below its name.
    """
    master = connect(pool)
    if subject is not None and "." in subject:
        row = master.ask("task", task=task_name(subject))
        if not _print_log(master, row, only, raw):
            where = f" to {only}" if only else ""
            so_far = "" if row["state"] in ENDED else f" so far: it is {row['state']}"
            Screen.of(sys.stderr).line(f"task {row['id']} wrote nothing{where}{so_far}")
        return
    run = find_run(master, subject)
    rows = (row for row in all_tasks(master, run["run"], "failed" if failed else None) if row["state"] in ("done", "failed"))
    for row, command in with_commands(master, run, rows):
        sys.stdout.write(f"--- {row['id']} {row['state']} {clean(command)}\n")
        _print_log(master, row, only, raw)


def _print_log(master: Master, row: dict[str, Any], only: str | None, raw: bool) -> bool:
    """Print what a task wrote; whether that was anything."""
    if row["state"] == "running":
        texts = {name: _peek(master, row, name, 0) for name in STREAMS if only in (None, name)}
    else:
        output = fetch_output(master, row)
        texts = {"stdout": output.stdout, "stderr": output.stderr + _what_happened(output)}
    shown = {name: text for name, text in texts.items() if text and only in (None, name)}
    for name, text in shown.items():
        write_bytes(text, getattr(sys, name), raw)
    return bool(shown)


def _what_happened(output: TaskOutput) -> bytes:
    """The traceback of a Python call, or at least the message, where the task's own output does not say it."""
    failure = output.row.get("failure")
    if failure and output.row.get("kind") != "exec":
        return (output.traceback or str(failure.get("message", ""))).rstrip("\n").encode() + b"\n"
    return b""


def show_single(master: Master, task: str) -> int:
    """After a run of one task: what it wrote goes where it would have gone without us."""
    row = master.ask("task", task=task)
    output = fetch_output(master, row)
    write_bytes(output.stdout, sys.stdout, False)
    write_bytes(output.stderr, sys.stderr, False)
    if row["state"] == "done":
        return 0
    screen = Screen.of(sys.stderr)
    failure = row.get("failure")
    screen.line(f"Task {task} {row['state']}" + (f": {clean(failure_note(failure))}" if failure else ""))
    screen.line(f"  why         pilotfish why {task}")
    screen.line(f"  once more   pilotfish rerun {row['run']} --failed")
    return SOME_FAILED


# --- tail ---------------------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("task", metavar="TASK")
@click.option("--follow", "-f", is_flag=True, help="Go on until the task has ended.")
@click.option("--lines", "-n", type=click.IntRange(min=0), metavar="N", default=10, show_default=True, help="How many lines from the end.")
@click.option("--stderr", "stream", flag_value="stderr", help="The standard error output instead of the standard output.")
@click.option("--raw", is_flag=True, help="Let control characters through to the terminal.")
@pool_option
def tail(task: str, follow: bool, lines: int, stream: str | None, raw: bool, pool: str) -> None:
    """Print the end of what a task wrote, also while it runs."""
    master = connect(pool)
    name, stream = task_name(task), stream or "stdout"
    seen = _tail_once(master, name, stream, lines, raw)
    while follow:
        row = master.ask("task", task=name)
        if row["state"] in ENDED:
            whole = getattr(fetch_output(master, row), stream)
            write_bytes(whole[seen:], sys.stdout, raw)
            return
        data = _peek(master, row, stream, seen)
        write_bytes(data, sys.stdout, raw)
        seen += len(data)
        if not data:
            time.sleep(POLL_S)


def _tail_once(master: Master, task: str, stream: str, lines: int, raw: bool) -> int:
    """Print the last lines there are; how many bytes that leaves behind us."""
    row = master.ask("task", task=task)
    if row["state"] in ENDED:
        data: bytes = getattr(fetch_output(master, row), stream)
    else:
        data = b""
        while True:
            more = _peek(master, row, stream, len(data))
            data += more
            if not more:
                break
    kept = data.splitlines(keepends=True)[-lines:] if lines else []
    write_bytes(b"".join(kept), sys.stdout, raw)
    return len(data)


def _peek(master: Master, row: dict[str, Any], stream: str, offset: int) -> bytes:
    """What a running task wrote beyond ``offset``."""
    if row["state"] != "running":
        return b""
    return master.peek(row["id"], STREAMS[stream], offset)


# --- results ------------------------------------------------------------------------------------------------------------------------


@click.command()
@run_argument
@click.option("--save", "directory", metavar="DIR", help="Write outputs and files to DIR/INDEX/.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help=f"At most so many.  [default: {SHOWN_RESULTS}; with --json all]")
@pool_option
@json_option
def results(run: str | None, directory: str | None, limit: int | None, pool: str, as_json: bool) -> None:
    """Show what the tasks gave, and save their files.

    RUN is its number or name; by default the last run.
    """
    screen = Screen.of()
    master = connect(pool)
    row = find_run(master, run)
    if directory is not None:
        saved = save_results(master, row["run"], directory, streams=True)
        screen.line(f"{plural(saved, 'file')} in {directory}/")
        return
    if as_json:
        found = all_tasks(master, row["run"], limit=limit)
        screen.json_list(_as_data(master, task, command) for task, command in with_commands(master, row, found))
        return
    rows = list(all_tasks(master, row["run"], limit=limit or SHOWN_RESULTS))
    show_results(screen, master, row, rows)
    if row["tasks"] > len(rows):
        screen.line(f"... and {row['tasks'] - len(rows):,} more: pilotfish results {row['run']} --limit {row['tasks']}")


def show_results(screen: Screen, master: Master, run: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    cells = []
    for task, command in with_commands(master, run, rows):
        output = fetch_output(master, task)
        took = duration(task["wall_s"]) if task.get("wall_s") else "-"
        cells.append([task["id"], task["state"], took, command, output.headline(), " ".join(output.file_names())])
    if any(row[-1] for row in cells):
        screen.table(RESULT_COLUMNS, cells)
    else:
        screen.table(RESULT_COLUMNS[:-1], [row[:-1] for row in cells])


def _as_data(master: Master, task: dict[str, Any], command: str) -> dict[str, Any]:
    output = fetch_output(master, task)
    data = {
        "task": task["id"],
        "state": task["state"],
        "command": command,
        "wall_s": task.get("wall_s"),
        "cpu_s": task.get("cpu_s"),
        "rss_bytes": task.get("rss_bytes"),
        "failure": task.get("failure"),
        "stdout": output.stdout.decode(errors="replace"),
        "stderr": output.stderr.decode(errors="replace"),
        "files": output.file_names(),
    }
    if output.completed is not None:
        data |= {"exit": output.completed.exit, "signal": output.completed.signal}
    if output.has_value:
        data["value"] = repr(output.value)
    return data


def save_results(master: Master, run: int, directory: str, streams: bool) -> int:
    """Write what the tasks left to directory/INDEX/; how many files that were."""
    if os.path.exists(directory) and not os.path.isdir(directory):
        raise BadInput(f"{directory!r} is not a directory", "Give another one: --save DIR")
    saved = 0
    for row in all_tasks(master, run):
        if row["state"] not in ("done", "failed"):
            continue
        output = fetch_output(master, row)
        place = Path(directory) / str(row["index"])
        if output.completed is not None:
            saved += len(output.completed.save(place))
        if streams:
            write_below(place, "stdout", output.stdout, 0o644)
            write_below(place, "stderr", output.stderr, 0o644)
            saved += 2
    return saved
