"""Makes the tasks of a command, sweep or task list, and submits them.

The whole request is checked before anything starts. The tasks are then made one by one while they are submitted.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from pathlib import Path

from pilotfish.applications.executable import (
    Executable,
    LaunchSpec,
    check_environment,
    check_inputs,
    check_outputs,
    check_signal,
    executable_payload,
    executable_spec,
    expand_inputs,
    program_as_input,
)
from pilotfish.applications.input_files import Source as Input
from pilotfish.applications.input_files import StoredFile
from pilotfish.applications.python_call import Register
from pilotfish.applications.sweeps.placeholders import Template, check_all_used, make_template
from pilotfish.applications.sweeps.sweep import Sweep, make_sweep
from pilotfish.applications.sweeps.task_list_file import ListedTask, TaskFile, read_task_file
from pilotfish.applications.task_list import TaskEntry, TaskList, TaskNeeds
from pilotfish.applications.task_options import TaskOptions
from pilotfish.client.run_options import RunRequest
from pilotfish.client.session import PoolSession, connect, connect_read_only, forget_run, task_name
from pilotfish.client.task_descriptions import TaskDescription, TaskRegister, columns_of, command_in
from pilotfish.client.task_output import fetch_output
from pilotfish.errors import BadInput, PilotfishError, did_you_mean
from pilotfish.model.contents import ExpectedFile
from pilotfish.model.environment import without_secrets
from pilotfish.model.task import UNNAMED, RunOptions

INTERPRETER = re.compile(r"(python|pypy|perl|ruby|Rscript|julia|node|lua|bash|dash|ksh|zsh|sh)[0-9.]*")
PLAIN_WORD = re.compile(r"[\w@%+=:,./{}#-]+")
MAX_STDIN_BYTES = 64 << 20
TEXT_BYTES = 256
SHOWN_COMMAND = 60
NOT_INHERITED = ("PILOTFISH_", "BASH_FUNC_")

MAX_PROGRAMS = 50
"""Maximum number of programs of a task list that have their own spec. All other programs share one spec."""

Progress = Callable[[int, int], None]
"""Is called with the number of the run and the number of submitted tasks: first with 0 when the run is open, then after each task."""
NewTask = tuple[TaskEntry, TaskDescription | None]
"""A task and its description. ``spec``: number of its spec in the run. The description is None if the register does not need it."""
ReadInputs = Callable[[Iterable[str]], dict[str, Input]]


@dataclass(frozen=True, slots=True)
class TaskSource:
    """Tasks to submit: their number, the options that they share, and the parts from which each task is made."""

    count: int
    launch: LaunchSpec
    command: str
    from_files: bool
    """Whether the run needs a register, because the tasks come from files. Otherwise the command line determines each task."""
    sweep: Sweep = field(default_factory=lambda: Sweep(()))
    templates: CommandTemplates | None = None
    listed: TaskFile | None = None
    read: ReadInputs = check_inputs
    """Reads the inputs of a listed task."""

    def described(self) -> Iterator[tuple[Executable, tuple[str, ...], str]]:
        """Yields each task with its parameter values and its label, which is the ``id=`` in a task list."""
        listed = self.listed
        if listed is not None:
            return ((self._listed_executable(listed, place, task), (), task.id) for place, task in enumerate(listed))
        templates = self.templates
        assert templates is not None
        return ((templates.fill(values, number), values, "") for number, values in enumerate(self.sweep))

    def parents(self, place: int) -> tuple[int, ...]:
        """Returns the indices of the tasks for which this task waits."""
        return self.listed.flow.parents[place] if self.listed is not None and self.listed.flow is not None else ()

    def future_files(self, place: int) -> tuple[ExpectedFile, ...]:
        """Returns the intermediate files that other tasks leave for this task."""
        return self.listed.future_files(place) if self.listed is not None and self.launch.sandbox else ()

    def _listed_executable(self, listed: TaskFile, place: int, task: ListedTask) -> Executable:
        outputs = check_outputs(task.outputs)
        if not self.launch.sandbox:
            return Executable(argv=task.argv, outputs=outputs)
        program = program_as_input(task.argv) if os.path.normpath(task.argv[0]) not in listed.intermediate_files else {}
        inputs = {**program, **self.read(_existing_inputs(task, listed.future_files(place)))}
        keep = tuple(name for name in outputs if name in listed.intermediate_files)
        return Executable(argv=task.argv, inputs=inputs, outputs=outputs, keep=keep)

    def program_of(self, task: Executable) -> str:
        """Returns the program of a task in a task list, which names the task class. For shell lines, returns an empty text."""
        if self.listed is None:
            return ""
        name, *rest = task.argv
        name = os.path.basename(name)
        if not INTERPRETER.fullmatch(name):
            return name
        return os.path.basename(rest[0]) if rest and not rest[0].startswith("-") else ""

    def costs(self) -> list[float] | None:
        """Returns the costs of the tasks, if the task list has different costs."""
        if self.listed is None:
            return None
        costs = [task.cost for task in self.listed]
        return costs if len(set(costs)) > 1 else None


@dataclass(frozen=True, slots=True)
class CommandTemplates:
    """Templates for the parts of an executable that differ from task to task."""

    argv: tuple[Template, ...]
    env: dict[str, Template]
    inputs: tuple[Template, ...]
    outputs: tuple[Template, ...]
    keep: tuple[Template, ...]
    stdin: Template | None
    add_program: bool
    resolve_inputs: InputResolver

    def all(self) -> list[Template]:
        return [*self.argv, *self.env.values(), *self.inputs, *self.outputs, *self.keep, *([self.stdin] if self.stdin else [])]

    def check_files(self, sweep: Sweep) -> None:
        """Checks the input files of all tasks, so that a missing file is found before the first task starts."""
        if self.inputs:
            for number, values in enumerate(sweep):
                check_inputs(self.resolve_inputs(template.fill(values, number) for template in self.inputs))

    def fill(self, values: tuple[str, ...], number: int) -> Executable:
        argv = tuple(template.fill(values, number) for template in self.argv)
        inputs = check_inputs(self.resolve_inputs(template.fill(values, number) for template in self.inputs)) if self.inputs else {}
        return Executable(
            argv=argv,
            inputs={**program_as_input(argv), **inputs} if self.add_program else inputs,
            outputs=tuple(template.fill(values, number) for template in self.outputs),
            keep=tuple(template.fill(values, number) for template in self.keep),
            stdin=_read_stdin(self.stdin.fill(values, number)) if self.stdin else b"",
            env={name: template.fill(values, number) for name, template in self.env.items()},
        )


def make_source(request: RunRequest, environ: Mapping[str, str], resolve_inputs: InputResolver = list) -> TaskSource:
    """Checks the whole request and returns its tasks. ``resolve_inputs`` replaces inputs such as ``3.0:mesh.bin`` by files of tasks."""
    _check_source(request)
    env = read_environment(request.environment, environ)
    if request.task_list is not None:
        return _from_list(request, env, environ, resolve_inputs)
    sweep = make_sweep(request.parameters, request.tables, request.each_line, request.zipped)
    sandbox = _sandbox(request, bool(request.inputs or request.outputs or request.keep))
    set_by_user = {text.partition("=")[0] for text in request.environment if "=" in text}
    varying = {name: value for name, value in env.items() if "{" in value and name in set_by_user}
    own_inputs = [text for text in request.inputs if "{" in text or is_past_output(text)]
    shared_inputs = [text for text in request.inputs if text not in own_inputs]
    names = sweep.names
    fixed_program = "{" not in request.command[0]
    templates = CommandTemplates(
        argv=tuple(make_template(word, names, "the command") for word in request.command),
        env={name: make_template(value, names, f"--env {name}") for name, value in varying.items()},
        inputs=tuple(make_template(text, names, "--input") for text in own_inputs),
        outputs=tuple(make_template(text, names, "--output") for text in check_outputs(request.outputs)),
        keep=tuple(make_template(text, names, "--keep") for text in check_outputs(request.keep, "--keep")),
        stdin=make_template(request.stdin, names, "--stdin") if request.stdin is not None else None,
        add_program=sandbox and not fixed_program,
        resolve_inputs=resolve_inputs,
    )
    check_all_used(templates.all(), [axis.names for axis in sweep.axes], "the command")
    templates.check_files(sweep)
    if fixed_program:
        check_program(request.command[0], environ)
    if request.stdin is not None and "{" not in request.stdin:
        _read_stdin(request.stdin)
    shared = check_inputs(expand_inputs(shared_inputs))
    if sandbox and fixed_program:
        shared = {**program_as_input(request.command), **shared}
    launch = LaunchSpec(
        cwd=os.getcwd(),
        sandbox=sandbox,
        env=_inherited_environment(environ) | {name: value for name, value in env.items() if name not in varying},
        inputs=shared,
        warn_signal=check_signal(request.warn_signal or 0),
    )
    columns = any(text.partition("=")[2].startswith("@") for text in request.parameters)
    from_files = columns or bool(request.tables) or request.each_line is not None
    return TaskSource(len(sweep), launch, _defining_command(request), from_files, sweep, templates)


def _check_source(request: RunRequest) -> None:
    sweeping = request.parameters or request.tables or request.each_line is not None
    if request.task_list is not None and (request.command or sweeping):
        extra = "a command" if request.command else "a sweep"
        raise BadInput(
            f"--tasks {request.task_list} and {extra} do not go together", "Give one of them: the list already has the commands."
        )
    if request.task_list is None and not request.command:
        fix = "Write the command after --, such as: pilotfish run --param seed=1..10 -- ./simulate {seed}"
        raise BadInput("there is a sweep, but no command to run" if sweeping else "there is no command to run", fix)


def _sandbox(request: RunRequest, needs_one: bool) -> bool:
    if needs_one and request.sandbox is False:
        raise BadInput(
            "--here does not go with --input, --output, --keep, in= or out=",
            "Leave --here out: files are brought to a fresh directory per task.",
        )
    return needs_one if request.sandbox is None else request.sandbox


def _from_list(request: RunRequest, env: dict[str, str], environ: Mapping[str, str], resolve_inputs: InputResolver) -> TaskSource:
    listed = read_task_file(str(request.task_list))
    past_outputs = [text for text in request.inputs if is_past_output(text)]

    def read(inputs: Iterable[str]) -> dict[str, Input]:
        # An output of an earlier task is an input of each task and not of the spec, because the file may be at one site only.
        return check_inputs(resolve_inputs([*past_outputs, *inputs]))

    intermediate_files = listed.intermediate_files
    twice = next((name for name in request.inputs if os.path.normpath(name) in intermediate_files), None)
    if twice is not None:
        raise BadInput(f"--input {twice}: a task of {request.task_list} makes it", "Leave it out: in= of those that need it is enough.")
    needs_sandbox, seen = bool(request.inputs or request.outputs or request.keep), set()
    for place, task in enumerate(listed):
        # If tasks make files for each other and the user did not request a sandbox, the tasks share the working directory.
        needs_sandbox |= (bool(task.inputs or task.outputs) and not intermediate_files) or any(map(is_past_output, task.inputs))
        try:
            read(_existing_inputs(task, listed.future_files(place)))
        except BadInput as problem:
            raise _with_task(problem, listed, task) from problem
        check_outputs(task.outputs)
        if task.argv[0] not in seen and os.path.normpath(task.argv[0]) not in intermediate_files:
            seen.add(task.argv[0])
            check_program(task.argv[0], environ)
    launch = LaunchSpec(
        cwd=os.getcwd(),
        sandbox=_sandbox(request, needs_sandbox),
        env=_inherited_environment(environ) | env,
        inputs=check_inputs(expand_inputs(text for text in request.inputs if text not in past_outputs)),
        outputs=check_outputs(request.outputs),
        keep=check_outputs(request.keep, "--keep"),
        warn_signal=check_signal(request.warn_signal or 0),
    )
    return TaskSource(len(listed), launch, f"--tasks {request.task_list}", True, listed=listed, read=read)


def _with_task(problem: BadInput, listed: TaskFile, task: ListedTask) -> BadInput:
    """Adds the task to the message of an error. If an input is missing, suggests the output of another task with a similar name."""
    outputs = [name for other in listed for name in other.outputs]
    missing = next((name for name in task.inputs if not os.path.lexists(name) and name not in outputs), "")
    meant = did_you_mean(missing, outputs) if missing else ""
    return BadInput(f"{listed.path}, {shlex.join(task.argv)[:SHOWN_COMMAND]}: {problem}", meant or problem.hint)


def _existing_inputs(task: ListedTask, future_files: Iterable[ExpectedFile]) -> list[str]:
    """Returns the inputs of a task that no other task of the list makes."""
    future_names = {file.name for file in future_files}
    return [name for name in task.inputs if os.path.normpath(name) not in future_names]


def read_environment(texts: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Reads environment variables. ``NAME=VALUE`` sets a variable. ``NAME`` copies the value from this environment."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            if name not in environ:
                raise BadInput(f"--env {name}: there is no such variable here", did_you_mean(name, environ) or f"Write --env {name}=VALUE")
            value = environ[name]
        found[name] = value
    return check_environment(found)


def _inherited_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns this environment without the variables of Pilotfish and without probable secrets, because the journal would keep them."""
    return {name: value for name, value in without_secrets(environ).items() if not name.startswith(NOT_INHERITED)}


