"""Implements run: submits a command, sweep, task list, run file or DAGMan file, and shows the progress of the run."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from pilotfish import plugins
from pilotfish.applications.destinations import check_typed_outputs
from pilotfish.applications.input_files import digests
from pilotfish.applications.sweeps.sweep import likely_parameter, parse_parameter
from pilotfish.applications.task_options import TaskOptions
from pilotfish.cli.commands.log_commands import show_single
from pilotfish.cli.commands.report_command import show_report
from pilotfish.cli.completions import complete_site
from pilotfish.cli.run_commands.attach_command import RunOutcome, exit_status_of, final_status, follow, show_outcome, status_of_detached
from pilotfish.cli.run_commands.live_output import LiveOutput
from pilotfish.cli.shared_options import deadline_option, json_option, note_time_unit, old_option, pool_option, share_option
from pilotfish.cli.terminal.progress import READING_S, DelayedStatusLine, show_hashing
from pilotfish.cli.terminal.screen import Screen, clean, plural
from pilotfish.client.application_environment import save_environment
from pilotfish.client.descriptions.local_cores import check_local_cores, concurrency_limit, limit_tasks, limited_cores
from pilotfish.client.descriptions.run_options import RunRequest, check_run_name, property_warnings
from pilotfish.client.descriptions.site_selection import read_selection
from pilotfish.client.descriptions.task_descriptions import TaskDescription
from pilotfish.client.descriptions.task_source import (
    ListSource,
    PastOutputs,
    Progress,
    TaskSource,
    connect_for,
    make_source,
    submit_source,
    submit_tasks,
)
from pilotfish.client.descriptions.withheld_variables import withheld_variables
from pilotfish.client.outputs.output_destinations import plan_outputs
from pilotfish.client.rerun_preparation import shown_files
from pilotfish.client.reuse.resumption import Resumption
from pilotfish.client.reuse.reuse_reasons import summed_up
from pilotfish.client.session import PoolSession
from pilotfish.errors import BadInput
from pilotfish.model.quantities import show_bytes, show_seconds

if TYPE_CHECKING:
    from pilotfish.applications.run_file import RunFile

OF_FILES = ("--input", "--output", "--keep")
LIST_ENDINGS = ("", ".txt", ".list", ".lst", ".tasks")


class RunCommandLine(click.Command):
    """Records whether the user typed ``--`` before the command. In ``run x.py``, x.py is a run file. In ``run -- x.py``, x.py is a
    program."""

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
@click.option(
    "--local-cores", type=click.IntRange(min=1), metavar="N", help="Run only on this machine, on at most N cores at the same time."
)
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
@click.option(
    "--zip", "zipped", is_flag=True, help="Combine first values with first values, second with second and so on, instead of all with all."
)
@click.option("--times", type=click.IntRange(min=1), metavar="N", help="Repeat each task N times; {#} is the task number.")
@click.option("--tasks", "task_list", metavar="FILE", help="Run the tasks of a task list file.")
@click.option("--dag", metavar="FILE", help="Run a DAGMan file.")
@click.option("--name", metavar="NAME", default="", help="Name of the run.")
@click.option("--cores", metavar="N|A-B", help="Cores per task, or a range for moldable tasks.  [default: 1]")
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes per task, for MPI; all from one pilot.  [default: 1]")
@click.option(
    "--memory",
    metavar="SIZE",
    help="Memory limit per task, such as 2G; a task that exceeds it is tried again with twice the limit, at most two times.",
)
@click.option("--gpus", type=click.FloatRange(min=0), metavar="N", help="GPUs per task.")
@click.option("--resource", "resources", multiple=True, metavar="NAME=AMOUNT", help="Amount of a custom resource per task. Repeatable.")
@click.option("--time", "time_limit", metavar="DURATION", help="Time limit per task, such as 90s or 1h30m; without a unit, seconds.")
@click.option(
    "--signal", "warn_signal", metavar="SIGNAL", help="Signal, such as USR1, that a task gets 60 s before the walltime of its worker ends."
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
    help="Start a second copy of each slow task on an idle worker.  [default: set by the policy]",
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
@click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="FILE[=DESTINATION]",
    help="Copy FILE (or a pattern) to DESTINATION, such as 'frame.png=frames/{i:03d}.png'. Repeatable.  [default: run-N/INDEX/FILE]",
)
@click.option("--into", metavar="DIR", help="Directory for output files: DIR/DESTINATION or DIR/INDEX/FILE.")
@click.option("--overwrite", is_flag=True, help="Replace existing files at the destinations of output files, and changed files in out=.")
@click.option("--keep", multiple=True, metavar="FILE", help="Like --output, but leave FILE on the worker for later tasks. Repeatable.")
@click.option(
    "--sandbox/--here",
    "sandbox",
    default=None,
    help="Run tasks in private directories, or in the current directory.  [default: --here, or --sandbox if files are copied]",
)
@click.option(
    "--env",
    "environment",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Set an environment variable; without VALUE, pass on its value. Needed for secrets such as API_KEY. Repeatable.",
)
@click.option("--stdin", metavar="FILE", help="File that each task reads as standard input ('-' is the standard input of this command).")
@click.option("--max-output", metavar="SIZE", help="Store at most this much of stdout, and of stderr, per task, such as 8G.  [default: 1G]")
@click.option("--detach", is_flag=True, help="Return after submission.")
@click.option("--dry-run", is_flag=True, help="Show what would run.")
@click.option("--resume", is_flag=True, help="Use the results of equal tasks that succeeded before; run only the others.")
@click.option("--explain-cache", is_flag=True, help="With --resume, show why the tasks without an earlier result must run.")
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
    pilotfish run -- ./sim {} ::: *.dat
    pilotfish run --tasks tasks.txt
    pilotfish run workflow.py
    pilotfish run flow.dag

    {name} stands for a parameter value, {} for the line or ::: value, {#} for the task number. Ctrl-C detaches; the run continues. Exit
    status: 0 all tasks succeeded, 1 some tasks failed, 2 wrong usage, 3 nothing can run the tasks yet (the run is kept), 4 Pilotfish itself
    failed.
    """
    check_run_name(options["name"], "--name ")
    line = DelayedStatusLine(_progress_screen(options["quiet"] or options["as_json"]), time.monotonic, READING_S)
    digests(partial(show_hashing, line))
    options["sites"] = read_selection(options["sites"])
    typed = shlex.join(["pilotfish", *(context.obj or ["run"])])
    request = RunRequest(**options, after_dashes=context.meta["after_dashes"], typed=typed)
    try:
        return run_request(request)
    finally:
        line.clear()  # an error message can follow


