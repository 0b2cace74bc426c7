"""Implements logs and tail, which print the output of tasks."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import click

from pilotfish.applications.output_streams import describe_dropped
from pilotfish.cli.commands.output_writer import STREAMS, write_pieces
from pilotfish.cli.completions import complete_run, complete_running_task
from pilotfish.cli.run_commands.live_output import LiveOutput
from pilotfish.cli.shared_options import pool_option
from pilotfish.cli.terminal.error_messages import SOME_FAILED
from pilotfish.cli.terminal.screen import Screen, clean, plural
from pilotfish.client.descriptions.task_descriptions import named_task, with_commands
from pilotfish.client.outputs.task_output import TaskOutput, failure_note, fetch_output, fetch_outputs
from pilotfish.client.session import END, PoolSession, all_tasks, connect_read_only, find_run, manager_log, task_name
from pilotfish.core.explain.rerun_advice import fix_with_options, rerun_command
from pilotfish.portable.output_marks import CAP, mark

POLL_S = 0.3
TAIL_BYTES = 1 << 20
STAGING = ("staging", "lost-input")
ENDED = ("done", "failed", "cancelled")


# --- logs ---------------------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("name", required=False, metavar="[TASK|RUN]", shell_complete=complete_run(with_tasks=True))
@click.option("--stdout", "only", flag_value="stdout", help="Only standard output.")
@click.option("--stderr", "only", flag_value="stderr", help="Only standard error.")
@click.option("--failed", is_flag=True, help="Only failed tasks of a run.")
@click.option("--plain", is_flag=True, help="Only the output of the tasks of a run, without the lines that name them.")
@click.option("--raw", is_flag=True, help="Do not escape control characters.")
@pool_option
def logs(name: str | None, only: str | None, failed: bool, plain: bool, raw: bool, pool: str) -> None:
    """Print the output of a task.

    A task is RUN.INDEX, such as 3.17, or RUN.ID. ID is the name of the task in a task list or DAG. For a run, the outputs of all tasks that
    succeeded or failed are printed to standard output. Before the output of each task, a line names the task. Another line separates its
    standard output from its standard error. The output of an application manager comes first. The output of cancelled tasks is not stored.

    --plain prints the outputs of the tasks of a run unchanged, one after the other: standard output to standard output, and standard error
    to standard error.
    """
    master = connect_read_only(pool)
    if name is not None and "." in name:
        row = master.ask("task", task=named_task(master, name) or task_name(name))
        if not _print_log(master, row, only, raw):
            where = f" to {only}" if only else ""
            note = "" if row["state"] in ENDED else f" so far: it is {row['state']}"
            if row["state"] == "failed":
                note = f": {clean(failure_note(row.get('failure') or {}))}"
            elif row["state"] == "cancelled":
                note = ": it was cancelled, and the output of cancelled tasks is not stored"
            Screen.of(sys.stderr).line(f"task {row['id']} has no output{where}{note}")
        return
    run = find_run(master, name)
    warn_missing(run)
    rows = (row for row in all_tasks(master, run["run"], "failed" if failed else None) if row["state"] in ("done", "failed"))
    if plain:
        for output in fetch_outputs(master, rows):
            _print_pieces(_stored_pieces(output, only), raw)
        return
    managers = b"" if failed or only == "stdout" else manager_log(master, run["run"])
    if managers:
        sys.stdout.write(f"--- {run['run']} application manager\n")
        write_pieces([managers], sys.stdout, raw)
    for row, command in with_commands(master, run, rows):
        sys.stdout.write(f"--- {row['id']} {row['state']} {clean(command)}\n")
        _print_below(master, row, only, raw)


def _print_log(master: PoolSession, row: dict[str, Any], only: str | None, raw: bool) -> bool:
    """Print the output of a task. Return whether the task has written output."""
    return _print_pieces(_pieces(master, row, only), raw)


def _print_pieces(streams: Iterable[tuple[str, Iterator[bytes]]], raw: bool) -> bool:
    written = False
    for name, pieces in streams:
        written = bool(write_pieces(pieces, getattr(sys, name), raw)) or written
    return written


def _print_below(master: PoolSession, row: dict[str, Any], only: str | None, raw: bool) -> None:
    """Print a line that names the task, and the output of the task below it. All output goes to standard output, so that a pipe or file
    keeps the order."""
    for name, pieces in _pieces(master, row, only):
        for piece in filter(None, pieces):
            if name == "stderr" and only is None:
                sys.stdout.write(f"--- {row['id']} stderr\n")
            if write_pieces(chain([piece], pieces), sys.stdout, raw) != b"\n":
                sys.stdout.write("\n")


def _pieces(master: PoolSession, row: dict[str, Any], only: str | None) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the name and the pieces of each stream of a task. For an ended task, also print to standard error how many bytes of the output
    are stored nowhere."""
    names = [name for name in STREAMS if only in (None, name)]
    if row["state"] == "running":
        yield from ((name, _running_output(master, row, name)) for name in names)
        return
    yield from _stored_pieces(fetch_output(master, row), only)


def _stored_pieces(output: TaskOutput, only: str | None) -> Iterator[tuple[str, Iterator[bytes]]]:
    for name in [name for name in STREAMS if only in (None, name)]:
        failure = _failure_text(output) if name == "stderr" else b""
        yield name, chain(output.streams[name].pieces(), [failure])
    warn_dropped(output)


