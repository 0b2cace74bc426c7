"""Encodes the executables of one run as specs and payloads.

The spec contains the options that several executables have in common. The payload of a task contains the options of this task alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from pilotfish.applications.calls.own_modules import next_check
from pilotfish.applications.executables.executable import (
    Executable,
    FutureFile,
    Inputs,
    LaunchSpec,
    check_argv,
    check_environment,
    check_inputs,
    check_outputs,
    check_signal,
    executable_payload,
    executable_spec,
)
from pilotfish.applications.executables.program_environment import program_environment
from pilotfish.applications.executables.program_inputs import program_inputs, uncovered
from pilotfish.applications.executables.working_directory import current_directory
from pilotfish.applications.input_files import Source
from pilotfish.applications.reuse.program_files import program_words
from pilotfish.applications.reuse.task_keys import FilesVersion, files_version
from pilotfish.applications.safe_paths import check_name
from pilotfish.applications.task_options import TASK_KEYWORDS, TaskKeywords, check_known, read_task_options
from pilotfish.errors import BadInput
from pilotfish.model.contents import MAGIC, Content, ExpectedFile
from pilotfish.model.task import TaskSpec


class ExecutableKeywords(TaskKeywords, total=False):
    """Keyword arguments of an executable, in addition to the task options."""

    inputs: Inputs
    outputs: Sequence[str] | Mapping[str, str]
    keep: Sequence[str]
    stdin: bytes | str
    env: Mapping[str, str]
    cwd: str | os.PathLike[str] | None
    sandbox: bool | None
    shell: bool
    output_cap: int | str
    warn_signal: int | str


EXECUTABLE_KEYWORDS = (*TASK_KEYWORDS, *(name for name in ExecutableKeywords.__annotations__ if name not in TASK_KEYWORDS))
EXECUTABLE_NAMES = ("after", "cost")
"""Options of ``Run.executable`` in addition to ExecutableKeywords."""
FREE_CHECKS_S = 0.05
"""When the checks of files in a run have taken this many seconds in total, they become less frequent."""
MAX_PROGRAMS = 1000
"""Maximum number of programs whose files are remembered."""
_PER_TASK = ("inputs", "outputs", "keep", "stdin", "env")

Encoded = tuple[int, bytes, tuple[Content, ...]]
"""The number of the spec, the payload, and the contents that the task needs in addition to the contents of its spec."""


class ExecutableDefaults:
    """Default options of all executables of a run. In a run file: ``tasks.defaults.outputs = ["out.dat"]``. In a program: ``run.defaults``.

    Default inputs are sent to each worker only once. Inputs of a single task are sent with this task.
    """

    def __init__(self) -> None:
        object.__setattr__(self, "values", {})

    def __setattr__(self, name: str, value: Any) -> None:
        check_known({name: value}, EXECUTABLE_KEYWORDS, "defaults")
        if name == "outputs" and isinstance(value, Mapping):
            raise BadInput(f"defaults.outputs: {value!r} is the same destination for each task", "give the destinations to each task")
        self.__dict__["values"][name] = value

    def __getattr__(self, name: str) -> Any:
        values: dict[str, Any] = self.__dict__["values"]
        if name in values:
            return values[name]
        check_known({name: None}, EXECUTABLE_KEYWORDS, "defaults")
        return None

    def key(self) -> str:
        return repr(self.__dict__["values"])

    def copy(self) -> dict[str, Any]:
        return dict(self.__dict__["values"])


def _stdin(value: bytes | str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, (bytes, bytearray)):
        raise BadInput(f"stdin: {value!r} is neither text nor bytes", "give the content itself, such as open(path, 'rb').read()")
    return bytes(value)


class CheckedFiles(NamedTuple):
    """The files that the tasks of a program have in common. ``program``: see ``program_inputs``. ``version``: a number that changes if a
    file of the program or a default input changes. ``check_at``: before this time, the files are not checked again."""

    program: dict[str, Source]
    version: int
    check_at: float


NO_FILES = CheckedFiles({}, -1, 0.0)


class ExecutableEncoder:
    """Encodes the executables of one run.

    The files that tasks have in common are checked at each submission, so that a task gets their current versions. In the long run, this
    takes too much time. So the checks become less frequent when they have taken ``FREE_CHECKS_S`` and the files have not changed for some
    seconds. From then on, they take at most 5 % of the time, but files are checked at least every quarter of a second.
    """

    def __init__(self, register: Callable[[TaskSpec, bytes], int], names: tuple[str, ...] = EXECUTABLE_NAMES) -> None:
        self._register = register
        self._names = (*names, *EXECUTABLE_KEYWORDS)
        self._specs: dict[tuple[object, ...], int] = {}
        self._files: dict[tuple[object, ...], CheckedFiles] = {}
        self._versions: dict[FilesVersion, int] = {}
        self._checks_s = 0.0

    def encode(
        self,
        argv: Sequence[str | os.PathLike[str]],
        options: Mapping[str, Any],
        defaults: ExecutableDefaults,
        future_files: Sequence[ExpectedFile] = (),
    ) -> Encoded:
        """Encodes one executable. ``future_files``: inputs that other tasks will produce."""
        words = check_argv(argv)
        if options:
            check_known(options, self._names, "executable")
        task = Executable(
            argv=words,
            inputs=check_inputs(options.get("inputs", ())),
            outputs=check_outputs(options.get("outputs", ())),
            keep=check_outputs(options.get("keep", ()), "keep"),
            stdin=_stdin(options.get("stdin", b"")),
            env=check_environment(options.get("env", {})),
        )
        future_names = [file.target for file in future_files]
        if future_names:
            inputs = {**check_inputs(defaults.copy().get("inputs", ())), **task.inputs}
            taken = {os.path.normpath(name): source for name, source in inputs.items()}
            twice = next((name for name in future_names if name in taken), None)
            if twice is not None:
                raise BadInput(
                    f"inputs: {taken[twice]!r} and a file of another task would both be called {twice!r}", "give one another name"
                )
        return (self._spec(task, options, defaults, future_names), *executable_payload(task))

    def _spec(self, task: Executable, options: Mapping[str, Any], defaults: ExecutableDefaults, future_names: Sequence[str]) -> int:
        own = {name: value for name, value in options.items() if name not in _PER_TASK}
        sandbox = own.get("sandbox", defaults.sandbox)
        if sandbox is None:
            sandbox = any((task.inputs, task.outputs, task.keep, future_names, defaults.inputs, defaults.outputs, defaults.keep))
        version = program_environment.version()
        files = self._check_files(task, sandbox, defaults) if sandbox or defaults.inputs else NO_FILES
        program = files.program
        if task.inputs or future_names:
            program = uncovered(program, {**task.inputs, **dict.fromkeys(future_names, b"")})
        # Tasks with different files have different specs, because the program files and default inputs are inputs of the spec.
        key = version, task.argv[0], sandbox, files.version, tuple(program), repr(own), defaults.key()
        number = self._specs.get(key)
        if number is None:
            number = self._specs[key] = self._register(*self._describe(task, {**defaults.copy(), **own}, program if sandbox else None))
        return number

    def _check_files(self, task: Executable, sandbox: bool, defaults: ExecutableDefaults) -> CheckedFiles:
        environment = {**program_environment.variables(), **(task.env or defaults.env or {})} if sandbox else {}
        words = (*program_words(task.argv), environment.get("PYTHONPATH")) if sandbox else ()
        key = words, current_directory(), defaults.key()
        known, began_at = self._files.get(key), time.monotonic()
        if known is None or began_at >= known.check_at:
            if len(self._files) >= MAX_PROGRAMS:
                self._files.clear()
            program = program_inputs(task.argv, environment) if sandbox else {}
            version = files_version({**program, **check_inputs(defaults.inputs or ())})
            self._checks_s += time.monotonic() - began_at
            may_pause = not version.contents and self._checks_s > FREE_CHECKS_S
            number = self._versions.setdefault(version, len(self._versions))
            known = self._files[key] = CheckedFiles(program, number, next_check(began_at) if may_pause else 0.0)
        return known

    def _describe(self, task: Executable, shared: dict[str, Any], program: Mapping[str, Source] | None) -> tuple[TaskSpec, bytes]:
        """Returns the spec of an executable and the packed inputs of the spec. ``program``: the files of the program that a sandbox must
        have. It is None if there is no sandbox."""
        if "output_cap" in shared:  # the old name of max_output
            shared["max_output"] = shared.pop("output_cap")
        inputs, outputs = check_inputs(shared.get("inputs", ())), check_outputs(shared.get("outputs", ()))
        keep = check_outputs(shared.get("keep", ()), "keep")
        inputs = {**uncovered(program or {}, inputs), **inputs}
        cwd = shared.get("cwd")
        # Only a relative path is checked here. An absolute path possibly exists only on the nodes.
        if cwd is not None and not os.path.isabs(cwd) and not os.path.isdir(cwd):
            raise BadInput(f"cwd: {os.fspath(cwd)!r} is not a directory here", "create it, or name one of the nodes in full")
        launch = LaunchSpec(
            cwd=os.path.abspath(cwd) if cwd is not None else None,
            sandbox=program is not None,
            env={**program_environment.variables(), **check_environment(shared.get("env", {}))},
            whole_env=True,
            inputs=inputs,
            outputs=outputs,
            keep=keep,
            shell=bool(shared.get("shell", False)),
            warn_signal=check_signal(shared.get("warn_signal", 0)),
        )
        task_options = read_task_options({name: value for name, value in shared.items() if name in TASK_KEYWORDS}, "executable")
        return executable_spec(os.path.basename(task.argv[0]), launch, task_options)


# --- future files: a task will produce them for later tasks of its run -----------------------------------------------------------------


def kept_patterns(options: ExecutableKeywords, defaults: ExecutableDefaults) -> tuple[str, ...]:
    """Returns the names and patterns of the files that an executable keeps for other tasks. Checks ``keep`` in ``options``."""
    if "keep" in options:
        options["keep"] = check_outputs(options["keep"], "keep")
    return check_outputs((*(defaults.keep or ()), *options.get("keep", ())), "keep")


def make_future_file(task: Future[Any] | int, name: str, kept: Iterable[str], shown: str) -> FutureFile:
    """Returns a future file of a task. Raises BadInput if the task does not keep the file. ``kept``: names and patterns of the files that
    the task keeps for other tasks.

    If ``kept`` has no pattern, ``name`` must be in ``kept`` or below a directory in ``kept``. If ``kept`` has a pattern, every name is
    accepted. If the task does not create the file, each task that needs the file fails with a message.
    """
    (name,) = check_outputs([name], "file")
    if not any(name == one or name.startswith(f"{one}/") or MAGIC.intersection(one) for one in kept):
        hint = f"give that task keep=[{name!r}]; with outputs=[{name!r}] as well, it is also copied back. A Python call cannot wait for "
        hint += "the file: for a call, wait here: task.result().files"
        raise BadInput(f"file: task {shown} does not keep {name!r} for others", hint)
    return FutureFile(task, name)


def take_future_files(options: ExecutableKeywords, index_of: Callable[[Any], int]) -> tuple[ExpectedFile, ...]:
    """Removes the future files from the inputs in ``options``, and returns the future files. ``index_of``: a function that returns the
    index of a task in its run."""
    if "inputs" not in options:
        return ()
    options["inputs"], future_files = _split(options["inputs"])
    if future_files and options.get("sandbox") is False:
        raise BadInput("sandbox=False does not go with files of other tasks", "leave it out: they are brought to a fresh directory")
    return tuple(ExpectedFile(index_of(source.task), source.name, name) for name, source in future_files.items())


def _split(inputs: Inputs) -> tuple[Inputs, dict[str, FutureFile]]:
    """Splits inputs. Returns the inputs that exist now, and {name in the sandbox: future file}."""
    if isinstance(inputs, (str, bytes, os.PathLike)):
        return inputs, {}
    sources = inputs if isinstance(inputs, Mapping) else list(inputs)
    future_files: dict[str, FutureFile] = {}
    for name, source in sources.items() if isinstance(sources, Mapping) else ((getattr(one, "name", ""), one) for one in sources):
        if isinstance(source, FutureFile):
            name = "/".join(check_name(name, "inputs"))
            if future_files.setdefault(name, source) != source:
                raise BadInput(f"inputs: files of two tasks would both be called {name!r}", 'name them: {"a.txt": one.file("x.txt"), …}')
    if isinstance(sources, Mapping):
        return {name: source for name, source in sources.items() if not isinstance(source, FutureFile)}, future_files
    return [source for source in sources if not isinstance(source, FutureFile)], future_files
