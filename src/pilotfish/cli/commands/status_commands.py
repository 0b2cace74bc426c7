"""Implements status, tasks, workers and pools."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import click

from pilotfish.cli.shared_options import OldWords, json_option, note_new_name, old_option, pool_option, run_argument
from pilotfish.cli.site_commands.site_requests import add_pilots
from pilotfish.cli.terminal.screen import Column, Screen, clean, describe_transfers, duration, fits, plural, rate, size
from pilotfish.cli.terminal.watching import INTERVAL_S, watch_screen
from pilotfish.client.descriptions.task_descriptions import described_rows
from pilotfish.client.outputs.task_output import failure_note
from pilotfish.client.pools import PoolHandle, find_pools, is_served
from pilotfish.client.session import NoPool, all_tasks, connect, connect_if_served, connect_read_only, find_run, state_of_run, with_usage
from pilotfish.config import home, read_settings
from pilotfish.errors import BadInput
from pilotfish.model.site import LOCAL
from pilotfish.model.states import TASK_STATES
from pilotfish.portable.output_marks import show_size
from pilotfish.store.pool_directory import StopMark, pool_home, read_stop_mark

ACTIVE_COLUMNS = ("RUNNING", "WAITING", "RATE", "TIME LEFT")
OPTIONAL_COLUMNS = ("SHARE", "DEADLINE")
SHOWN_RUNS = 20
SHOWN_TASKS = 100
AT_WORKERS = ("assigned", "running")
NOT_ASSIGNED = ("waiting", "ready")


@click.command()
@run_argument()
@click.option("--all", "everything", is_flag=True, help=f"Show all runs, not only the last {SHOWN_RUNS}.")
@click.option("--watch", "-w", is_flag=True, help=f"Refresh the output every {INTERVAL_S:g} s, until RUN has ended or you press Ctrl-C.")
@pool_option
@json_option
def status(run: str | None, everything: bool, watch: bool, pool: str, as_json: bool) -> None:
    """Show runs, workers and warnings.

    RUN is the number or name of a run. Without RUN, the last 20 runs are shown. RUNNING counts tasks that are assigned or running. WAITING
    counts tasks that are waiting or ready.
    """
    if watch and as_json:
        raise BadInput("--watch and --json do not go together", "Type the command with --json again when you need it.")

    def show(screen: Screen) -> bool:
        if run is None:
            _show_pool(screen, everything, pool, as_json)
            return True
        return _show_run(screen, run, pool, as_json)

    if watch:
        watch_screen(show)
    else:
        show(Screen.of())


def _show_run(screen: Screen, name: str, pool: str, as_json: bool) -> bool:
    """Print the state of one run and the reason for this state. Return True if the run has not ended."""
    master = connect_read_only(pool)
    row = find_run(master, name)
    if as_json:
        screen.json({**row, "state": state_of_run(row)})
        return False
    show_runs(screen, [row])
    screen.line()
    screen.line(clean(master.ask("why", run=row["run"])["sentence"]))
    return bool(row["state"] != "done")


def _show_pool(screen: Screen, everything: bool, pool: str, as_json: bool) -> None:
    stop = last_stop(pool)
    try:
        answer = status_at_stop(pool, stop) or connect_read_only(pool).ask("status")
    except NoPool:
        if as_json:
            screen.json({"pool": pool, "pid": None, "workers": {}, "runs": [], "warnings": []})
        else:
            screen.line(f"Pool {clean(pool)} has no runs yet. Start one: pilotfish run -- COMMAND")
        return
    if as_json:
        runs = [{**row, "state": state_of_run(row)} for row in answer.get("runs", ())]
        screen.json({**answer, "stopped_at": stop.at if stop is not None else None, "runs": runs})
        return
    if answer.get("pid"):
        screen.line(_pool_sentence({"pool": pool, **answer}))
    if answer.get("moving"):
        screen.line(f"{describe_transfers(answer['moving'])}: pilotfish data")
    if stop is not None:
        screen.line(stop_sentence(pool, stop, answer["runs"]))
    rows = sorted(answer.get("runs", ()), key=lambda row: int(row["run"]))
    shown = rows if everything else rows[-SHOWN_RUNS:]
    together = sum(row["state"] != "done" and not row.get("paused") for row in rows) > 1
    if shown:
        screen.line()
        show_runs(screen, [_without_estimate(row) for row in shown] if together else shown)
    if len(shown) < len(rows):
        screen.line(f"... and {plural(len(rows) - len(shown), 'earlier run')}: pilotfish status --all")
    if together:
        screen.line("Several runs share the pool. Estimate when one finishes: pilotfish predict RUN")
    for warning in (*answer.get("warnings", ()), *_settings_warnings(answer)):
        screen.line(f"{screen.paint('warning:', 'yellow')} {clean(warning['text'])}")
        for command in warning.get("commands", ()):
            screen.line(f"  fix:    {clean(command)}")


def _settings_warnings(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a warning if config.toml was changed after the start of the master. The master reads this file only at its start."""
    path = home() / "config.toml"
    try:
        changed_at = path.stat().st_mtime
    except OSError:
        return []
    if not answer.get("pid") or changed_at <= time.time() - float(answer.get("uptime_s") or 0.0):
        return []
    try:
        read_settings(path, note=lambda text: None)
    except BadInput as problem:
        return [{"text": str(problem), "commands": [problem.hint]}]
    text = f"{path} was changed after the master had started; a restarted master uses the changes"
    return [{"text": text, "commands": ["pilotfish stop"]}]


