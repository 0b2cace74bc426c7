"""Runs executables, and collects exit status, standard output and error, and output files."""

from __future__ import annotations

import errno
import glob
import json
import os
import resource
import select
import signal
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ...portable.failures import AttemptError, Failure, add_problem, is_limit
from ...portable.payload_format import PayloadFormatError, unpack
from ...portable.processes import ChildCpuClock, descendants_of, has_children, kill_descendants, reap_children, signal_all, signal_name
from ...portable.wire.frames import MAX_BODY
from .output_capture import OUTPUT_CAP
from .sandbox import MISSING_OUTPUT, Collected, Sandbox, make_sandbox, missing_output, write_all
from .shared_page import memory_file, move_high
from .slot_channel import ReportWriter
from .spooled_stream import MAX_OUTPUT, SpooledStream, describe

MAX_INLINE_FILES_BYTES = MAX_BODY - 2 * OUTPUT_CAP - (1 << 20)
MISLEADING_PEAK_KIB = 64 * 1024
REAP_MS = 5000
DIRECTORY_FIX = (
    "run it in a fresh one with --sandbox (sandbox=True in Python) and bring its files with --input (inputs=[...]), "
    "or run it in one that the nodes share (cwd=...)"
)
FLUSH_MS = 5
PIPE_READ_BYTES = 256 * 1024
# Python ignores these two signals. Programs must get the default action again.
RESTORED_SIGNALS = [signal.SIGPIPE, signal.SIGXFSZ]

Outcome = Tuple[Optional[Failure], List[Any], int, int]
"""failure or None, parts of the result payload, cpu_us, rss_kib"""


class TaskDirectories(NamedTuple):
    """Three directories: for sandboxes, for the content cache, and the outbox. The outbox gets output files too large for a result."""

    sandboxes: str
    cache: str
    outbox: str


class ExecutableSpec:
    """One spec whose tasks are executables. ``code``: payload with the small input files that all these tasks need."""

    def __init__(self, launch: Dict[str, Any], code: bytes) -> None:
        self.launch = launch
        self.sandbox = bool(launch.get("sandbox"))
        self.code = code
        self.max_output = int(launch.get("max_output") or MAX_OUTPUT)

    @staticmethod
    def flush_after_s() -> float:
        """See ``CallSpec.flush_after_s``. The time can be longer than for calls, because reports can also be sent while an executable
        runs."""
        return FLUSH_MS / 1000


class ChildWaiter:
    """Provides a descriptor that is readable when a child has ended: a pidfd. On old systems, it is a pipe that gets a byte at SIGCHLD."""

    def __init__(self) -> None:
        self._open_pidfd: Optional[Callable[[int], int]] = getattr(os, "pidfd_open", None)
        if self._open_pidfd is not None:
            try:
                os.close(self._open_pidfd(os.getpid()))
                return
            except OSError:
                self._open_pidfd = None
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)

    def watch(self, pid: int) -> int:
        if self._open_pidfd is not None:
            return self._open_pidfd(pid)
        # The handler is set only while waiting, because calls in this process possibly use SIGCHLD themselves.
        signal.signal(signal.SIGCHLD, _ignore_signal)
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        signal.raise_signal(signal.SIGCHLD)
        return self._read_end

    def done(self, descriptor: int) -> None:
        if self._open_pidfd is not None:
            os.close(descriptor)
        else:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.drain()

    def drain(self) -> None:
        if self._open_pidfd is None:
            try:
                os.read(self._read_end, 4096)
            except BlockingIOError:
                pass


SUCCESS: Dict[str, Any] = {"exit": 0}
SUCCESS_TEXT = b'{"exit": 0, "signal": null, "files": [], "stdout_dropped": 0, "stderr_dropped": 0}'
"""The summary of an executable that succeeded and has no output files, as JSON. It is encoded in advance, because most executables have
this summary."""


def _high_pipe() -> Tuple[int, int]:
    read_end, write_end = os.pipe()
    return move_high(read_end), move_high(write_end)


def _ignore_signal(number: int, frame: Any) -> None:
    """Does nothing. SIGCHLD needs a Python handler: Python writes to the wake-up descriptor only for signals with such a handler."""