def warn_dropped(output: TaskOutput) -> None:
    text = describe_dropped(output.streams)
    if text:
        Screen.of(sys.stderr).line(f"warning: task {output.row['id']}: {text}")


def warn_missing(run: dict[str, Any]) -> None:
    """Print a warning if tasks of a run have no stored output, because they have not ended or were cancelled."""
    counts = run["counts"]
    missing = {"not ended": run["tasks"] - sum(counts.get(state, 0) for state in ENDED), "cancelled": counts.get("cancelled", 0)}
    if any(missing.values()):
        parts = [plural(run["tasks"], "task"), *(f"{count:,} {state}" for state, count in missing.items() if count)]
        Screen.of(sys.stderr).line(f"warning: the output of run {run['run']} is not complete: {', '.join(parts)}")


def _running_output(master: PoolSession, row: dict[str, Any], name: str) -> Iterator[bytes]:
    """Yield the output that a running task has written until now. In place of bytes that the worker has dropped, yield a line that says
    so."""
    offset = 0
    while True:
        start, data = master.peek(row["id"], STREAMS[name], offset)
        if not data:
            return
        if start > offset:
            yield mark(start - offset, start + len(data), CAP)
        yield data
        offset = start + len(data)


def _failure_text(output: TaskOutput) -> bytes:
    """Return the traceback or error message of a failed Python call. For executables, return no bytes: they print their own errors."""
    failure = output.row.get("failure")
    if failure and output.row.get("kind") != "exec":
        return (output.traceback or str(failure.get("message", ""))).rstrip("\n").encode() + b"\n"
    return b""


def show_single(master: PoolSession, task: str, live: LiveOutput) -> int:
    """Print stdout, stderr and the failure of the only task of a run. ``live`` has already printed a part of the output, and prints only
    the rest. Return the exit status for ``run``: 0 if the task is done."""
    row = master.ask("task", task=task)
    output = fetch_output(master, row)
    live.finish(output)
    warn_dropped(output)
    if row["state"] == "done":
        return 0
    screen = Screen.of(sys.stderr)
    failure = row.get("failure")
    note = failure_note(failure) if failure else row["state"]
    screen.line(f"Task {task} " + clean(note if note.startswith(row["state"]) else f"{row['state']}: {note}"))
    screen.line(f"  why         pilotfish why {task}")
    failures = [failure] if failure and row["state"] == "failed" else []
    if fix := fix_with_options(row["run"], failures):
        screen.line(f"  fix         {clean(fix)}")
    elif failures and (command := rerun_command(row["run"], failures)):
        screen.line(f"  rerun       {command}")
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
    """Print the last lines of a task's output, also while it runs.

    Without --stderr, only standard output is printed. If the task has written only to standard error, a note says so.
    """
    master = connect_read_only(pool)
    name, given = named_task(master, task) or task_name(task), stream
    stream = given or "stdout"
    row = master.ask("task", task=name)
    offset, data = _last_output(master, row, stream)
    kept = data.splitlines(keepends=True)[-lines:] if lines else []
    write_pieces(kept, sys.stdout, raw)
    _show_missing_input(master, row)
    if not data and given is None and _last_output(master, row, "stderr")[1]:
        Screen.of(sys.stderr).line(f"task {name} has written only to standard error: pilotfish tail {name} --stderr")
    while follow and row["state"] not in ENDED:
        row = master.ask("task", task=name)
        next_offset, pieces = _output_from(master, row, stream, offset)
        write_pieces(pieces, sys.stdout, raw)
        if next_offset == offset and row["state"] not in ENDED:
            time.sleep(POLL_S)
        offset = next_offset


def _last_output(master: PoolSession, row: dict[str, Any], stream: str) -> tuple[int, bytes]:
    """Return (offset, data). ``data``: the last bytes that a task has written. ``offset``: the position at which its next output will
    begin."""
    if row["state"] == "running":
        start, data = master.peek(row["id"], STREAMS[stream], END)
        return start + len(data), data
    if row["state"] not in ENDED:
        return 0, b""
    data = fetch_output(master, row).streams[stream].tail(TAIL_BYTES)
    return len(data), data


def _output_from(master: PoolSession, row: dict[str, Any], stream: str, offset: int) -> tuple[int, Iterable[bytes]]:
    """Return (next offset, pieces). The pieces are the output from ``offset`` to the end. The next offset is the ``offset`` for the next
    call: the end of the new output of a running task. Without new output, it is ``offset``."""
    if row["state"] == "running":
        start, data = master.peek(row["id"], STREAMS[stream], offset)
        if not data:
            return offset, ()
        return start + len(data), ([mark(start - offset, start + len(data), CAP)] if start > offset else []) + [data]
    return offset, _skip(fetch_output(master, row).streams[stream].pieces(), offset) if row["state"] in ENDED else ()


def _skip(pieces: Iterable[bytes], count: int) -> Iterator[bytes]:
    """Yield the pieces without their first ``count`` bytes."""
    for piece in pieces:
        yield piece[count:]
        count = max(0, count - len(piece))


def _show_missing_input(master: PoolSession, row: dict[str, Any]) -> None:
    """Print the reason if a task without output is waiting for its input files."""
    if row["state"] == "assigned":
        reasons = [reason for reason in master.ask("why", task=row["id"])["reasons"] if reason["code"] in STAGING]
        for reason in reasons[:1]:
            Screen.of(sys.stderr).line(f"task {row['id']} has not begun: {clean(reason['text'])}")