def run_request(request: RunRequest) -> int:
    """Submit the run and show its progress. Return the exit status."""
    command = request.command
    if request.explain_cache and not request.resume:
        raise BadInput("--explain-cache explains what --resume does, and --resume is not given", "Add it: pilotfish run --resume ...")
    if request.dag is not None:
        return run_dag(request.dag, command, request)
    may_be_file = bool(command) and not request.after_dashes and not request.is_sweep
    if may_be_file and Path(command[0]).suffix[1:] in plugins.names("applications"):
        run_application = run_dag if command[0].endswith(".dag") else run_file
        return run_application(command[0], command[1:], request)
    if len(command) == 1 and not request.after_dashes:
        _refuse_list(command[0])
    for option, names in (("--output", request.outputs), ("--keep", request.keep)):
        check_typed_outputs(names, option, request.typed, command)
    source = make_source(request, _environment(request), PastOutputs(request.pool))
    task_options = request.task_options()
    check_local_cores(request)
    outputs = plan_outputs(request, source, bool(request.keep) or bool(request.outputs) or source.has_undirected_files)
    screen = Screen.of()
    _warn_of_withheld(request, source)
    _warn_of_texts(request)
    note_time_unit(None if request.quiet else request.time_limit)
    if source.literal_braces:
        text = f"{request.task_list}, {source.literal_braces} is not replaced: a task list has no values"
        Screen.of(sys.stderr).line(f"warning: {clean(text)}. For a task per value: pilotfish run --each-line FILE -- COMMAND {{}}")
    if request.dry_run:
        show_plan(screen, source, task_options, request)
        return 0
    started = time.monotonic()
    session = connect_for(request)
    limit = concurrency_limit(_limited_cores(session, request), task_options.request)
    task_options = msgspec.structs.replace(task_options, concurrency_limit=limit)
    for warning in property_warnings(session, task_options):
        Screen.of(sys.stderr).line(clean(warning))
    title = "" if source.count == 1 or request.silent or request.detach else clean(source.command.removeprefix("-- "))
    resume = Resumption(session, request.explain_cache, request.overwrite) if request.resume else None
    source = replace(source, resume=resume)
    with _uploading(request, source.count, title) as progress:
        number = submit_source(session, source, task_options, request.run_options(source.command), progress, outputs)
    if resume is not None:
        _show_reused(session, resume, number, request)
    if request.detach:
        _show_detached(screen, number, source.count, request)
        return status_of_detached(session, number)
    live = LiveOutput(session, f"{number}.0") if source.count == 1 else None
    follow_live = live is not None and not request.report and not request.as_json
    outcome = follow(session, number, request.silent, source.costs(), started, live if follow_live else None)
    return _show_end(screen, session, outcome, request, live)