class ExecutableRunner:
    """Runs executables, one at a time. ``control(readable)`` is called with False when an executable begins, and with True each time the
    agent has sent orders while the executable runs."""

    def __init__(
        self, channel: int, control: Callable[[bool], None], reports: ReportWriter, directories: TaskDirectories, clock: ChildCpuClock
    ) -> None:
        self._control = control
        self._reports = reports
        self._channel = channel
        self._directories = directories
        self._null = move_high(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        self._pipes = (_high_pipe(), _high_pipe())
        self._outputs: List[SpooledStream] = []
        self._waiter = ChildWaiter()
        self._clock = clock
        self._programs: Dict[Tuple[str, str], str] = {}
        self._poll = select.poll()
        for read_end, _ in self._pipes:
            os.set_blocking(read_end, False)
            self._poll.register(read_end, select.POLLIN)
        self._poll.register(channel, select.POLLIN)

    def run(
        self, spec: ExecutableSpec, body: memoryview, environment: Dict[str, str], label: str, input_files: Sequence[Any] = ()
    ) -> Outcome:
        """Runs one executable. ``input_files``: entries of the input files that other tasks produced."""
        sandbox: Optional[Sandbox] = None
        self._outputs = [SpooledStream(spec.max_output, self._directories.sandboxes) for _ in self._pipes]
        try:
            try:
                parts = unpack(body)
                task = json.loads(bytes(parts[0]))
                if input_files:
                    task["inputs"] = [*(task.get("inputs") or []), *input_files]
                if spec.sandbox:
                    sandbox = self._make_sandbox(spec, task, parts, label)
                return self._run(spec, task, parts[1], environment, sandbox)
            except AttemptError as error:
                return error.failure, self._payload({}, ()), 0, 0
            except (PayloadFormatError, IndexError, KeyError, TypeError, ValueError) as error:
                return ["unpickle", "user", "the task cannot be read: %r" % (error,)], self._payload({}, ()), 0, 0
        finally:
            for output in self._outputs:
                output.discard()
            if sandbox is not None:
                os.chdir("/")
                sandbox.remove()

    def _make_sandbox(self, spec: ExecutableSpec, task: Dict[str, Any], parts: Sequence[memoryview], label: str) -> Sandbox:
        shared = unpack(spec.code) if spec.code else []
        inputs = [*(spec.launch.get("inputs") or []), *(task.get("inputs") or [])]
        return make_sandbox(os.path.join(self._directories.sandboxes, label), inputs, [*shared, *parts[2:]], self._directories.cache)

    def _run(
        self, spec: ExecutableSpec, task: Dict[str, Any], stdin: Any, environment: Dict[str, str], sandbox: Optional[Sandbox]
    ) -> Outcome:
        launch = spec.launch
        requested = "" if sandbox else str(launch.get("cwd") or "")
        try:
            self._enter(requested or (sandbox.path if sandbox else self._directories.sandboxes))
        except OSError as error:
            if is_limit(error):
                raise
            return _directory_failure(requested, error), self._payload({}, ()), 0, 0
        if task.get("env"):
            environment = {**environment, **task["env"]}
        argv = [str(word) for word in task["argv"]]
        if launch.get("shell"):
            argv = ["/bin/sh", "-c", argv[0], "sh", *argv[1:]]
        try:
            pid = self._spawn(argv, environment, stdin)
        except OSError as error:
            if is_limit(error):
                raise
            return self._spawn_failure(argv[0], error), self._payload({}, ()), 0, 0
        status, usage = self._wait(pid)
        cpu_us = int(self._clock.lap_s() * 1e6)
        failure, summary = _exit_failure(status)
        files: List[bytes] = []
        patterns = [[*(launch.get(which) or []), *(task.get(which) or [])] for which in ("outputs", "keep")]
        if any(patterns):
            summary["files"], files, problem = self._collect(sandbox, failure is None, *patterns)
            if failure is None or (problem is not None and problem[0] != MISSING_OUTPUT):
                failure = add_problem(failure, problem)
        return failure, self._payload(summary, files), cpu_us, _own_peak_kib(usage.ru_maxrss)

    def _enter(self, directory: str) -> None:
        try:
            os.chdir(directory)
        except FileNotFoundError:
            if directory != self._directories.sandboxes:
                raise
            # Possibly, a task has removed the directory.
            os.makedirs(directory, 0o700, exist_ok=True)
            os.chdir(directory)

    def _collect(self, sandbox: Optional[Sandbox], succeeded: bool, outputs: Sequence[str], kept: Sequence[str]) -> Collected:
        """Collects the output files of a task. Large files, and all files that match ``kept``, go to the outbox and become contents, which
        other tasks can get. The other files go into the result. If the task failed, no other task is allowed to get its files. Files that
        match only ``kept`` are then not collected.

        Without a sandbox, no file is collected. With or without a sandbox, each file in ``outputs`` and ``kept`` whose name has no
        wildcards must exist.
        """
        if sandbox is None:
            absent = [name for name in (*outputs, *kept) if not any(sign in name for sign in "*?[") and not os.path.exists(name)]
            return Collected([], [], missing_output(absent[0]).failure if absent else None)
        separate: Dict[str, None] = {}
        problem: Optional[Failure] = None
        if kept and succeeded:
            try:
                separate = sandbox.names(kept)
            except AttemptError as error:
                problem = error.failure
        found = sandbox.collect(outputs, MAX_INLINE_FILES_BYTES, self._directories.outbox, separate)
        problem = problem or found.failure
        for entry in found.entries:
            separate.pop(entry[0], None)
        if not separate or problem is not None:
            return found._replace(failure=problem)
        stays = sandbox.collect([glob.escape(name) for name in separate], 0, self._directories.outbox)
        return Collected([*found.entries, *([*entry, True] for entry in stays.entries)], found.contents, stays.failure)

    def _spawn(self, argv: List[str], environment: Dict[str, str], stdin: Any) -> int:
        program = self._find(argv[0], environment)
        source = self._null
        if len(stdin):
            source = memory_file("stdin")
            write_all(source, stdin)
            os.lseek(source, 0, os.SEEK_SET)
        actions = [
            (os.POSIX_SPAWN_DUP2, source, 0),
            (os.POSIX_SPAWN_DUP2, self._pipes[0][1], 1),
            (os.POSIX_SPAWN_DUP2, self._pipes[1][1], 2),
        ]
        try:
            # The task gets its own process group. If it kills its group, it must not hit the slot.
            return os.posix_spawn(program, argv, environment, file_actions=actions, setpgroup=0, setsigmask=(), setsigdef=RESTORED_SIGNALS)
        finally:
            if source != self._null:
                os.close(source)

    def _find(self, name: str, environment: Dict[str, str]) -> str:
        if "/" in name:
            return name
        path = environment.get("PATH", os.defpath)
        key = (name, path)
        found = self._programs.get(key)
        if found is None:
            found = _which(name, path)
            if os.path.isabs(found):
                self._programs[key] = found
        return found

    def _spawn_failure(self, name: str, error: OSError) -> Failure:
        self._programs.clear()
        if error.errno == errno.ENOENT:
            interpreter = _interpreter_of(name)
            if interpreter:
                return ["spawn", "task", "there is no interpreter %r on this worker; the first line of %r names it" % (interpreter, name)]
            return ["spawn", "task", "there is no program %r on this worker" % name]
        blame = "task" if error.errno in (errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.E2BIG) else "worker"
        return ["spawn", blame, "cannot start %r: %s" % (name, error.strerror)]

    def _wait(self, pid: int) -> Tuple[int, Any]:
        """Reads the output of a program until the program ends. Then kills its descendants and reads the rest of the output. Returns status
        and usage."""
        self._control(False)
        exit_descriptor = self._waiter.watch(pid)
        self._poll.register(exit_descriptor, select.POLLIN)
        status, usage = 0, None
        try:
            while usage is None:
                ready = self._poll.poll(FLUSH_MS if self._reports.filled else REAP_MS)
                if not ready:
                    self._reports.flush()
                    reap_children([pid])
                for descriptor, _ in ready:
                    if descriptor == exit_descriptor:
                        self._waiter.drain()
                        found, status, found_usage = os.wait4(pid, os.WNOHANG)
                        usage = found_usage if found else None
                    elif descriptor == self._channel:
                        self._control(True)
                    else:
                        self._read(descriptor)
        finally:
            self._poll.unregister(exit_descriptor)
            self._waiter.done(exit_descriptor)
        if has_children():
            kill_descendants()
        for read_end, _ in self._pipes:
            while self._read(read_end):
                pass
        return status, usage

    def _read(self, descriptor: int) -> bool:
        try:
            data = os.read(descriptor, PIPE_READ_BYTES)
        except BlockingIOError:
            return False
        self._outputs[0 if descriptor == self._pipes[0][0] else 1].add(data)
        return len(data) > 0

    def stop(self, force: bool) -> None:
        """Stops the running executable with TERM, or with KILL if ``force``. When it has ended, all its child processes are killed."""
        signal_all(descendants_of(os.getpid()), signal.SIGKILL if force else signal.SIGTERM)

    def peek(self, stream: int, offset: int, limit: int = 1 << 20) -> Tuple[int, bytes]:
        return self._outputs[0 if stream == 1 else 1].since(offset, limit)

    def _payload(self, fields: Dict[str, Any], files: Sequence[bytes]) -> List[Any]:
        """Returns the parts of the result: a summary with these fields, standard output and error, the files."""
        out, error = (output.finish(self._directories.outbox) for output in self._outputs)
        if fields == SUCCESS and not (out.omitted or error.omitted):
            return [SUCCESS_TEXT, out.data, error.data, *files]
        has_files = out.omitted or error.omitted or any(len(entry) > 2 for entry in fields.get("files", ()))
        summary: Dict[str, Any] = {"stow": True} if has_files else {}
        summary.update({"exit": None, "signal": None, "files": [], "stdout_dropped": 0, "stderr_dropped": 0})
        summary.update(fields)
        summary.update(describe({"stdout": out, "stderr": error}))
        return [json.dumps(summary).encode(), out.data, error.data, *files]


def _which(name: str, path: str) -> str:
    for directory in path.split(os.pathsep):
        candidate = os.path.join(directory, name)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))


