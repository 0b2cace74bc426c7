"""Decodes the value or exception of a Python task."""

from __future__ import annotations

import importlib.util
import json
import mmap
import re
import struct
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pilotfish.applications.input_files import StoredFile
from pilotfish.applications.output_streams import OutputStream, read_stream
from pilotfish.errors import DamagedPayload, TaskFailed
from pilotfish.model.task import MISSING_INPUT, Failure
from pilotfish.portable.class_unpickler import class_of_program, load_result
from pilotfish.portable.payload_format import Buffer, PayloadFormatError, unpack

_FOUR = struct.Struct("!I4Q")
_MISSING_MODULE = re.compile(r"No module named '([\w.]+)'")

UNKNOWN_FAILURE = Failure("unknown", "task", "the task failed; nothing is known of the cause")
MAKE_AGAIN = "run the task that produced it again, or name the file in outputs instead of keep, so that it is copied back"
OUTPUT_SAYS_MORE = "its output says more: see completed.stdout and completed.stderr of this error"
HINTS = {
    "exit": OUTPUT_SAYS_MORE,
    "exception": "the traceback above is from the worker",
    "signal": OUTPUT_SAYS_MORE,
    "killed": "something outside killed it; it was tried five times more, or as often as its retries say if that is more",
    "crash": "the process died inside the function (a native library?): run it alone to see it",
    "slot-lost": "its process was killed from outside; it was tried five times more, or as often as its retries say if that is more",
    "oom": 'ask for more, such as memory="4 GiB", or let it use less',
    "time": 'ask for more, such as time="1 h", or give it less to do',
    "missing-input": "check the names in inputs, and that the files are still as they were when the task was submitted",
    "missing-output": "check the names in outputs, and that the program wrote them",
    "spawn": "check that the program exists there and may be executed",
    "version": 'use the same Python on both sides, or form="source"',
    "unpickle": "the worker cannot import what the function or its arguments refer to: install it there, or define it beside the function",
    "result": "return something that can be pickled",
    "no-directory": 'sandbox=True gives it a fresh directory, inputs=["file"] brings its files, cwd="/path" names a directory of the nodes',
    "disk": "the worker's disk is full; it is tried elsewhere as long as its losses allow",
}


