"""All slots of an agent: who lives, who is watched, who is being killed. Tells the machine; the host drives it."""

from __future__ import annotations

import ctypes
import os
import selectors
import shutil
import signal
import time
from typing import Any, Callable, Dict, List, Sequence, Tuple

from ...portable.failures import Failure, describe_limit, is_limit
from ...portable.processes import children_of, descendants_of, libc, resident_bytes, signal_all, state_of
from ..slots.output_capture import OUTPUT_CAP
from ..slots.shared_page import BROKEN, LIMITED, QUIT
from .agent_machine import AgentMachine
from .attempts import NEVER, Attempt
from .pending_results import Item
from .slot_process import SlotBroken, SlotProcess

TAKE_BACK_WAIT_S = 0.001
SAMPLE_S = 0.2
SAMPLE_UNLIMITED_S = 1.0
SAMPLE_FLOODED_S = 0.02
STATE_S = 1.0
KILL_PATIENCE_S = 1.0
QUIT_PATIENCE_S = 2.0
FALSE_STARTS = 3
PAUSE_S = 1.0
WIDEN_S = 10.0
PEEK_PATIENCE_S = 1.0
FRUITLESS_DEATHS = 5
PUNCH_ABOVE = 2 * OUTPUT_CAP
FALLOC_KEEP_SIZE_PUNCH_HOLE = 3


