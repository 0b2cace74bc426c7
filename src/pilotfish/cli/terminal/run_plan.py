"""Shows what ``run --dry-run`` would run."""

from __future__ import annotations

import shlex
from itertools import islice

from pilotfish.applications.run_file import RunFile
from pilotfish.applications.task_options import TaskOptions
from pilotfish.cli.terminal.screen import Screen, clean, plural
from pilotfish.client.run_options import RunRequest
from pilotfish.client.task_descriptions import TaskDescription
from pilotfish.client.task_source import TaskSource
from pilotfish.model.quantities import show_bytes, show_seconds

SHOWN_TASKS = 5
"""Maximum tasks shown."""


def show_plan(screen: Screen, source: TaskSource, options: TaskOptions, request: RunRequest) -> None:
    files = {"inputs": list(request.inputs), "outputs": list(request.outputs), "keep": list(request.keep)}
    first = [(task.argv, label) for task, _, label in islice(source.described(), SHOWN_TASKS)]
    resources = options.request
    if request.as_json:
        amounts = dict(resources.amounts())
        plan = {"tasks": source.count, "sandbox": source.launch.sandbox, "request": amounts, "first": [list(argv) for argv, _ in first]}
        screen.json({**plan, **files, "requirement": options.requirement, "rank": options.rank})
        return
    cores = f"{resources.cores:g}" + (f" to {resources.cores_max:g}" if resources.cores_max else "")
    needs = [f"{cores} core{'' if cores == '1' else 's'}" + (f" on each of {resources.nodes} nodes" if resources.nodes > 1 else "")]
    needs += [f"{show_bytes(resources.memory)} of memory"] if resources.memory else []
    needs += [f"{resources.gpus:g} GPU{'' if resources.gpus == 1 else 's'}"] if resources.gpus else []
    needs += [f"{amount:g} {clean(name)}" for name, amount in resources.custom.items()]
    needs += [f"at most {show_seconds(options.time_s)}"] if options.time_s else []
    needs += [f"a worker with {clean(options.requirement)}"] if options.requirement else []
    where = "each in a private directory" if source.launch.sandbox else f"in {clean(source.launch.cwd)}"
    screen.line(f"Would run {plural(source.count, 'task')}, {where}; each needs {', '.join(needs)}:")
    for argv, label in first:
        screen.line("  " + clean(TaskDescription(shlex.join(argv), label=label).text()))
    if source.count > len(first):
        screen.line(f"  ... and {source.count - len(first):,} more")
    for option, names in files.items():
        if names:
            screen.line(f"{option}: {clean(' '.join(names))}")


def show_run_file_plan(screen: Screen, loaded: RunFile, as_json: bool) -> None:
    tasks = len(loaded.tasks) if loaded.tasks is not None else None
    if as_json:
        screen.json({"tasks": tasks, "application": loaded.manager is not None})
    elif tasks is None:
        screen.line(f"Would start the application of {loaded.path.name}, which creates its tasks at run time.")
    else:
        screen.line(f"Would run {plural(tasks, 'task')} of {loaded.path.name}.")
