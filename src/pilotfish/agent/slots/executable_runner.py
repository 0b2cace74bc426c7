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

from ...portable.failures import AttemptError, Failure, is_limit
from ...portable.payload_format import PayloadFormatError, unpack
from ...portable.processes import ChildCpuClock, descendants_of, has_children, kill_descendants, reap_children, signal_all, signal_name
from ...portable.transfer.cache_directory import content_path
from ...portable.wire.frames import MAX_BODY
from .output_capture import OUTPUT_CAP, HeadAndTail
from .sandbox import Sandbox, missing_output, write_all
from .shared_page import memory_file, move_high
from .slot_channel import ReportWriter

MAX_OUTPUT_CAP = 32 * 1024 * 1024
MAX_INLINE_FILES_BYTES = MAX_BODY - 2 * MAX_OUTPUT_CAP - (1 << 20)
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
    """One spec of executables in this slot. ``code``: payload with the input files that all its tasks share."""

    def __init__(self, launch: Dict[str, Any], code: bytes) -> None:
        self.launch = launch
        self.sandbox = bool(launch.get("sandbox"))
        self.code = code
        self.output_cap = min(int(launch.get("output_cap") or OUTPUT_CAP), MAX_OUTPUT_CAP)

    @staticmethod
    def flush_after_s() -> float:
        """Returns how long reports of earlier attempts may wait. They can also be sent while an executable runs."""
        return FLUSH_MS / 1000


class ChildWaiter:
    """Waits for a child through a descriptor. It is a pidfd. With kernels before 5.3, it is a pipe that gets a byte at SIGCHLD."""

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
        # The handler is set only while waiting, because calls in this process may use SIGCHLD themselves.
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
"""The summary of most executables as JSON. It is encoded in advance."""


def _high_pipe() -> Tuple[int, int]:
    read_end, write_end = os.pipe()
    return move_high(read_end), move_high(write_end)


def _ignore_signal(number: int, frame: Any) -> None:
    """Does nothing. The wake-up descriptor is written only if a signal has a handler."""


