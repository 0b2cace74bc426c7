"""run: from a line in a shell to tasks on workers."""

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
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import click

from pilotfish.applications.dagman.dag_file import read_dag
from pilotfish.applications.dagman.node_tasks import node_tasks, task_list
from pilotfish.applications.executable import executable_payload, executable_spec
from pilotfish.applications.input_files import digests
from pilotfish.applications.run_file import RunFile, load
from pilotfish.applications.task_list import TaskNeeds
from pilotfish.applications.task_options import TaskOptions, read_wishes
from pilotfish.cli.commands.attach_command import RunOutcome, exit_status_of, follow, show_outcome
from pilotfish.cli.commands.dag_rescue import keep_rescue
from pilotfish.cli.commands.log_commands import show_single
from pilotfish.cli.commands.results_command import SavedFiles, save_results, show_report
from pilotfish.cli.completions import complete_site
from pilotfish.cli.shared_options import deadline_option, json_option, pool_option, share_option
from pilotfish.cli.terminal.progress import HashingProgress, UploadProgressLine
from pilotfish.cli.terminal.screen import Screen, clean, plural
from pilotfish.client.run_handle import forget_run
from pilotfish.client.session import PoolSession, RunUpload, connect
from pilotfish.client.site_selection import SiteSelection, read_selection
from pilotfish.client.task_descriptions import TaskDescription, columns_of, keep_register
from pilotfish.client.task_source import PastOutputs, RunRequest, TaskSource, make_source
from pilotfish.errors import BadInput, PilotfishError, did_you_mean
from pilotfish.model.quantities import show_bytes, show_seconds
from pilotfish.model.task import UNNAMED, RunOptions
from pilotfish.portable.expressions.evaluation import BadExpression, parse
from pilotfish.portable.expressions.worker_properties import INFO, lacks_quotes, worker_properties

SHOWN_IN_DRY_RUN = 5
MOST_PROGRAMS = 50
"""So many kinds of tasks are told apart in one list."""
OF_FILES = ("--input", "--output", "--keep")
LIST_ENDINGS = ("", ".txt", ".list", ".lst", ".tasks")
MAX_NAME = 200
NUMBER = re.compile(r"[0-9]+([.][0-9]+)?")