def _without_estimate(row: dict[str, Any]) -> dict[str, Any]:
    """Remove the estimated finish time. It is wrong if several runs compete, because a run becomes faster when a competing run ends."""
    return row if row["state"] == "done" else {**row, "eta_s": None, "late_s": None}


def _pool_sentence(answer: dict[str, Any]) -> str:
    workers: dict[str, int] = answer.get("workers", {})
    counts = ", ".join(f"{count} {state}" for state, count in workers.items() if count) or "none"
    parts = [
        f"pool {clean(answer.get('pool', ''))}",
        f"master {answer['pid']} up {duration(answer.get('uptime_s'))}",
        f"workers: {clean(counts)}",
        plural(int(answer.get("cores", 0)), "core"),
    ]
    if answer.get("rate_per_s"):
        parts.append(rate(answer["rate_per_s"]))
    return " · ".join(parts)


def show_runs(screen: Screen, rows: Sequence[dict[str, Any]]) -> None:
    """Print a line per run. If all runs are done, leave out the columns about unfinished work."""
    left_out = [title for title in OPTIONAL_COLUMNS if not any(row.get(title.lower()) for row in rows)]
    if all(row["state"] == "done" for row in rows):
        left_out += ACTIVE_COLUMNS
    screen.table([column for column in RUN_COLUMNS if column.title not in left_out], rows)


NEAR_S = 600.0
"""A deadline is shown with seconds if it is less than this many seconds before or after now."""
LATEST = 2.5e11
"""Latest time (in seconds since 1970) that can be shown as a date."""


def describe_deadline(row: dict[str, Any], now: float) -> str:
    """Describe the deadline of a run, and whether the run meets the deadline, as far as this is known."""
    if not row.get("deadline"):
        return "-"
    deadline, late_s, ended = datetime.fromtimestamp(min(row["deadline"], LATEST)), row.get("late_s"), row["state"] == "done"
    near = abs(row["deadline"] - now) < NEAR_S
    when = deadline.strftime("%H:%M:%S" if near else "%H:%M" if deadline.date() == datetime.fromtimestamp(now).date() else "%d %b %H:%M")
    if late_s is None or row.get("status") in ("cancelled", "incomplete"):
        return when
    if late_s <= 0:
        return f"{when}, {'met' if ended else 'in time'}"
    return f"{when}, late by {'' if ended else 'about '}{duration(late_s)}"


def program_first(row: dict[str, Any]) -> str:
    """Return the command of a run with the program first and the options of a sweep after it. A narrow table shows only the beginning of a
    command."""
    swept, dashes, program = shown_command(row).partition(" -- ")
    return f"{program}  {swept}" if dashes and swept.startswith("--") else shown_command(row)


