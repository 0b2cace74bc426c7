"""Checks and encodes executables, and decodes their results."""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import signal
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from pilotfish.applications.calls.python_result import (
    UNKNOWN_FAILURE,
    CallOutcome,
    decode_failure,
    decode_value,
    failure_error,
    missing_result_error,
    unpack_result,
)
from pilotfish.applications.executables.working_directory import current_directory
from pilotfish.applications.input_files import PackedFiles, Source, StoredFile
from pilotfish.applications.output_streams import read_stream
from pilotfish.applications.safe_paths import check_name
from pilotfish.applications.task_options import DEFAULT_OPTIONS, TaskOptions
from pilotfish.errors import BadInput, Correction, DamagedPayload, PayloadTooLarge, TaskFailed, nearest
from pilotfish.model.contents import DIGEST, Content
from pilotfish.model.messages import EndedItem
from pilotfish.model.quantities import show_bytes
from pilotfish.model.states import DONE
from pilotfish.model.task import Failure, TaskSpec
from pilotfish.portable.payload_format import Buffer, is_reference, pack
from pilotfish.portable.wire.frames import MAX_BODY

_LAST_LINES = 20
_EXIT_STATUS = re.compile(r"exit status (\d+)$")


class Completed(Struct, frozen=True):
    """Result of an executable: exit status, output and files."""

    exit: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    files: dict[str, StoredFile]
    stdout_dropped: int = 0
    stderr_dropped: int = 0
    stdout_file: StoredFile | None = None
    stderr_file: StoredFile | None = None

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.stdout.decode(errors="replace")

    def save(self, directory: str | os.PathLike[str]) -> list[Path]:
        """Writes the output files below a directory. Refuses names that lead out of the directory."""
        return [file.save_below(directory, name) for name, file in self.files.items()]


class FutureFile(NamedTuple):
    """A file that ``task`` will produce, for the inputs of later tasks in the run. ``task`` is a future, or an index in a TaskList."""

    task: Future[Any] | int
    name: str


Inputs = Mapping[str, Source | FutureFile] | Iterable[str | os.PathLike[str] | StoredFile | FutureFile]


class ExecutableFailed(TaskFailed):
    """An executable failed. ``completed``: the output and files of the executable, or None if no output was stored."""

    def __init__(self, message: str, hint: str = "", cause: str = "", completed: Completed | None = None) -> None:
        super().__init__(message, hint, cause)
        self.completed = completed


def completed_of(value: object, error: BaseException | None) -> Completed | None:
    """Returns the output and files of an executable. ``value``: the result if it succeeded. ``error``: the error if it failed."""
    left = error.completed if isinstance(error, ExecutableFailed) else value
    return left if isinstance(left, Completed) else None


class Executable(Struct, frozen=True):
    """An executable with checked options. Its input files have not been read yet."""

    argv: tuple[str, ...]
    inputs: dict[str, Source] = {}
    outputs: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    stdin: bytes = b""
    env: dict[str, str] = {}
    stdin_path: str = ""
    """File from which ``stdin`` was read; empty if the user gave the bytes."""


