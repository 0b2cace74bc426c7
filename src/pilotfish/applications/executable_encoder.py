"""Encodes the executables of one run as specs and payloads.

Options that executables share are in the spec. Options of a single task are in the payload of the task.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from pilotfish.applications.executable import (
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
    program_as_input,
)
from pilotfish.applications.safe_paths import check_name
from pilotfish.applications.task_options import TASK_KEYWORDS, TaskKeywords, check_known, read_task_options
from pilotfish.errors import BadInput
from pilotfish.model.contents import MAGIC, Content, ExpectedFile
from pilotfish.model.quantities import parse_bytes
from pilotfish.model.task import TaskSpec


class ExecutableKeywords(TaskKeywords, total=False):
    """Keywords of an executable, in addition to the keywords of every task."""

    inputs: Inputs
    outputs: Sequence[str]
    keep: Sequence[str]
    stdin: bytes | str
    env: Mapping[str, str]
    cwd: str | os.PathLike[str] | None
    sandbox: bool | None
    shell: bool
    output_cap: int | str
    warn_signal: int | str


EXECUTABLE_KEYWORDS = (*TASK_KEYWORDS, *(name for name in ExecutableKeywords.__annotations__ if name not in TASK_KEYWORDS))
_PER_TASK = ("inputs", "outputs", "keep", "stdin", "env")

Encoded = tuple[int, bytes, tuple[Content, ...]]
"""Number of the spec, payload, and the contents that the task needs in addition to the contents of its spec."""


class ExecutableDefaults:
    """Default options of all executables of a run: ``tasks.defaults.outputs = ["out.dat"]``.

    Inputs set here are sent to a worker once. Inputs of a single task are sent with that task.
    """

    def __init__(self) -> None:
        object.__setattr__(self, "values", {})

    def __setattr__(self, name: str, value: Any) -> None:
        check_known({name: value}, EXECUTABLE_KEYWORDS, "defaults")
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


class ExecutableEncoder:
    def __init__(self, register: Callable[[TaskSpec, bytes], int]) -> None:
        self._register = register
        self._specs: dict[str, int] = {}

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
            check_known(options, EXECUTABLE_KEYWORDS, "executable")
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
        needs_sandbox = bool(task.inputs or task.outputs or task.keep or future_names)
        is_future = os.path.normpath(task.argv[0]) in future_names
        key = f"{task.argv[0]}\0{needs_sandbox}\0{is_future}\0{own!r}\0{defaults.key()}"
        number = self._specs.get(key)
        if number is None:
            number = self._specs[key] = self._register(*self._describe(task, {**defaults.copy(), **own}, needs_sandbox, is_future))
        return number

    def _describe(self, task: Executable, shared: dict[str, Any], needs_sandbox: bool, is_future: bool) -> tuple[TaskSpec, bytes]:
        """Builds the spec of a task. ``is_future``: whether another task produces the program."""
        inputs, outputs = check_inputs(shared.get("inputs", ())), check_outputs(shared.get("outputs", ()))
        keep = check_outputs(shared.get("keep", ()), "keep")
        sandbox = shared.get("sandbox")
        if sandbox is None:
            sandbox = bool(needs_sandbox or inputs or outputs or keep)
        if sandbox and not is_future:
            inputs = {**program_as_input(task.argv), **inputs}
        cwd = shared.get("cwd")
        # An absolute path may exist only on the nodes, so only a relative path is checked here.
        if cwd is not None and not os.path.isabs(cwd) and not os.path.isdir(cwd):
            raise BadInput(f"cwd: {os.fspath(cwd)!r} is not a directory here", "create it, or name one of the nodes in full")
        launch = LaunchSpec(
            cwd=os.path.abspath(cwd) if cwd is not None else None,
            sandbox=bool(sandbox),
            env=check_environment(shared.get("env", {})),
            inputs=inputs,
            outputs=outputs,
            keep=keep,
            output_cap=parse_bytes(shared.get("output_cap", 0), "output_cap"),
            shell=bool(shared.get("shell", False)),
            warn_signal=check_signal(shared.get("warn_signal", 0)),
        )
        task_options = read_task_options({name: value for name, value in shared.items() if name in TASK_KEYWORDS}, "executable")
        return executable_spec(os.path.basename(task.argv[0]), launch, task_options)


# --- files that a task will produce, as inputs of later tasks of its run ---------------------------------------------------------------


def kept_patterns(options: ExecutableKeywords, defaults: ExecutableDefaults) -> tuple[str, ...]:
    """Returns the names and patterns of the files that an executable keeps for other tasks. Checks ``keep`` in ``options``."""
    if "keep" in options:
        options["keep"] = check_outputs(options["keep"], "keep")
    return check_outputs((*(defaults.keep or ()), *options.get("keep", ())), "keep")


def make_future_file(task: Future[Any] | int, name: str, kept: Iterable[str], shown: str) -> FutureFile:
    """Returns a future file of a task. ``kept``: names and patterns of the files that the task keeps for other tasks.

    If ``kept`` has a pattern, every name is accepted, because it is not known yet which files will match. If the file is missing later, the
    task that needs it fails with a message.
    """
    (name,) = check_outputs([name], "file")
    if not any(name == one or name.startswith(f"{one}/") or MAGIC.intersection(one) for one in kept):
        hint = f"give that task keep=[{name!r}]; with outputs=[{name!r}] as well, it is also copied back"
        raise BadInput(f"file: task {shown} does not keep {name!r} for others", hint)
    return FutureFile(task, name)


def take_future_files(options: ExecutableKeywords, index_of: Callable[[Any], int]) -> tuple[ExpectedFile, ...]:
    """Removes the future files from the inputs in ``options`` and returns them. ``index_of`` returns the index of a task in its run."""
    if "inputs" not in options:
        return ()
    options["inputs"], future_files = _split(options["inputs"])
    if future_files and options.get("sandbox") is False:
        raise BadInput("sandbox=False does not go with files of other tasks", "leave it out: they are brought to a fresh directory")
    return tuple(ExpectedFile(index_of(source.task), source.name, name) for name, source in future_files.items())


def _split(inputs: Inputs) -> tuple[Inputs, dict[str, FutureFile]]:
    """Splits inputs into existing inputs, and future files by their names in the sandbox."""
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
