"""Runs tasks in the fake master's thread, as a slot would: enough to test the encoders of tasks and the decoders of results."""

from __future__ import annotations

import json
import pickle
import subprocess
import traceback
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from pilotfish.model.task import Failure, TaskSpec
from pilotfish.portable.payload_format import pack, unpack

_instances: dict[bytes, Any] = {}


def value_parcel(value: object, stdout: bytes = b"") -> bytes:
    buffers: list[pickle.PickleBuffer] = []
    data = cloudpickle.dumps(value, 5, buffer_callback=buffers.append)
    return pack([b"", data, stdout, b"", *(buffer.raw() for buffer in buffers)])


def error_parcel(error: BaseException) -> bytes:
    said = {"type": type(error).__name__, "message": str(error), "traceback": "".join(traceback.format_exception(error))}
    return pack([json.dumps(said).encode(), cloudpickle.dumps(error, 5), b"", b""])


def completed_parcel(code: int, stdout: bytes = b"", stderr: bytes = b"", files: dict[str, bytes] | None = None) -> bytes:
    found = files or {}
    said = {"exit": code, "signal": None, "files": [[name, 0o644] for name in found], "stdout_dropped": 0, "stderr_dropped": 0}
    return pack([json.dumps(said).encode(), stdout, stderr, *found.values()])


def function_code(spec: TaskSpec, code: bytes) -> bytes:
    """Returns the code of a spec without the user's own modules and input files; these can be imported in the process of the tests."""
    return bytes(unpack(code)[0]) if spec.launch.get("modules") or spec.launch.get("inputs") else code


def do_task(spec: TaskSpec, code: bytes, payload: bytes) -> tuple[Failure | None, bytes]:
    if spec.kind == "exec":
        return _do_executable(payload)
    head, *buffers = unpack(payload)
    code = function_code(spec, code)
    try:
        arguments = pickle.loads(head, buffers=buffers)
        if spec.kind == "application":
            if code not in _instances:
                _instances[code] = pickle.loads(code)()
                _instances[code].initialize()
            return None, value_parcel(_instances[code].do_work(arguments))
        args, kwargs = arguments
        return None, value_parcel(_function(spec, code)(*args, **kwargs))
    except Exception as error:  # noqa: BLE001
        return Failure("exception", "task", f"{type(error).__name__}: {error}"), error_parcel(error)


def _function(spec: TaskSpec, code: bytes) -> Any:
    if spec.launch["form"] == "pickle":
        return pickle.loads(code)
    names: dict[str, Any] = {}
    exec(code, names)
    return names[spec.launch["name"]]


def _do_executable(payload: bytes) -> tuple[Failure | None, bytes]:
    head, stdin, *_ = unpack(payload)
    said = json.loads(bytes(head))
    done = subprocess.run(said["argv"], input=bytes(stdin), capture_output=True, check=False)
    failure = Failure("exit", "task", f"exit status {done.returncode}") if done.returncode else None
    return failure, completed_parcel(done.returncode, done.stdout, done.stderr)