class SlotPool:
    """``deadline``: when ``passed`` must be called next."""

    def __init__(self, machine: AgentMachine, selector: selectors.BaseSelector, settings: Dict[str, Any]) -> None:
        self.machine = machine
        self.selector = selector
        self.settings = settings
        self.stopped_s = float(settings.get("stopped_s", 10.0))
        self.processes: Dict[int, SlotProcess] = {}
        self.news = False
        """Performing an effect told the machine something: it wants another turn."""
        self.answer_peek: Callable[[int, bool, int, bytes], None] = _nobody
        self._spare: List[SlotProcess] = []
        self._next_spare = 0
        self._timers: List[Tuple[float, int, str]] = []
        self._next_sample = NEVER
        self._next_state_look = NEVER
        self._unlimited_sampled_at = 0.0
        self._false_starts = 0
        self._fruitless_deaths = 0
        self._widen_at = NEVER

    @property
    def deadline(self) -> float:
        due = min(self._next_sample, self._next_state_look, self._widen_at)
        for at, _, _ in self._timers:
            due = min(due, at)
        return due

    # --- effects of the machine ---------------------------------------------------------------------------------------------------

    def warm_up(self, count: int) -> None:
        """Processes in stock, for the first tasks. If none can be started now, those tasks will tell."""
        try:
            for _ in range(count):
                self._spare.append(self._spawn())
        except OSError:
            return

    def _spawn(self) -> SlotProcess:
        process = SlotProcess(self._next_spare, self.settings)
        self._next_spare += 1
        self.selector.register(process.channel, selectors.EVENT_READ, process)
        return process

    def start(self, slot: int, attempts: Sequence[Attempt], now: float) -> None:
        process = self.processes.get(slot)
        if process is None:
            try:
                process = self._spare.pop(0) if self._spare else self._spawn()
            except OSError as error:
                limited = is_limit(error)
                text = "cannot start a process: %s" % (describe_limit(error) if limited else error)
                charged = self._false_start(text, limited, now)
                self.machine.slot_died(slot, charged, ["spawn", "worker", text], (0, 0, 0), now)
                self.news = True
                return
            process.number = slot
            self.processes[slot] = process
        process.give(attempts, now)
        self._watch_writing(process)
        self._next_sample = min(self._next_sample, now + SAMPLE_S)
        self._next_state_look = min(self._next_state_look, now + STATE_S)

    def take_back(self, slot: int, now: float) -> None:
        process = self.processes.get(slot)
        if process is not None:
            process.take_back_begin()
            self._timers.append((now + TAKE_BACK_WAIT_S, slot, "take_back"))

    def terminate(self, slot: int, now: float) -> None:
        process = self.processes.get(slot)
        if process is not None and not process.running():
            # A slot may take longer to start than a short limit allows; that is not the attempt's time.
            self.machine.not_begun(slot, now)
            self.news = True
        elif process is not None:
            process.terminate()
            self._watch_writing(process)

    def warn(self, slot: int, number: int) -> None:
        process = self.processes.get(slot)
        if process is not None:
            process.warn(number)

    def kill(self, slot: int, now: float) -> None:
        process = self.processes.get(slot)
        if process is not None:
            process.kill_task()
            self._watch_writing(process)
            sequence = process.held[0][0] if process.held else 0
            self._timers.append((now + KILL_PATIENCE_S, slot, "kill %d" % sequence))

    def peek(self, query: int, slot: int, stream: int, offset: int, now: float) -> None:
        process = self.processes.get(slot)
        if process is None:
            self.answer_peek(query, False, offset, b"")
            return
        answer = process.peek(query, stream, offset)
        if answer is not None:
            self.answer_peek(query, True, answer[0], answer[1])
        else:
            self._watch_writing(process)
            self._timers.append((now + PEEK_PATIENCE_S, slot, "peek %d" % query))

    def _answer_unanswered(self, process: SlotProcess) -> None:
        """The slot has ended what was asked about; it may be long before it finds the question."""
        for query, offset in process.peeks.items():
            self.answer_peek(query, False, offset, b"")
        process.peeks.clear()

    # --- what comes from the slots ------------------------------------------------------------------------------------------------

    def ready(self, process: SlotProcess, events: int, now: float) -> None:
        if not process.is_open():
            # Its end was noticed in this very turn.
            return
        if events & selectors.EVENT_WRITE and process.flush():
            self.selector.modify(process.channel, selectors.EVENT_READ, process)
        if events & selectors.EVENT_READ:
            self._receive(process, now)

    def _receive(self, process: SlotProcess, now: float) -> bool:
        """Take in what the slot says; whether there may be more."""
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
            self._false_starts = self._fruitless_deaths = 0
            self._finished(process, items, now)
        if not process.is_open():
            # It is dead, or user code closed it; then the slot will notice when it wants to report, and end.
            self.selector.unregister(process.channel)
        return process.is_open()

    def _finished(self, process: SlotProcess, items: Sequence[Item], now: float) -> None:
        self._answer_unanswered(process)
        self.machine.slot_finished(process.number, items, now)

    def _watch_writing(self, process: SlotProcess) -> None:
        if process.outgoing and process.is_open():
            self.selector.modify(process.channel, selectors.EVENT_READ | selectors.EVENT_WRITE, process)

    # --- deaths -------------------------------------------------------------------------------------------------------------------

    def reap(self, now: float) -> None:
        """A child has ended: which? Whoever else became our child is what a dead slot left behind."""
        for process in [*self.processes.values(), *self._spare]:
            try:
                pid, status = os.waitpid(process.process.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = process.process.pid, 0
            if pid:
                process.process.returncode = status
                self._died(process, status, now)
        self._kill_strays()

    def _kill_strays(self) -> None:
        keepers = {process.process.pid for process in [*self.processes.values(), *self._spare]}
        for pid in children_of(os.getpid()):
            if pid not in keepers:
                signal_all([*descendants_of(pid), pid], signal.SIGKILL)
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    continue

    def _died(self, process: SlotProcess, status: int, now: float) -> None:
        if process in self._spare:
            self._spare.remove(process)
            self._false_start(process.complaint(), process.gave_up() == LIMITED, now)
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
            self._tell_death(process, status, now)
        if process.is_open():
            self.selector.unregister(process.channel)
        process.close()
        shutil.rmtree(process.scratch, ignore_errors=True)

    def _tell_death(self, process: SlotProcess, status: int, now: float) -> None:
        begun = process.begun()
        gave_up = process.gave_up()
        if gave_up == LIMITED or not process.pid():
            begun = self._false_start(process.complaint(), gave_up == LIMITED, now) or begun
        elif process.held and not begun and not process.killing:
            self._fruitless_deaths += 1
            if self._fruitless_deaths >= FRUITLESS_DEATHS:
                begun = 1
        executable = process.runs_executable()
        wall_us = int((now - process.begun_at) * 1e6) if begun else 0
        payload = b"" if executable or not begun else process.last_words()
        usage = (wall_us, 0, process.peak_bytes >> 10, payload)
        failure = _why_it_gave_up(process) if gave_up else _cause_of_death(status, executable, process.stopped_since)
        self.machine.slot_died(process.number, begun, failure, usage, now)

    def _false_start(self, complaint: str, limited: bool, now: float) -> int:
        """A slot never came up, or met a limit of the machine: how many of its attempts shall pay for that.

        As long as other slots live, they do the work. Some false starts one after the other with nobody else alive mean that none will
        come up; if it is for a limit, that may pass, or another worker may do better, so that one attempt is sent away now and then.
        """
        others = len(self.processes) + len(self._spare)
        if others:
            self._narrow(others, now + WIDEN_S)
            return 0
        self._false_starts += 1
        if limited:
            self._narrow(0, now + PAUSE_S)
        if self._false_starts < FALSE_STARTS:
            return 0
        self._false_starts = 0
        if not limited:
            self.machine.stop("no slot can be started here: " + complaint, now)
        return int(limited)

    def _narrow(self, count: int, until: float) -> None:
        self.machine.work.max_slots = count
        self._widen_at = until

    def _widen(self, now: float) -> None:
        """Try with more slots again, until there are as many as were meant at first."""
        work = self.machine.work
        work.max_slots = min(work.wanted_slots, 2 * work.max_slots + 1)
        self._widen_at = NEVER if work.max_slots == work.wanted_slots else now + WIDEN_S

    # --- time ---------------------------------------------------------------------------------------------------------------------

    def passed(self, now: float) -> None:
        due = [timer for timer in self._timers if timer[0] <= now]
        if due:
            self._timers = [timer for timer in self._timers if timer[0] > now]
            for _, slot, what in due:
                process = self.processes.get(slot)
                if process is not None:
                    self._timer(process, what, now)
        if now >= self._widen_at:
            self._widen(now)
        if now >= self._next_sample:
            self._sample(now)
        if now >= self._next_state_look:
            self._look_for_stopped(now)

    def _timer(self, process: SlotProcess, what: str, now: float) -> None:
        if what == "take_back":
            self._take_back_end(process, now)
        elif what.startswith("peek"):
            query = int(what[5:])
            if query in process.peeks:
                self.answer_peek(query, True, process.peeks.pop(query), b"")
        elif what == "kill %d" % (process.held[0][0] if process.held else 0):
            process.kill_all()

    def _take_back_end(self, process: SlotProcess, now: float) -> None:
        self._receive(process, now)
        try:
            items = process.unflushed(now)
        except SlotBroken:
            process.kill_all()
            return
        if items:
            self._finished(process, items, now)
        count = process.take_back_end()
        if count < 0:
            self._timers.append((now + TAKE_BACK_WAIT_S, process.number, "take_back"))
        else:
            self.machine.slot_returned(process.number, count, now)

    def _sample(self, now: float) -> None:
        """Memory of what has run for a while, and output that grows without bound."""
        all_of_them = now >= self._unlimited_sampled_at + SAMPLE_UNLIMITED_S
        if all_of_them:
            self._unlimited_sampled_at = now
        busy = flooded = False
        for process in list(self.processes.values()):
            if not process.held:
                continue
            busy = True
            if now - process.begun_at < SAMPLE_S / 2 or not process.pid():
                continue
            flooded = self._bound_output(process) or flooded
            limit = process.held[0][1].amount("memory")
            if limit > 0 or (all_of_them and process.runs_executable()):
                used = resident_bytes(process.pid())
                process.peak_bytes = max(process.peak_bytes, used)
                if 0 < limit < used:
                    self.machine.over_limit(process.number, _too_much_memory(used, limit, process.kept_bytes), now)
        self._next_sample = now + (SAMPLE_FLOODED_S if flooded else SAMPLE_S) if busy else NEVER

    @staticmethod
    def _bound_output(process: SlotProcess) -> bool:
        """Output of calls goes to files in memory: give back the middle, which would be dropped anyway. Whether there was any."""
        flooded = False
        for stream, output in enumerate(process.outputs):
            size = os.fstat(output).st_size
            first = max(OUTPUT_CAP, process.punched_to[stream])
            last = (size - OUTPUT_CAP) & ~4095
            if last - first > PUNCH_ABOVE:
                libc().fallocate(output, FALLOC_KEEP_SIZE_PUNCH_HOLE, ctypes.c_long(first), ctypes.c_long(last - first))
                process.punched_to[stream] = last
                flooded = True
        return flooded

    def _look_for_stopped(self, now: float) -> None:
        """A slot that somebody stopped (SIGSTOP) does nothing and says nothing: after a while it is replaced."""
        busy = False
        for process in list(self.processes.values()):
            busy = busy or bool(process.held)
            if not process.held or process.killing:
                continue
            if "T" not in (state_of(process.pid()) if process.pid() else "", state_of(process.process.pid)):
                process.stopped_since = None
            elif process.stopped_since is None:
                process.stopped_since = now
            elif now - process.stopped_since >= self.stopped_s:
                process.kill_all()
        self._next_state_look = now + min(STATE_S, self.stopped_s / 2) if busy else NEVER

    # --- the end ------------------------------------------------------------------------------------------------------------------

    def kill_busy(self) -> None:
        for process in self.processes.values():
            if process.held:
                process.kill_all()

    def end(self) -> None:
        """Idle slots may clean up; what is not gone after a while is killed."""
        waiting = [*self.processes.values(), *self._spare]
        for process in waiting:
            if not process.held:
                process.order(QUIT)
        give_up_at = time.monotonic() + QUIT_PATIENCE_S
        pause_s = 0.001
        while waiting and time.monotonic() < give_up_at:
            waiting = [process for process in waiting if not _has_ended(process)]
            time.sleep(pause_s if waiting else 0)
            pause_s = min(0.02, pause_s * 2)
        for process in waiting:
            process.kill_all()


def _has_ended(process: SlotProcess) -> bool:
    try:
        pid, status = os.waitpid(process.process.pid, os.WNOHANG)
    except ChildProcessError:
        return True
    if pid:
        process.process.returncode = status
    return bool(pid)


def _nobody(query: int, known: bool, offset: int, data: bytes) -> None:
    """Until the host says who answers."""


def _too_much_memory(used: int, limit: float, kept: int) -> Failure:
    if kept > limit / 2:
        message = "the process it ran in had kept %s from earlier calls; with it that became more than its %s"
        return ["slot-lost", "worker", message % (_megabytes(kept), _megabytes(limit))]
    return ["oom", "task", "it used %s of memory, more than the %s it asked for" % (_megabytes(used), _megabytes(limit))]


def _megabytes(size: float) -> str:
    return "%.0f MiB" % (size / (1 << 20))


def _why_it_gave_up(process: SlotProcess) -> Failure:
    if process.gave_up() == BROKEN:
        return ["slot-lost", "worker", "a call broke the Python process it ran in, so that it could not go on (%s)" % process.complaint()]
    return ["spawn", "worker", "this worker could not start it: %s" % process.complaint()]


def _cause_of_death(status: int, executable: bool, stopped_since: Any) -> Failure:
    if stopped_since is not None:
        return ["slot-lost", "worker", "the process it ran in was stopped (SIGSTOP) and was replaced"]
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            return ["slot-lost", "worker", "the process it ran in was killed (SIGKILL), perhaps for lack of memory"]
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = "signal %d" % number
        return ["crash", "worker" if executable else "task", "it crashed the process it ran in (%s)" % name]
    if executable:
        return ["slot-lost", "worker", "the process that watched it ended with status %d" % os.WEXITSTATUS(status)]
    return ["exit", "task", "it ended the process it ran in with exit status %d" % os.WEXITSTATUS(status)]
