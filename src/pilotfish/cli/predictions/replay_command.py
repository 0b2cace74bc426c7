"""Implements replay: simulates a finished run under other policies or with more cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pilotfish.cli import completions
from pilotfish.cli.predictions.lookahead import find
from pilotfish.cli.predictions.simulate_command import complete_policies
from pilotfish.cli.shared_options import json_option, old_option, pool_option
from pilotfish.cli.terminal.screen import Column, Screen, clean, duration, plural
from pilotfish.client.offline_pool import OfflinePool
from pilotfish.errors import BadInput
from pilotfish.model.states import DONE

if TYPE_CHECKING:
    from pilotfish.core.state import Run, State
    from pilotfish.sim.projections.run_replay import RunHistory
    from pilotfish.store.state_storage import OnFact


class ReplayRow(NamedTuple):
    """One line of the printed table: the measured run, or one simulation of it. ``seconds`` is None if the simulated run never ends."""

    what: str
    cores: float
    seconds: float | None


@click.command()
@click.argument("run", metavar="RUN", shell_complete=completions.complete_run())
@click.option(
    "--policy",
    metavar="NAMES",
    default="",
    shell_complete=complete_policies,
    help="Policies to compare, comma-separated, or all.  [default: policy of the pool]",
)
@click.option(
    "--total-cores",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="Also simulate the run with N cores, available from the start, on the same kinds of workers.",
)
@old_option("--workers", "--total-cores")
@pool_option
@json_option
def replay(run: str, policy: str, total_cores: int | None, pool: str, as_json: bool) -> None:
    """Simulate a finished run again under another policy.

    Tasks arrive at the recorded times and have the recorded durations. Workers join and leave at the recorded times. Only the assignment of
    tasks is decided again.
    """
    from pilotfish.sim.projections.run_replay import RunHistory, RunReplay, max_cores, similar_stays, worker_stays
    from pilotfish.sim.scenarios.scenario_file import read_policies

    screen = Screen.of()
    policies = read_policies([name for name in policy.split(",") if name], "--policy")
    offline = OfflinePool.read(pool)
    found = find(offline.state, run, unfinished=False)
    if found.unfinished or not found.tasks or not found.ended_at:
        raise BadInput(f"run {found.id} is unfinished", f"Estimate when it finishes: pilotfish predict {found.id}")
    histories: list[RunHistory] = []

    def listener() -> OnFact:
        histories.append(RunHistory(found.id))
        return histories[-1].observe

    offline = OfflinePool.read(pool, listener)
    found = offline.state.runs[found.id]
    present = worker_stays(offline.state, found)
    if not present:
        raise BadInput(f"the workers of run {found.id} are no longer known", "The journal keeps the last thousand workers that left")
    own = offline.settings.policy
    rows = [ReplayRow("measured", max_cores(present), found.ended_at - found.opened_at)]
    for name in dict.fromkeys([own, *policies]):
        for workers_present in [present, similar_stays(present, total_cores)] if total_cores is not None else [present]:
            title = f"replayed, {name}" + (" (policy of the pool)" if name == own and workers_present is present else "")
            rows.append(
                ReplayRow(
                    title, max_cores(workers_present), RunReplay(offline.state, found, histories[-1], name, workers_present).makespan_s()
                )
            )
    _show(screen, rows, found, _remarks(found, histories[-1], overlapping_runs(offline.state, found)), as_json)


def _remarks(run: Run, history: RunHistory, others: list[int]) -> list[str]:
    """Return the reasons why a replay possibly differs from the measured run."""
    remarks = []
    unknown, failed = len(run.tasks) - sum(count for _, count in history.arrivals), len(run.tasks) - run.counts[DONE]
    if others:
        named = f"{plural(len(others), 'other run')} ({', '.join(map(str, others[:5]))}{', ...' if len(others) > 5 else ''})"
        remarks.append(f"{named} used some of the workers and are not simulated: compare the replayed rows, not the measured one")
    if unknown > 0:
        remarks.append(f"the journal was compacted: submission times and dependencies of {plural(unknown, 'task')} are unknown")
    if failed:
        remarks.append(f"{plural(failed, 'task')} failed and are simulated with zero time")
    return remarks


def overlapping_runs(state: State, run: Run) -> list[int]:
    """Return the numbers of other runs that were active at the same time as this run."""
    return [
        other.id
        for other in state.runs.values()
        if other is not run and other.tasks and other.opened_at < run.ended_at and (not other.ended_at or other.ended_at > run.opened_at)
    ]


def _show(screen: Screen, rows: list[ReplayRow], run: Run, remarks: list[str], as_json: bool) -> None:
    measured = rows[0].seconds
    assert measured is not None
    if as_json:
        data: list[dict[str, Any]] = [
            {**row._asdict(), "to_measured": row.seconds / measured if row.seconds is not None else None} for row in rows
        ]
        screen.json({"run": run.id, "name": clean(run.options.name), "rows": data, "notes": remarks})
        return

    def ratio(row: ReplayRow) -> str:
        return "-" if row.seconds is None else f"{row.seconds / measured:.2f}"

    columns = [
        Column(f"RUN {run.id}", lambda row: row.what),
        Column("CORES", lambda row: f"{row.cores:g}", right=True),
        Column("MAKESPAN", lambda row: "never" if row.seconds is None else duration(row.seconds), right=True),
        Column("VS MEASURED", ratio, right=True),
    ]
    screen.table(columns, rows)
    screen.line()
    screen.line("Measured: task times, submission times, workers. Modelled: link speeds, as forecast. Nothing fails.")
    for remark in remarks:
        screen.line(f"Note: {remark}.")