class RemoteTraceback(Exception):
    """The traceback in the slot, as text. It is the ``__cause__`` of the exception that is raised in this process."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteTraceback, (self.text,)


class CallOutcome(NamedTuple):
    value: Any
    error: BaseException | None
    stdout: bytes
    stderr: bytes
    files: tuple[StoredFile | None, StoredFile | None] = (None, None)
    """The files with the whole stdout and stderr, for streams that are too long for ``stdout`` and ``stderr``."""


def failure_error(failure: Failure, remote_traceback: str = "") -> TaskFailed:
    """Returns the error for a failed attempt without a usable exception: the task raised none, or it cannot be unpickled here."""
    message = failure.message or f"the task failed ({failure.cause})"
    missing = _MISSING_MODULE.search(message) if failure.cause == "unpickle" else None
    hint = _bring_module(missing[1]) if missing else HINTS.get(failure.cause, "")
    if failure.cause == MISSING_INPUT and failure.blame == "site":
        hint = MAKE_AGAIN
    return TaskFailed(message, hint, failure.cause, remote_traceback)


def _bring_module(name: str) -> str:
    """Returns advice for a module that the worker does not have. An installed package must be installed there, too. A module of the user
    can also be sent along."""
    top = name.partition(".")[0]
    if "-packages" in (getattr(sys.modules.get(top), "__file__", None) or ""):
        return f"the worker has no module {top}: install it for the Python there"
    return (
        f"the worker has no module {top}: install it there; or, if it is your own, import it at the top of your program, so that it is "
        f"sent along; if its source file is gone, send it by value: cloudpickle.register_pickle_by_value({top})"
    )


def _is_here(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def missing_result_error() -> TaskFailed:
    """Returns the error to raise if a task succeeded but the file with its large result was deleted."""
    return TaskFailed(
        "the task succeeded, but the file with its result no longer exists",
        "it was deleted from the pool directory: submit the task again, and do not delete files there",
        "result",
    )


def _load(data: Buffer, buffers: Sequence[memoryview]) -> tuple[Any, BaseException | None]:
    """Unpickles a result and returns (value, error). Unpickling runs code of the user, so it can raise any exception."""
    if buffers and not isinstance(buffers[0].obj, mmap.mmap):
        # Each buffer is copied. Without a copy, an array that the caller keeps would keep the whole frame with all its results in memory.
        buffers = [memoryview(bytearray(buffer)) for buffer in buffers]
    try:
        return load_result(data, class_of_program, buffers or None), None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # probably Ctrl-C, which Python delivers only to the main thread
        return None, error


def decode_value(payload: Buffer, kept: Path | None = None) -> CallOutcome:
    """Decodes the outcome of a task that succeeded. ``kept``: directory where the pool keeps large outputs."""
    try:
        if len(payload) >= _FOUR.size:
            count, meta, length, out, err = _FOUR.unpack_from(payload)
            if count == 4 and not (meta or out or err) and _FOUR.size + length == len(payload):
                value, error = _load(memoryview(payload)[_FOUR.size :], ())
                return CallOutcome(value, None if error is None else _unreadable_value(error), b"", b"")
        meta_text, data, stdout, stderr, *buffers = _parts(payload)
        streams = call_streams(meta_text, stdout, stderr, kept)
    except DamagedPayload as damage:
        return CallOutcome(None, damage, b"", b"")
    value, error = _load(data, buffers)
    return CallOutcome(value, None if error is None else _unreadable_value(error), *_outputs(streams))


def _outputs(streams: dict[str, OutputStream]) -> tuple[bytes, bytes, tuple[StoredFile | None, StoredFile | None]]:
    """Returns stdout and stderr, and their files. If a part of a text is left out, a line in the text says so."""
    out, error = streams["stdout"], streams["stderr"]
    return out.text, error.text, (out.file, error.file)


def call_streams(meta: Buffer, stdout: Buffer, stderr: Buffer, kept: Path | None) -> dict[str, OutputStream]:
    if not len(meta):
        return {"stdout": OutputStream(bytes(stdout)), "stderr": OutputStream(bytes(stderr))}
    try:
        report = json.loads(bytes(meta))
        return {name: read_stream(name, data, report, kept) for name, data in (("stdout", stdout), ("stderr", stderr))}
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise DamagedPayload(f"the report of a Python call cannot be read: {error!r}") from error


def _described(reason: BaseException) -> str:
    try:
        return f"{type(reason).__name__}: {reason}"
    except BaseException:  # noqa: BLE001  __str__ of the exception is code of the user, too
        return type(reason).__name__


def _unreadable_value(reason: BaseException) -> TaskFailed:
    error = TaskFailed(
        f"the task succeeded, but its result cannot be unpickled here: {_described(reason)}",
        "return plain values, or types that both sides have",
        "result",
    )
    error.__cause__ = reason
    return error


def unpack_result(payload: Buffer) -> list[memoryview]:
    """Returns the parts of a result. Raises DamagedPayload if the result cannot be unpacked."""
    try:
        return unpack(payload)
    except PayloadFormatError as error:
        raise DamagedPayload(str(error)) from error


def _parts(payload: Buffer) -> list[memoryview]:
    parts = unpack_result(payload)
    if len(parts) < 4:
        raise DamagedPayload(f"the result of a Python task has {len(parts)} parts instead of 4 or more")
    return parts


def decode_failure(payload: Buffer, failure: Failure, kept: Path | None = None) -> CallOutcome:
    """Decodes the outcome of a failed task. The error in the outcome is the exception that the task raised. If there is no exception, or if
    it cannot be unpickled here, the error is made from ``failure``. ``kept``: directory where the pool keeps large outputs."""
    if not len(payload):
        return CallOutcome(None, failure_error(failure), b"", b"")
    try:
        meta, value, stdout, stderr, *buffers = _parts(payload)
        said = json.loads(bytes(meta)) if len(meta) else {}
        streams = call_streams(meta, stdout, stderr, kept)
    except (DamagedPayload, ValueError) as error:
        return CallOutcome(None, failure_error(failure, f"(its report cannot be read: {error})"), b"", b"")
    traceback = str(said.get("traceback", ""))
    error_there: BaseException | None = None
    if failure.cause == "exception" and len(value):
        loaded, reason = _load(value, buffers)
        if isinstance(loaded, BaseException):
            error_there = loaded
        elif reason is not None:
            traceback += f"\n(the exception itself cannot be unpickled here: {_described(reason)})"
    if error_there is None:
        error_there = failure_error(failure, traceback)
    elif isinstance(error_there, ModuleNotFoundError) and error_there.name and _is_here(error_there.name.partition(".")[0]):
        error_there.add_note(_bring_module(error_there.name))
    if traceback:
        error_there.__cause__ = RemoteTraceback(traceback)
    return CallOutcome(None, error_there, *_outputs(streams))
