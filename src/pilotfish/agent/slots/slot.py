"""Runs user code, one attempt at a time, in a separate process.

There are two processes: the monitor and the slot. The slot server (see ``slot_server``) forks the monitor for the agent. The monitor forks
the slot and waits for its end. If user code kills the parent of its process, only the monitor dies. Both processes are child subreapers:
they adopt the orphans among their descendants. The monitor kills all its descendants when the slot is dead, when the agent sends SIGTERM,
and when the agent is dead. The monitor exits with the status of the slot, so that the agent learns the cause.
"""

from __future__ import annotations

import builtins
import gc
import json
import os
import resource
import signal
import socket
import sys
import types
from os import _exit, getpid
from time import perf_counter, process_time
from typing import Any, Dict, List, NoReturn, Optional, Tuple, Union

from ...portable.failures import AttemptError, describe_limit, is_limit
from ...portable.payload_format import split_files
from ...portable.payload_reference import read_payload
from ...portable.processes import ChildCpuClock, become_subreaper, has_children, keep_freed_memory, kill_descendants, signal_on_parent_death
from .call_output import StreamCapture
from .call_runner import CallRunner, CallSpec, Terminated
from .executable_runner import ExecutableRunner, ExecutableSpec, TaskDirectories
from .sandbox import make_sandbox
from .shared_page import (
    BROKEN,
    CPU_BEFORE,
    END_REASON,
    INTENT,
    KILL,
    LIMITED,
    PEEK,
    PEEKED,
    PID,
    QUIT,
    SKIP,
    SPEC,
    STARTED,
    STOP_ATTEMPT,
    TASK,
    TERMINATE,
    TIME_IS_UP,
    SharedPage,
    copy_high,
    move_high,
)
from .slot_channel import OrderReader, ReportWriter
from .task_environment import TaskEnvironment

KEPT_MEMORY_BYTES = 32 * 1024 * 1024
# Less time than any child process needs to be forked, run and end.
SHORTEST_CHILD_S = 0.0001

AnySpec = Union[CallSpec, ExecutableSpec]
BUILT_IN = dict(vars(builtins))
NO_RESULT: List[Any] = [b"", b"", b"", b""]
"""Parts of the result payload of a call that could not be started."""
KEPT_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}


class SlotUnusable(Exception):
    """An earlier call broke something that every call needs. The slot must end."""


def run_monitor(settings: Dict[str, Any], channel: int, page: int) -> NoReturn:
    """Runs the monitor in the process that the slot server forked, and forks the slot. The signals in KEPT_SIGNALS must be blocked.

    ``channel``, ``page``: descriptors of the channel to the agent and of the shared page.
    """
    shared_page = SharedPage(page)
    become_subreaper()
    monitor = getpid()
    try:
        child = os.fork()
    except OSError as error:
        _report_end(shared_page, error)
        _exit(1)
    if child:
        # The monitor waits for signals with sigwait. A Python handler can miss a signal that comes just before a blocking call.
        _monitor(child, max(channel, page))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, KEPT_SIGNALS)
    become_subreaper()
    signal_on_parent_death(signal.SIGKILL, monitor)
    _prefer_for_oom_kill()
    keep_freed_memory(KEPT_MEMORY_BYTES)
    # If the agent itself runs in a task, it has inherited the variable of that task.
    os.environ.pop("PILOTFISH_ENDS_AT", None)
    if settings["ends_at"]:
        os.environ["PILOTFISH_ENDS_AT"] = settings["ends_at"]
    code = 1
    try:
        os.close(page)
        code = SlotLoop(settings, shared_page, channel).run()
    except Exception as error:  # noqa: BLE001  user code may have broken any module
        _report_end(shared_page, error)
    finally:
        _exit(code)


def _report_end(page: SharedPage, error: Exception) -> None:
    """Reports why the slot ends. This function uses little code, because user code has possibly broken some modules."""
    page.words32[END_REASON] = BROKEN
    if isinstance(error, OSError) and is_limit(error):
        page.words32[END_REASON] = LIMITED
        text = describe_limit(error)
    else:
        text = "%s: %s" % (type(error).__name__, error)
    os.write(2, b"\n%s\n" % text.encode("utf-8", "replace"))