def _interpreter_of(path: str) -> str:
    """Returns the interpreter that the first line of a script names, or an empty text."""
    try:
        with open(path, "rb") as file:
            line = file.readline(256)
    except OSError:
        return ""
    words = line[2:].split() if line.startswith(b"#!") else []
    return os.fsdecode(words[0]) if words else ""


def _directory_failure(requested: str, error: OSError) -> Failure:
    """Returns the failure for a directory that cannot be entered. ``requested``: the directory that the task requested, or "". If the task
    requested the directory, the site is to blame. Otherwise the worker is to blame."""
    if not requested:
        return ["spawn", "worker", "cannot enter its directory %r: %s" % (error.filename, error.strerror)]
    node = os.uname().nodename
    if error.errno == errno.ENOENT:
        what = "there is no directory %r on node %s" % (requested, node)
    else:
        what = "the directory %r cannot be entered on node %s (%s)" % (requested, node, error.strerror)
    return ["no-directory", "site", what + ": " + DIRECTORY_FIX]


def _own_peak_kib(reported_kib: int) -> int:
    """Returns the peak memory of an executable, or 0 if it is unknown. Linux sometimes reports the memory of the slot instead, because the
    slot started the executable. So the value counts as unknown if it is large and the slot itself has used that much memory."""
    if reported_kib > MISLEADING_PEAK_KIB and reported_kib <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss:
        return 0
    return int(reported_kib)


def _exit_failure(status: int) -> Tuple[Optional[Failure], Dict[str, Any]]:
    """Converts an exit status of ``wait4``. Returns the failure or None, and the fields that describe the status in the result."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            return ["killed", "worker", "it was killed (SIGKILL) by another process, perhaps for lack of memory"], {"signal": number}
        return ["signal", "task", "it was ended by %s" % signal_name(number)], {"signal": number}
    code = os.WEXITSTATUS(status)
    return (["exit", "task", "it ended with exit status %d" % code] if code else None), {"exit": code}
