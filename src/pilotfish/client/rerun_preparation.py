"""Prepares reruns of tasks: reads their input files and modules again, and applies new limits.

The master does not read files of users. So the client asks the master which tasks will run, reads the files of these tasks, and sends the
specs and payloads that changed. A client cannot read again what a program computed. So the arguments of Python calls and the functions of
the main program stay as they were.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pilotfish.applications.calls.own_modules import OwnModules
from pilotfish.applications.executables.program_inputs import newly_imported
from pilotfish.applications.input_files import RenewedFiles, renew_files
from pilotfish.applications.reuse.program_files import INTERPRETER, program_words
from pilotfish.applications.reuse.task_keys import parts_of_spec
from pilotfish.applications.task_options import read_task_options
from pilotfish.client.outputs.task_output import fetch_inputs
from pilotfish.client.reuse.program_register import ProgramRegister
from pilotfish.client.reuse.rerun_keys import RerunKeys, SpecFiles
from pilotfish.client.session import PoolSession
from pilotfish.client.submission import not_utf8_error
from pilotfish.errors import BadInput
from pilotfish.model.contents import Content
from pilotfish.model.quantities import show_bytes
from pilotfish.model.task import TaskSpec
from pilotfish.portable.payload_format import pack, unpack
from pilotfish.portable.wire.frames import MAX_BODY

SHOWN_FILES = 5
LIMITS = ("time", "memory", "retries", "cores")
"""Task options that a rerun can change."""
MAX_PROGRAMS = 50
"""Maximum number of programs per spec whose files are checked for changes since the end of the task. The check only serves to show these
changes to the user."""


@dataclass(slots=True)
class PreparedRerun:
    """A rerun to send to the master."""

    run: int
    tasks: list[str]
    deleted: int
    """Number of cancelled tasks that cannot run again, because their payloads were deleted."""
    changed_files: dict[str, None] = field(default_factory=dict)
    """Files that changed after the submission of the tasks. For a task without a sandbox, also files that changed after the end of the
    task: files that its command names, and the user's own modules that its scripts import."""
    unchanged_functions: dict[str, None] = field(default_factory=dict)
    """Functions of which the rerun uses the old version: functions of the main program, and functions that were sent as source."""
    _specs: list[tuple[int, TaskSpec, bool]] = field(default_factory=list)
    _codes: list[bytes] = field(default_factory=list)
    _inputs: list[tuple[int, tuple[Content, ...]]] = field(default_factory=list)
    _payloads: list[bytes] = field(default_factory=list)
    keys: RerunKeys = field(default_factory=lambda: RerunKeys({}, {}, {}, {}))

    def send(self, session: PoolSession, sites: Sequence[str] | None = None) -> dict[str, int]:
        """Runs the tasks again and returns the answer of the master. ``sites``: new sites of the run, or None for no change."""
        payloads = [*self._codes, *self._payloads]
        size = sum(map(len, payloads))
        if size > MAX_BODY:
            text = f"the changed inputs of {len(self.tasks):,} tasks have {show_bytes(size)}; {show_bytes(MAX_BODY)} is the most"
            raise BadInput(text, f"Rerun the tasks in parts: pilotfish rerun {self.tasks[0]} ...")
        changes: dict[str, Any] = {"specs": self._specs, "inputs": self._inputs}
        records = self.keys.records()
        if records:
            changes["keys"] = records
            ProgramRegister(session.directory, self.run).add(self.keys.programs)
        if sites is not None:
            changes["sites"] = list(sites)
        answer: dict[str, int] = session.ask_with_payloads("rerun", payloads, run=self.run, tasks=self.tasks, changes=changes)
        return answer

    def add_spec(self, origin: int, spec: TaskSpec, code: bytes | None) -> None:
        """Adds a changed spec. ``origin``: number of the spec in the run. ``code`` is None if the code did not change."""
        try:
            msgspec.json.encode(spec)
        except UnicodeEncodeError as problem:
            raise not_utf8_error(spec, str(problem.object)) from None
        self._specs.append((origin, spec, code is not None))
        if code is not None:
            self._codes.append(code)

    def add_input(self, index: int, payload: bytes, contents: tuple[Content, ...]) -> None:
        self._inputs.append((index, contents))
        self._payloads.append(payload)


