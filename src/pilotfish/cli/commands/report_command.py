"""Implements report: shows how the time of a finished or unfinished run was spent. ``run --report`` prints the same report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any

import click
import msgspec

from pilotfish.cli.commands.results_command import show_results
from pilotfish.cli.shared_options import json_option, pool_option, run_argument
from pilotfish.cli.terminal.screen import Column, Screen, duration, plural, size
from pilotfish.client.session import PoolSession, all_tasks, connect_read_only, find_run

REPORTED_RESULTS = 12
SHOWN_WORKERS = 20


@dataclass(slots=True)
class ReportedWorker:
    """The ended tasks of one worker in a run."""

    worker: str
    node: str
    site: str
    tasks: int = 0
    run_s: float = 0.0
    cpu_s: float = 0.0
    rss_bytes: int = 0


@dataclass(slots=True)
class RunReport:
    """How the time of a run was spent. ``waited_s``, ``ran_s`` and ``cpu_s`` are means over the tasks that succeeded or failed.
    ``overhead_s``: the core-seconds in which no task ran, per task that succeeded, failed or is running."""

    run: int
    state: str
    tasks: int = 0
    elapsed_s: float = 0.0
    first_result_s: float = 0.0
    waited_s: float = 0.0
    ran_s: float = 0.0
    cpu_s: float = 0.0
    overhead_s: float = 0.0
    cores: float = 0.0
    busy: float = 0.0
    running: int = 0
    workers: list[ReportedWorker] = field(default_factory=list)


def make_report(run: dict[str, Any], rows: Iterable[dict[str, Any]], cores_of: dict[str, float]) -> RunReport:
    """Makes the report from the rows of a run's tasks. ``cores_of``: the number of cores of each worker."""
    opened_at = run.get("opened_at") or 0.0
    started_at = run.get("started_at") or opened_at
    elapsed_s = max(0.0, started_at - opened_at) + (run.get("elapsed_s") or 0.0)  # the time between the run and its reruns does not count
    shares: dict[str, ReportedWorker] = {}
    turnaround_s, first_s = 0.0, inf
    reopened_at = run.get("reopened_at") or 0.0
    running: dict[str, list[float]] = {}
    """For each worker: how many seconds each of its running tasks has run until now. These seconds are no overhead."""
    for row in rows:
        name, ended_at = row.get("worker"), row.get("ended_at")
        if row["state"] == "running" and name:
            running.setdefault(name, []).append(row.get("wall_s") or 0.0)
        if row["state"] not in ("done", "failed") or not name:
            continue
        share = shares.get(name)
        if share is None:
            share = shares[name] = ReportedWorker(name, row.get("node") or "", row.get("site") or "")
        share.tasks += 1
        share.run_s += row.get("wall_s") or 0.0
        share.cpu_s += row.get("cpu_s") or 0.0
        share.rss_bytes = max(share.rss_bytes, row.get("rss_bytes") or 0)
        if ended_at:
            # If a task ended after a rerun began, its waiting began with the rerun.
            since_s = max(0.0, ended_at - (reopened_at if 0.0 < reopened_at <= ended_at else opened_at))
            turnaround_s += since_s
            first_s = min(first_s, since_s)
    workers = sorted(shares.values(), key=lambda share: -share.run_s)
    count = sum(share.tasks for share in workers)
    run_s, cpu_s = sum(share.run_s for share in workers), sum(share.cpu_s for share in workers)
    used_s = run_s + sum(map(sum, running.values()))
    cores = sum(cores_of.get(name, 0.0) for name in {*shares, *running}) or 1.0
    offered_s, each, begun = max(1e-9, cores * elapsed_s), max(1, count), count + sum(map(len, running.values()))
    return RunReport(
        run["run"],
        run["state"],
        count,
        elapsed_s,
        first_s if count else 0.0,
        max(0.0, turnaround_s - run_s) / each,
        run_s / each,
        cpu_s / each,
        max(0.0, offered_s - used_s) / max(1, begun),
        cores,
        min(1.0, used_s / offered_s),
        begun - count,
        workers,
    )


WORKER_COLUMNS = (
    Column("WORKER", lambda share: share["worker"], elastic=True),
    Column("NODE", lambda share: share["node"] or "-", elastic=True),
    Column("SITE", lambda share: share["site"] or "-"),
    Column("TASKS", lambda share: f"{share['tasks']:,}", right=True),
    Column("WALL TIME", lambda share: duration(share["run_s"]), right=True),
    Column("CPU TIME", lambda share: duration(share["cpu_s"]), right=True),
    Column("MAX MEMORY", lambda share: size(share["rss_bytes"]), right=True),
)


@click.command()
@run_argument()
@pool_option
@json_option
def report(run: str | None, pool: str, as_json: bool) -> None:
    """Show where the time of a run went.

    RUN is the number or name of a run; by default the last run. The times per task are means over the tasks that succeeded or failed. If
    the run is unfinished, the report counts the tasks that have ended so far.
    """
    screen = Screen.of()
    master = connect_read_only(pool)
    found = fetch_report(master, find_run(master, run))
    if as_json:
        screen.json(msgspec.to_builtins(found))
        return
    screen.line(f"Run {found.run}: {plural(found.tasks, 'task')} ended" + (f", {found.running:,} running" if found.running else ""))
    if not found.tasks:
        return
    show_times(screen, found)
    screen.table(WORKER_COLUMNS, [msgspec.to_builtins(share) for share in found.workers[:SHOWN_WORKERS]])
    if len(found.workers) > SHOWN_WORKERS:
        screen.line(f"... and {plural(len(found.workers) - SHOWN_WORKERS, 'worker')} more: pilotfish report {found.run} --json")


def fetch_report(master: PoolSession, run: dict[str, Any]) -> RunReport:
    cores_of = {row["worker"]: float(row["capacity"].get("cores", 0)) for row in master.ask("workers", all=True)}
    return make_report(run, all_tasks(master, run["run"]), cores_of)


def show_report(screen: Screen, master: PoolSession, run: int) -> None:
    """Print the first results of a run. Below them, print how the time of the run was spent."""
    row = master.ask("run", run=run)
    show_results(screen, master, row, master.ask("tasks", run=run, limit=REPORTED_RESULTS))
    show_times(screen, fetch_report(master, row))


def show_times(screen: Screen, found: RunReport) -> None:
    screen.line()
    screen.line("Where the time went")
    screen.fields(
        [
            ("  from start to end", duration(found.elapsed_s)),
            ("  until the first result", duration(found.first_result_s)),
            ("  a task waited", f"{duration(found.waited_s)} on average for a free core"),
            ("  a task ran", f"{duration(found.ran_s)} on average, {duration(found.cpu_s)} of it computing"),
            ("  overhead", f"{duration(found.overhead_s)} of a core per task: starting, sending, waiting for the last one"),
            ("  workers busy", f"{found.busy:.0%} of {found.cores:g} core{'' if found.cores == 1 else 's'}"),
        ]
    )
    screen.line()