def _environment(request: RunRequest) -> dict[str, str]:
    """Return the environment of the tasks. If a terminal shows the output of a single task during the task, a variable makes Python
    programs write each line at once."""
    environment = dict(os.environ)
    if not request.is_sweep and sys.stdout.isatty():
        environment.setdefault("PYTHONUNBUFFERED", "1")
    return environment


def _warn_of_withheld(request: RunRequest, source: TaskSource) -> None:
    """Print a note if the command or its script contains the name of a variable that the tasks do not get."""
    names = [] if request.quiet else withheld_variables(request, source.listed, os.environ)
    if names:
        what = f"{names[0]}: its name looks" if len(names) == 1 else f"{', '.join(names)}: their names look"
        options = " ".join(f"--env {name}" for name in names)
        Screen.of(sys.stderr).line(
            f"note: the tasks do not get {what} like a secret. Pass {'it' if len(names) == 1 else 'them'}: {options}"
        )


def _warn_of_texts(request: RunRequest) -> None:
    """Print a note for parameters whose values are texts, but look like a list or range of another program."""
    for text in () if request.quiet else request.parameters:
        meant = likely_parameter(text)
        if meant:
            values = [repr(value) for (value,) in parse_parameter(text)]
            what = f"value{'s' * (len(values) > 1)} {', '.join(values[:3])}{', …' * (len(values) > 3)}"
            Screen.of(sys.stderr).line(clean(f"note: --param {shlex.quote(text)} has the {what}. If you meant others: --param {meant}"))


_DO = ("does", "do")


def _show_reused(session: PoolSession, resume: Resumption, number: int, request: RunRequest) -> None:
    """Print how many tasks got the results of earlier tasks. With ``--explain-cache``, also print why the other tasks run."""
    screen = Screen.of(sys.stderr)
    row = session.ask("run", run=number)
    if not request.silent:
        screen.line(f"Reused the results of {row['reused']:,} of {plural(row['tasks'], 'task')}.")
    with suppress(BadInput):  # a master of the previous version does not know this request
        for other in session.ask("unfinished_equals", run=number):
            screen.line(
                f"note: run {other['run']} has not ended, and {plural(other['tasks'], 'task')} of it {_DO[other['tasks'] > 1]} the same. "
                f"To wait for that run instead: pilotfish cancel {number}; pilotfish attach {other['run']}"
            )
    missing = [] if request.silent else resume.missing_files(number)
    if missing:
        what = f"{missing[0]} is" if len(missing) == 1 else f"{len(missing):,} files, such as {missing[0]}, are"
        screen.line(clean(f"note: {what} missing, and reused tasks do not write files. To write them again, leave --resume out"))
    shared = [] if request.silent else resume.taken_as_outputs()
    if shared:
        which = f"{', '.join(shown_files(shared))} changed while earlier tasks of this command ran"
        screen.line(clean(f"note: {which}, so this counts as their output. If you changed an input then, leave --resume out"))
    if request.explain_cache:
        tasks = resume.explain(number)
        for line in (f"{task.task} runs: {task.text}" for task in tasks) if request.as_json else summed_up(tasks):
            screen.line(clean(line))


