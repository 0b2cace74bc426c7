"""Implements simulate: compares policies for the same tasks and sites by simulation.

The simulation uses the same scheduling code as a live pool; only hosts, links and the clock are simulated. No pool is needed.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from pilotfish import plugins
from pilotfish.applications.sweeps.task_list_file import read_task_file
from pilotfish.cli.shared_options import json_option
from pilotfish.cli.terminal.progress import RunProgress
from pilotfish.cli.terminal.screen import Column, Screen, clean, duration, plural, size
from pilotfish.config import parse_toml, read_toml
from pilotfish.errors import BadInput

if TYPE_CHECKING:
    from pilotfish.sim.scenarios.policy_comparison import SimulationResult
    from pilotfish.sim.scenarios.scenario_file import Scenario
    from pilotfish.sim.workload import Workload

MAX_SITE_COLUMNS = 4
"""Up to this number of sites, each site has its own column. More sites share one column."""


def complete_policies(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the last name in a list of policies that are separated by commas."""
    before, comma, last = incomplete.rpartition(",")
    chosen = before.split(",")
    return [
        CompletionItem(f"{before}{comma}{name}")
        for name in (*plugins.names("policies"), "all")
        if name.startswith(last) and name not in chosen
    ]


def complete_work(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from pilotfish.sim.scenarios.workflow_families import FAMILIES

    known = [CompletionItem(f"{name}:1000") for name in FAMILIES] + [CompletionItem(f"apst:{letter}") for letter in "abcd"]
    return [item for item in known if item.value.startswith(incomplete)] or [CompletionItem(incomplete, type="file")]


@click.command()
@click.argument("file", required=False, metavar="[FILE.toml]", type=click.Path())
@click.option("--site", "sites", multiple=True, metavar="TEXT", help='A site: "far 16x4 speed=0.5 bandwidth=2M wait=10m". Repeatable.')
@click.option("--tasks", type=int, metavar="N", help="Number of tasks.")
@click.option(
    "--seconds",
    metavar="TIME",
    help='Time of a task: 60, "uniform(10, 90)", "normal(60, 10)", "lognormal(60, 0.5)" or "exponential(60)".  [default: 60]',
)
@click.option("--cores", type=int, metavar="N", help="Cores per task.")
@click.option(
    "--files",
    multiple=True,
    metavar="[N x]SIZE[:SHARED]",
    help="Input files: 1G:all is one file for all tasks, 5M:none one file per task, 6x20M one file for each of six groups. Repeatable.",
)
@click.option("--hints", metavar="ERROR", help='Whether tasks have known costs: yes, no, or "30 %" (costs with an error of up to 30 %).')
@click.option(
    "--work",
    metavar="WORK",
    shell_complete=complete_work,
    help="Instead of --tasks: montage:1000, apst:a, a WfCommons file, a DAGMan file (.dag) or a task list.",
)
@click.option(
    "--policy",
    metavar="NAMES",
    shell_complete=complete_policies,
    help="Policies to compare, comma-separated, or all.  [default: workqueue,auto]",
)
@click.option("--seeds", type=int, metavar="N", help="Number of random seeds.  [default: 5]")
@click.option("--plot", metavar="FILE.svg", type=click.Path(), help="Draw the makespans as a bar chart.")
@click.option("--gantt", metavar="FILE.svg", type=click.Path(), help="Draw a Gantt chart of the first seed of each policy.")
@click.option("--processes", type=click.IntRange(min=1), metavar="N", help="Number of processes.  [default: one per core]")
@json_option
def simulate(file: str | None, plot: str | None, gantt: str | None, processes: int | None, as_json: bool, **options: Any) -> None:
    """Compare policies by simulation.

    \b
    pilotfish simulate --tasks 1000 --seconds "lognormal(60, 0.5)" --site "near 32" --site "far 16 bandwidth=2M"
    pilotfish simulate --work apst:a --policy workqueue,xsufferage,auto --gantt chart.svg
    pilotfish simulate grid.toml --policy all --plot bars.svg
    """
    from pilotfish.sim.scenarios.policy_comparison import record_trace, simulate_all
    from pilotfish.sim.scenarios.svg_charts import draw_bars, draw_gantt

    scenario = read(file, options)
    for path in (plot, gantt):
        check_picture(path)
    outcomes = sorted(with_progress(simulate_all(scenario, processes or 0), scenario), key=lambda result: result.seed)
    by_policy = {policy: [result for result in outcomes if result.policy == policy] for policy in scenario.policies}
    screen = Screen.of()
    data = as_data(scenario, by_policy)
    if as_json:
        screen.json(data)
    else:
        show(screen, scenario, data)
    if plot:
        bound_s = min(max(result.area_s, result.path_s) for result in outcomes)
        Path(plot).write_text(
            draw_bars(
                f"{describe(scenario)}, {scenario.seeds} seeds",
                {name: [result.makespan_s for result in them] for name, them in by_policy.items()},
                bound_s,
            )
        )
        if not as_json:
            screen.line(f"output: {plot}")
    if gantt:
        for policy in scenario.policies:
            path = gantt if len(scenario.policies) == 1 else f"{gantt.removesuffix('.svg')}-{policy}.svg"
            Path(path).write_text(draw_gantt(f"{policy}: {describe(scenario)}", scenario.sites, record_trace(scenario, policy)))
            if not as_json:
                screen.line(f"output: {path}")


# --- reading --------------------------------------------------------------------------------------------------------------------------


def read(file: str | None, options: dict[str, Any]) -> Scenario:
    """Read the scenario file and the options. An option overrides the value in the file."""
    from pilotfish.sim.scenarios.scenario_file import ScenarioOptions, read_scenario

    table: dict[str, Any] = {}
    if file is not None:
        if not os.path.exists(file):
            raise BadInput(f"{file}: there is no such file", "Write one, or use options: pilotfish simulate --help")
        table = parse_toml(Path(file), read_toml(Path(file)))
    work = {key: options[key] for key in ("tasks", "seconds", "cores", "hints") if options[key] is not None}
    if options["work"] is not None:
        work["from"] = options["work"]
    policies = [name for name in (options["policy"] or "").split(",") if name]
    given = ScenarioOptions(options["sites"], options["files"], work, policies, options["seeds"])
    return read_scenario(table, f"{file}: " if file else "", given, read_list)


def read_list(path: str) -> Workload:
    """Read the costs, dependencies and inputs of the tasks in a task list or DAGMan file. Inputs that do not exist here are left out."""
    from pilotfish.sim.workload import Workload

    if path.endswith(".dag"):
        return read_nodes(path)
    listed = read_task_file(path)
    made = listed.flow.files if listed.flow is not None else frozenset()
    tasks = list(listed)
    here = {name for task in tasks for name in task.inputs if name not in made and os.path.isfile(name)}
    digests = {name: sha256(os.fsencode(name)).hexdigest() for name in sorted(here)}
    needs = [tuple(digests[name] for name in task.inputs if name in here) for task in tasks]
    sizes = {digest: os.path.getsize(name) for name, digest in digests.items()}
    kinds = [os.path.basename(task.argv[0]) for task in tasks]
    after = list(listed.flow.parents) if listed.flow is not None else []
    return Workload([task.cost for task in tasks], kinds=kinds, files=sizes, needs=needs if sizes else [], after=after)


def read_nodes(path: str) -> Workload:
    """Read the unfinished DAG nodes of a DAGMan file. Each DAG node gets the cost 1, because the file contains no times."""
    from pilotfish.applications.dagman.dag_file import read_dag
    from pilotfish.applications.dagman.node_tasks import dependencies, node_tasks
    from pilotfish.sim.workload import Workload

    dag = read_dag(path)
    tasks = list(node_tasks(dag))
    for notice in dag.notices:
        Screen.of(sys.stderr).line(f"note: {clean(notice)}")
    if not tasks:
        raise BadInput(f"{path}: every DAG node is done", "Remove the DONE words; if a rescue file marks them as done, delete it.")
    after = [(*needed, *any_end) for needed, any_end in dependencies(tasks)]
    kinds, cores = [task.options["name"] for task in tasks], [task.options["cores"] for task in tasks]
    return Workload([1.0] * len(tasks), kinds=kinds, cores=cores, after=after)


def check_picture(path: str | None) -> None:
    """Check the path of a picture. This happens before the simulation, because the simulation can take minutes."""
    if path is not None and not path.endswith(".svg"):
        raise BadInput(f"{path}: pictures are written as SVG", f"Name it {Path(path).stem}.svg")
    if path is not None and not os.access(Path(path).absolute().parent, os.W_OK):
        raise BadInput(
            f"{path}: its directory does not exist or is not writable", f"Create it: mkdir -p {shlex.quote(str(Path(path).parent))}"
        )


def with_progress(outcomes: Iterator[SimulationResult], scenario: Scenario) -> Iterator[SimulationResult]:
    progress = RunProgress(Screen.of(sys.stderr), time.monotonic, len(scenario.policies) * scenario.seeds)
    progress.draw()
    try:
        for outcome in outcomes:
            yield outcome
            progress.ended(False)
            progress.draw()
    finally:
        progress.clear()


# --- showing --------------------------------------------------------------------------------------------------------------------------


def describe(scenario: Scenario) -> str:
    work = scenario.work
    cores = sum(place.hosts * place.cores for place in scenario.sites)
    return f"{plural(work.tasks, 'task')} on {plural(cores, 'core')} at {plural(len(scenario.sites), 'site')}"


def show(screen: Screen, scenario: Scenario, data: dict[str, Any]) -> None:
    columns = [
        Column("POLICY", lambda row: row["policy"]),
        Column("MAKESPAN", lambda row: duration(row["makespan_s"]), right=True),
        Column("STD DEV", lambda row: duration(row["spread_s"]), right=True),
        Column("SPEED-UP", lambda row: f"{row['speedup']:.2f}", right=True),
        Column("UTILISATION", lambda row: f"{100 * row['cores_busy']:.0f} %", right=True),
    ]
    if len(scenario.sites) <= MAX_SITE_COLUMNS:
        columns += [_sent_column(place.name) for place in scenario.sites]
    else:
        columns.append(Column("SENT", lambda row: size(sum(row["sent_bytes"].values())), right=True))
    screen.line(f"{describe(scenario)}; means over {scenario.seeds} seed{'s'[: scenario.seeds > 1]}")
    screen.table(columns, data["policies"])
    area, path = duration(data["area_bound_s"]), duration(data["path_bound_s"])
    screen.line(f"No schedule is shorter than {area} (all cores busy) or {path} (the longest chain of tasks).")


def _sent_column(site: str) -> Column:
    return Column(f"SENT TO {site}", lambda row: size(row["sent_bytes"][site]), right=True)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def as_data(scenario: Scenario, by_policy: dict[str, list[SimulationResult]]) -> dict[str, Any]:
    from pilotfish.sim.scenarios.policy_comparison import mean_and_deviation

    first = next(iter(by_policy.values()))
    area_s, path_s = mean([result.area_s for result in first]), mean([result.path_s for result in first])
    first_s = mean([result.makespan_s for result in first])
    rows = []
    for policy, outcomes in by_policy.items():
        makespan_s, spread_s = mean_and_deviation([result.makespan_s for result in outcomes])
        rows.append(
            {
                "policy": policy,
                "makespan_s": makespan_s,
                "spread_s": spread_s,
                "speedup": first_s / makespan_s,
                "cores_busy": mean([result.used for result in outcomes]),
                "sent_bytes": {place.name: mean([result.sent[place.name] for result in outcomes]) for place in scenario.sites},
                "makespans_s": [result.makespan_s for result in outcomes],
            }
        )
    return {"tasks": scenario.work.tasks, "seeds": scenario.seeds, "area_bound_s": area_s, "path_bound_s": path_s, "policies": rows}