class RunCommandLine(click.Command):
    """Remembers whether ``--`` stood before the command: ``run x.py`` is a run file, ``run -- x.py`` a program."""

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
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="How many cores of this machine to use.  [default: all]")
@click.option(
    "--site",
    "sites",
    multiple=True,
    metavar="NAME[:N]",
    shell_complete=complete_site,
    help="Run it at this site only, with N pilots; local is this machine. Repeatable.  [default: wherever there is a worker]",
)
@click.option("--param", "parameters", multiple=True, metavar="NAME=VALUES", help="Sweep: 0.1:1.0:0.1, 1..100, a,b,c or @file. Repeatable.")
@click.option("--params-from", "tables", multiple=True, metavar="FILE", help="Sweep over the rows of a CSV or JSON table.")
@click.option("--each-line", metavar="FILE", help="One task per line of FILE ('-': standard input), put where {} is.")
@click.option("--zip", "zipped", is_flag=True, help="Put the values of parameters side by side instead of combining them all.")
@click.option("--tasks", "task_list", metavar="FILE", help="A task list: one task per line.")
@click.option("--dag", metavar="FILE", help="A DAGMan file: nodes that wait for each other.")
@click.option("--name", metavar="NAME", default="", help="A name for the run.")
@click.option("--cores", metavar="N|A-B", help="Cores per task, or a range to choose from.  [default: 1]")
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes per task, of one pilot, for MPI.  [default: 1]")
@click.option("--memory", metavar="SIZE", help="Memory per task, such as 2G; a task that takes more is stopped.")
@click.option("--gpus", type=click.FloatRange(min=0), metavar="N", help="GPUs per task.")
@click.option("--resource", "resources", multiple=True, metavar="NAME=AMOUNT", help="Anything else that a worker must have. Repeatable.")
@click.option("--time", "time_limit", metavar="DURATION", help="Time limit per task, such as 90s or 1h30m.")
@click.option(
    "--warn",
    "warn_signal",
    metavar="SIGNAL",
    help="Sent to a task shortly before its worker's time is over, such as USR1.",
)
@click.option(
    "--retries", type=click.IntRange(min=0), metavar="N", default=0, show_default=True, help="How often a failed task is tried again."
)
@click.option("--priority", type=int, metavar="N", default=0, show_default=True, help="Tasks with a higher one go first.")
@share_option
@deadline_option
@click.option(
    "--max-failures", type=click.IntRange(min=0), metavar="N", default=0, help="Stop the run after so many failed tasks.  [default: never]"
)
@click.option(
    "--speculate/--no-speculate",
    default=None,
    help="When a task takes far longer than others, let an idle worker try it as well.  [default: as the pool's policy has it]",
)
@click.option("--require", "requirement", metavar="EXPRESSION", help="Only on workers for which this holds, such as 'memory >= 8G'.")
@click.option("--rank", metavar="EXPRESSION", help="Rather on workers for which this is larger, such as 'cores'.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="PATH",
    help="Bring a file or directory to each task's own directory; 3.0:FILE is what task 3.0 left. Repeatable.",
)
@click.option("--output", "outputs", multiple=True, metavar="FILE", help="Bring FILE (or a pattern) back, to run-N/INDEX/. Repeatable.")
@click.option(
    "--keep", multiple=True, metavar="FILE", help="As --output, but FILE stays with the worker, for tasks that need it. Repeatable."
)
@click.option(
    "--sandbox/--here", "sandbox", default=None, help="A fresh directory per task, or this one.  [default: this one, unless files travel]"
)
@click.option("--env", "environment", multiple=True, metavar="NAME[=VALUE]", help="Set a variable for the tasks. Repeatable.")
@click.option("--stdin", metavar="FILE", help="What the tasks read from their standard input.")
@click.option("--detach", is_flag=True, help="Do not wait for the end.")
@click.option("--dry-run", is_flag=True, help="Say what would be run, and run nothing.")
@click.option("--report", is_flag=True, help="Show results and where the time went.")
@click.option("--quiet", "-q", is_flag=True, help="No progress line and no summary.")
@pool_option
@json_option
@click.pass_context
def run(context: click.Context, /, **options: Any) -> int:
    """Run a command, a sweep, a task list, a run file or a DAGMan file.

    \b
    pilotfish run -- ./sim --seed 1
    pilotfish run --each-line inputs.txt -- ./sim {}
    pilotfish run --param alpha=0.1:1.0:0.1 --param seed=1..100 -- ./sim {alpha} {seed}
    pilotfish run --tasks tasks.txt
    pilotfish run workflow.py
    pilotfish run flow.dag

    {name} is the task's value of a parameter, {} its line, {#} its number. Ctrl-C leaves the run; the work goes on.
    The exit status is 0 when all tasks were done, 1 when some failed, 2 when the request itself is wrong, 3 when the run is
    kept but not started, because nothing fits it so far, and 4 when Pilotfish cannot do what was asked.
    """
    command: tuple[str, ...] = options["command"]
    check_name(options["name"])
    options["reading"] = HashingProgress(_progress_screen(options), time.monotonic)
    digests(options["reading"])
    options["sites"] = read_selection(options["sites"])
    options["typed"] = shlex.join(["pilotfish", *(context.obj or ["run"])])
    names_file = bool(command) and command[0].endswith((".py", ".dag")) and not context.meta["after_dashes"]
    if options["dag"] is not None or (names_file and not is_sweep(options)):
        return run_any_file(command, options)
    if len(command) == 1 and not context.meta["after_dashes"]:
        _refuse_list(command[0])
    source = make_source(_wording(options), os.environ, PastOutputs(options["pool"]))
    wanted = read_wishes(_wishes(options, command), "run")
    screen = Screen.of()
    if options["dry_run"]:
        files = {option: list(options[option]) for option in ("inputs", "outputs", "keep")}
        _show_plan(screen, source, wanted, files, options["as_json"])
        return 0
    options["started"] = time.monotonic()
    master = connect_for(options)
    warn_of_unknown(master, wanted)
    number = submit(master, source, wanted, options)
    return _after_submission(screen, master, source, number, options)