def _refuse_list(program: str) -> None:
    if os.path.splitext(program)[1] in LIST_ENDINGS and os.path.isfile(program) and not os.access(program, os.X_OK):
        name = shlex.quote(program)
        advice = f"If it lists tasks: pilotfish run --tasks {name}; if it is a program: chmod +x {name}"
        raise BadInput(f"{program!r} is a file that may not be executed", advice)


@contextmanager
def _uploading(request: RunRequest, count: int, title: str = "") -> Iterator[Progress]:
    """Show the number of submitted tasks during the submission. After Ctrl-C, print what happened to the run."""
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
    """Return a screen for progress lines. It shows them on a terminal only, and never if ``silent`` is True."""
    screen = Screen.of(sys.stderr)
    screen.is_terminal = screen.is_terminal and not silent
    return screen


def _show_detached(screen: Screen, number: int, count: int | None, request: RunRequest) -> None:
    """Print the number of a run that continues without this command. ``count``: number of its tasks; None if an application manager creates
    them."""
    if request.as_json:
        screen.json({"run": number, "tasks": count, "state": "submitted"})
    elif request.quiet:
        screen.line(str(number))
    else:
        what = f"Run {number}" if count is None else f"Run {number}: {plural(count, 'task')}"
        screen.line(f"{what} submitted. Follow it: pilotfish attach {number}")


def _show_end(screen: Screen, session: PoolSession, outcome: RunOutcome, request: RunRequest, live: LiveOutput | None = None) -> int:
    """Print the outcome and return the exit status. With ``live``, the rest of the output of the single task replaces the summary."""
    if request.report and not request.as_json and not outcome.left:
        show_report(screen, session, outcome.run)
    files = outcome.delivered.describe() if outcome.delivered is not None else ""
    if live is not None and not request.report and not outcome.left and not request.as_json:
        status = show_single(session, f"{outcome.run}.0", live)
        if files and not request.quiet:
            Screen.of(sys.stderr).line(files)
        return final_status(outcome, status)
    if request.quiet and not request.as_json:
        return final_status(outcome, exit_status_of(outcome))
    status = show_outcome(screen, outcome, request.as_json)
    # If there are output files, the outcome already shows where they are.
    if not request.report and not request.as_json and not outcome.left and not files and outcome.counts.get("done"):
        screen.line(f"Results:       pilotfish results {outcome.run}")
    return status


def _limited_cores(session: PoolSession, request: RunRequest) -> int:
    """Return the maximum number of cores that the run uses at the same time, or 0 for no limit. Print a note if the pool has fewer cores
    than the user wants."""
    cores, note = limited_cores(session, request)
    if note and not request.silent:
        Screen.of(sys.stderr).line(note)
    return cores


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
    "max_output": "--max-output",
}


def run_file(path: str, arguments: Sequence[str], request: RunRequest) -> int:
    program = f"If it is a program: pilotfish run ... -- python {path}"
    _refuse_inner(f"a run file ({path})", f"Set it in the file, for each task: tasks.add([...], cores=2). {program}", request)
    from pilotfish.applications.run_file import load_application

    loaded = load_application(path, arguments)
    return _run_loaded(loaded, shlex.join([loaded.path.name, *arguments]), request)


