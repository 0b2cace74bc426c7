"""Starts, watches and kills the slots of an agent. The agent loop calls the slot pool. The slot pool tells the AgentMachine what
happened, by calling its input methods."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import time
from typing import Any, Callable, Dict, List, Sequence, Tuple

from ...portable.failures import Failure, describe_limit, is_limit
from ...portable.processes import children_of, descendants_of, reap_children, signal_all, signal_name, state_of
from ..slots.shared_page import BROKEN, LIMITED, QUIT
from ..slots.slot_server import SlotServer
from .agent_machine import AgentMachine
from .attempts import NEVER, Attempt
from .output_spool import bound_output
from .pending_results import Item
from .slot_process import SlotBroken, SlotProcess
from .slot_servers import InterpreterMissing, SlotServers

RECALL_WAIT_S = 0.001
"""Seconds from a recall until the pool reads which attempts have started. Meanwhile, the slot can start one more attempt."""
SAMPLE_S = 0.2
"""Seconds between memory samples of attempts with a limit."""
SAMPLE_UNLIMITED_S = 1.0
SAMPLE_FLOODED_S = 0.02
"""Seconds between samples while output grows fast."""
STATE_S = 1.0
"""Seconds between checks for stopped processes."""
KILL_TIMEOUT_S = 1.0
QUIT_TIMEOUT_S = 2.0
RETIRE_TIMEOUT_S = 60.0
"""When a new process replaces a slot process, the old process is asked to end. If the old process still runs after this many seconds, it is
killed."""
MAX_FAILED_STARTS = 3
"""After this many failed starts in a row, with no other slot alive, an attempt fails or the agent stops: see ``_start_failed``."""
START_PAUSE_S = 1.0
RAISE_LIMIT_S = 10.0
"""Seconds after a limit of the node was reached until the pool tries to start more slots."""
PEEK_TIMEOUT_S = 1.0
MAX_EARLY_DEATHS = 5
"""If this many slots in a row die before they start an attempt, the next attempt of the last of these slots fails."""


class SlotPool:
    """The slot processes of one agent. ``deadline``: time of the next call of ``check_timers``."""

    def __init__(self, machine: AgentMachine, selector: selectors.BaseSelector, settings: Dict[str, Any], server: SlotServer) -> None:
        self.machine = machine
        self.selector = selector
        self.settings = settings
        self.servers = SlotServers(server, settings)
        self.stopped_s = float(settings.get("stopped_after", 10.0))
        self.processes: Dict[int, SlotProcess] = {}
        self.machine_changed = False
        """Whether performing an effect changed the machine. If so, the host must call ``turn`` again."""
        self.answer_peek: Callable[[int, bool, int, bytes], None] = lambda query, known, offset, data: None
        self._spare: List[SlotProcess] = []
        self._retired: Dict[SlotProcess, float] = {}
        """process that was asked to end, because the next attempt needs a different process -> time at which the old process is killed"""
        self._next_spare = 0
        self._timers: List[Tuple[float, int, str]] = []
        self._next_sample = NEVER
        self._next_state_check = NEVER
        self._unlimited_sampled_at = 0.0
        self._failed_starts = 0
        self._early_deaths = 0
        self._raise_at = NEVER

    @property
    def deadline(self) -> float:
        due = min(self._next_sample, self._next_state_check, self._raise_at)
        for at, _, _ in self._timers:
            due = min(due, at)
        return min(due, *self._retired.values()) if self._retired else due

    # --- effects of the machine ---------------------------------------------------------------------------------------------------

    def warm_up(self, count: int) -> None:
        """Starts spare processes for the first tasks. Failures are ignored here, because they will occur again with the first tasks."""
        try:
            for _ in range(count):
                self._spare.append(self._spawn(self.servers.own))
        except OSError:
            return

    def _spawn(self, server: SlotServer) -> SlotProcess:
        process = SlotProcess(self._next_spare, self.settings, self.selector, server)
        self._next_spare += 1
        return process

    def start(self, slot: int, attempts: Sequence[Attempt], now: float) -> None:
        process = self.processes.get(slot)
        first = attempts[0]
        if process is not None and (process.has_other_key(first.spec.process_key) or process.keeps_too_much_for(first)):
            # A call leaves imported modules and other changes in its process. Calls of other programs, and executables, must not see these
            # changes.
            del self.processes[slot]
            self._retired[process] = now + RETIRE_TIMEOUT_S
            process.order(QUIT)
            process = None
        if process is None:
            try:
                server = self.servers.find(first.spec.launch)
                process = self._spare.pop(0) if self._spare and server is self.servers.own else self._spawn(server)
            except InterpreterMissing as missing:
                self.machine.slot_died(slot, 1, ["spawn", "task", str(missing)], (0, 0, 0), now)
                self.machine_changed = True
                return
            except OSError as error:
                limited = is_limit(error)
                text = "cannot start a process: %s" % (describe_limit(error) if limited else error)
                failed_attempts = self._start_failed(text, limited, now)
                self.machine.slot_died(slot, failed_attempts, ["spawn", "worker", text], (0, 0, 0), now)
                self.machine_changed = True
                return
            process.number = slot
            self.processes[slot] = process
        process.assign(attempts, now)
        self._next_sample = min(self._next_sample, now + SAMPLE_S)
        self._next_state_check = min(self._next_state_check, now + STATE_S)

    def recall(self, slot: int, now: float) -> None:
        process = self.processes.get(slot)
        if process is not None:
            process.begin_recall()
            self._timers.append((now + RECALL_WAIT_S, slot, "recall"))

    def terminate(self, slot: int, now: float) -> None:
        process = self.processes.get(slot)
        if process is not None and not process.running():
            # The start of the slot took longer than the time limit of the attempt. This time does not count, because the attempt has not
            # started yet.
            self.machine.not_started(slot, now)
            self.machine_changed = True
        elif process is not None:
            process.terminate()

    def warn(self, slot: int, number: int, now: float) -> None:
        process = self.processes.get(slot)
        if process is not None:
            process.warn(number)

    def kill(self, slot: int, now: float) -> None:
        process = self.processes.get(slot)
        if process is not None:
            process.kill_task()
            sequence = process.assigned[0][0] if process.assigned else 0
            self._timers.append((now + KILL_TIMEOUT_S, slot, "kill %d" % sequence))

    def peek(self, query: int, slot: int, stream: int, offset: int, now: float) -> None:
        process = self.processes.get(slot)
        if process is None:
            self.answer_peek(query, False, offset, b"")
            return
        answer = process.peek(query, stream, offset)
        if answer is not None:
            self.answer_peek(query, True, answer[0], answer[1])
        else:
            self._timers.append((now + PEEK_TIMEOUT_S, slot, "peek %d" % query))

    def _answer_unanswered(self, process: SlotProcess) -> None:
        """Answers the open requests for the output of an ended attempt. The answer says that the attempt no longer runs. The agent does not
        wait for the answer of the slot, because the slot can be busy with the next attempt."""
        for query, offset in process.peeks.items():
            self.answer_peek(query, False, offset, b"")
        process.peeks.clear()

    # --- reports of slots ---------------------------------------------------------------------------------------------------------

    def ready(self, process: SlotProcess, events: int, now: float) -> None:
        if not process.is_open():
            # The slot died, and its death was noticed in the same turn.
            return
        if events & selectors.EVENT_WRITE:
            process.flush()
        if events & selectors.EVENT_READ:
            self._receive(process, now)

    def _receive(self, process: SlotProcess, now: float) -> bool:
        """Reads reports of a slot. Returns True if there are possibly more reports."""
        if not process.is_open():
            return False
        try:
            items, peeked = process.receive(now)
        except BlockingIOError:
            return False
        except SlotBroken:
            process.kill_all()
            return False
        for _, query, offset, known, _, data in peeked:
            if process.peeks.pop(query, None) is not None:
                self.answer_peek(query, bool(known), offset, bytes(data))
        if items:
            self._failed_starts = self._early_deaths = 0
            self._finished(process, items, now)
        return process.is_open()

    def _finished(self, process: SlotProcess, items: Sequence[Item], now: float) -> None:
        self._answer_unanswered(process)
        self.machine.slot_finished(process.number, items, now)

    # --- deaths -------------------------------------------------------------------------------------------------------------------

    def reap(self, now: float) -> None:
        """Reaps ended child processes. Kills other child processes that a dead slot left behind."""
        for process in self._all_processes():
            if process.has_ended():
                self._died(process, process.status, now)
        if self.servers.own.has_ended():
            self.machine.stop("the process that starts its slots ended", now)
        self._kill_orphans()

    def _all_processes(self) -> List[SlotProcess]:
        return [*self.processes.values(), *self._spare, *self._retired]

    def _kill_orphans(self) -> None:
        ours = {*self.servers.pids(), *(process.monitor for process in self._all_processes())}
        for pid in children_of(os.getpid()):
            if pid not in ours:
                signal_all([*descendants_of(pid), pid], signal.SIGKILL)
        reap_children(ours)

    def _died(self, process: SlotProcess, status: int, now: float) -> None:
        if process in self._retired:
            del self._retired[process]
        elif process in self._spare:
            self._spare.remove(process)
            self._start_failed(process.last_error_line(), process.end_reason() == LIMITED, now)
        elif self.processes.get(process.number) is process:
            while self._receive(process, now):
                pass
            try:
                items = process.unflushed(now)
            except SlotBroken:
                items = []
            if items:
                self._finished(process, items, now)
            self._answer_unanswered(process)
            del self.processes[process.number]
            self._report_death(process, status, now)
        process.close()
        shutil.rmtree(process.scratch, ignore_errors=True)

    def _report_death(self, process: SlotProcess, status: int, now: float) -> None:
        started = process.started()
        if process.restarting:
            started = max(0, started - 1)  # the running attempt returns to the queue
        end_reason = process.end_reason()
        if end_reason == LIMITED or not process.pid():
            started = self._start_failed(process.last_error_line(), end_reason == LIMITED, now) or started
        elif process.assigned and not started and not process.killing:
            self._early_deaths += 1
            if self._early_deaths >= MAX_EARLY_DEATHS:
                started = 1
        wall_us = int((now - process.started_at) * 1e6) if started else 0
        payload = b"" if process.runs_executable() or not started else process.output_payload()
        usage = (wall_us, 0, process.peak_bytes >> 10, payload)
        self.machine.slot_died(process.number, started, _death_failure(process, status), usage, now)

    def _start_failed(self, last_error_line: str, limited: bool, now: float) -> int:
        """Handles a slot that did not start or reached a limit of the node. Returns the number of attempts of this slot that must fail: 0
        or 1.

        If other slots are alive, they run the attempts, and no attempt fails. If no other slot is alive, and several starts have failed one
        after another, there are two cases:

        - A limit of the node is the cause (``limited``): one attempt fails, so that another worker can run its task. The agent continues,
          because the limit is possibly temporary.
        - There is another cause: the agent stops.
        """
        others = len(self.processes) + len(self._spare)
        if others:
            self._limit_slots(others, now + RAISE_LIMIT_S)
            return 0
        self._failed_starts += 1
        if limited:
            self._limit_slots(0, now + START_PAUSE_S)
        if self._failed_starts < MAX_FAILED_STARTS:
            return 0
        self._failed_starts = 0
        if not limited:
            self.machine.stop("no slot can be started here: " + last_error_line, now)
        return int(limited)

    def _limit_slots(self, count: int, until: float) -> None:
        self.machine.attempts.max_slots = count
        self._raise_at = until

    def _raise_slot_limit(self, now: float) -> None:
        """Doubles the number of allowed slots, up to the usual number. The pool reduced the number when it reached a limit of the node."""
        attempts = self.machine.attempts
        attempts.max_slots = min(attempts.usual_max_slots, 2 * attempts.max_slots + 1)
        self._raise_at = NEVER if attempts.max_slots == attempts.usual_max_slots else now + RAISE_LIMIT_S

    # --- time ---------------------------------------------------------------------------------------------------------------------

    def check_timers(self, now: float) -> None:
        due = [timer for timer in self._timers if timer[0] <= now]
        if due:
            self._timers = [timer for timer in self._timers if timer[0] > now]
            for _, slot, kind in due:
                process = self.processes.get(slot)
                if process is not None:
                    self._timer(process, kind, now)
        for process in [process for process, at in self._retired.items() if at <= now]:
            self._retired[process] = NEVER
            process.kill_all()
        if now >= self._raise_at:
            self._raise_slot_limit(now)
        if now >= self._next_sample:
            self._sample(now)
        if now >= self._next_state_check:
            self._replace_stopped(now)

    def _timer(self, process: SlotProcess, kind: str, now: float) -> None:
        if kind == "recall":
            self._finish_recall(process, now)
        elif kind.startswith("peek"):
            query = int(kind[5:])
            if query in process.peeks:
                self.answer_peek(query, True, process.peeks.pop(query), b"")
        elif kind == "kill %d" % (process.assigned[0][0] if process.assigned else 0):
            process.kill_all()

    def _finish_recall(self, process: SlotProcess, now: float) -> None:
        self._receive(process, now)
        try:
            items = process.unflushed(now)
        except SlotBroken:
            process.kill_all()
            return
        if items:
            self._finished(process, items, now)
        count = process.finish_recall()
        if count < 0:
            self._timers.append((now + RECALL_WAIT_S, process.number, "recall"))
        else:
            self.machine.slot_returned(process.number, count, now)

    def _sample(self, now: float) -> None:
        """Checks the memory of running attempts, and the memory that their outputs take."""
        check_all = now >= self._unlimited_sampled_at + SAMPLE_UNLIMITED_S
        if check_all:
            self._unlimited_sampled_at = now
        busy = flooded = False
        for process in list(self.processes.values()):
            if not process.assigned:
                continue
            busy = True
            if now - process.started_at < SAMPLE_S / 2 or not process.pid():
                continue
            flooded = bound_output(process) or flooded
            limit = process.assigned[0][1].amount("memory")
            if limit > 0 or (check_all and process.runs_executable()):
                used = process.used_bytes()
                process.peak_bytes = max(process.peak_bytes, used)
                if 0 < limit < used:
                    self._over_limit(process, used, limit, now)
        self._next_sample = now + (SAMPLE_FLOODED_S if flooded else SAMPLE_S) if busy else NEVER

    def _over_limit(self, process: SlotProcess, used: int, limit: float, now: float) -> None:
        """Stops the running attempt, because it uses more memory than its limit. If the reason is memory that earlier calls have kept, the
        same attempt begins again at once, in a fresh process."""
        if used - process.kept_bytes > limit or not process.kept_bytes:
            message = "it used %s of memory, more than the %s it asked for" % (_megabytes(used), _megabytes(limit))
            self.machine.over_limit(process.number, ["oom", "task", message], now)
        elif not process.killing:
            process.assigned[0][1].needs_fresh_process = True
            process.restarting = True
            process.kill_all()

    def _replace_stopped(self, now: float) -> None:
        """Kills slots that have been stopped by SIGSTOP for some seconds. A stopped slot would never report."""
        busy = False
        for process in list(self.processes.values()):
            busy = busy or bool(process.assigned)
            if not process.assigned or process.killing:
                continue
            if "T" not in (state_of(process.pid()) if process.pid() else "", state_of(process.monitor)):
                process.stopped_since = None
            elif process.stopped_since is None:
                process.stopped_since = now
            elif now - process.stopped_since >= self.stopped_s:
                process.kill_all()
        self._next_state_check = now + min(STATE_S, self.stopped_s / 2) if busy else NEVER

    # --- shutdown -----------------------------------------------------------------------------------------------------------------

    def kill_busy(self) -> None:
        for process in self.processes.values():
            if process.assigned:
                process.kill_all()

    def end(self) -> None:
        """Lets idle slots clean up, and kills slots that have not ended in time."""
        waiting = self._all_processes()
        for process in waiting:
            if not process.assigned:
                process.order(QUIT)
        deadline = time.monotonic() + QUIT_TIMEOUT_S
        pause_s = 0.001
        while waiting and time.monotonic() < deadline:
            waiting = [process for process in waiting if not process.has_ended()]
            time.sleep(pause_s if waiting else 0)
            pause_s = min(0.02, pause_s * 2)
        for process in waiting:
            process.kill_all()


def _megabytes(size: float) -> str:
    return "%.0f MiB" % (size / (1 << 20))


def _death_failure(process: SlotProcess, status: int) -> Failure:
    executable = process.runs_executable()
    if process.end_reason() == BROKEN:
        message = "a call broke the Python process it ran in, so that it could not go on (%s)"
        return ["slot-lost", "worker", message % process.last_error_line()]
    if process.end_reason():
        return ["spawn", "worker", "this worker could not start it: %s" % process.last_error_line()]
    if process.stopped_since is not None:
        return ["slot-lost", "worker", "the process it ran in was stopped (SIGSTOP) and was replaced"]
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            return ["slot-lost", "worker", "the process it ran in was killed (SIGKILL), perhaps for lack of memory"]
        return ["crash", "worker" if executable else "task", "it crashed the process it ran in (%s)" % signal_name(number)]
    if executable:
        return ["slot-lost", "worker", "the process that watched it ended with status %d" % os.WEXITSTATUS(status)]
    return ["exit", "task", "it ended the process it ran in with exit status %d" % os.WEXITSTATUS(status)]