def prepare_rerun(session: PoolSession, wanted: Mapping[str, Any], limits: Mapping[str, Any]) -> PreparedRerun:
    """Prepares the rerun of failed and cancelled tasks of one run: reads their files again. ``wanted``: the ``run``, and optionally the
    ``tasks`` or their ``state``. ``limits``: new values for some of the options in LIMITS."""
    found = session.ask("rerunnable", **wanted)
    run: int = found["run"]
    prepared = PreparedRerun(run, [f"{run}.{index}" for index, _ in found["tasks"]], found["deleted"])
    prepared.keys = _make_keys(session, run, found)
    by_spec: dict[int, list[int]] = {}
    for index, number in found["tasks"]:
        by_spec.setdefault(number, []).append(index)
    modules: dict[tuple[str, ...], OwnModules] = {}
    for number, indices in by_spec.items():
        spec = msgspec.convert(msgspec.to_builtins(found["specs"][str(number)]), TaskSpec)
        old = _code_of(session, spec, f"{run}.{indices[0]}")
        renewed, code = _renewed_spec(prepared, spec, old, modules)
        renewed = _with_limits(renewed, limits)
        if renewed != spec or code is not None:
            prepared.add_spec(number, renewed, code)
        before, now = SpecFiles(spec, old), SpecFiles(renewed, old if code is None else code)
        if spec.kind == "exec":
            prepared.keys.add_spec(number, before, now)
            _renew_tasks(session, prepared, number, before, indices)
        elif spec.kind == "python":
            prepared.keys.add_calls(indices, before, now)
    return prepared


def reads_files(session: PoolSession, task: str) -> bool:
    """Returns whether a rerun of a task would read files of the user again. If these files were changed, the rerun does something else than
    before. The files are programs, scripts and other files that the command names, inputs, and the user's own modules. Raises BadInput if
    the task cannot run again."""
    found = session.ask("rerunnable", run=task.partition(".")[0], tasks=[task])
    index = int(task.partition(".")[2])
    spec = msgspec.convert(msgspec.to_builtins(found["specs"][str(dict(found["tasks"])[index])]), TaskSpec)
    launch = spec.launch
    if launch.get("sources") or launch.get("modules"):
        return True
    (payload,) = fetch_inputs(session, [task]) if spec.kind == "exec" else (b"",)
    described = json.loads(bytes(unpack(payload)[0])) if payload else {"argv": [""]}
    program, *words = described["argv"]
    named = [part for word in words for part in re.split(r"[\s=;]+", word)]
    name = os.path.basename(program)
    if "/" in program and not INTERPRETER.fullmatch(name) and shutil.which(name) != program:
        named.append(program)
    directory = launch.get("cwd") or ""
    return "sources" in described or "stdin_path" in described or any(_modified_at(os.path.join(directory, word)) for word in named)


def _make_keys(session: PoolSession, run: int, found: Mapping[str, Any]) -> RerunKeys:
    before = {index: b64decode(record) for index, record in found.get("keys", ())}
    needed = {index: others for index, others, _ in found.get("needs", ())}
    files = {index: [tuple(file) for file in named] for index, _, named in found.get("needs", ())}
    return RerunKeys(before, needed, files, ProgramRegister(session.directory, run).read() if before else {})


def _with_limits(spec: TaskSpec, limits: Mapping[str, Any]) -> TaskSpec:
    given = read_task_options(dict(limits), "rerun")
    request = spec.request
    if "cores" in limits:
        request = msgspec.structs.replace(request, cores=given.request.cores, cores_max=given.request.cores_max)
    if "memory" in limits:
        request = msgspec.structs.replace(request, memory=given.request.memory)
    time_s = given.time_s if "time" in limits else spec.time_s
    retries = given.retries if "retries" in limits else spec.retries
    return msgspec.structs.replace(spec, request=request, time_s=time_s, retries=retries)


def _code_of(session: PoolSession, spec: TaskSpec, task: str) -> bytes:
    """Returns the code of a spec, or no bytes for a program without shared files. ``task``: any task that has this spec."""
    if spec.kind == "exec" and not spec.launch.get("sources"):
        return b""
    return session.ask_bytes("payload", task=task, which="code").body


def _renewed_spec(
    prepared: PreparedRerun, spec: TaskSpec, code: bytes, modules: dict[tuple[str, ...], OwnModules]
) -> tuple[TaskSpec, bytes | None]:
    """Returns the spec and its code with the current versions of the files and modules. The code is None if it did not change."""
    if spec.kind == "exec":
        return _with_files(prepared, spec, code) if spec.launch.get("sources") else (spec, None)
    search = tuple(spec.launch.get("path") or ())
    return _with_modules(prepared, spec, code, modules.setdefault(search, OwnModules(list(search))))


def _renew_sandbox(described: Mapping[str, Any], parts: Sequence[bytes | memoryview], environment: Mapping[str, str]) -> RenewedFiles:
    """Reads the files of a sandbox again. If one of these files has changed, also reads own modules of the user that the scripts import now
    and that the sandbox lacks. ``described``: the launch description of a spec, or the description of a task."""
    sources = described.get("sources", {})
    renewed = renew_files(described["inputs"], parts, sources)
    added = newly_imported(sources, environment.get("PYTHONPATH", "")) if renewed.changed else {}
    return renew_files(described["inputs"], parts, {**sources, **added}) if added else renewed


