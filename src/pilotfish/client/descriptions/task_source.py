"""Makes the tasks of a command, sweep or task list, and submits them.

The whole request is checked first. After the check, each task is made just before its submission.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from pilotfish.applications.calls.python_call import Register
from pilotfish.applications.destinations import check_destination, split_output
from pilotfish.applications.executables.executable import (
    Executable,
    LaunchSpec,
    check_environment,
    check_inputs,
    check_outputs,
    check_signal,
    executable_payload,
    executable_spec,
    expand_inputs,
)
from pilotfish.applications.executables.program_environment import inherited_environment
from pilotfish.applications.executables.program_inputs import program_inputs, uncovered
from pilotfish.applications.input_files import Source as Input
from pilotfish.applications.input_files import StoredFile
from pilotfish.applications.reuse.program_files import INTERPRETER, program_words
from pilotfish.applications.reuse.result_reuse import ResultReuse
from pilotfish.applications.reuse.task_keys import ProgramFiles, files_hash
from pilotfish.applications.sweeps.placeholders import (
    Template,
    check_all_used,
    check_values,
    find_placeholders,
    make_command_templates,
    make_template,
)
from pilotfish.applications.sweeps.sweep import Sweep, make_sweep, split_lists
from pilotfish.applications.sweeps.task_list_file import ListedTask, TaskFile, read_task_file
from pilotfish.applications.task_list import TaskEntry, TaskList
from pilotfish.applications.task_needs import TaskNeeds
from pilotfish.applications.task_options import TaskOptions
from pilotfish.client.descriptions.passed_input import MAX_STDIN_BYTES, check_stdin_size, read_passed_input
from pilotfish.client.descriptions.program_check import check_not_quoted, check_program
from pilotfish.client.descriptions.run_options import RunRequest
from pilotfish.client.descriptions.task_descriptions import TaskDescription, TaskRegister, columns_of, command_in, input_names
from pilotfish.client.outputs.output_destinations import OutputDestinations
from pilotfish.client.outputs.task_output import fetch_output
from pilotfish.client.reuse.program_register import ProgramRegister
from pilotfish.client.reuse.resumption import Resumption
from pilotfish.client.session import PoolSession, connect, connect_read_only, forget_run, task_name
from pilotfish.errors import BadInput, Correction, PilotfishError, did_you_mean
from pilotfish.model.contents import ExpectedFile
from pilotfish.model.task import UNNAMED, RunOptions

PLAIN_WORD = re.compile(r"[\w@%+=:,./{}#-]+")
SHOWN_VALUES = 10
"""Maximum number of values of a ``:::`` list that the command of a run shows."""

MAX_PROGRAMS = 50
"""Maximum number of programs of a task list that have their own spec. All other programs share one spec."""

Progress = Callable[[int, int], None]
"""A function that receives the number of the run and the count of submitted tasks. It is called once after the run is opened, and again
after each task."""
NewTask = tuple[TaskEntry, TaskDescription | None]
"""A task and its description. The ``spec`` of the task is the number of a spec in the run. The description is None if the run has no
register.
"""


class MadeTask(NamedTuple):
    """A task that is ready to be submitted. The description is None if the run has no register."""

    entry: TaskEntry
    description: TaskDescription | None
    executable: Executable
    inputs: tuple[str, ...]
    """Names of the task's own inputs."""


ReadInputs = Callable[[Iterable[str]], dict[str, Input]]


