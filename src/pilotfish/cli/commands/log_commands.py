"""Implements logs and tail, which print the output of tasks.

Files and pipes get the bytes unchanged. On a terminal, control characters are escaped, so that no task can control the terminal. The
option ``--raw`` switches this off.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from pilotfish.cli.completions import complete_run, complete_running_task
from pilotfish.cli.shared_options import pool_option
from pilotfish.cli.terminal.error_messages import SOME_FAILED
from pilotfish.cli.terminal.screen import Screen, clean
from pilotfish.client.session import PoolSession, all_tasks, connect_read_only, find_run, manager_log, task_name
from pilotfish.client.task_descriptions import named_task, with_commands
from pilotfish.client.task_output import TaskOutput, failure_note, fetch_output
from pilotfish.model.task import MISSING_INPUT

POLL_S = 0.3
STAGING = ("staging", "lost-input")
STREAMS = {"stdout": 1, "stderr": 2}
ENDED = ("done", "failed", "cancelled")


def write_bytes(data: bytes, stream: Any, raw: bool) -> None:
    """Write the output of a task to a stream. If the stream is a terminal, control characters are escaped."""
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
@click.argument("name", required=False, metavar="[TASK|RUN]", shell_complete=complete_run(with_tasks=True))
@click.option("--stdout", "only", flag_value="stdout", help="Only standard output.")
@click.option("--stderr", "only", flag_value="stderr", help="Only standard error.")
@click.option("--failed", is_flag=True, help="Only failed tasks of a run.")
@click.option("--raw", is_flag=True, help="Do not escape control characters.")
@pool_option
def logs(name: str | None, only: str | None, failed: bool, raw: bool, pool: str) -> None:
    """Print the output of a task.

    A task is RUN.INDEX, such as 3.17, or RUN.ID. ID is the name of the task in a task list or DAG. For a run, the outputs of all its tasks
    are printed, each below a line that names its task. The output of an application manager comes first.
    """
    master = connect_read_only(pool)
    if name is not None and "." in name:
        row = master.ask("task", task=named_task(master, name) or task_name(name))
        if not _print_log(master, row, only, raw):
            where = f" to {only}" if only else ""
            note = "" if row["state"] in ENDED else f" so far: it is {row['state']}"
            if row["state"] == "failed":
                note = f": {clean(failure_note(row.get('failure') or {}))}"
            Screen.of(sys.stderr).line(f"task {row['id']} has no output{where}{note}")
        return
    run = find_run(master, name)
    managers = b"" if failed or only == "stdout" else manager_log(master, run["run"])
    if managers:
        sys.stdout.write(f"--- {run['run']} application manager\n")
        write_bytes(managers, sys.stdout, raw)
    rows = (row for row in all_tasks(master, run["run"], "failed" if failed else None) if row["state"] in ("done", "failed"))
    for row, command in with_commands(master, run, rows):
        sys.stdout.write(f"--- {row['id']} {row['state']} {clean(command)}\n")
        _print_log(master, row, only, raw)


def _print_log(master: PoolSession, row: dict[str, Any], only: str | None, raw: bool) -> bool:
    """Print the output of a task. Return whether the task has written output."""
    if row["state"] == "running":
        texts = {name: _output_from(master, row, name, 0) for name in STREAMS if only in (None, name)}
    else:
        output = fetch_output(master, row)
        texts = {"stdout": output.stdout, "stderr": output.stderr + _failure_text(output)}
    shown = {name: text for name, text in texts.items() if text and only in (None, name)}
    for name, text in shown.items():
        write_bytes(text, getattr(sys, name), raw)
    return bool(shown)


def _failure_text(output: TaskOutput) -> bytes:
    """Return the traceback of a failed Python call, or at least its message. An executable writes its errors itself."""
    failure = output.row.get("failure")
    if failure and output.row.get("kind") != "exec":
        return (output.traceback or str(failure.get("message", ""))).rstrip("\n").encode() + b"\n"
    return b""


def show_single(master: PoolSession, task: str) -> int:
    """Print the output of the only task of a run: its stdout to stdout, its stderr to stderr. Return the exit status."""
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
    if not (failure and failure["cause"] == MISSING_INPUT and failure["blame"] == "user"):  # the same file would be missing again
        screen.line(f"  rerun       pilotfish rerun {row['run']} --failed")
    return SOME_FAILED


# --- tail ---------------------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("task", metavar="TASK", shell_complete=complete_running_task)
@click.option("--follow", "-f", is_flag=True, help="Continue until the task ends.")
@click.option("--lines", "-n", type=click.IntRange(min=0), metavar="N", default=10, show_default=True, help="Number of lines.")
@click.option("--stderr", "stream", flag_value="stderr", help="Standard error instead of standard output.")
@click.option("--raw", is_flag=True, help="Do not escape control characters.")
@pool_option
def tail(task: str, follow: bool, lines: int, stream: str | None, raw: bool, pool: str) -> None:
    """Print the last lines of a task's output, also while it runs."""
    master = connect_read_only(pool)
    name, stream = named_task(master, task) or task_name(task), stream or "stdout"
    row = master.ask("task", task=name)
    data = _output_from(master, row, stream, 0)
    while row["state"] == "running" and (more := _output_from(master, row, stream, len(data))):
        data += more
    kept = data.splitlines(keepends=True)[-lines:] if lines else []
    write_bytes(b"".join(kept), sys.stdout, raw)
    _show_missing_input(master, row)
    offset = len(data)
    while follow and row["state"] not in ENDED:
        row = master.ask("task", task=name)
        data = _output_from(master, row, stream, offset)
        write_bytes(data, sys.stdout, raw)
        offset += len(data)
        if not data and row["state"] not in ENDED:
            time.sleep(POLL_S)


def _output_from(master: PoolSession, row: dict[str, Any], stream: str, offset: int) -> bytes:
    """Return the output of a task from byte ``offset`` on. If the task runs, the returned output may end early."""
    if row["state"] in ENDED:
        whole: bytes = getattr(fetch_output(master, row), stream)
        return whole[offset:]
    return master.peek(row["id"], STREAMS[stream], offset) if row["state"] == "running" else b""


def _show_missing_input(master: PoolSession, row: dict[str, Any]) -> None:
    """If the task waits for an input, print the reason: such a task has no output yet."""
    if row["state"] == "assigned":
        reasons = [reason for reason in master.ask("why", task=row["id"])["reasons"] if reason["code"] in STAGING]
        for reason in reasons[:1]:
            Screen.of(sys.stderr).line(f"task {row['id']} has not begun: {clean(reason['text'])}")
