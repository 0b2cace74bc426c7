"""``pilotfish run workflow.py``: a Python file that says what to run, or an application that decides while it runs."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from typing import Any

from pilotfish.api.runfile import RunFile, load
from pilotfish.cli.follow import follow, show_outcome
from pilotfish.cli.pool import Master
from pilotfish.cli.render import Screen, plural
from pilotfish.cli.report import show_report
from pilotfish.cli.results import Saved, save_results
from pilotfish.cli.run import connect_for, handing_over
from pilotfish.errors import BadInput
from pilotfish.model.task import RunOptions

BELONGS_INSIDE = {
    "cores": "--cores",
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


def run_file(path: str, arguments: Sequence[str], options: dict[str, Any]) -> int:
    for option, written in BELONGS_INSIDE.items():
        if options[option] not in (None, (), 0):
            raise BadInput(
                f"{written} does not go with a run file ({path})",
                f"Say it inside, for each task: tasks.add([...], cores=2). If it is a program: pilotfish run ... -- python {path}",
            )
    loaded = load(path, arguments)
    screen = Screen.of()
    if options["dry_run"]:
        _show_plan(screen, loaded, options["as_json"])
        return 0
    started = time.monotonic()
    master = connect_for(options)
    number = _submit(master, loaded, arguments, options)
    if options["detach"]:
        tasks = len(loaded.tasks) if loaded.tasks is not None else None
        if options["as_json"]:
            screen.json({"run": number, "tasks": tasks, "state": "submitted"})
        else:
            screen.line(f"Run {number} submitted. Watch it: pilotfish attach {number}")
        return 0
    outcome = follow(master, number, quiet=options["quiet"] or options["as_json"], started=started)
    saved = save_results(master, number, f"run-{number}", streams=False) if _has_files(loaded) and not outcome.left else Saved()
    if options["report"] and not options["as_json"] and not outcome.left:
        show_report(screen, master, outcome)
    status = show_outcome(screen, outcome, options["as_json"])
    if not options["as_json"] and not options["quiet"] and not outcome.left and outcome.counts.get("done"):
        told = saved.told(f"run-{number}", number) if saved.files or saved.stayed else f"Results:       pilotfish results {number}"
        screen.line(told)
    return status


def _has_files(loaded: RunFile) -> bool:
    return loaded.tasks is not None and any(spec.launch.get("outputs") for spec, _ in loaded.tasks.specs)


def _show_plan(screen: Screen, loaded: RunFile, as_json: bool) -> None:
    tasks = len(loaded.tasks) if loaded.tasks is not None else None
    if as_json:
        screen.json({"tasks": tasks, "application": loaded.manager is not None})
    elif tasks is None:
        screen.line(f"Would start the application of {loaded.path.name}, which makes its tasks while it runs.")
    else:
        screen.line(f"Would run {plural(tasks, 'task')} of {loaded.path.name}.")


def _submit(master: Master, loaded: RunFile, arguments: Sequence[str], options: dict[str, Any]) -> int:
    run_options = RunOptions(
        name=options["name"],
        command=shlex.join([loaded.path.name, *arguments]),
        cwd=os.getcwd(),
        max_failures=options["max_failures"],
        application=str(loaded.path) if loaded.manager is not None else "",
        sites=options["sites"].names,
    )
    new = master.begin(run_options)
    if loaded.tasks is None:
        return new.number
    with handing_over(master, new, len(loaded.tasks), options) as submitting:
        numbers = [new.spec(*spec) for spec in loaded.tasks.specs]
        for entry in loaded.tasks.take():
            new.add(numbers[entry.spec], entry.payload, entry.needs)
            submitting.one_more()
        new.close()
    return new.number