def shown_command(row: dict[str, Any]) -> str:
    """Return the command of a run as the user typed it, but without ``--`` at the beginning. The recorded command of a DAG run sometimes
    ends with ``#`` and a note for Pilotfish. This note is left out."""
    command = str(row["command"]).removeprefix("-- ")
    return command.partition(" # rescue ")[0] if command.startswith("--dag ") else command


def _count(states: Iterable[str]) -> Callable[[dict[str, Any]], str]:
    """Return a function. It takes the row of a run and counts the tasks of the run that are in one of these states."""
    return lambda row: f"{sum(row['counts'].get(state, 0) for state in states):,}"


RUN_COLUMNS = (
    Column("RUN", lambda row: row["run"], right=True),
    Column("NAME", lambda row: row["name"] or "-", elastic=True),
    Column("STATE", state_of_run),
    Column("TASKS", lambda row: f"{row['tasks']:,}", right=True),
    Column("DONE", _count(["done"]), right=True),
    Column("FAILED", _count(["failed"]), right=True),
    Column("RUNNING", _count(AT_WORKERS), right=True),
    Column("WAITING", _count(NOT_ASSIGNED), right=True),
    Column("RATE", lambda row: rate(row.get("rate_per_s")) if row["state"] != "done" else "-", right=True),
    Column("TIME LEFT", lambda row: duration(row.get("eta_s")) if row["state"] != "done" and not row.get("paused") else "-", right=True),
    Column("SHARE", lambda row: row.get("share") or "-"),
    Column("DEADLINE", lambda row: describe_deadline(row, time.time())),
    Column("COMMAND", program_first, elastic=True),
)


@click.command()
@run_argument()
@click.option("--state", type=click.Choice(TASK_STATES), help="Show only tasks in this state.")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help=f"Show at most N rows.  [default: {SHOWN_TASKS}; with --json or --ids all]"
)
@click.option("--offset", type=click.IntRange(min=0), metavar="N", default=0, help="Skip the first N rows.")
@click.option("--ids", is_flag=True, help="Print task ids only, one per line.")
@pool_option
@json_option
def tasks(run: str | None, state: str | None, limit: int | None, offset: int, **options: Any) -> None:
    """List the tasks of a run.

    RUN is the number or name of a run; by default the last run. WORKER is the worker of the latest attempt. For a running task, the
    times and MAX MEMORY are values of this moment, from its worker. MAX MEMORY includes about 16 MiB for the process that starts the
    program.
    """
    screen = Screen.of()
    master = connect_read_only(options["pool"])
    row = find_run(master, run)
    if options["as_json"]:
        screen.json_list(described_rows(master, row, with_usage(master, all_tasks(master, row["run"], state, offset, limit))))
        return
    if options["ids"]:
        for task in all_tasks(master, row["run"], state, offset, limit):
            screen.line(task["id"])
        return
    found = all_tasks(master, row["run"], state, offset, limit or SHOWN_TASKS)
    shown = list(described_rows(master, row, with_usage(master, found), ask=True))
    if not shown:
        screen.line(f"Run {row['run']} has {'no' if not offset else 'no more'} {state + ' ' if state else ''}tasks.")
        return
    screen.table(TASK_COLUMNS, shown)
    total, end = row["counts"].get(state, 0) if state else row["tasks"], offset + len(shown)
    if total > end:
        filtered = f" --state {state}" if state else ""
        screen.line(f"... {total - end:,} more: pilotfish tasks {row['run']}{filtered} --offset {end}")


def _note(task: dict[str, Any]) -> str:
    source = task.get("reused_from")
    about = f"result of task {source}" if source else task.get("reason") or ""
    parts = [failure_note(task["failure"]) if task.get("failure") else about]
    parts += [f"{show_size(task['left_out_bytes'])} of its output left out"] if task.get("left_out_bytes") else []
    return "; ".join(filter(None, parts))


TASK_COLUMNS = (
    Column("TASK", lambda task: task["id"]),
    Column("COMMAND", lambda task: task["command"] or "-", elastic=True),
    Column("STATE", lambda task: task["state"]),
    Column("ATTEMPT", lambda task: task["attempt"] or "-", right=True),
    Column("WORKER", lambda task: task.get("worker") or "-", elastic=True),
    Column("WALL TIME", lambda task: duration(task.get("wall_s") or None), right=True),
    Column("CPU TIME", lambda task: duration(task.get("cpu_s") or None), right=True),
    Column("MAX MEMORY", lambda task: size(task.get("rss_bytes")), right=True),
    Column("NOTE", _note, elastic=True),
)
PARAMETERS = Column("PARAMETERS", lambda task: task["parameters"], elastic=True)