def check_argv(argv: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    if isinstance(argv, (str, bytes)) or not isinstance(argv, Sequence):
        raise BadInput(f"argv: {argv!r} is not a list of words", 'write ["./sim", "--seed", "1"]')
    words = []
    for position, word in enumerate(argv):
        if not isinstance(word, (str, os.PathLike)):
            raise BadInput(f"argv[{position}]: {word!r} is not text", f'write "{word}"')
        words.append(os.fspath(word))
        if "\0" in words[-1]:
            raise BadInput(f"argv[{position}]: {word!r} holds a NUL character", "no program can be given one: leave it out")
    if not words or not words[0]:
        raise BadInput("argv: there is no program to start", 'write ["./sim", "--seed", "1"]')
    return tuple(words)


def _sandbox_name(path: str) -> str:
    """Returns the sandbox name of a file: its relative path. If the path is absolute or begins with ``..``, returns the last component."""
    relative = os.path.normpath(path)
    name = os.path.basename(relative) if os.path.isabs(relative) or relative.startswith("..") else relative
    if name in ("", ".", ".."):
        here = os.path.basename(os.path.abspath(path))
        bring = f"../{here} brings all of it, as a directory of that name" if relative == "." else "bring a directory by its name"
        raise BadInput(f"inputs: {path!r} gives no name to have in the task's directory", f"name the files that the task needs; {bring}")
    return name


def _named(source: object) -> tuple[str, Source | FutureFile]:
    """Returns the sandbox name of an input for which the user gave no name, and the input."""
    if isinstance(source, FutureFile) or (isinstance(source, StoredFile) and source.name):
        return source.name, source
    if isinstance(source, (StoredFile, bytes)):
        what = "bytes have" if isinstance(source, bytes) else "this File has"
        raise BadInput(f"inputs: {what} no name", 'name it: inputs={"model.dat": …}')
    path = _path(source)
    return _sandbox_name(path), path


def _path(source: object) -> str:
    if isinstance(source, Future | Completed):
        result = ".result()" if isinstance(source, Future) else ""
        what = f"a {type(source).__name__} is no file"
        later = ', or one that it will keep: inputs=[task.file("model.dat")]' if result else ""
        raise BadInput(f"inputs: {what}", f'give a file that the task left: inputs=[task{result}.files["model.dat"]]{later}')
    if not isinstance(source, (str, os.PathLike)):
        raise BadInput(f"inputs: {source!r} is no file", "give a path, or a file that another task left")
    return os.fsdecode(source)


def check_inputs(inputs: Inputs) -> dict[str, Source]:
    """Checks inputs. Returns {name in the sandbox: source}. A source is a path, bytes, or a file from a result. The path of a directory
    stands for all files in it."""
    if isinstance(inputs, (str, bytes, os.PathLike)):
        raise BadInput(f"inputs: {inputs!r} is one name, not a list", f"write inputs=[{inputs!r}]")
    if isinstance(inputs, Mapping):
        named: list[tuple[str, Source | FutureFile]] = list(inputs.items())
    else:
        named = [_named(source) for source in inputs]
    found: dict[str, Source] = {}
    for name, source in named:
        check_name(name, "inputs")
        if isinstance(source, FutureFile):
            raise BadInput(
                f"inputs: {name!r} is a file that a task will leave",
                "only a single executable can wait for it; for others, wait here: task.result().files",
            )
        if name in found and found[name] != source:
            fix = 'name them: {"a.txt": "one/x.txt", …}; the command line needs one of them under another name, such as a link'
            raise BadInput(f"inputs: {found[name]!r} and {source!r} would both be called {name!r}", fix)
        if not isinstance(source, (bytes, StoredFile)) and not os.path.exists(_path(source)):
            raise BadInput(f"inputs: {os.fspath(source)!r} does not exist (looked in {os.getcwd()})", _nearest_file(os.fspath(source)))
        found[name] = source
    return found


def pack_inputs(inputs: Inputs) -> PackedFiles | None:
    """Checks and packs the inputs of Python calls. Returns None if there are none."""
    checked = check_inputs(inputs)
    return PackedFiles(checked) if checked else None


def _nearest_file(path: str) -> str:
    folder = os.path.dirname(path) or "."
    near = nearest(os.path.basename(path), os.listdir(folder) if os.path.isdir(folder) else [])
    if not near:
        return f"Look where it is: ls {shlex.quote(folder if os.path.isdir(folder) else os.getcwd())}"
    meant = os.path.join(os.path.dirname(path), near)
    return Correction(f"did you mean {meant!r}?", path, meant)


def check_outputs(outputs: Iterable[str], field: str = "outputs") -> tuple[str, ...]:
    if isinstance(outputs, (str, bytes)):
        raise BadInput(f"{field}: {outputs!r} is one name, not a list", f"write {field}=[{outputs!r}]")
    names = tuple(os.fspath(name) for name in outputs)
    # The user can write a slash after the name of a directory; it is removed.
    return tuple("/".join(check_name(name.rstrip("/") or name, field)) for name in names)


def check_environment(env: Mapping[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadInput(f"env[{name!r}]: {value!r} is not text", f'write {{"{name}": "{value}"}}')
        if not name or "=" in name or "\0" in name + value:
            raise BadInput(f"env[{name!r}]: cannot be the name and value of a variable", "use letters, digits and _")
    return dict(env)


def check_signal(value: int | str) -> int:
    """Returns the number of a signal, given by name or number. 0 means no signal. Raises BadInput for signals that no program can catch."""
    names = {one.name.removeprefix("SIG"): int(one) for one in signal.Signals}
    number = names.get(value.upper().removeprefix("SIG"), -1) if isinstance(value, str) else value
    if number and (number not in names.values() or number in (signal.SIGKILL, signal.SIGSTOP)):
        raise BadInput(
            f"warn signal: {value!r} cannot be sent as a warning",
            Correction('name a signal that the program handles, such as "USR1"', value, "USR1"),
        )
    return int(number)


class LaunchSpec(Struct, frozen=True, kw_only=True):
    """Options that all executables of one spec share."""

    cwd: str | None = None
    sandbox: bool = False
    env: dict[str, str] = {}
    whole_env: bool = False
    """Whether ``env`` is the whole environment of the submitting program. If False, ``env`` is added to the environment of the worker."""
    inputs: dict[str, Source] = {}
    outputs: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    """Outputs that stay on the worker for later tasks."""
    shell: bool = False
    warn_signal: int = 0
    """Number of the signal that the program gets shortly before the pilot ends. 0 means no signal."""


def executable_spec(name: str, launch: LaunchSpec, wanted: TaskOptions = DEFAULT_OPTIONS) -> tuple[TaskSpec, bytes]:
    packed = PackedFiles(launch.inputs)
    described = msgspec.structs.asdict(launch) | {"cwd": launch.cwd or current_directory(), "inputs": packed.entries}
    described |= {"outputs": list(launch.outputs), "keep": list(launch.keep)}
    described["sources"] = packed.sources
    for option in ("keep", "warn_signal", "sources", "whole_env"):  # left out if unused: most specs have none of them
        if not described[option]:
            del described[option]
    spec = msgspec.structs.replace(wanted.spec("exec", name, described), contents=packed.contents)
    return spec, (pack(packed.parts) if packed.parts else b"")


def executable_payload(task: Executable) -> tuple[bytes, tuple[Content, ...]]:
    """Encodes an executable. Returns its payload and the contents that it needs."""
    packed = PackedFiles(task.inputs)
    described = {"argv": task.argv, "env": task.env, "inputs": packed.entries, "outputs": task.outputs}
    if task.keep:
        described["keep"] = task.keep
    if task.inputs and packed.sources:
        described["sources"] = packed.sources
    if task.stdin_path:
        described["stdin_path"] = os.path.abspath(task.stdin_path)
    payload = pack([json.dumps(described).encode(), task.stdin, *packed.parts])
    if len(payload) > MAX_BODY:
        raise PayloadTooLarge(
            f"{task.argv[0]!r} has {show_bytes(len(payload))} of arguments and standard input; a task may have {show_bytes(MAX_BODY)}",
            "give large data as input files",
        )
    return payload, packed.contents


def decode_completed(payload: Buffer, kept: Path | None = None) -> Completed:
    """Decodes the report of an executable. ``kept``: directory where the pool keeps large outputs."""
    meta, stdout, stderr, *contents = unpack_result(payload)
    try:
        report = msgspec.json.decode(meta)
        inline = iter(contents)
        files: dict[str, StoredFile] = {}
        for name, mode, *rest in report["files"]:
            if rest:
                path = kept / rest[0][:2] / rest[0] if kept is not None and DIGEST.match(rest[0]) else None
                files[str(name)] = StoredFile(None, int(mode), rest[0], int(rest[1]), path, str(name))
            else:
                content = bytes(next(inline))
                files[str(name)] = StoredFile(content, int(mode), size=len(content), name=str(name))
        out, error = read_stream("stdout", stdout, report, kept), read_stream("stderr", stderr, report, kept)
        return Completed(
            exit=report["exit"],
            signal=report["signal"],
            stdout=out.text,
            stderr=error.text,
            files=files,
            stdout_dropped=out.dropped,
            stderr_dropped=error.dropped,
            stdout_file=out.file,
            stderr_file=error.file,
        )
    except (KeyError, IndexError, TypeError, ValueError, StopIteration, msgspec.MsgspecError) as error:
        raise DamagedPayload(f"the report of an executable cannot be read: {error!r}") from error


def decode_executable_failure(payload: Buffer, failure: Failure, kept: Path | None = None) -> ExecutableFailed:
    """Returns the error for a failed executable. The error has the last lines of the program's stderr."""
    plain = failure_error(failure)
    completed: Completed | None = None
    if len(payload):
        try:
            completed = decode_completed(payload, kept)
        except (DamagedPayload, ValueError) as error:
            return ExecutableFailed(f"{plain} (its report cannot be read: {error})", plain.hint, failure.cause)
    message = str(plain)
    if completed is not None and completed.stderr.strip():
        lines = completed.stderr.decode(errors="replace").rstrip().splitlines()[-_LAST_LINES:]
        message += "\nthe end of its stderr:\n" + "\n".join(f"  {line}" for line in lines)
    return ExecutableFailed(message, plain.hint, failure.cause, completed)


def decode_ending(item: EndedItem, payload: Buffer, is_executable: bool, kept: Path | None = None) -> CallOutcome:
    """Decodes the outcome of a task that succeeded or failed. ``kept``: directory where the pool keeps large outputs."""
    is_missing = is_reference(memoryview(payload))
    if item.state == DONE:
        if is_missing:
            return CallOutcome(None, missing_result_error(), b"", b"")
        if not is_executable:
            return decode_value(payload, kept)
        try:
            completed = decode_completed(payload, kept)
        except (DamagedPayload, ValueError) as error:
            return CallOutcome(None, error, b"", b"")
        return CallOutcome(completed, None, completed.stdout, completed.stderr, (completed.stdout_file, completed.stderr_file))
    report: Buffer = b"" if is_missing else payload
    failure = item.failure or UNKNOWN_FAILURE
    if not is_executable:
        outcome = decode_failure(report, failure, kept)
        if isinstance(outcome.error, TaskFailed) and (len(report) or failure.cause == "exit"):
            exited = _EXIT_STATUS.search(failure.message) if failure.cause == "exit" else None
            status = int(exited[1]) if exited else None
            outcome.error.completed = Completed(status, None, outcome.stdout, outcome.stderr, {})
        return outcome
    failed = decode_executable_failure(report, failure, kept)
    left = failed.completed
    if left is None:
        return CallOutcome(None, failed, b"", b"")
    return CallOutcome(None, failed, left.stdout, left.stderr, (left.stdout_file, left.stderr_file))


def expand_inputs(patterns: Iterable[str]) -> list[str]:
    """Expands glob patterns to file names. Raises an error if a pattern matches no file."""
    found: dict[str, None] = {}
    for pattern in patterns:
        matches = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
        if not matches:
            raise BadInput(f"inputs: {pattern!r} matches no file (looked in {os.getcwd()})", "check the pattern")
        found.update(dict.fromkeys(matches))
    return list(found)
