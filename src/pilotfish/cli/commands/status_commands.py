"""Implements status, tasks and workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import click

from pilotfish.cli.shared_options import OldWords, json_option, note_new_name, old_option, pool_option, run_argument
from pilotfish.cli.site_commands.site_requests import add_pilots
from pilotfish.cli.terminal.screen import Column, Screen, clean, describe_transfers, duration, fits, plural, rate, size
from pilotfish.client.pools import is_served
from pilotfish.client.session import NoPool, all_tasks, connect, connect_read_only, find_run, state_of_run
from pilotfish.client.task_descriptions import described_rows
from pilotfish.client.task_output import failure_note
from pilotfish.model.site import LOCAL
from pilotfish.model.states import TASK_STATES
from pilotfish.store.pool_directory import StopMark, pool_home, read_stop_mark

ACTIVE_COLUMNS = ("RUNNING", "WAITING", "RATE", "TIME LEFT")
OPTIONAL_COLUMNS = ("SHARE", "DEADLINE")
SHOWN_RUNS = 20
SHOWN_TASKS = 100
AT_WORKERS = ("assigned", "running")
NOT_ASSIGNED = ("waiting", "ready")


@click.command()
@click.option("--all", "everything", is_flag=True, help=f"Show all runs, not only the last {SHOWN_RUNS}.")
@pool_option
@json_option
def status(everything: bool, pool: str, as_json: bool) -> None:
    """Show runs, workers and warnings.

    RUNNING counts tasks that are assigned or running. WAITING counts tasks that are waiting or ready.
    """
    screen = Screen.of()
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
    for warning in answer.get("warnings", ()):
        screen.line(f"{screen.paint('warning:', 'yellow')} {clean(warning['text'])}")
        for command in warning.get("commands", ()):
            screen.line(f"  fix:    {clean(command)}")


def _without_estimate(row: dict[str, Any]) -> dict[str, Any]:
    """Remove the finish time. It is estimated from the current rate, and the rate changes if other runs go first or end."""
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
    """Print a line per run. If all runs are done, columns about unfinished work are omitted."""
    left_out = [title for title in OPTIONAL_COLUMNS if not any(row.get(title.lower()) for row in rows)]
    if all(row["state"] == "done" for row in rows):
        left_out += ACTIVE_COLUMNS
    screen.table([column for column in RUN_COLUMNS if column.title not in left_out], rows)


NEAR_S = 600.0
"""If a deadline is fewer than this many seconds away from now, it is shown with seconds."""
LATEST = 2.5e11
"""Latest time (in seconds since 1970) that can be shown as a date."""


def describe_deadline(row: dict[str, Any], now: float) -> str:
    """Describe the deadline of a run. If it is known whether the run meets the deadline, the text says this."""
    if not row.get("deadline"):
        return "-"
    deadline, late_s, ended = datetime.fromtimestamp(min(row["deadline"], LATEST)), row.get("late_s"), row["state"] == "done"
    near = abs(row["deadline"] - now) < NEAR_S
    when = deadline.strftime("%H:%M:%S" if near else "%H:%M" if deadline.date() == datetime.fromtimestamp(now).date() else "%d %b %H:%M")
    if late_s is None:
        return when
    if late_s <= 0:
        return f"{when}, {'met' if ended else 'in time'}"
    return f"{when}, late by {'' if ended else 'about '}{duration(late_s)}"


def program_first(row: dict[str, Any]) -> str:
    """Return the command of a run. Options of a sweep come after the program, because a narrow table cuts the end."""
    swept, dashes, program = shown_command(row).partition(" -- ")
    return f"{program}  {swept}" if dashes and swept.startswith("--") else shown_command(row)


def shown_command(row: dict[str, Any]) -> str:
    """Return the command of a run as the user typed it, but without ``--`` at the beginning."""
    return str(row["command"]).removeprefix("-- ")


def _count(states: Iterable[str]) -> Callable[[dict[str, Any]], str]:
    """Return a function that counts the tasks of a run in these states."""
    return lambda row: f"{sum(row['counts'].get(state, 0) for state in states):,}"


def _time_left(row: dict[str, Any]) -> str:
    return duration(row.get("eta_s")) if row["state"] != "done" and not row.get("paused") else "-"


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
    Column("TIME LEFT", _time_left, right=True),
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

    RUN is the number or name of a run; by default the last run. WORKER is shown while a task is assigned or running. MAX MEMORY includes
    about 16 MiB of the process that starts the program.
    """
    screen = Screen.of()
    master = connect_read_only(options["pool"])
    row = find_run(master, run)
    if options["as_json"]:
        screen.json_list(described_rows(master, row, all_tasks(master, row["run"], state, offset, limit)))
        return
    if options["ids"]:
        for task in all_tasks(master, row["run"], state, offset, limit):
            screen.line(task["id"])
        return
    shown = list(described_rows(master, row, all_tasks(master, row["run"], state, offset, limit or SHOWN_TASKS), ask=True))
    if not shown:
        screen.line(f"Run {row['run']} has {'no' if not offset else 'no more'} {state + ' ' if state else ''}tasks.")
        return
    screen.table(TASK_COLUMNS, shown)
    total, end = row["counts"].get(state, 0) if state else row["tasks"], offset + len(shown)
    if total > end:
        filtered = f" --state {state}" if state else ""
        screen.line(f"... {total - end:,} more: pilotfish tasks {row['run']}{filtered} --offset {end}")