def run_dag(path: str, arguments: Sequence[str], request: RunRequest) -> int:
    from pilotfish.applications.dagman.dag_manager import DagManager
    from pilotfish.applications.dagman.node_tasks import node_tasks, task_list
    from pilotfish.applications.run_file import RunFile
    from pilotfish.cli.run_commands.dag_rescue import decide_outcome, keep_rescue

    if arguments:
        raise BadInput(
            f"a DAGMan file takes no arguments, and there are some: {shlex.join(arguments)}", f"Leave them out: pilotfish run {path}"
        )
    if request.is_sweep:
        raise BadInput(
            f"a DAGMan file ({path}) does not go with a sweep or a task list", "Give one of them: the file already has the tasks."
        )
    if request.resume:
        fix = f"Leave it out: pilotfish run {path} continues from the rescue file."
        raise BadInput(f"--resume does not go with a DAGMan file ({path})", fix)
    _refuse_inner(
        f"a DAGMan file ({path})", "Set it in the file: request_cpus = 2 in the submit description, RETRY NODE 2 in the DAG.", request
    )
    manager = DagManager(path)
    dag = manager.dag
    nodes = list(node_tasks(dag))
    for notice in () if request.silent else dag.notices:
        Screen.of(sys.stderr).line(f"note: {clean(notice)}")
    file = Path(path).resolve()
    if dag.needs_manager:
        ended = partial(decide_outcome, dag, quiet=request.silent)
        return _run_loaded(RunFile(file, None, manager), manager.command, request, ended=ended)
    command = shlex.join(["--dag", path]) + (f" # rescue {dag.rescue}" if dag.rescue else "")
    lines = [TaskDescription(task.command, label=task.label) for task in nodes]
    ended = partial(keep_rescue, dag, nodes, quiet=request.silent)
    return _run_loaded(RunFile(file, task_list(dag, nodes), None), command, request, lines, ended)


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
    """Submit a loaded run file or DAG and show the progress of the run. ``lines``: descriptions of the tasks. ``ended`` is called after the
    run."""
    screen = Screen.of()
    if request.dry_run:
        show_run_file_plan(screen, loaded, request.as_json)
        return 0
    has_outputs = loaded.tasks is not None and loaded.tasks.has_outputs
    outputs = plan_outputs(request, loaded.tasks, has_outputs)
    check_local_cores(request, loaded.tasks, loaded.manager is not None)
    _check_explain_cache(loaded, request)
    started = time.monotonic()
    session = connect_for(request)
    resume = Resumption(session, request.explain_cache, request.overwrite) if request.resume else None
    if loaded.tasks is not None:
        limit_tasks(loaded.tasks, _limited_cores(session, request))
    options = request.run_options(command, application=str(loaded.path) if loaded.manager is not None else "")
    if loaded.tasks is None:
        uid = secrets.token_hex(16)
        save_environment(session.directory, uid)
        number = session.begin(options, uid).run
        if outputs is not None:
            outputs.record(session.directory, number)
    else:
        with _uploading(request, len(loaded.tasks)) as progress:
            number = submit_tasks(session, ListSource(loaded.tasks, lines, resume), options, progress, outputs)
        if resume is not None:
            _show_reused(session, resume, number, request)
    if request.detach:
        _show_detached(screen, number, len(loaded.tasks) if loaded.tasks is not None else None, request)
        return status_of_detached(session, number)
    outcome = follow(session, number, quiet=request.silent, started=started)
    if ended is not None:
        ended(session, outcome)
    return _show_end(screen, session, outcome, request)


def _check_explain_cache(loaded: RunFile, request: RunRequest) -> None:
    if loaded.manager is not None and request.explain_cache:
        raise BadInput(
            f"--explain-cache does not go with the manager of {loaded.path.name}, which creates tasks during the run",
            "Leave it out; pilotfish tasks RUN shows which results were reused.",
        )


# --- what --dry-run shows ---------------------------------------------------------------------------------------------------------------

SHOWN_TASKS = 5
"""Maximum number of tasks that ``--dry-run`` shows."""


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