@dataclass(frozen=True, slots=True)
class TaskSource:
    """Tasks to submit: their number, the options that they share, and the parts from which each task is made."""

    count: int
    launch: LaunchSpec
    command: str
    from_files: bool
    """Whether the tasks come from files or long lists. If so, the run needs a register. If not, the command of the run determines each
    task."""
    sweep: Sweep = field(default_factory=lambda: Sweep(()))
    templates: CommandTemplates | None = None
    listed: TaskFile | None = None
    read: ReadInputs = check_inputs
    """Reads the inputs of a listed task."""
    outputs: tuple[OutputTemplate, ...] = ()
    """Templates for the outputs that all tasks have."""
    resume: Resumption | None = None
    """Decides which tasks get the results of earlier tasks. If it is None, all tasks run."""
    literal_braces: str = ""
    """Where a task list contains a text that would be a placeholder in a sweep, such as ``line 3: {x}``. Empty if there is no such text."""

    def described(self) -> Iterator[tuple[Executable, tuple[str, ...], str]]:
        """Yields each task with its parameter values and its label, which is the ``id=`` in a task list."""
        listed = self.listed
        if listed is not None:
            return ((self._listed_executable(listed, place, task), (), task.id) for place, task in enumerate(listed))
        templates = self.templates
        assert templates is not None
        return ((templates.fill(values, number), values, "") for number, values in enumerate(self.sweep))

    def destinations(self) -> dict[int, dict[str, str]]:
        """Maps the index of a task to the destinations of its outputs. Leaves out tasks whose outputs have no destination."""
        named = [output for output in self.outputs if output.destination is not None]
        if not named:
            return {}
        rows = enumerate(self.sweep) if self.listed is None else ((place, ()) for place in range(self.count))
        return {place: dict(output.fill(values, place) for output in named) for place, values in rows}

    @property
    def has_undirected_files(self) -> bool:
        """Returns whether tasks can leave output files that have no destination."""
        in_list = self.listed is not None and self.launch.sandbox and any(task.outputs for task in self.listed)
        return in_list or any(output.destination is None for output in self.outputs)

    def parents(self, place: int) -> tuple[int, ...]:
        """Returns the indices of the tasks for which the task with the index ``place`` waits."""
        return self.listed.flow.parents[place] if self.listed is not None and self.listed.flow is not None else ()

    def future_files(self, place: int) -> tuple[ExpectedFile, ...]:
        """Returns the intermediate files that other tasks leave for the task with the index ``place``."""
        return self.listed.future_files(place) if self.listed is not None and self.launch.sandbox else ()

    def _listed_executable(self, listed: TaskFile, place: int, task: ListedTask) -> Executable:
        outputs = check_outputs(task.outputs)
        if not self.launch.sandbox:
            return Executable(argv=task.argv, outputs=outputs)
        inputs = self.read(_existing_inputs(task, listed.future_files(place)))
        taken = {**self.launch.inputs, **dict.fromkeys(listed.intermediate_files, b""), **inputs}
        inputs = {**uncovered(program_inputs(task.argv, self.launch.env), taken), **inputs}
        keep = tuple(name for name in outputs if name in listed.intermediate_files)
        return Executable(argv=task.argv, inputs=inputs, outputs=outputs, keep=keep)

    def program_of(self, task: Executable) -> str:
        """Returns the task class of a task from a task list: the name of its program. If the program is an interpreter, returns the name of
        the script. Returns an empty text if an interpreter has no script, as in ``sh -c``, and for a task that is not from a task list."""
        if self.listed is None:
            return ""
        name, *rest = task.argv
        name = os.path.basename(name)
        if not INTERPRETER.fullmatch(name):
            return name
        return os.path.basename(rest[0]) if rest and not rest[0].startswith("-") else ""

    def shared_words(self) -> frozenset[str]:
        """Returns the words that are in the commands of several tasks."""
        if self.listed is not None:
            counts = Counter(word for task in self.listed for word in set(task.argv))
            return frozenset(word for word, count in counts.items() if count > 1)
        assert self.templates is not None
        return frozenset(template.fill((), 0) for template in self.templates.argv if not template.uses)

    @property
    def may_repeat(self) -> bool:
        """Returns whether two of the tasks can be equal."""
        if self.listed is not None:
            return len({task.argv for task in self.listed}) < len(self.listed)
        return self.sweep.times > 1 or any(axis.may_repeat for axis in self.sweep.axes)

    def costs(self) -> list[float] | None:
        """Returns the costs of the tasks. Returns None if all costs are equal or if there is no task list."""
        if self.listed is None:
            return None
        costs = [task.cost for task in self.listed]
        return costs if len(set(costs)) > 1 else None


class OutputTemplate(NamedTuple):
    """Template for the name of an output, and for its destination if it has one."""

    name: Template
    destination: Template | None

    def all(self) -> list[Template]:
        return [self.name] if self.destination is None else [self.name, self.destination]

    def fill(self, values: tuple[str, ...], number: int) -> tuple[str, str]:
        assert self.destination is not None
        (name,) = check_outputs([self.name.fill(values, number)], "--output")
        return name, check_destination(name, self.destination.fill(values, number), "--output")