def _monitor(child: int, last_descriptor: int) -> NoReturn:
    """Waits until the slot ends or SIGTERM comes. Then kills all descendants and exits. The exit status is the status of the slot; after
    SIGTERM, it is the status for SIGTERM."""
    os.closerange(0, last_descriptor + 1)
    pid = 0
    while pid != child:
        if signal.sigwait(KEPT_SIGNALS) == signal.SIGTERM:
            kill_descendants()
            os._exit(128 + signal.SIGTERM)
        pid, status = os.waitpid(child, os.WNOHANG)
    kill_descendants()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, KEPT_SIGNALS)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def _prefer_for_oom_kill() -> None:
    """Makes the kernel kill slots and tasks first when memory runs out, not the agent or the monitor."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        pass


class SlotLoop:
    """Reads orders of the agent, runs attempts and reports results."""

    def __init__(self, settings: Dict[str, Any], page: SharedPage, descriptor: int) -> None:
        self.page = page
        page.words32[PID] = getpid()
        channel = socket.socket(fileno=move_high(descriptor))
        channel.setblocking(True)
        self.share: str = settings["share"]
        """The directory of shared payloads, or "" if there is none."""
        self.reports = ReportWriter(channel, page, self.share)
        self.orders = OrderReader(channel, self.reports)
        capture = StreamCapture(copy_high(1), copy_high(2), page, settings["scratch"], settings["outbox"])
        self.calls = CallRunner(capture, settings["bundle"], self.share, settings["cache"])
        self.executables: Optional[ExecutableRunner] = None
        self.environment_setup = TaskEnvironment(settings["worker"], settings["scratch"], is_here=bool(self.share))
        self.specs: Dict[int, AnySpec] = {}
        self.current = 0
        self._user_code_ran = True
        """Whether the current attempt has begun to run user code. If so, the attempt must not run again."""
        self._has_earlier_call = False
        self._directories = TaskDirectories(settings["scratch"], settings["cache"], settings["outbox"])
        self._channel = channel
        self._pid = getpid()
        self._cpu_s = process_time()
        page.words64[CPU_BEFORE] = int(self._cpu_s * 1e6)
        self._rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._children_clock = ChildCpuClock()

    def run(self) -> int:
        """Runs until the agent sends QUIT or is dead; returns the exit status."""
        # SIGTERM gets no handler: forked processes of user code would inherit it, and a Python handler can lose an early signal.
        signal.signal(TIME_IS_UP, self._on_time_up)
        signal.signal(signal.SIGINT, self._on_interrupt)
        # User code gets an empty __main__: objects that are pickled by reference to __main__ do not exist at the client.
        sys.modules["__main__"] = types.ModuleType("__main__")
        sys.argv = [""]
        gc.freeze()
        try:
            while True:
                order = self.orders.next()
                if order is None or order[0][0] == QUIT:
                    self.calls.finalize()
                    return 0
                if order[0][0] == TASK:
                    self._run_task(*order)
                elif order[0][0] == SPEC:
                    self._keep_spec(order[0][2], order[1])
                elif order[0][0] == PEEK:
                    self._peek(0, order[1])
                # Other orders concern an attempt that has ended meanwhile.
        except Terminated:
            return 128 + signal.SIGTERM
        except (BrokenPipeError, ConnectionResetError):
            return 0

    # --- signals ------------------------------------------------------------------------------------------------------------------

    def _on_time_up(self, number: int, frame: Any) -> None:
        """Handles TIME_IS_UP: raises Terminated in the attempt that the agent wants to stop. Does nothing if another attempt runs now."""
        if self.calls.in_user_code and self.page.words32[STOP_ATTEMPT] == self.current and getpid() == self._pid:
            raise Terminated

    def _on_interrupt(self, number: int, frame: Any) -> None:
        if self.calls.in_user_code:
            raise KeyboardInterrupt

    # --- orders -------------------------------------------------------------------------------------------------------------------

    def _keep_spec(self, number: int, body: memoryview) -> None:
        length = int.from_bytes(body[:4], "little")
        kind, time_s, launch = json.loads(bytes(body[4 : 4 + length]))
        code = bytes(read_payload(self.share, body[4 + length :]))
        self.specs[number] = ExecutableSpec(launch, code) if kind == "exec" else CallSpec(kind, launch, code)
        self.environment_setup.add_spec(number, time_s, launch, is_call=kind != "exec")

    def _run_task(self, order: Tuple[Any, ...], body: memoryview) -> None:
        sequence = order[1]
        page = self.page
        words32 = page.words32
        last_started = words32[STARTED]
        words32[INTENT] = sequence
        skip = page.words64[SKIP]
        if skip >> 32 <= sequence <= skip & 0xFFFFFFFF:
            words32[INTENT] = last_started
            return
        self._user_code_ran = False
        try:
            self._run_started(order, body)
        except BaseException:
            if not self._user_code_ran:
                words32[STARTED] = words32[INTENT] = last_started
            raise

    def _run_started(self, order: Tuple[Any, ...], body: memoryview) -> None:
        _, sequence, number, attempt, task, cores, _ = order
        spec = self.specs[number]
        started_at = perf_counter()
        reports = self.reports
        if reports.filled and started_at - reports.flushed_at > spec.flush_after_s():
            reports.flush()
            reports.flushed_at = started_at
        self.page.words32[STARTED] = sequence
        self.current = sequence
        input_files: List[Any] = []
        if isinstance(spec, ExecutableSpec):
            input_files, body = split_files(body)
        try:
            body = read_payload(self.share, body)
        except OSError as error:
            if is_limit(error):
                raise
            failure = ["missing-input", "task", "its input does not exist any more: %s" % error.strerror]
            reports.report((sequence, 0, 0, self._rss_kib), failure, [b"", b"", b"", b""])
            return
        if isinstance(spec, ExecutableSpec):
            self._run_executable(spec, started_at, order, body, input_files)
            return
        if spec.inputs:
            failure, parts = self._call_in_sandbox(spec, order, body)
        else:
            problem = self.environment_setup.enter(number, task, attempt, cores)
            failure, parts = (["spawn", "worker", problem], NO_RESULT) if problem else self._call(spec, body)
        wall_s = perf_counter() - started_at
        spec.recent_s = max(wall_s, 0.8 * spec.recent_s)
        cpu_us = self._cpu_used(wall_s)
        reports.report((sequence, int(wall_s * 1e6), cpu_us, self._rss_kib), failure, parts)

    def _call_in_sandbox(self, spec: CallSpec, order: Tuple[Any, ...], body: memoryview) -> Tuple[Any, List[Any]]:
        """Runs a call that has input files. The call gets its own directory with these files."""
        _, _, number, attempt, task, cores, _ = order
        sandbox = None
        try:
            path = os.path.join(self._directories.sandboxes, "%d-%d" % (task, attempt))
            sandbox = make_sandbox(path, spec.inputs, spec.files, self._directories.cache)
            problem = self.environment_setup.enter(number, task, attempt, cores, sandbox.path)
            return (["spawn", "worker", problem], NO_RESULT) if problem else self._call(spec, body)
        except AttemptError as error:
            return error.failure, NO_RESULT
        finally:
            if sandbox is not None:
                os.chdir("/")
                sandbox.remove()

    def _call(self, spec: CallSpec, body: memoryview) -> Tuple[Any, List[Any]]:
        started_at = perf_counter()
        self._user_code_ran = True
        failure, parts = self.calls.run(spec, body)
        if getpid() != self._pid:
            # This is a child process that user code has forked. It must not act as the slot.
            _exit(0)
        if failure is not None and self._has_earlier_call:
            _check_built_ins()
        self._has_earlier_call = True
        if perf_counter() - started_at > SHORTEST_CHILD_S and has_children():
            kill_descendants(self.calls.keep_children)
            _forget_resource_tracker()
        return failure, parts

    def _cpu_used(self, wall_s: float) -> int:
        """Returns the CPU time that this process has used since the previous call of this method, in microseconds. After a longer attempt,
        adds the CPU time of child processes; after a short attempt, this would cost too much time."""
        cpu_s = process_time()
        used = cpu_s - self._cpu_s
        self._cpu_s = cpu_s
        self.page.words64[CPU_BEFORE] = int(cpu_s * 1e6)
        if wall_s > SHORTEST_CHILD_S * 5:
            self._rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            used += self._children_clock.lap_s()
        return int(used * 1e6)

    def _run_executable(
        self, spec: ExecutableSpec, started_at: float, order: Tuple[Any, ...], body: memoryview, input_files: List[Any]
    ) -> None:
        _, sequence, number, attempt, task, cores, _ = order
        if self.executables is None:
            self.executables = ExecutableRunner(
                self._channel.fileno(), self._control, self.reports, self._directories, self._children_clock
            )
        environment = self.environment_setup.environment(number, task, attempt, cores)
        failure, parts, cpu_us, rss_kib = self.executables.run(spec, body, environment, "%d-%d" % (task, attempt), input_files)
        wall_s = perf_counter() - started_at
        self.reports.report((sequence, int(wall_s * 1e6), cpu_us, rss_kib), failure, parts)

    def _control(self, readable: bool) -> None:
        """Handles orders while an executable runs. ``readable``: new bytes have arrived."""
        self._user_code_ran = True
        if readable and not self.orders.receive():
            _exit(0)
        for order, body in self.orders.take_urgent():
            if order[0] == PEEK:
                self._peek(order[1], body)
            elif order[1] == self.current and self.executables is not None and order[0] in (TERMINATE, KILL):
                self.executables.stop(order[0] == KILL)

    def _peek(self, sequence: int, body: memoryview) -> None:
        query, stream, offset = json.loads(bytes(body))
        known = sequence == self.current and self.executables is not None
        data = b""
        if self.executables is not None and known:
            offset, data = self.executables.peek(stream, offset)
        self.reports.report((PEEKED, query, offset, int(known)), None, [data], raw=True)
        self.reports.flush()


def _check_built_ins() -> None:
    """Raises SlotUnusable if a built-in such as ``len`` is no longer a function. Then an earlier call has replaced the built-in, and this
    call possibly failed for this reason."""
    for name, value in BUILT_IN.items():
        if callable(value) and not callable(getattr(builtins, name, None)):
            raise SlotUnusable("the built-in %s is missing" % name)


def _forget_resource_tracker() -> None:
    """Makes multiprocessing start a new resource tracker process, because the old tracker was killed together with the other child
    processes."""
    module: Any = sys.modules.get("multiprocessing.resource_tracker")
    tracker = getattr(module, "_resource_tracker", None)
    if tracker is not None and getattr(tracker, "_fd", None) is not None:
        try:
            os.close(tracker._fd)
        except OSError:
            pass
        tracker._fd = tracker._pid = None
