"""Implements run: submits a command, sweep, task list, run file or DAGMan file, and follows the run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilotfish import plugins
from pilotfish.applications.input_files import digests
from pilotfish.applications.task_options import TaskOptions
from pilotfish.cli.commands.attach_command import RunOutcome, exit_status_of, follow, show_outcome
from pilotfish.cli.commands.log_commands import show_single
from pilotfish.cli.commands.results_command import SavedFiles, save_results, show_report
from pilotfish.cli.completions import complete_site
from pilotfish.cli.shared_options import deadline_option, json_option, old_option, pool_option, share_option
from pilotfish.cli.terminal.progress import READING_S, DelayedStatusLine, show_hashing
from pilotfish.cli.terminal.screen import Screen, clean, plural
from pilotfish.client.run_options import RunRequest, property_warnings
from pilotfish.client.session import PoolSession
from pilotfish.client.site_selection import read_selection
from pilotfish.client.task_descriptions import TaskDescription
from pilotfish.client.task_source import PastOutputs, Progress, TaskSource, connect_for, make_source, submit_source, submit_tasks
from pilotfish.errors import BadInput
from pilotfish.model.quantities import show_bytes, show_seconds

if TYPE_CHECKING:
    from pilotfish.applications.run_file import RunFile

OF_FILES = ("--input", "--output", "--keep")
LIST_ENDINGS = ("", ".txt", ".list", ".lst", ".tasks")
MAX_NAME = 200
NUMBER = re.compile(r"[0-9]+([.][0-9]+)?")


class RunCommandLine(click.Command):
    """Records whether ``--`` precedes the command: in ``run x.py``, x.py is a run file; in ``run -- x.py``, it is a program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        command = ctx.params.get("command", ())
        before = given[: len(given) - len(command)]
        ctx.meta["after_dashes"] = bool(command) and before[-1:] == ["--"]
        if before[-2:-1] and before[-2] in OF_FILES and "--" in command and shutil.which(command[0]) is None:
            several = f"{before[-1]} {' '.join(command[: command.index('--')])}"
            raise BadInput(
                f"{before[-2]} takes one name, and there are several: {several}",
                f"Quote the pattern, or repeat the option: {before[-2]} '*' or {before[-2]} {before[-1]} {before[-2]} {command[0]}",
            )
        return rest