def _with_files(prepared: PreparedRerun, spec: TaskSpec, code: bytes) -> tuple[TaskSpec, bytes | None]:
    files, changed = _renew_sandbox(spec.launch, unpack(code) if code else (), spec.launch.get("env") or {})
    prepared.changed_files.update(dict.fromkeys(changed))
    if not changed and files.contents == spec.contents:
        return spec, None
    spec = msgspec.structs.replace(spec, launch={**spec.launch, "inputs": files.entries, "sources": files.sources}, contents=files.contents)
    return spec, pack(files.parts) if files.parts else b""


def _with_modules(prepared: PreparedRerun, spec: TaskSpec, code: bytes, modules: OwnModules) -> tuple[TaskSpec, bytes | None]:
    """Returns the spec of Python calls with the current modules and input files, and its code. The code is None if it did not change."""
    launch, contents = dict(spec.launch), spec.contents
    if launch.get("by_value", launch.get("form") == "source" or b"__main__" in code):
        prepared.unchanged_functions[spec.name] = None
    if not launch.get("modules") and not launch.get("inputs"):
        return spec, None
    function, data, *parts = map(bytes, unpack(code))
    changed: tuple[str, ...] = ()
    if launch.get("modules"):
        (launch["modules"], data), changed = modules.renew(data)
    if launch.get("sources"):
        files, changed_files = renew_files(launch["inputs"], parts, launch["sources"])
        launch["inputs"], parts, contents = files.entries, files.parts, files.contents
        changed += changed_files
    prepared.changed_files.update(dict.fromkeys(changed))
    if not changed and contents == spec.contents:
        return spec, None
    return msgspec.structs.replace(spec, launch=launch, contents=contents), pack([function, data, *parts])


def _renew_tasks(session: PoolSession, prepared: PreparedRerun, number: int, files: SpecFiles, indices: list[int]) -> None:
    """Reads the input files again that belong to single executables. Input files in their spec are not read. ``files``: the spec and its
    old code."""
    environment = files.spec.launch.get("env") or {}
    is_sent, parts_of_all = bool(files.spec.launch.get("sandbox")), parts_of_spec(*files)
    seen: set[tuple[str, ...]] = set()
    names = [f"{prepared.run}.{index}" for index in indices]
    for index, payload in zip(indices, fetch_inputs(session, names), strict=True):
        meta, stdin, *parts = unpack(payload)
        task = json.loads(bytes(meta))
        renewed = None
        if "sources" in task or "stdin_path" in task:
            renewed = _renew_task(prepared, index, task, bytes(stdin), _renew_sandbox(task, parts, {**environment, **task["env"]}))
        prepared.keys.add_executable(index, number, payload, payload if renewed is None else renewed)
        words = program_words(task["argv"])
        if not is_sent and words not in seen and len(seen) < MAX_PROGRAMS:
            seen.add(words)
            arguments = [os.path.join(files.spec.launch.get("cwd") or "", word) for word in task["argv"]]
            _note_programs(session, prepared, f"{prepared.run}.{index}", [*arguments, *list(parts_of_all.search(words).found)[1:]])


def _renew_task(prepared: PreparedRerun, index: int, task: dict[str, Any], stdin: bytes, renewed: RenewedFiles) -> bytes | None:
    """Returns the new payload of a task, or None if the payload does not change. ``renewed``: the current input files of the task."""
    files, changed = renewed
    read = _read_again(task["stdin_path"]) if "stdin_path" in task else stdin
    changed += (task["stdin_path"],) if read != stdin else ()
    prepared.changed_files.update(dict.fromkeys(changed))
    # If a large file was replaced by an equal file, the master needs the new modification time.
    if not changed and not any(content.path for content in files.contents):
        return None
    task |= {"inputs": files.entries} | ({"sources": files.sources} if "sources" in task else {})
    payload = pack([json.dumps(task).encode(), read, *files.parts])
    prepared.add_input(index, payload, files.contents)
    return payload


def _read_again(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadInput(f"the input file {path} cannot be read: {(error.strerror or '').lower()}", "put it back") from error


def _note_programs(session: PoolSession, prepared: PreparedRerun, task: str, paths: list[str]) -> None:
    """Adds to ``changed_files`` the files of ``paths`` that changed after a task ended. The rerun of a task without a sandbox uses the
    changed files, because the task reads them from its working directory."""
    ended_at = session.ask("task", task=task).get("ended_at") or float("inf")
    prepared.changed_files.update(dict.fromkeys(os.path.normpath(path) for path in paths if _modified_at(path) > ended_at))


def _modified_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime if os.path.isfile(path) else 0.0
    except (OSError, ValueError):
        return 0.0


def shown_files(paths: Sequence[str]) -> Iterator[str]:
    """Yields the paths of the first SHOWN_FILES files, then a text such as ``4 more``. Paths below the current directory are relative."""
    here = os.getcwd()
    for path in paths[:SHOWN_FILES]:
        yield os.path.relpath(path) if path.startswith(here + os.sep) else path
    if len(paths) > SHOWN_FILES:
        yield f"{len(paths) - SHOWN_FILES:,} more"