def _refuse_list(program: str) -> None:
    if os.path.splitext(program)[1] in LIST_ENDINGS and os.path.isfile(program) and not os.access(program, os.X_OK):
        name = shlex.quote(program)
        advice = f"If it lists tasks: pilotfish run --tasks {name}; if it is a program: chmod +x {name}"
        raise BadInput(f"{program!r} is a file that may not be executed", advice)


def connect_for(options: dict[str, Any]) -> PoolSession:
    """The master, told which sites the run is for."""
    wanted: SiteSelection = options["sites"]
    master = connect(options["pool"], start=True, workers=options["workers"] or wanted.local_cores)
    wanted.use(master.ask)
    return master


def is_sweep(options: dict[str, Any]) -> bool:
    return bool(options["parameters"] or options["tables"] or options["each_line"] or options["task_list"])


def _wording(options: dict[str, Any]) -> RunRequest:
    return RunRequest(**{field.name: options[field.name] for field in fields(RunRequest)})


def _wishes(options: dict[str, Any], command: tuple[str, ...]) -> dict[str, Any]:
    """The wishes of the command line in the words of the Python interface, which checks them."""
    wishes: dict[str, Any] = {"retries": options["retries"], "priority": options["priority"]}
    if command:
        wishes["name"] = os.path.basename(command[0])
    for option, wish in (("cores", "cores"), ("nodes", "nodes"), ("memory", "memory"), ("gpus", "gpus"), ("time_limit", "time")):
        if options[option] is not None:
            wishes[wish] = options[option]
    for option, wish in (("--require", "requirement"), ("--rank", "rank")):
        if options[wish] is not None:
            wishes[wish] = read_expression(option, options[wish])
    if options["resources"]:
        wishes["resources"] = dict(_resource(text) for text in options["resources"])
    return wishes


def _resource(text: str) -> tuple[str, float]:
    name, equals, amount = text.partition("=")
    try:
        value = float(amount)
    except ValueError:
        value = -1.0
    if not (equals and name) or value < 0:
        raise BadInput(f"--resource {text!r} is not NAME=AMOUNT", f"Write --resource {name or 'licence'}=1")
    return name, value


def check_name(name: str) -> None:
    """A name that could be taken for the number of a run or task would never be found again, nor one that nobody can type."""
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


def run_options_of(options: dict[str, Any]) -> dict[str, Any]:
    """What was said about the run's place in the line."""
    name, weight = options["share"] or ("", 0.0)
    return {"share": name, "weight": weight, "deadline": options["deadline"] or 0.0, "speculate": options["speculate"]}


def submit(master: PoolSession, source: TaskSource, wanted: TaskOptions, options: dict[str, Any]) -> int:
    """Hand over all tasks."""
    sites = options["sites"].names
    new = master.begin(
        RunOptions(
            name=options["name"],
            command=source.command,
            cwd=os.getcwd(),
            max_failures=options["max_failures"],
            sites=sites,
            **run_options_of(options),
        )
    )
    with handing_over(master, new, source.count, options) as submitting:
        if source.count > 1 and not (options["quiet"] or options["as_json"] or options["detach"]):
            Screen.of(sys.stderr).line(f"Run {new.number}: {plural(source.count, 'task')}: {clean(source.command.removeprefix('-- '))}")
        specs: dict[str, int] = {}
        costs = source.costs()
        with keep_register(master, new.number, columns_of(source.sweep.names)) as note:
            for place, (task, values, label) in enumerate(source.described()):
                kind = wanted.name or source.program_of(task) or UNNAMED
                if kind not in specs and len(specs) >= MOST_PROGRAMS:
                    kind = UNNAMED
                if kind not in specs:
                    specs[kind] = new.spec(*executable_spec(kind, source.launch, wanted))
                payload, contents = executable_payload(task)
                needs = TaskNeeds(source.parents(place), contents, costs[place] if costs else 1.0, source.awaited(place))
                new.add(specs[kind], payload, needs)
                if source.from_files:
                    note(TaskDescription(shlex.join(task.argv), values, label))
                submitting.one_more()
        new.confirm()
    return new.number