@click.command(cls=RunCommandLine, context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...")
@click.option("--local-cores", type=click.IntRange(min=1), metavar="N", help="Cores of this machine to use.  [default: all]")
@old_option("--workers", "--local-cores")
@click.option(
    "--site",
    "sites",
    multiple=True,
    metavar="NAME[:N]",
    shell_complete=complete_site,
    help="Run only at this site, with N pilots; local is this machine. Repeatable.  [default: any site with a worker]",
)
@click.option(
    "--param",
    "parameters",
    multiple=True,
    metavar="NAME=VALUES",
    help="Sweep a parameter over 0.1:1.0:0.1, 1..100, a,b,c or @file. Repeatable.",
)
@click.option("--params-from", "tables", multiple=True, metavar="FILE", help="Sweep over the rows of a CSV or JSON table. Repeatable.")
@click.option("--each-line", metavar="FILE", help="Run one task per line of FILE ('-' is standard input); {} is the line.")
@click.option("--zip", "zipped", is_flag=True, help="Pair parameter values in order instead of combining all.")
@click.option("--tasks", "task_list", metavar="FILE", help="Run the tasks of a task list file.")
@click.option("--dag", metavar="FILE", help="Run a DAGMan file.")
@click.option("--name", metavar="NAME", default="", help="Name of the run.")
@click.option("--cores", metavar="N|A-B", help="Cores per task, or a range for moldable tasks.  [default: 1]")
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes per task, for MPI; all from one pilot.  [default: 1]")
@click.option("--memory", metavar="SIZE", help="Memory limit per task, such as 2G; doubled if a task exceeds it, twice at most.")
@click.option("--gpus", type=click.FloatRange(min=0), metavar="N", help="GPUs per task.")
@click.option("--resource", "resources", multiple=True, metavar="NAME=AMOUNT", help="Amount of a custom resource per task. Repeatable.")
@click.option("--time", "time_limit", metavar="DURATION", help="Time limit per task, such as 90s or 1h30m.")
@click.option(
    "--signal",
    "warn_signal",
    metavar="SIGNAL",
    help="Signal to send before the worker's walltime ends, such as USR1.",
)
@old_option("--warn", "--signal")
@click.option("--retries", type=click.IntRange(min=0), metavar="N", default=0, show_default=True, help="Retries after a failure.")
@click.option("--priority", type=int, metavar="N", default=0, show_default=True, help="Priority; higher starts first.")
@share_option
@deadline_option
@click.option(
    "--max-failures", type=click.IntRange(min=0), metavar="N", default=0, help="Cancel the run after N failed tasks.  [default: never]"
)
@click.option(
    "--speculate/--no-speculate",
    default=None,
    help="Start a second copy of slow tasks on idle workers.  [default: set by the policy]",
)
@click.option("--require", "requirement", metavar="EXPRESSION", help="Use only workers where this is true, such as 'memory >= 8G'.")
@click.option("--rank", metavar="EXPRESSION", help="Prefer workers with a larger value of this expression, such as 'cores'.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="PATH",
    help="Copy a file or directory to each task; 3.0:FILE is an output of task 3.0. Repeatable.",
)
@click.option("--output", "outputs", multiple=True, metavar="FILE", help="Copy FILE (or a pattern) back to run-N/INDEX/. Repeatable.")
@click.option("--keep", multiple=True, metavar="FILE", help="Like --output, but leave FILE on the worker for later tasks. Repeatable.")
@click.option(
    "--sandbox/--here",
    "sandbox",
    default=None,
    help="Run each task in a private directory, or in this one.  [default: --here, or --sandbox if files are copied]",
)
@click.option("--env", "environment", multiple=True, metavar="NAME[=VALUE]", help="Set an environment variable, or pass it on. Repeatable.")
@click.option("--stdin", metavar="FILE", help="File that tasks read as standard input.")
@click.option("--detach", is_flag=True, help="Return after submission.")
@click.option("--dry-run", is_flag=True, help="Show what would run.")
@click.option("--report", is_flag=True, help="Show results and where the time went.")
@click.option("--quiet", "-q", is_flag=True, help="Hide progress and summary.")
@pool_option
@json_option
@click.pass_context
def run(context: click.Context, /, **options: Any) -> int:
    """Run a command, sweep, task list, run file or DAGMan file.

    \b
    pilotfish run -- ./sim --seed 1
    pilotfish run --each-line inputs.txt -- ./sim {}
    pilotfish run --param alpha=0.1:1.0:0.1 --param seed=1..100 -- ./sim {alpha} {seed}
    pilotfish run --tasks tasks.txt
    pilotfish run workflow.py
    pilotfish run flow.dag

    {name} stands for a parameter value, {} for the line, {#} for the task number. Ctrl-C detaches; the run continues. Exit status: 0 all
    tasks succeeded, 1 some tasks failed, 2 wrong usage, 3 nothing can run the tasks yet (the run is kept), 4 Pilotfish itself failed.
    """
    check_name(options["name"])
    line = DelayedStatusLine(_progress_screen(options["quiet"] or options["as_json"]), time.monotonic, READING_S)
    digests(partial(show_hashing, line))
    options["sites"] = read_selection(options["sites"])
    typed = shlex.join(["pilotfish", *(context.obj or ["run"])])
    request = RunRequest(**options, after_dashes=context.meta["after_dashes"], typed=typed)
    try:
        return run_request(request)
    finally:
        line.clear()  # before an error message is printed


def run_request(request: RunRequest) -> int:
    """Submit and follow the run. Return the exit status."""
    command = request.command
    if request.dag is not None:
        return run_dag(request.dag, command, request)
    may_be_file = bool(command) and not request.after_dashes and not request.is_sweep
    if may_be_file and Path(command[0]).suffix[1:] in plugins.names("applications"):
        run_application = run_dag if command[0].endswith(".dag") else run_file
        return run_application(command[0], command[1:], request)
    if len(command) == 1 and not request.after_dashes:
        _refuse_list(command[0])
    source = make_source(request, os.environ, PastOutputs(request.pool))
    task_options = request.task_options()
    screen = Screen.of()
    if request.dry_run:
        show_plan(screen, source, task_options, request)
        return 0
    started = time.monotonic()
    session = connect_for(request)
    for warning in property_warnings(session, task_options):
        Screen.of(sys.stderr).line(clean(warning))
    title = "" if source.count == 1 or request.silent or request.detach else clean(source.command.removeprefix("-- "))
    with _uploading(request, source.count, title) as progress:
        number = submit_source(session, source, task_options, request.run_options(source.command), progress)
    if request.detach:
        _show_detached(screen, number, source.count, request)
        return 0
    outcome = follow(session, number, request.silent, source.costs(), started, single_task=source.count == 1)
    return _show_end(screen, session, source, outcome, request)


def _refuse_list(program: str) -> None:
    if os.path.splitext(program)[1] in LIST_ENDINGS and os.path.isfile(program) and not os.access(program, os.X_OK):
        name = shlex.quote(program)
        advice = f"If it lists tasks: pilotfish run --tasks {name}; if it is a program: chmod +x {name}"
        raise BadInput(f"{program!r} is a file that may not be executed", advice)


def check_name(name: str) -> None:
    """Reject a name that looks like a run or task number, or that cannot be typed: no command could select such a run."""
    if len(name) > MAX_NAME:
        raise BadInput(
            f"--name {clean(name[:20])}...: it has {len(name):,} characters, and {MAX_NAME} are the most", "Give it a shorter name."
        )
    for character in name:
        if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
            visible = repr(character).strip("'")
            plain = "".join(other if other.isprintable() else "-" for other in name)
            raise BadInput(f"--name {clean(name)}: {visible} cannot be part of a name", f"Leave it out: --name {shlex.quote(plain)}")
    if NUMBER.fullmatch(name) or name == "last":
        meaning = "the last run" if name == "last" else f"the {'task' if '.' in name else 'run'} {name}"
        raise BadInput(f"--name {name}: that already means {meaning}", f"Put a letter before it: --name run-{name}")


@contextmanager
def _uploading(request: RunRequest, count: int, title: str = "") -> Iterator[Progress]:
    """Show the number of submitted tasks. After Ctrl-C, print what happened to the run."""
    screen = _progress_screen(request.silent)
    line = DelayedStatusLine(screen, time.monotonic)
    opened: list[int] = []

    def progress(run: int, sent: int) -> None:
        if sent:
            line.show(lambda: f"submitting {sent:,}/{count:,}")
            return
        opened.append(run)
        if title:
            Screen.of(sys.stderr).line(f"Run {run}: {plural(count, 'task')}: {title}")

    try:
        yield progress
    except KeyboardInterrupt:
        line.clear()
        if opened:
            screen.line(f"Not all tasks were submitted: run {opened[0]} was cancelled. Again: {clean(request.typed)}")
        raise
    finally:
        line.clear()


def _progress_screen(silent: bool) -> Screen:
    """Return a screen that shows progress lines on a terminal. If ``silent``, it shows none."""
    screen = Screen.of(sys.stderr)
    screen.is_terminal = screen.is_terminal and not silent
    return screen


def _show_detached(screen: Screen, number: int, count: int, request: RunRequest) -> None:
    if request.as_json:
        screen.json({"run": number, "tasks": count, "state": "submitted"})
    elif request.quiet:
        screen.line(str(number))
    else:
        screen.line(f"Run {number}: {plural(count, 'task')} submitted. Follow it: pilotfish attach {number}")


def _show_end(screen: Screen, session: PoolSession, source: TaskSource, outcome: RunOutcome, request: RunRequest) -> int:
    has_files = bool(request.outputs or request.keep) or (
        source.listed is not None and source.launch.sandbox and any(task.outputs for task in source.listed)
    )
    saved = _save_and_report(screen, session, outcome, request, has_files)
    if source.count == 1 and not request.report and not outcome.left and not request.as_json:
        status = show_single(session, f"{outcome.run}.0")
        if saved and not request.quiet:
            Screen.of(sys.stderr).line(saved)
        return status
    if request.quiet and not request.as_json:
        return exit_status_of(outcome)
    status = show_outcome(screen, outcome, request.as_json)
    if not request.as_json and not outcome.left:
        if saved:
            screen.line(saved)
        elif not request.report and outcome.counts.get("done"):
            screen.line(f"Results:       pilotfish results {outcome.run}")
    return status


def _save_and_report(screen: Screen, session: PoolSession, outcome: RunOutcome, request: RunRequest, has_files: bool) -> str:
    """Save output files and print the report, if the user wants them. Return a text about the saved files; empty if there are none."""
    if outcome.left:
        return ""
    directory = f"run-{outcome.run}"
    saved = save_results(session, outcome.run, directory, streams=False) if has_files else SavedFiles()
    if request.report and not request.as_json:
        show_report(screen, session, outcome)
    return saved.describe(directory, outcome.run) if saved.files or saved.stayed else ""


# --- run files and DAGMan files -------------------------------------------------------------------------------------------------------

BELONGS_INSIDE = {
    "cores": "--cores",
    "nodes": "--nodes",
    "memory": "--memory",
    "gpus": "--gpus",
    "resources": "--resource",
    "time_limit": "--time",
    "warn_signal": "--signal",
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


def run_file(path: str, arguments: Sequence[str], request: RunRequest) -> int:
    program = f"If it is a program: pilotfish run ... -- python {path}"
    _refuse_inner(f"a run file ({path})", f"Set it in the file, for each task: tasks.add([...], cores=2). {program}", request)
    from pilotfish.applications.run_file import load_application

    loaded = load_application(path, arguments)
    return _run_loaded(loaded, shlex.join([loaded.path.name, *arguments]), request)


def run_dag(path: str, arguments: Sequence[str], request: RunRequest) -> int:
    from pilotfish.applications.dagman.dag_file import read_dag
    from pilotfish.applications.dagman.node_tasks import node_tasks, task_list
    from pilotfish.applications.run_file import RunFile
    from pilotfish.cli.commands.dag_rescue import keep_rescue

    if arguments:
        raise BadInput(
            f"a DAGMan file takes no arguments, and there are some: {shlex.join(arguments)}", f"Leave them out: pilotfish run {path}"
        )
    if request.is_sweep:
        raise BadInput(
            f"a DAGMan file ({path}) does not go with a sweep or a task list", "Give one of them: the file already has the tasks."
        )
    _refuse_inner(
        f"a DAGMan file ({path})", "Set it in the file: request_cpus = 2 in the submit description, RETRY NODE 2 in the DAG.", request
    )
    dag = read_dag(path)
    nodes = list(node_tasks(dag))
    loaded = RunFile(Path(path).resolve(), task_list(dag, nodes), None)
    for notice in () if request.silent else dag.notices:
        Screen.of(sys.stderr).line(f"note: {clean(notice)}")
    command = shlex.join(["--dag", path]) + (f" # rescue {dag.rescue}" if dag.rescue else "")
    lines = [TaskDescription(task.command, label=task.node.name) for task in nodes]
    return _run_loaded(loaded, command, request, lines, lambda session, outcome: keep_rescue(dag, session, outcome, request.silent))


def _refuse_inner(what: str, fix: str, request: RunRequest) -> None:
    for option, written in BELONGS_INSIDE.items():
        if getattr(request, option) not in (None, (), 0):
            raise BadInput(f"{written} does not go with {what}", fix)


def _run_loaded(
    loaded: RunFile,
    command: str,
    request: RunRequest,
    lines: Iterable[TaskDescription] = (),
    ended: Callable[[PoolSession, RunOutcome], None] | None = None,
) -> int:
    """Submit a loaded run file and follow the run. ``lines`` describe its tasks. ``ended`` is called at the end of the run."""
    screen = Screen.of()
    if request.dry_run:
        show_run_file_plan(screen, loaded, request.as_json)
        return 0
    started = time.monotonic()
    session = connect_for(request)
    options = request.run_options(command, application=str(loaded.path) if loaded.manager is not None else "")
    if loaded.tasks is None:
        number = session.begin(options).run
    else:
        with _uploading(request, len(loaded.tasks)) as progress:
            number = submit_tasks(session, loaded.tasks, lines, options, progress)
    if request.detach:
        tasks = len(loaded.tasks) if loaded.tasks is not None else None
        if request.as_json:
            screen.json({"run": number, "tasks": tasks, "state": "submitted"})
        else:
            screen.line(f"Run {number} submitted. Follow it: pilotfish attach {number}")
        return 0
    outcome = follow(session, number, quiet=request.silent, started=started)
    if ended is not None:
        ended(session, outcome)
    has_files = loaded.tasks is not None and loaded.tasks.has_outputs
    saved = _save_and_report(screen, session, outcome, request, has_files)
    if request.quiet and not request.as_json:
        return exit_status_of(outcome)
    status = show_outcome(screen, outcome, request.as_json)
    if not request.as_json and not outcome.left and outcome.counts.get("done"):
        screen.line(saved or f"Results:       pilotfish results {number}")
    return status


# --- what --dry-run shows ---------------------------------------------------------------------------------------------------------------

SHOWN_TASKS = 5
"""Maximum number of tasks that are shown."""


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
