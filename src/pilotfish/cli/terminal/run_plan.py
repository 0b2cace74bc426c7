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


def show_plan(screen: Screen, source: TaskSource, wanted: TaskOptions, asked: RunRequest) -> None:
    files = {"inputs": list(asked.inputs), "outputs": list(asked.outputs), "keep": list(asked.keep)}
    first = [(task.argv, label) for task, _, label in islice(source.described(), SHOWN_TASKS)]
    request = wanted.request
    if asked.as_json:
        amounts = dict(request.amounts())
        plan = {"tasks": source.count, "sandbox": source.launch.sandbox, "request": amounts, "first": [list(argv) for argv, _ in first]}
        screen.json({**plan, **files, "requirement": wanted.requirement, "rank": wanted.rank})
        return
    cores = f"{request.cores:g}" + (f" to {request.cores_max:g}" if request.cores_max else "")
    needs = [f"{cores} core{'' if cores == '1' else 's'}" + (f" on each of {request.nodes} nodes" if request.nodes > 1 else "")]
    needs += [f"{show_bytes(request.memory)} of memory"] if request.memory else []
    needs += [f"{request.gpus:g} GPU{'' if request.gpus == 1 else 's'}"] if request.gpus else []
    needs += [f"{amount:g} {clean(name)}" for name, amount in request.custom.items()]
    needs += [f"at most {show_seconds(wanted.time_s)}"] if wanted.time_s else []
    needs += [f"a worker with {clean(wanted.requirement)}"] if wanted.requirement else []
    where = "each in a fresh directory" if source.launch.sandbox else f"in {clean(source.launch.cwd)}"
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
        screen.line(f"Would start the application of {loaded.path.name}, which makes its tasks while it runs.")
    else:
        screen.line(f"Would run {plural(tasks, 'task')} of {loaded.path.name}.")