def check_program(program: str, environ: Mapping[str, str]) -> None:
    """Checks that a program exists. Without this check, a misspelt name would fail in every task."""
    if "/" in program:
        _check_path(Path(program), program)
    elif shutil.which(program, path=environ.get("PATH")) is None:
        if os.path.isfile(program):
            raise BadInput(f"the program {program!r} is a file here, not a command", f"Write {_interpreter(program)}./{program}")
        raise BadInput(
            f"there is no program {program!r}", _nearest_program(program, environ) or "Check its name, and that PATH has its directory."
        )


def _check_path(path: Path, program: str) -> None:
    if path.is_dir():
        raise BadInput(f"the program {program!r} is a directory", f"See what is in it: ls {program}")
    if not path.is_file():
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise BadInput(
            f"the program {program!r} does not exist", did_you_mean(path.name, siblings) or f"Look where it is: ls {path.parent}"
        )
    if not os.access(path, os.X_OK):
        instead = f", or name what reads it: {_interpreter(program)}{program}" if _interpreter(program) else ""
        raise BadInput(f"the program {program!r} may not be executed", f"Allow it: chmod +x {program}{instead}")
    if _is_plain_text(path):
        raise BadInput(
            f"the program {program!r} has no interpreter line: it is a text whose first line does not begin with #!",
            f"Put #!/bin/sh (or what it is written for) there, or name it: sh {program}",
        )