def read_outputs(texts: Sequence[str], names: Sequence[str] | None) -> tuple[OutputTemplate, ...]:
    """Makes the templates of ``--output NAME`` and ``--output NAME=DESTINATION``."""
    templates = []
    for name, destination in map(split_output, texts):
        (checked,) = check_outputs([name], "--output")
        target: Template | None = None
        if destination:
            target = make_template(check_destination(checked, destination, "--output"), names, f"--output {name}")
        templates.append(OutputTemplate(make_template(checked, names, "--output"), target))
    return tuple(templates)


@dataclass(frozen=True, slots=True)
class CommandTemplates:
    """Templates for the parts of an executable that differ from task to task."""

    argv: tuple[Template, ...]
    env: dict[str, Template]
    inputs: tuple[Template, ...]
    outputs: tuple[OutputTemplate, ...]
    keep: tuple[Template, ...]
    stdin: Template | None
    shared_stdin: bytes
    shared_stdin_path: str
    program_environment: Mapping[str, str] | None
    """If the tasks run in sandboxes: the environment in which to look for the files of the program that each sandbox needs. Otherwise
    None."""
    shared_inputs: dict[str, Input]
    resolve_inputs: InputResolver

    def all(self) -> list[Template]:
        outputs = [template for output in self.outputs for template in output.all()]
        return [*self.argv, *self.env.values(), *self.inputs, *outputs, *self.keep, *([self.stdin] if self.stdin else [])]

    def check_files(self, sweep: Sweep) -> None:
        """Checks the input files of all tasks, so that a missing file is found before the first task starts."""
        if self.inputs:
            for number, values in enumerate(sweep):
                check_inputs(self.resolve_inputs(template.fill(values, number) for template in self.inputs))

    def fill(self, values: tuple[str, ...], number: int) -> Executable:
        argv = tuple(template.fill(values, number) for template in self.argv)
        inputs = check_inputs(self.resolve_inputs(template.fill(values, number) for template in self.inputs)) if self.inputs else {}
        if self.program_environment is not None:
            program = program_inputs(argv, self.program_environment)
            inputs = {**uncovered(program, {**self.shared_inputs, **inputs}), **inputs}
        stdin_path = self.stdin.fill(values, number) if self.stdin else self.shared_stdin_path
        return Executable(
            argv=argv,
            inputs=inputs,
            outputs=tuple(output.name.fill(values, number) for output in self.outputs),
            keep=tuple(template.fill(values, number) for template in self.keep),
            stdin=_read_stdin(stdin_path) if self.stdin else self.shared_stdin,
            env={name: template.fill(values, number) for name, template in self.env.items()},
            stdin_path=stdin_path,
        )