class ExecutableRunner:
    """Runs executables, one at a time. ``control`` is called when the agent sends an order while an executable runs."""

    def __init__(
        self, channel: int, control: Callable[[bool], None], reports: ReportWriter, directories: TaskDirectories, clock: ChildCpuClock
    ) -> None:
        self._control = control
        self._reports = reports
        self._channel = channel
        self._directories = directories
        self._null = move_high(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        self._pipes = (_high_pipe(), _high_pipe())
        self._outputs: List[HeadAndTail] = []
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
        """Runs one executable. ``input_files``: files that other tasks left for it."""
        sandbox: Optional[Sandbox] = None
        self._outputs = [HeadAndTail(spec.output_cap), HeadAndTail(spec.output_cap)]
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
            if sandbox is not None:
                os.chdir("/")
                sandbox.remove()

    def _make_sandbox(self, spec: ExecutableSpec, task: Dict[str, Any], parts: Sequence[memoryview], label: str) -> Sandbox:
        shared = unpack(spec.code) if spec.code else []
        inputs = [*(spec.launch.get("inputs") or []), *(task.get("inputs") or [])]
        inline = [*shared, *parts[2:]]
        named = sum(1 for entry in inputs if len(entry) == 2 and entry[1] != "directory")
        if named != len(inline):
            raise ValueError("%d input files are named and %d were sent" % (named, len(inline)))
        sandbox = Sandbox(os.path.join(self._directories.sandboxes, label))
        try:
            self._add_inputs(sandbox, inputs, inline)
        except BaseException:
            sandbox.remove()
            raise
        return sandbox

    def _add_inputs(self, sandbox: Sandbox, entries: Sequence[Any], inline: List[memoryview]) -> None:
        """Adds directories, links and files. A file [name, mode] came with the task. A file [name, mode, digest, size] is in the cache."""
        inline.reverse()
        for entry in entries:
            if entry[1] == "directory":
                sandbox.make_directory(entry[0], 0o755)
            elif entry[1] == "link":
                sandbox.make_link(entry[0], entry[2])
            elif len(entry) > 2 and not entry[2]:
                raise AttemptError("missing-input", "user", "the task that should leave %r for it did not" % (entry[0],))
            elif len(entry) > 2:
                sandbox.add_cached_file(entry[0], entry[1], content_path(self._directories.cache, entry[2]))
            else:
                sandbox.write_file(entry[0], entry[1], inline.pop())

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
        if any(patterns) and failure is None:
            try:
                summary["files"], files = self._collect(sandbox, *patterns)
            except AttemptError as error:
                failure = error.failure
        return failure, self._payload(summary, files), cpu_us, _own_peak_kib(usage.ru_maxrss)

    def _enter(self, directory: str) -> None:
        try:
            os.chdir(directory)
        except FileNotFoundError:
            if directory != self._directories.sandboxes:
                raise
            # A task may have removed the directory.
            os.makedirs(directory, 0o700, exist_ok=True)
            os.chdir(directory)

    def _collect(self, sandbox: Optional[Sandbox], outputs: Sequence[str], kept: Sequence[str]) -> Tuple[List[List[Any]], List[bytes]]:
        """Collects output files for the result or the outbox.

        A file that matches both ``outputs`` and ``kept`` goes to the outbox even if it is small, so that other tasks can get it as a
        content. Without a sandbox, the files stay in their directory. A file that is named without a pattern must exist.
        """
        if sandbox is not None:
            separate = sandbox.names(kept) if kept else {}
            files, contents = sandbox.collect(outputs, MAX_INLINE_FILES_BYTES, self._directories.outbox, separate)
            for entry in files:
                separate.pop(entry[0], None)
            stays, _ = sandbox.collect([glob.escape(name) for name in separate], 0, self._directories.outbox) if separate else ([], [])
            return [*files, *([*entry, True] for entry in stays)], contents
        for name in (*outputs, *kept):
            if not any(sign in name for sign in "*?[") and not os.path.exists(name):
                raise missing_output(name)
        return [], []

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
            return ["spawn", "task", "there is no program %r on this worker" % name]
        blame = "task" if error.errno in (errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.E2BIG) else "worker"
        return ["spawn", blame, "cannot start %r: %s" % (name, error.strerror)]

    def _wait(self, pid: int) -> Tuple[int, Any]:
        """Reads the output of a program until it ends. Then kills its descendants, and reads the remaining output."""
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
        """Stops the running executable with TERM, or with KILL if ``force``. Processes that it starts meanwhile are killed at its end."""
        signal_all(descendants_of(os.getpid()), signal.SIGKILL if force else signal.SIGTERM)

    def peek(self, stream: int, offset: int, limit: int = 1 << 20) -> Tuple[int, bytes]:
        return self._outputs[0 if stream == 1 else 1].since(offset, limit)

    def _payload(self, fields: Dict[str, Any], files: Sequence[bytes]) -> List[Any]:
        """Returns the parts of the result: a summary with these fields, standard output and error, the files."""
        (out, out_dropped), (error, error_dropped) = (output.result() for output in self._outputs)
        if fields == SUCCESS and not (out_dropped or error_dropped):
            return [SUCCESS_TEXT, out, error, *files]
        summary: Dict[str, Any] = {"stow": True} if any(len(entry) > 2 for entry in fields.get("files", ())) else {}
        summary.update({"exit": None, "signal": None, "files": [], "stdout_dropped": out_dropped, "stderr_dropped": error_dropped})
        summary.update(fields)
        return [json.dumps(summary).encode(), out, error, *files]


def _which(name: str, path: str) -> str:
    for directory in path.split(os.pathsep):
        candidate = os.path.join(directory, name)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))


def _directory_failure(requested: str, error: OSError) -> Failure:
    """Returns the failure for a directory that cannot be entered. If the user requested it, the site is blamed; otherwise the worker is."""
    if not requested:
        return ["spawn", "worker", "cannot enter its directory %r: %s" % (error.filename, error.strerror)]
    node = os.uname().nodename
    if error.errno == errno.ENOENT:
        what = "there is no directory %r on node %s" % (requested, node)
    else:
        what = "the directory %r cannot be entered on node %s (%s)" % (requested, node, error.strerror)
    return ["no-directory", "site", what + ": " + DIRECTORY_FIX]


def _own_peak_kib(reported_kib: int) -> int:
    """Returns the peak memory of an executable, or 0 if it is unknown. Linux also counts the memory of the process that spawned it. If the
    slot is large, the reported peak may be the peak of the slot."""
    if reported_kib > MISLEADING_PEAK_KIB and reported_kib <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss:
        return 0
    return int(reported_kib)


def _exit_failure(status: int) -> Tuple[Optional[Failure], Dict[str, Any]]:
    """Returns the failure or None, and fields of the summary, for this status of ``wait4``."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            return ["killed", "worker", "it was killed (SIGKILL) by another process, perhaps for lack of memory"], {"signal": number}
        return ["signal", "task", "it was ended by %s" % signal_name(number)], {"signal": number}
    code = os.WEXITSTATUS(status)
    return (["exit", "task", "it ended with exit status %d" % code] if code else None), {"exit": code}