@contextmanager
def handing_over(master: PoolSession, new: RunUpload, count: int, options: dict[str, Any]) -> Iterator[UploadProgressLine]:
    """Shows how far it is. Interrupted, the run is cancelled, because nobody could hand over the rest; refused, it never was."""
    screen = _progress_screen(options)
    submitting = UploadProgressLine(screen, time.monotonic, count)
    try:
        yield submitting
    except BaseException as error:
        submitting.clear()
        options["reading"].clear()
        master.ask("cancel", run=new.number)
        if isinstance(error, PilotfishError) and not master.ask("run", run=new.number)["tasks"]:
            forget_run(master, new.number)
        if isinstance(error, KeyboardInterrupt):
            screen.line(f"Not all tasks were submitted: run {new.number} was cancelled. Again: {clean(options['typed'])}")
        raise
    finally:
        submitting.clear()


def _progress_screen(options: dict[str, Any]) -> Screen:
    """Where moving lines go: nowhere but to a terminal, and only if they are wanted."""
    screen = Screen.of(sys.stderr)
    screen.is_terminal = screen.is_terminal and not (options["quiet"] or options["as_json"])
    return screen


def _after_submission(screen: Screen, master: PoolSession, source: TaskSource, number: int, options: dict[str, Any]) -> int:
    quiet = options["quiet"] or options["as_json"]
    if options["detach"]:
        if options["as_json"]:
            screen.json({"run": number, "tasks": source.count, "state": "submitted"})
        elif options["quiet"]:
            screen.line(str(number))
        else:
            screen.line(f"Run {number}: {plural(source.count, 'task')} submitted. Watch it: pilotfish attach {number}")
        return 0
    outcome = follow(master, number, quiet, source.costs(), options["started"], alone=source.count == 1)
    return _tell(screen, master, source, outcome, options)


def _tell(screen: Screen, master: PoolSession, source: TaskSource, outcome: RunOutcome, options: dict[str, Any]) -> int:
    has_files = bool(options["outputs"] or options["keep"]) or (
        source.listed is not None and source.launch.sandbox and any(task.outputs for task in source.listed)
    )
    saved = SavedFiles()
    directory = f"run-{outcome.run}"
    if has_files and not outcome.left:
        saved = save_results(master, outcome.run, directory, streams=False)
    if options["report"] and not options["as_json"] and not outcome.left:
        show_report(screen, master, outcome)
    elif source.count == 1 and not outcome.left and not options["as_json"]:
        status = show_single(master, f"{outcome.run}.0")
        if (saved.files or saved.stayed) and not options["quiet"]:
            Screen.of(sys.stderr).line(saved.told(directory, outcome.run))
        return status
    if options["quiet"] and not options["as_json"]:
        return exit_status_of(outcome)
    status = show_outcome(screen, outcome, options["as_json"])
    if not options["as_json"] and not outcome.left:
        if saved.files or saved.stayed:
            screen.line(saved.told(directory, outcome.run))
        elif not options["report"] and outcome.counts.get("done"):
            screen.line(f"Results:       pilotfish results {outcome.run}")
    return status


def _show_plan(screen: Screen, source: TaskSource, wanted: TaskOptions, files: dict[str, list[str]], as_json: bool) -> None:
    """What would be run."""
    first = [(task.argv, label) for task, _, label in islice(source.described(), SHOWN_IN_DRY_RUN)]
    request = wanted.request
    if as_json:
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
        screen.line("  " + clean(TaskDescription(shlex.join(argv), label=label).told()))
    if source.count > len(first):
        screen.line(f"  ... and {source.count - len(first):,} more")
    for option, names in files.items():
        if names:
            screen.line(f"{option}: {clean(' '.join(names))}")