def make_source(request: RunRequest, environ: Mapping[str, str], resolve_inputs: InputResolver = list) -> TaskSource:
    """Checks the whole request and returns its tasks. ``resolve_inputs`` replaces inputs such as ``3.0:mesh.bin`` by files of tasks."""
    _check_source(request)
    env = read_environment(request.environment, environ)
    if request.task_list is not None:
        return _from_list(request, env, environ, resolve_inputs)
    command, lists = split_lists(request.command)
    check_not_quoted(command[0], environ)
    sweep = make_sweep(request.parameters, request.tables, request.each_line, request.zipped, lists, request.times or 1)
    sandbox = _sandbox(request, bool(request.inputs or request.outputs or request.keep))
    set_by_user = {text.partition("=")[0] for text in request.environment if "=" in text}
    varying = {name: value for name, value in env.items() if "{" in value and name in set_by_user}
    own_inputs = [text for text in request.inputs if "{" in text or is_past_output(text)]
    shared_inputs = [text for text in request.inputs if text not in own_inputs]
    names = sweep.names if request.has_values else None
    inherited = inherited_environment(environ) | {name: value for name, value in env.items() if name not in varying}
    shared = check_inputs(expand_inputs(shared_inputs))
    if sandbox:
        # A word with a placeholder differs from task to task. Programs and scripts that other words name are the same for all tasks, so
        # they are sent once.
        shared = {**uncovered(program_inputs([word if "{" not in word else "-" for word in command], inherited), shared), **shared}
    own_stdin = request.stdin is not None and "{" in request.stdin
    templates = CommandTemplates(
        argv=make_command_templates(command, names),
        env={name: make_template(value, names, f"--env {name}") for name, value in varying.items()},
        inputs=tuple(make_template(text, names, "--input") for text in own_inputs),
        outputs=read_outputs(request.outputs, names),
        keep=tuple(make_template(text, names, "--keep") for text in check_outputs(request.keep, "--keep")),
        stdin=make_template(str(request.stdin), names, "--stdin") if own_stdin else None,
        shared_stdin=b"" if own_stdin else _shared_stdin(request),
        shared_stdin_path="" if own_stdin or request.stdin in (None, "-") else str(request.stdin),
        program_environment=inherited if sandbox else None,
        shared_inputs=shared,
        resolve_inputs=resolve_inputs,
    )
    check_all_used(templates.all(), sweep.axes, "the command")
    check_values(templates.all(), sweep.axes)
    templates.check_files(sweep)
    if "{" not in command[0]:
        check_program(command[0], environ)
    launch = LaunchSpec(
        cwd=os.getcwd(),
        sandbox=sandbox,
        whole_env=True,
        env=inherited,
        inputs=shared,
        warn_signal=check_signal(request.warn_signal or 0),
    )
    hides_values = _hides_values(request) or any(len(values) > SHOWN_VALUES for _, values in lists)
    return TaskSource(len(sweep), launch, _defining_command(request), hides_values, sweep, templates, outputs=templates.outputs)


def _hides_values(request: RunRequest) -> bool:
    """Returns whether some values of a sweep come from files. The command of the run then does not contain all values."""
    columns = any(text.partition("=")[2].startswith("@") for text in request.parameters)
    return columns or bool(request.tables) or request.each_line is not None


def _check_source(request: RunRequest) -> None:
    sweeping = request.has_values
    if request.task_list is not None and (request.command or sweeping):
        extra = "a command" if request.command else "a sweep"
        raise BadInput(
            f"--tasks {request.task_list} and {extra} do not go together", "Give one of them: the list already has the commands."
        )
    files = next((word for word in request.command if word in ("::::", "::::+")), "")
    if files:
        fix = "Read the lines of a file with --each-line FILE, and write {} where the line should go."
        raise BadInput(f"{files} of GNU parallel is not known, and would be an argument of the command", fix)
    if request.task_list is None and not split_lists(request.command)[0]:
        fix = "Write the command after --, such as: pilotfish run --param seed=1..10 -- ./simulate {seed}"
        raise BadInput("there is a sweep, but no command to run" if sweeping else "there is no command to run", fix)


def _sandbox(request: RunRequest, needs_one: bool) -> bool:
    if needs_one and request.sandbox is False:
        raise BadInput(
            "--here does not go with --input, --output, --keep, in= or out=",
            Correction("Leave --here out: files are brought to a fresh directory per task.", "--here", ""),
        )
    return needs_one if request.sandbox is None else request.sandbox