def with_parameters(screen: Screen, columns: Sequence[Column], tasks: Sequence[dict[str, Any]]) -> Sequence[Column]:
    """Return the columns for the terminal. If it is too narrow, the parameters of the tasks replace their commands, because commands often
    differ only at the end."""
    if not screen.width or not tasks or not all(task["parameters"] for task in tasks) or fits(columns, tasks, screen.width):
        return columns
    return [PARAMETERS if column.title == "COMMAND" else column for column in columns]


@click.command()
@click.argument("words", nargs=-1, cls=OldWords)
@click.option("--all", "everything", is_flag=True, help="Include workers that left or were lost.")
@click.option("--local-cores", type=click.IntRange(min=0), metavar="N", help="Set the number of cores of this machine to use.")
@click.option("--end-quarantine", "released", metavar="WORKER", help="Give tasks to a worker in quarantine again.")
@old_option("--set", "--local-cores")
@pool_option
@json_option
def workers(words: tuple[str, ...], everything: bool, local_cores: int | None, released: str | None, pool: str, as_json: bool) -> None:
    """List workers and what they run."""
    if words:
        note_new_name("workers add", "pilots add")
        add_pilots(words, pool, as_json)
        return
    screen = Screen.of()
    if released is not None:
        answer = connect(pool).ask("quarantine_clear", worker=released)
        screen.json(answer) if as_json else screen.line(f"Worker {clean(released)} gets tasks again.")
        return
    if local_cores is not None:
        master = connect(pool, start=True, local_cores=local_cores)
        if as_json:
            screen.json(master.ask("workers", all=False))
        else:
            screen.line(f"Pool {clean(pool)} now uses {plural(local_cores, 'core')} of this machine.")
            here = len(os.sched_getaffinity(0))
            if local_cores > here:
                screen.line(f"note: this machine has {plural(here, 'core')}, so tasks share them")
        return
    stop = last_stop(pool)
    stopped = status_at_stop(pool, stop) is not None and not everything
    found = [] if stopped else connect_read_only(pool).ask("workers", all=everything)
    if as_json:
        screen.json(found)
    elif found:
        elsewhere = any(worker.get("site", LOCAL) not in ("", LOCAL) for worker in found)
        screen.table([column for column in WORKER_COLUMNS if elsewhere or column.title != "SITE"], found)
    elif stop is not None:
        screen.line(stop_sentence(pool, stop))
    else:
        screen.line("There are no workers. They start with a run: pilotfish run -- COMMAND")


def _worker_state(worker: dict[str, Any]) -> str:
    is_silent = not worker.get("connected", True) and worker["state"] not in ("left", "lost")
    return f"{worker['state']}, silent" if is_silent else str(worker["state"])


def _worker_cores(worker: dict[str, Any]) -> float:
    return float(worker.get("capacity", {}).get("cores", 0))


def _busy_cores(worker: dict[str, Any]) -> float:
    cores = _worker_cores(worker)
    return cores - float(worker.get("free", {}).get("cores", cores))


WORKER_COLUMNS = (
    Column("WORKER", lambda worker: worker["worker"], elastic=True),
    Column("SITE", lambda worker: worker.get("site") or "-"),
    Column("STATE", _worker_state),
    Column("CORES", lambda worker: f"{_worker_cores(worker):g}", right=True),
    Column("CORES BUSY", lambda worker: f"{_busy_cores(worker):g}", right=True),
    Column("RUNNING", lambda worker: worker.get("running", 0), right=True),
    Column("DONE", lambda worker: f"{worker.get('tasks_done', 0):,}", right=True),
    Column("FAILED", lambda worker: f"{worker.get('tasks_failed', 0):,}", right=True),
    Column("NOTE", lambda row: "quarantined: it keeps failing" if row.get("quarantined_until") else row.get("reason") or "", elastic=True),
)


