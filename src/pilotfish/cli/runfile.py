"""``pilotfish run workflow.py`` and ``run flow.dag``: files that say what to run, or an application that decides while it runs."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pilotfish.api.runfile import RunFile, load
from pilotfish.applications.dagman import read_dag
from pilotfish.applications.dagman_nodes import node_tasks, task_list
from pilotfish.cli.follow import Outcome, exit_status_of, follow, show_outcome
from pilotfish.cli.pool import Master
from pilotfish.cli.register import Line, keep_register
from pilotfish.cli.render import Screen, clean, plural
from pilotfish.cli.report import show_report
from pilotfish.cli.rescue import keep_rescue
from pilotfish.cli.results import Saved, save_results
from pilotfish.cli.run import connect_for, handing_over, is_sweep, run_options_of
from pilotfish.errors import BadInput
from pilotfish.model.task import RunOptions

BELONGS_INSIDE = {
    "cores": "--cores",
    "nodes": "--nodes",
    "memory": "--memory",
    "gpus": "--gpus",
    "resources": "--resource",
    "time_limit": "--time",
    "warn_signal": "--warn",
    "retries": "--retries",
    "priority": "--priority",
    "inputs": "--input",
    "outputs": "--output",
    "keep": "--keep",
    "requirement": "--require",
    "rank": "--rank",
    "sandbox": "--sandbox or --here",
    "environment": "--env",
    "stdin": "--stdin",
}


def run_any_file(command: tuple[str, ...], options: dict[str, Any]) -> int:
    """The run file or DAGMan file that was typed."""
    if options["dag"] is None and command[0].endswith(".py"):
        return run_file(command[0], command[1:], options)
    rest = command if options["dag"] is not None else command[1:]
    path = str(options["dag"] or command[0])
    if rest:
        raise BadInput(f"a DAGMan file takes no arguments, and there are some: {shlex.join(rest)}", f"Leave them out: pilotfish run {path}")
    if is_sweep(options):
        raise BadInput(
            f"a DAGMan file ({path}) does not go with a sweep or a task list", "Give one of them: the file already says what to run."
        )
    return run_dag(path, options)


def run_file(path: str, arguments: Sequence[str], options: dict[str, Any]) -> int:
    program = f"If it is a program: pilotfish run ... -- python {path}"
    _refuse_inner(f"a run file ({path})", f"Say it inside, for each task: tasks.add([...], cores=2). {program}", options)
    loaded = load(path, arguments)
    return _run_loaded(loaded, shlex.join([loaded.path.name, *arguments]), options)


def run_dag(path: str, options: dict[str, Any]) -> int:
    _refuse_inner(f"a DAGMan file ({path})", "Say it inside: request_cpus = 2 in the submit description, RETRY NODE 2 in the DAG.", options)
    dag = read_dag(path)
    loaded = RunFile(Path(path).resolve(), task_list(dag), None)
    quiet = options["quiet"] or options["as_json"]
    for notice in () if quiet else dag.notices:
        Screen.of(sys.stderr).line(f"note: {clean(notice)}")
    command = shlex.join(["--dag", path]) + (f" # rescue {dag.rescue}" if dag.rescue else "")
    lines = [Line(task.command, label=task.node.name) for task in node_tasks(dag)]
    return _run_loaded(loaded, command, options, lines, lambda master, outcome: keep_rescue(dag, master, outcome, quiet))


def _refuse_inner(what: str, fix: str, options: dict[str, Any]) -> None:
    for option, written in BELONGS_INSIDE.items():
        if options[option] not in (None, (), 0):
            raise BadInput(f"{written} does not go with {what}", fix)


def _run_loaded(
    loaded: RunFile,
    command: str,
    options: dict[str, Any],
    lines: Iterable[Line] = (),
    ended: Callable[[Master, Outcome], None] | None = None,
) -> int:
    """``lines`` tell what its tasks are. ``ended`` is called when the run was followed to its end."""
    screen = Screen.of()
    if options["dry_run"]:
        _show_plan(screen, loaded, options["as_json"])
        return 0
    started = time.monotonic()
    master = connect_for(options)
    number = _submit(master, loaded, command, options, lines)
    if options["detach"]:
        tasks = len(loaded.tasks) if loaded.tasks is not None else None
        if options["as_json"]:
            screen.json({"run": number, "tasks": tasks, "state": "submitted"})
        else:
            screen.line(f"Run {number} submitted. Watch it: pilotfish attach {number}")
        return 0
    outcome = follow(master, number, quiet=options["quiet"] or options["as_json"], started=started)
    if ended is not None:
        ended(master, outcome)
    saved = save_results(master, number, f"run-{number}", streams=False) if _has_files(loaded) and not outcome.left else Saved()
    if options["report"] and not options["as_json"] and not outcome.left:
        show_report(screen, master, outcome)
    if options["quiet"] and not options["as_json"]:
        return exit_status_of(outcome)
    status = show_outcome(screen, outcome, options["as_json"])
    if not options["as_json"] and not outcome.left and outcome.counts.get("done"):
        told = saved.told(f"run-{number}", number) if saved.files or saved.stayed else f"Results:       pilotfish results {number}"
        screen.line(told)
    return status


def _has_files(loaded: RunFile) -> bool:
    return loaded.tasks is not None and loaded.tasks.has_outputs


def _show_plan(screen: Screen, loaded: RunFile, as_json: bool) -> None:
    tasks = len(loaded.tasks) if loaded.tasks is not None else None
    if as_json:
        screen.json({"tasks": tasks, "application": loaded.manager is not None})
    elif tasks is None:
        screen.line(f"Would start the application of {loaded.path.name}, which makes its tasks while it runs.")
    else:
        screen.line(f"Would run {plural(tasks, 'task')} of {loaded.path.name}.")


def _submit(master: Master, loaded: RunFile, command: str, options: dict[str, Any], lines: Iterable[Line]) -> int:
    run_options = RunOptions(
        name=options["name"],
        command=command,
        cwd=os.getcwd(),
        max_failures=options["max_failures"],
        application=str(loaded.path) if loaded.manager is not None else "",
        sites=options["sites"].names,
        **run_options_of(options),
    )
    new = master.begin(run_options)
    if loaded.tasks is None:
        return new.number
    with handing_over(master, new, len(loaded.tasks), options) as submitting:
        numbers = [new.spec(*spec) for spec in loaded.tasks.specs]
        for entry in loaded.tasks.take():
            new.add(numbers[entry.spec], entry.payload, entry.needs)
            submitting.one_more()
        with keep_register(master, new.number) as note:
            for line in lines:
                note(line)
        new.close()
    return new.number