def _from_list(request: RunRequest, env: dict[str, str], environ: Mapping[str, str], resolve_inputs: InputResolver) -> TaskSource:
    listed = read_task_file(str(request.task_list))
    past_outputs = [text for text in request.inputs if is_past_output(text)]

    def read(inputs: Iterable[str]) -> dict[str, Input]:
        # An output of an earlier task becomes an input of each task and not of the spec, because possibly only one site has the file.
        return check_inputs(resolve_inputs([*past_outputs, *inputs]))

    intermediate_files = listed.intermediate_files
    twice = next((name for name in request.inputs if os.path.normpath(name) in intermediate_files), None)
    if twice is not None:
        raise BadInput(f"--input {twice}: a task of {request.task_list} makes it", "Leave it out: in= of those that need it is enough.")
    needs_sandbox, seen, braces = bool(request.inputs or request.outputs or request.keep), set(), ""
    for place, task in enumerate(listed):
        # Tasks that make files for each other share the working directory, except if the user requested sandboxes.
        needs_sandbox |= (bool(task.inputs or task.outputs) and not intermediate_files) or any(map(is_past_output, task.inputs))
        try:
            read(_existing_inputs(task, listed.future_files(place)))
        except BadInput as problem:
            raise _with_task(problem, listed, task) from problem
        check_outputs(task.outputs)
        braces = braces or next((f"line {task.line}: {text}" for word in task.argv if "{" in word for text in find_placeholders(word)), "")
        if task.argv[0] not in seen and os.path.normpath(task.argv[0]) not in intermediate_files:
            seen.add(task.argv[0])
            check_program(task.argv[0], environ)
    sandbox = _sandbox(request, needs_sandbox)
    environment = inherited_environment(environ) | env
    shared = check_inputs(expand_inputs(text for text in request.inputs if text not in past_outputs))
    if sandbox and len({program_words(task.argv) for task in listed}) == 1:  # the program of all tasks is sent once
        program = program_inputs(next(iter(listed)).argv, environment)
        shared = {**uncovered(program, {**shared, **dict.fromkeys(intermediate_files, b"")}), **shared}
    launch = LaunchSpec(
        cwd=os.getcwd(),
        sandbox=sandbox,
        whole_env=True,
        env=environment,
        inputs=shared,
        outputs=check_outputs([split_output(text)[0] for text in request.outputs], "--output"),
        keep=check_outputs(request.keep, "--keep"),
        warn_signal=check_signal(request.warn_signal or 0),
    )
    outputs = read_outputs(request.outputs, ())
    return TaskSource(
        len(listed), launch, f"--tasks {request.task_list}", True, listed=listed, read=read, outputs=outputs, literal_braces=braces
    )


def _with_task(problem: BadInput, listed: TaskFile, task: ListedTask) -> BadInput:
    """Adds the line of the task to the message of an error. If an input is missing, suggests an output with a similar name that another
    task makes."""
    outputs = [name for other in listed for name in other.outputs]
    missing = next((name for name in task.inputs if not os.path.lexists(name) and name not in outputs), "")
    meant = did_you_mean(missing, outputs) if missing else ""
    return BadInput(f"{listed.path}, line {task.line}: {problem}", meant or problem.hint)


def _existing_inputs(task: ListedTask, future_files: Iterable[ExpectedFile]) -> list[str]:
    """Returns the inputs of a task that no other task of the list makes."""
    future_names = {file.name for file in future_files}
    return [name for name in task.inputs if os.path.normpath(name) not in future_names]