def _task_note(task: dict[str, Any]) -> str:
    return failure_note(task["failure"]) if task.get("failure") else task.get("reason") or ""


TASK_COLUMNS = (
    Column("TASK", lambda task: task["id"]),
    Column("COMMAND", lambda task: task["command"] or "-", elastic=True),
    Column("STATE", lambda task: task["state"]),
    Column("ATTEMPT", lambda task: task["attempt"] or "-", right=True),
    Column("WORKER", lambda task: task.get("worker") or "-", elastic=True),
    Column("WALL TIME", lambda task: duration(task.get("wall_s") or None), right=True),
    Column("CPU TIME", lambda task: duration(task.get("cpu_s") or None), right=True),
    Column("MAX MEMORY", lambda task: size(task.get("rss_bytes")), right=True),
    Column("NOTE", _task_note, elastic=True),
)
PARAMETERS = Column("PARAMETERS", lambda task: task["parameters"], elastic=True)


def with_parameters(screen: Screen, columns: Sequence[Column], tasks: Sequence[dict[str, Any]]) -> Sequence[Column]:
    """If the terminal is too narrow, show the parameters of the tasks instead of their commands: commands often differ only at the end."""
    if not screen.width or not tasks or not all(task["parameters"] for task in tasks) or fits(columns, tasks, screen.width):
        return columns
    return [PARAMETERS if column.title == "COMMAND" else column for column in columns]


@click.command()
@click.argument("words", nargs=-1, cls=OldWords)
@click.option("--all", "everything", is_flag=True, help="Include workers that left or were lost.")
@click.option("--local-cores", type=click.IntRange(min=0), metavar="N", help="Set the number of cores of this machine to use.")
@old_option("--set", "--local-cores")
@pool_option
@json_option
def workers(words: tuple[str, ...], everything: bool, local_cores: int | None, pool: str, as_json: bool) -> None:
    """List workers and what they run."""
    if words:
        note_new_name("workers add", "pilots add")
        add_pilots(words, pool, as_json)
        return
    screen = Screen.of()
    if local_cores is not None:
        master = connect(pool, start=True, local_cores=local_cores)
        if as_json:
            screen.json(master.ask("workers", all=False))
        else:
            screen.line(f"Pool {clean(pool)} now uses {plural(local_cores, 'core')} of this machine.")
        return
    stop = last_stop(pool)
    stopped = status_at_stop(pool, stop) is not None and not everything
    found = [] if stopped else connect_read_only(pool).ask("workers", all=everything)
    if as_json:
        screen.json(found)
    elif found:
        _show_workers(screen, found)
    elif stop is not None:
        screen.line(stop_sentence(pool, stop))
    else:
        screen.line("There are no workers. They start with a run: pilotfish run --local-cores 4 -- COMMAND")


def _worker_state(worker: dict[str, Any]) -> str:
    is_silent = not worker.get("connected", True) and worker["state"] not in ("left", "lost")
    return f"{worker['state']}, silent" if is_silent else str(worker["state"])


def _worker_cores(worker: dict[str, Any]) -> float:
    return float(worker.get("capacity", {}).get("cores", 0))


def _busy_cores(worker: dict[str, Any]) -> float:
    cores = _worker_cores(worker)
    return cores - float(worker.get("free", {}).get("cores", cores))


def _worker_note(worker: dict[str, Any]) -> str:
    return "quarantined: it keeps failing" if worker.get("quarantined_until") else worker.get("reason") or ""


WORKER_COLUMNS = (
    Column("WORKER", lambda worker: worker["worker"], elastic=True),
    Column("SITE", lambda worker: worker.get("site") or "-"),
    Column("STATE", _worker_state),
    Column("CORES", lambda worker: f"{_worker_cores(worker):g}", right=True),
    Column("CORES BUSY", lambda worker: f"{_busy_cores(worker):g}", right=True),
    Column("RUNNING", lambda worker: worker.get("running", 0), right=True),
    Column("DONE", lambda worker: f"{worker.get('tasks_done', 0):,}", right=True),
    Column("FAILED", lambda worker: f"{worker.get('tasks_failed', 0):,}", right=True),
    Column("NOTE", _worker_note, elastic=True),
)


def _show_workers(screen: Screen, workers: Sequence[dict[str, Any]]) -> None:
    """Print a line per worker. If all workers are local, the column of the site is omitted."""
    elsewhere = any(worker.get("site", LOCAL) not in ("", LOCAL) for worker in workers)
    screen.table([column for column in WORKER_COLUMNS if elsewhere or column.title != "SITE"], workers)


# --- stopped pools: they are shown without a master --------------------------------------------------------------------------------------

UNFINISHED = ("waiting", "ready", "assigned", "running")
NAMED_RUNS = 3


def last_stop(pool: str) -> StopMark | None:
    """Return the stop mark of the pool. If the pool was not stopped, or was used after the stop, return None."""
    return read_stop_mark(pool_home(pool).directory)


def status_at_stop(pool: str, stop: StopMark | None) -> dict[str, Any] | None:
    """Return the status of a stopped pool in the format of the master. If only the master knows the status, return None."""
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