def _is_plain_text(path: Path) -> bool:
    """Tests whether the file is text without ``#!``. Only a shell can run such a file."""
    try:
        with path.open("rb") as file:
            start = file.read(TEXT_BYTES)
    except OSError:
        return False
    return bool(start) and not start.startswith(b"#!") and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in start)


def _interpreter(program: str) -> str:
    """Returns the usual interpreter of a file that is not executable, with a space after it."""
    if os.access(program, os.X_OK):
        return ""
    return {".py": "python ", ".sh": "sh ", ".R": "Rscript ", ".jl": "julia ", ".pl": "perl "}.get(Path(program).suffix, "")


def _nearest_program(program: str, environ: Mapping[str, str]) -> str:
    names: set[str] = set()
    for directory in environ.get("PATH", "").split(os.pathsep):
        if os.path.isdir(directory):
            names.update(entry for entry in os.listdir(directory) if entry[:1] == program[:1])
    return did_you_mean(program, sorted(names))


@lru_cache(maxsize=8)
def _read_stdin(path: str) -> bytes:
    """Reads a file. Caches its content, because a pipe cannot be read twice. Limits its size, because a device has no end."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_STDIN_BYTES + 1)
        if len(content) > MAX_STDIN_BYTES:
            raise BadInput(f"--stdin {path}: more than {MAX_STDIN_BYTES >> 20} MiB", "Give large data as a file: --input FILE")
        return content
    except OSError as error:
        raise BadInput(
            f"--stdin {path}: {(error.strerror or 'cannot be read').lower()}", f"Look where it is: ls {Path(path).parent}"
        ) from None


def _defining_command(request: RunRequest) -> str:
    """Returns the part of the command line that determines the tasks. Listings show it, and the descriptions of tasks are made from it."""
    words: list[str] = []
    for option, values in (("--param", request.parameters), ("--params-from", request.tables)):
        for value in values:
            words += [option, value]
    words += ["--each-line", request.each_line] if request.each_line is not None else []
    words += ["--zip"] if request.zipped else []
    return " ".join(word if PLAIN_WORD.fullmatch(word) else shlex.quote(word) for word in [*words, "--", *request.command])


# --- submitting -----------------------------------------------------------------------------------------------------------------------


def connect_for(request: RunRequest) -> PoolSession:
    """Opens a session with the pool of a request. Tells the master which sites to use."""
    session = connect(request.pool, start=True, local_cores=request.local_cores or request.sites.local_cores)
    request.sites.use(session.ask)
    return session


def submit_source(session: PoolSession, source: TaskSource, task_options: TaskOptions, options: RunOptions, progress: Progress) -> int:
    """Submits all tasks of a source as one run and returns the number of the run. If there is an error, cancels the run."""

    def tasks(spec_number: Register) -> Iterator[NewTask]:
        specs: dict[str, int] = {}
        costs = source.costs()
        for place, (task, values, label) in enumerate(source.described()):
            kind = task_options.name or source.program_of(task) or UNNAMED
            if kind not in specs and len(specs) >= MAX_PROGRAMS:
                kind = UNNAMED
            if kind not in specs:
                specs[kind] = spec_number(*executable_spec(kind, source.launch, task_options))
            payload, contents = executable_payload(task)
            needs = TaskNeeds(source.parents(place), contents, costs[place] if costs else 1.0, source.future_files(place))
            description = TaskDescription(shlex.join(task.argv), values, label) if source.from_files else None
            yield TaskEntry(specs[kind], payload, needs), description

    return _submit(session, tasks, columns_of(source.sweep.names), options, progress)


def submit_tasks(
    session: PoolSession, listed: TaskList, descriptions: Iterable[TaskDescription], options: RunOptions, progress: Progress
) -> int:
    """Submits all tasks of a run file or DAG as one run and returns the number of the run. If there is an error, cancels the run.

    If an executable has no entry in ``descriptions``, its command line describes it.
    """

    def tasks(spec_number: Register) -> Iterator[NewTask]:
        numbers = [spec_number(*spec) for spec in listed.specs]
        for entry, description in zip(listed.take(), itertools.chain(descriptions, itertools.repeat(None)), strict=False):
            if description is None and listed.specs[entry.spec][0].kind == "exec":
                description = TaskDescription(command_in(entry.payload))
            yield entry._replace(spec=numbers[entry.spec]), description

    return _submit(session, tasks, (), options, progress)


def _submit(
    session: PoolSession, tasks: Callable[[Register], Iterator[NewTask]], names: tuple[str, ...], options: RunOptions, progress: Progress
) -> int:
    """Submits tasks as one run and returns its number. After an error, cancels the run, or forgets it if the master has no task of it."""
    run = session.begin(options)
    number = run.run
    try:
        progress(number, 0)
        register = TaskRegister(session.directory, number, names)
        for place, (task, description) in enumerate(tasks(partial(session.spec_number, run))):
            session.submit(run, task.spec, task.payload, needs=task.needs)
            if description is not None:
                register.note(place, description)
                register.flush_if_due()
            progress(number, place + 1)
        register.flush()
        session.confirm(run)
    except BaseException as error:
        session.ask("cancel", run=number)
        if isinstance(error, PilotfishError) and not session.ask("run", run=number)["tasks"]:
            forget_run(session, number)
        raise
    return number


# Outputs of earlier tasks as inputs: ``--input 3.0:mesh.bin`` is a file that the task 3.0 left on this machine or on a worker.

PAST_OUTPUT = re.compile(r"([0-9]+[.][0-9]+):(.+)")
CACHED_TASKS = 256
"""Maximum number of tasks whose results are cached."""

InputResolver = Callable[[Iterable[str]], list[str | StoredFile]]


class PastOutputs:
    """Replaces inputs that name outputs of earlier tasks by the files. Connects to the pool only if there is such an input."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._master: PoolSession | None = None
        self._files_of = lru_cache(CACHED_TASKS)(self._ask)

    def __call__(self, inputs: Iterable[str]) -> list[str | StoredFile]:
        return [source for text in inputs for source in self._resolve(text)]

    def _resolve(self, text: str) -> list[str | StoredFile]:
        match = PAST_OUTPUT.fullmatch(text)
        if match is None or os.path.lexists(text):
            return [text]
        task, name = task_name(match[1]), match[2].rstrip("/")
        files = self._files_of(task)
        found: list[str | StoredFile] = [files[one] for one in files if one.startswith(f"{name}/") or one == name or fnmatchcase(one, name)]
        if not found:
            left = f"It left {', '.join(list(files)[:5])}" if files else "It left none: name its outputs with --output or --keep"
            raise BadInput(f"--input {text}: task {task} left no file {name!r}", did_you_mean(name, files) or left)
        return found

    def _ask(self, task: str) -> dict[str, StoredFile]:
        self._master = self._master or connect_read_only(self._pool)
        row = self._master.ask("task", task=task)
        if row["state"] != "done":
            raise BadInput(f"--input {task}: task {task} is {row['state']}, and not done", f"See why: pilotfish why {task}")
        completed = fetch_output(self._master, row).completed
        return completed.files if completed is not None else {}


def is_past_output(text: str) -> bool:
    return PAST_OUTPUT.fullmatch(re.sub(r"{[^{}]*}", "0", text)) is not None and not os.path.lexists(text)