def read_environment(texts: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Reads environment variables. ``NAME=VALUE`` sets a variable. ``NAME`` copies the value from ``environ``."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            if name not in environ:
                raise BadInput(
                    f"--env {name}: there is no such variable here",
                    did_you_mean(name, environ) or Correction(f"Write --env {name}=VALUE", name, f"{name}=VALUE"),
                )
            value = environ[name]
        found[name] = value
    return check_environment(found)


@lru_cache(maxsize=8)
def _read_stdin(path: str) -> bytes:
    """Reads the file for standard input and caches the bytes, because a pipe can be read only once. Raises BadInput if there are too many
    bytes. Without this limit, the program would read forever from a device such as /dev/zero."""
    try:
        with open(path, "rb") as file:
            return check_stdin_size(file.read(MAX_STDIN_BYTES + 1), f"--stdin {path}")
    except OSError as error:
        raise BadInput(
            f"--stdin {path}: {(error.strerror or 'cannot be read').lower()}", f"Look where it is: ls {Path(path).parent}"
        ) from None


def _shared_stdin(request: RunRequest) -> bytes:
    """Returns the standard input that all tasks get: the bytes of a file, or the standard input of this process.

    With ``--stdin -``, all tasks get the standard input of this process. Without ``--stdin``, the task of a single command gets it, but the
    tasks of a sweep do not: the user probably does not mean it for every task.
    """
    if request.stdin == "-":
        if request.each_line == "-":
            raise BadInput("--stdin - and --each-line - both read standard input", "Give one of them a file.")
        return check_stdin_size(sys.stdin.buffer.read(MAX_STDIN_BYTES + 1))
    if request.stdin is not None:
        return _read_stdin(request.stdin)
    return b"" if request.has_values or request.dry_run else read_passed_input()


def _defining_command(request: RunRequest) -> str:
    """Returns the part of the command line that determines the tasks. Listings show this part, and ``describe_from_command`` makes the
    tasks from it again."""
    words: list[str] = []
    for option, values in (("--param", request.parameters), ("--params-from", request.tables)):
        for value in values:
            words += [option, value]
    words += ["--each-line", request.each_line] if request.each_line is not None else []
    words += ["--zip"] if request.zipped else []
    words += ["--times", str(request.times)] if request.times is not None else []
    command, lists = split_lists(request.command)
    words += ["--", *command]
    for sign, values in lists:
        words += [sign, *(values if len(values) <= SHOWN_VALUES else (*values[: SHOWN_VALUES - 1], "..."))]
    return " ".join(word if PLAIN_WORD.fullmatch(word) else shlex.quote(word) for word in words)


# --- submitting -----------------------------------------------------------------------------------------------------------------------


def connect_for(request: RunRequest) -> PoolSession:
    """Opens a session with the pool of a request. Tells the master which sites to use."""
    session = connect(request.pool, start=True, local_cores=request.sites.local_cores)
    request.sites.use(session.ask)
    return session


class SourceRecords:
    """Makes the records of the tasks of a source, in the order of the tasks."""

    def __init__(self, source: TaskSource) -> None:
        self._listed = source.listed
        self._records: dict[int, bytes] = {}
        """The records of all tasks by index. It stays empty if no task has parents."""
        self._reuse = ResultReuse(self._records, resume=True, may_repeat=source.may_repeat)
        self._resumes = source.resume is not None
        shared = source.resume.shared_outputs(source.command, source.shared_words()) if source.resume is not None else None
        self._is_output = shared.is_output if shared is not None else None
        self.register = self._reuse.register
        self._here = list(source.listed) if source.listed is not None and not source.launch.sandbox else []
        """The tasks of the list if they run in the current directory. Otherwise empty."""

    def add(self, needs: TaskNeeds, place: int, number: int, task: Executable, payload: bytes) -> TaskNeeds:
        """Returns ``needs`` with the record of a task. ``place``: its index. ``number``: the number of its spec."""
        files = files_hash(self._inputs_here(self._here[place])) if self._here else b""
        record = self._reuse.executable_record(needs, number, task.argv, payload, bool(task.inputs or task.stdin_path), files)
        if self._listed is not None and self._listed.flow is not None:
            self._records[place] = record
        if not self._resumes:
            return needs._replace(key=record)
        declared = (*self._here[place].inputs, *self._here[place].outputs) if self._here else ()
        return self._reuse.with_changes(needs._replace(key=record), number, task.argv, declared, self._is_output)

    def take_programs(self) -> dict[bytes, ProgramFiles]:
        return self._reuse.take_programs()

    def inputs_here(self, place: int) -> tuple[str, ...]:
        """Returns the names of the inputs of a listed task that runs in the current directory."""
        return tuple(self._here[place].inputs) if self._here else ()

    def _inputs_here(self, task: ListedTask) -> dict[str, Input]:
        """Returns the inputs of a task that runs in the current directory. Leaves out the inputs that other tasks of the list make."""
        assert self._listed is not None
        made = self._listed.intermediate_files
        return check_inputs(name for name in task.inputs if os.path.normpath(name) not in made)


def submit_source(
    session: PoolSession,
    source: TaskSource,
    task_options: TaskOptions,
    options: RunOptions,
    progress: Progress,
    outputs: OutputDestinations | None = None,
) -> int:
    """Submits all tasks of a source as one run and returns the number of the run. After an error, cancels the run."""
    records, resume = SourceRecords(source), source.resume

    def make(spec_number: Register) -> Iterator[MadeTask]:
        register = records.register(spec_number)
        specs: dict[str, int] = {}
        costs = source.costs()
        for place, (task, values, label) in enumerate(source.described()):
            kind = task_options.name or source.program_of(task) or UNNAMED
            if kind not in specs and len(specs) >= MAX_PROGRAMS:
                kind = UNNAMED
            if kind not in specs:
                specs[kind] = register(*executable_spec(kind, source.launch, task_options))
            payload, contents = executable_payload(task)
            needs = TaskNeeds(source.parents(place), contents, costs[place] if costs else 1.0, source.future_files(place))
            needs = records.add(needs, place, specs[kind], task, payload)
            description = TaskDescription(shlex.join(task.argv), values, label) if source.from_files else None
            inputs = tuple(task.inputs) or records.inputs_here(place)
            yield MadeTask(TaskEntry(specs[kind], payload, needs), description, task, inputs)

    def tasks(spec_number: Register) -> Iterator[NewTask]:
        made = make(spec_number)
        if resume is not None:
            made = resume.decide(made, source.launch.sandbox, any(task.outputs for task in source.listed or ()))
        return ((one.entry, one.description) for one in made)

    return _submit(session, Submitted(tasks, records.take_programs), columns_of(source.sweep.names), options, progress, outputs)


class ListSource(NamedTuple):
    """Tasks of a run file or DAG to submit. If an executable has no entry in ``descriptions``, its command line describes it."""

    tasks: TaskList
    descriptions: Iterable[TaskDescription] = ()
    resume: Resumption | None = None
    """Decides which tasks get the results of earlier tasks. If it is None, all tasks run."""


def submit_tasks(
    session: PoolSession, source: ListSource, options: RunOptions, progress: Progress, outputs: OutputDestinations | None = None
) -> int:
    """Submits all tasks of a run file or DAG as one run and returns the number of the run. After an error, cancels the run."""
    listed, descriptions, resume = source

    def tasks(spec_number: Register) -> Iterator[NewTask]:
        numbers = [spec_number(*spec) for spec in listed.specs]
        for entry, description in zip(listed.take(resume is not None), itertools.chain(descriptions, itertools.repeat(None)), strict=False):
            if description is None and listed.specs[entry.spec][0].kind == "exec":
                description = TaskDescription(command_in(entry.payload))
            if resume is not None:
                is_executable = listed.specs[entry.spec][0].kind == "exec"
                resume.note(entry.needs, input_names(entry.payload) if is_executable else ())
            yield entry._replace(spec=numbers[entry.spec]), description

    return _submit(session, Submitted(tasks, listed.take_programs), (), options, progress, outputs)


class Submitted(NamedTuple):
    """The tasks of a run, and the programs of the tasks that were made."""

    tasks: Callable[[Register], Iterator[NewTask]]
    programs: Callable[[], dict[bytes, ProgramFiles]]


def _submit(
    session: PoolSession,
    source: Submitted,
    names: tuple[str, ...],
    options: RunOptions,
    progress: Progress,
    outputs: OutputDestinations | None,
) -> int:
    """Submits tasks as one run and returns the number of the run. After an error, cancels the run. After a PilotfishError, also forgets the
    run if the master has recorded no task of it."""
    run = session.begin(options)
    number = run.run
    try:
        if outputs is not None:
            outputs.record(session.directory, number)
        progress(number, 0)
        register = TaskRegister(session.directory, number, names)
        for place, (task, description) in enumerate(source.tasks(partial(session.spec_number, run))):
            if description is not None:
                register.note(place, description)
                register.flush_if_due()  # first the description, then the task: this client can be killed between the two steps
            session.submit(run, task.spec, task.payload, needs=task.needs)
            progress(number, place + 1)
        register.flush()
        ProgramRegister(session.directory, number).add(source.programs())
        session.confirm(run)
    except BaseException as error:
        session.ask("cancel", run=number)
        if isinstance(error, PilotfishError) and not session.ask("run", run=number)["tasks"]:
            forget_run(session, number)
        raise
    return number


# Outputs of earlier tasks as inputs. ``--input 3.0:mesh.bin`` means the file mesh.bin that task 3.0 left on this machine or on a worker.

PAST_OUTPUT = re.compile(r"([0-9]+[.][0-9]+):(.+)")
CACHED_TASKS = 256
"""Maximum number of tasks whose results are cached."""

InputResolver = Callable[[Iterable[str]], list[str | StoredFile]]


class PastOutputs:
    """Replaces inputs such as ``3.0:mesh.bin`` by the files of earlier tasks. Connects to the pool only if there is such an input."""

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