# ``pilotfish run workflow.py`` and ``run flow.dag``: files that say what to run, or an application that decides while it runs.

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
    lines = [TaskDescription(task.command, label=task.node.name) for task in node_tasks(dag)]
    return _run_loaded(loaded, command, options, lines, lambda master, outcome: keep_rescue(dag, master, outcome, quiet))


def _refuse_inner(what: str, fix: str, options: dict[str, Any]) -> None:
    for option, written in BELONGS_INSIDE.items():
        if options[option] not in (None, (), 0):
            raise BadInput(f"{written} does not go with {what}", fix)


def _run_loaded(
    loaded: RunFile,
    command: str,
    options: dict[str, Any],
    lines: Iterable[TaskDescription] = (),
    ended: Callable[[PoolSession, RunOutcome], None] | None = None,
) -> int:
    """``lines`` tell what its tasks are. ``ended`` is called when the run was followed to its end."""
    screen = Screen.of()
    if options["dry_run"]:
        _show_run_file(screen, loaded, options["as_json"])
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
    saved = save_results(master, number, f"run-{number}", streams=False) if _has_files(loaded) and not outcome.left else SavedFiles()
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


def _show_run_file(screen: Screen, loaded: RunFile, as_json: bool) -> None:
    tasks = len(loaded.tasks) if loaded.tasks is not None else None
    if as_json:
        screen.json({"tasks": tasks, "application": loaded.manager is not None})
    elif tasks is None:
        screen.line(f"Would start the application of {loaded.path.name}, which makes its tasks while it runs.")
    else:
        screen.line(f"Would run {plural(tasks, 'task')} of {loaded.path.name}.")


def _submit(master: PoolSession, loaded: RunFile, command: str, options: dict[str, Any], lines: Iterable[TaskDescription]) -> int:
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
        new.confirm()
    return new.number


# --require and --rank: read before anything is started, with a word about properties that no worker has.

EXAMPLES = {"--require": "memory >= 8G", "--rank": "cores"}
EVERYWHERE = tuple(worker_properties("", "", {}, {}, dict.fromkeys(INFO, "")))
OF_THE_PAIR = ("held", "wanted")
"""What only a rank may ask about: bytes of a task's inputs that are at the worker, and bytes of all of them."""


def read_expression(option: str, text: str) -> str:
    try:
        return str(parse(text))
    except BadExpression as problem:
        raise BadInput(f"{option}: {problem}", f"Write {option} '{EXAMPLES[option]}'; more: docs/reference/expressions.md") from problem


def warn_of_unknown(master: PoolSession, wanted: TaskOptions) -> None:
    """A worker to come may have any property, so that a misspelt one is no error. Nobody would see it for hours, though."""
    if not (wanted.requirement or wanted.rank):
        return
    here = [worker.get("properties", {}) for worker in master.ask("workers", all=False)]
    for option, text, more in (("--require", wanted.requirement, ()), ("--rank", wanted.rank, OF_THE_PAIR)):
        known = dict.fromkeys((*EVERYWHERE, *more, *(name for properties in here for name in properties)))
        for name in parse(text).names if text else ():
            quoted = f'A text stands in quotes: "{name}"' if text and lacks_quotes(name, parse(text), here) else ""
            if name not in known and (warning := _warning(option, name, did_you_mean(name, known) or quoted, bool(here))):
                Screen.of(sys.stderr).line(clean(warning))


def _warning(option: str, name: str, meant: str, any_here: bool) -> str:
    """As long as nobody is here, a tag is as good as any: then only what looks like something else is worth a word."""
    if name in OF_THE_PAIR:
        return f"warning: {option}: only --rank may ask for {name}, which is about a task and a worker; here it is not known"
    if not meant and not any_here:
        return ""
    return f"warning: {option}: no worker that is here has a property {name!r}. {meant}".rstrip()