# --- pools -----------------------------------------------------------------------------------------------------------------------------


@click.command()
@json_option
def pools(as_json: bool) -> None:
    """List pools and their masters.

    This command starts no master. RUNS and UNFINISHED TASKS of a pool are shown only if its master runs or if the pool was stopped.
    """
    screen = Screen.of()
    rows = [_pool_row(pool) for pool in find_pools()]
    if as_json:
        screen.json(rows)
    elif rows:
        screen.table(POOL_COLUMNS, rows)
    else:
        screen.line("There are no pools. Start one: pilotfish run -- COMMAND")


def _pool_row(pool: PoolHandle) -> dict[str, Any]:
    stop = read_stop_mark(pool.directory)
    master = connect_if_served(pool.name)
    answer: dict[str, Any] = {} if master is None else master.ask("status")
    runs = answer.get("runs") if master is not None else stop.runs if stop is not None else None
    if master is not None:
        master.close(wait=False)
    state = "stopped" if stop is not None else "running" if master is not None else "idle"
    unfinished = None if runs is None else sum(row["counts"].get(one, 0) for row in runs for one in UNFINISHED)
    return {
        "pool": pool.name,
        "state": state,
        "private": pool.temporary,
        "pid": answer.get("pid"),
        "workers": sum(answer.get("workers", {}).values()),
        "cores": answer.get("cores", 0),
        "runs": None if runs is None else len(runs),
        "unfinished": unfinished,
        "directory": str(pool.directory),
    }


POOL_COLUMNS = (
    Column("POOL", lambda row: row["pool"], elastic=True),
    Column("STATE", lambda row: row["state"]),
    Column("MASTER", lambda row: row["pid"] or "-", right=True),
    Column("WORKERS", lambda row: row["workers"], right=True),
    Column("CORES", lambda row: f"{row['cores']:g}", right=True),
    Column("RUNS", lambda row: "-" if row["runs"] is None else f"{row['runs']:,}", right=True),
    Column("UNFINISHED TASKS", lambda row: "-" if row["unfinished"] is None else f"{row['unfinished']:,}", right=True),
    Column("DIRECTORY", lambda row: row["directory"], elastic=True),
)


# --- stopped pools: they are shown without a master --------------------------------------------------------------------------------------

UNFINISHED = ("waiting", "ready", "assigned", "running")
NAMED_RUNS = 3


def last_stop(pool: str) -> StopMark | None:
    """Return the record that the command ``stop`` left in the pool. Return None if the pool was not stopped, or was used again after the
    stop."""
    return read_stop_mark(pool_home(pool).directory)


def status_at_stop(pool: str, stop: StopMark | None) -> dict[str, Any] | None:
    """Return the status of a stopped pool in the same format as the master. The status is read from ``stop``, the record that the command
    ``stop`` left.

    Return None if the pool was not stopped, if a master runs, or if the record has no list of runs.
    """
    if stop is None or stop.runs is None or is_served(pool_home(pool).directory):
        return None
    runs = [{**row, "rate_per_s": 0.0, "eta_s": None} for row in stop.runs]
    return {"pool": pool, "pid": None, "workers": {}, "cores": 0, "runs": runs, "warnings": [], "pilots": []}


def stop_sentence(pool: str, stop: StopMark, runs: list[dict[str, Any]] | None = None) -> str:
    """Describe when the pool was stopped, which runs are unfinished, and how to resume them."""
    stopped = f"The pool {clean(pool)} was stopped {duration(max(1.0, round(time.time() - stop.at)))} ago"
    left = [row for row in runs or stop.runs or () if row["state"] != "done"]
    if not left:
        return f"{stopped}."
    count = sum(row["counts"].get(state, 0) for row in left for state in UNFINISHED)
    numbers = [str(row["run"]) for row in left]
    where = f"run {numbers[0]}" if len(left) == 1 else f"runs {', '.join(numbers)}" if len(left) <= NAMED_RUNS else plural(len(left), "run")
    what = f"{plural(count, 'task')} unfinished in {where}" if count else f"{where} unfinished"
    return f"{stopped} with {what}. Resume: pilotfish attach {numbers[-1]}"
