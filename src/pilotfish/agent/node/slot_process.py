"""The agent's side of one slot process: starts it, assigns attempts, reads its reports, ends it. Nothing here blocks."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Sequence, Tuple

from ...portable.failures import Failure
from ...portable.output_marks import DIED
from ...portable.payload_format import begins_with, pack
from ...portable.processes import children_of, cpu_seconds, descendants_of, resident_bytes, resident_bytes_of_descendants, signal_all
from ...portable.wire.frames import MAX_BODY
from ..slots.output_capture import OUTPUT_CAP, read_head_and_tail
from ..slots.shared_page import (
    CPU_BEFORE,
    END_REASON,
    INTENT,
    KILL,
    ORDER,
    PEEK,
    PEEKED,
    PID,
    REPORT,
    SKIP,
    SPEC,
    STARTED,
    STOP_ATTEMPT,
    TASK,
    TERMINATE,
    TIME_IS_UP,
    UNFLUSHED_BYTES,
    UPLOAD_MARK,
    Report,
    SharedPage,
    memory_file,
    parse_reports,
)
from ..slots.slot_server import SlotServer
from ..slots.spooled_stream import EXCERPT_BYTES
from .attempts import Attempt, AttemptSpec
from .output_spool import peek_at_call
from .pending_results import Item

BUFFER_BYTES = 256 * 1024
LARGE_BYTES = 64 * 1024
KEPT_RESULT_BYTES = 1024 * 1024
"""A result of a call with at least this many bytes also becomes a content of the cache, so that other workers can fetch the result from
this node."""
SOCKET_BUFFER = 1024 * 1024
JOIN_BYTES = 128 * 1024
ERROR_TAIL_BYTES = 4000
SLOT_SETTINGS = ("worker", "share", "cache", "outbox", "ends_at")
"""Names of the agent's settings that its slots also get."""


class SlotBroken(Exception):
    """The slot violated the protocol, probably because user code wrote to the channel between slot and agent."""


class SlotReportReader:
    """Splits received bytes into reports. A large payload gets its own buffer."""

    def __init__(self) -> None:
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._end = 0
        self._head: Tuple[Any, ...] = ()
        self._large: Optional[bytearray] = None
        self._filled = 0

    def receive(self, channel: socket.socket) -> Tuple[List[Report], bool]:
        """Reads once. Returns complete reports, and True if the channel is still open. Raises BlockingIOError if nothing has arrived."""
        if self._large is not None:
            count = channel.recv_into(memoryview(self._large)[self._filled :])
            self._filled += count
            if self._filled < len(self._large):
                return [], count > 0
            large, self._large = self._large, None
            failure_length = self._head[4]
            return [(*self._head[:4], bytes(large[:failure_length]), memoryview(large)[failure_length:])], True
        count = channel.recv_into(self._view[self._end :])
        self._end += count
        reports, rest = parse_reports(bytes(self._view[: self._end]))
        if rest:
            left = self._end - rest
            self._buffer[:left] = self._buffer[rest : self._end]
            self._end = left
        if self._end >= REPORT.size:
            self._expect_large()
        return reports, count > 0

    def _expect_large(self) -> None:
        head = REPORT.unpack_from(self._buffer)
        length = head[4] + head[5]
        if head[4] > LARGE_BYTES or head[5] > MAX_BODY:
            raise SlotBroken("a report of %d bytes was announced" % length)
        if length <= LARGE_BYTES:
            return
        self._head = head
        self._large = bytearray(length)
        self._filled = self._end - REPORT.size
        self._large[: self._filled] = self._view[REPORT.size : self._end]
        self._end = 0


USAGE = 0
"""Special stream number in a request for output. The answer has the CPU time and memory of the running attempt."""


class SlotProcess:
    """One slot and its monitor process. The selector returns this object when the channel of the slot is ready.

    ``assigned``: the attempts that the slot has not reported as ended, in order, each with its sequence number.
    """

    def __init__(self, number: int, settings: Dict[str, Any], selector: selectors.BaseSelector, server: SlotServer) -> None:
        self.number = number
        self._selector = selector
        self.assigned: Deque[Tuple[int, Attempt]] = deque()
        self.started_at = 0.0
        self.peak_bytes = 0
        self.kept_bytes = 0
        """Memory in bytes that earlier calls had not freed when the running attempt of the slot began. 0 if the slot had run no call
        before, or if the attempt has no memory limit."""
        self.has_run_calls = False
        self.restarting = False
        """Whether the process is being killed, so that its running call begins again in a fresh process."""
        self.killing = False
        self._open = True
        self._waits_to_write = False
        self.peeks: Dict[int, int] = {}
        """For each request for output that the slot must answer: number of the request -> offset in the output."""
        self.stopped_since: Optional[float] = None
        self.reader = SlotReportReader()
        self.outgoing: Deque[memoryview] = deque()
        self._shares = bool(settings.get("share"))
        """Whether large results are in files that this agent shares with the master. If so, other calls read these files."""
        self._sequence = 0
        self._delivered = 0
        self._specs: Dict[int, AttemptSpec] = {}
        self._process_key: Optional[str] = None
        self.scratch = os.path.join(settings["workdir"], "slot-%d" % number)
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            os.mkdir(self.scratch, 0o700)
            ours.callback(os.rmdir, self.scratch)
            self.outputs = (_append_file("stdout", ours), _append_file("stderr", ours))
            page = memory_file("page")
            theirs.callback(os.close, page)
            self.page = SharedPage(page)
            ours.callback(self.page.close)
            self.channel, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            ours.callback(self.channel.close)
            theirs.callback(channel.close)
            for end in (self.channel, channel):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)
            self.channel.setblocking(False)
            slot_settings = {name: settings.get(name, "") for name in SLOT_SETTINGS}
            slot_settings["scratch"] = self.scratch
            self.monitor = server.start_slot(slot_settings, (*self.outputs, channel.fileno(), page))
            """Process id of the monitor."""
            self.status = 0
            """How the monitor ended, as ``os.waitpid`` gives it."""
            ours.pop_all()
        selector.register(self.channel, selectors.EVENT_READ, self)

    # --- orders -------------------------------------------------------------------------------------------------------------------

    def has_other_key(self, wanted: str) -> bool:
        """Returns True if this process has no attempts now, and its earlier attempts had a key that is not ``wanted``."""
        return self._process_key not in (None, wanted) and not self.assigned

    def assign(self, attempts: Sequence[Attempt], now: float) -> None:
        """Sends attempts to the slot, and the specs that the slot does not know yet."""
        if not self.assigned:
            self.started_at = now
            self._measure_kept_memory(attempts[0])
        pieces: List[Any] = []
        size = 0
        for attempt in attempts:
            spec = attempt.spec
            self._process_key = spec.process_key
            if self._specs.get(spec.number) is not spec:
                self._specs[spec.number] = spec
                text = json.dumps([spec.kind, spec.time_s, spec.launch]).encode()
                pieces += (
                    ORDER.pack(SPEC, 0, spec.number, 0, 0, 0.0, 4 + len(text) + len(spec.code)),
                    len(text).to_bytes(4, "little"),
                    text,
                    spec.code,
                )
                size += len(text) + len(spec.code)
            self._sequence += 1
            self.assigned.append((self._sequence, attempt))
            payload = attempt.payload
            length = len(payload)
            pieces.append(ORDER.pack(TASK, self._sequence, spec.number, attempt.attempt, attempt.task, attempt.amount("cores"), length))
            if length < LARGE_BYTES:
                pieces.append(payload)
                size += length
                if size < JOIN_BYTES:
                    continue
                self.outgoing.append(memoryview(b"".join(pieces)))
            else:
                self.outgoing.append(memoryview(b"".join(pieces)))
                self.outgoing.append(memoryview(payload).cast("B"))
            pieces, size = [], 0
        if pieces:
            self.outgoing.append(memoryview(b"".join(pieces)))
        self.flush()

    def _measure_kept_memory(self, attempt: Attempt) -> None:
        """Measures the memory that earlier calls have kept, before an attempt with a memory limit begins."""
        has_limit = self.has_run_calls and attempt.amount("memory") > 0
        self.kept_bytes = resident_bytes(self.pid()) if has_limit else 0

    def keeps_too_much_for(self, attempt: Attempt) -> bool:
        """Returns True if the attempt needs a fresh process, because earlier calls have kept memory in this process. There are two cases:
        the kept memory reaches the memory limit of the attempt, or the attempt has already exceeded its limit in a process with kept
        memory."""
        if self.assigned or not self.has_run_calls:
            return False
        return attempt.needs_fresh_process or 0 < attempt.amount("memory") <= resident_bytes(self.pid())

    def used_bytes(self) -> int:
        """Returns how many bytes of memory the running attempt uses now. For an executable, counts only the processes of the executable."""
        return resident_bytes_of_descendants(self.pid()) if self.runs_executable() else resident_bytes(self.pid())

    def order(self, what: int, body: bytes = b"") -> None:
        """Sends an order about the running attempt."""
        sequence = self.assigned[0][0] if self.assigned else 0
        self.outgoing.append(memoryview(ORDER.pack(what, sequence, 0, 0, 0, 0.0, len(body)) + body))
        self.flush()

    def flush(self) -> None:
        """Writes without blocking. The selector reports when the remaining bytes can be written."""
        outgoing = self.outgoing
        while outgoing:
            try:
                count = self.channel.send(outgoing[0])
            except BlockingIOError:
                break
            except OSError:
                # The slot is dying. When the agent notices the death, the attempts that have not started return to the queue.
                outgoing.clear()
                break
            if count == len(outgoing[0]):
                outgoing.popleft()
            else:
                outgoing[0] = outgoing[0][count:]
        if self._waits_to_write != bool(outgoing) and self._open:
            self._waits_to_write = bool(outgoing)
            self._selector.modify(self.channel, selectors.EVENT_READ | (selectors.EVENT_WRITE if outgoing else 0), self)

    # --- reports ------------------------------------------------------------------------------------------------------------------

    def receive(self, now: float) -> Tuple[List[Item], List[Report]]:
        """Returns results for the machine, and answers to requests for output. Raises BlockingIOError if nothing has arrived."""
        try:
            reports, still_open = self.reader.receive(self.channel)
        except BlockingIOError:
            raise
        except OSError:
            reports, still_open = [], False
        if not still_open:
            # The slot is dead, or user code closed the channel. In the second case the slot ends at its next report.
            self._end_channel()
        return self._sort(reports, now)

    def _end_channel(self) -> None:
        if self._open:
            self._open = False
            self._selector.unregister(self.channel)

    def _sort(self, reports: Sequence[Report], now: float) -> Tuple[List[Item], List[Report]]:
        items: List[Item] = []
        peeked: List[Report] = []
        assigned = self.assigned
        for report in reports:
            sequence, wall_us, cpu_us, rss_kib, failure, payload = report
            if sequence == PEEKED:
                peeked.append(report)
                continue
            if sequence <= self._delivered:
                continue
            if not assigned or assigned[0][0] != sequence or (wall_us | cpu_us) >> 53:
                raise SlotBroken("a report about %d was not expected" % sequence)
            _, attempt = assigned.popleft()
            self._delivered = sequence
            self.has_run_calls = self.has_run_calls or attempt.spec.kind != "exec"
            peak_kib = max(rss_kib, self.peak_bytes >> 10)
            self.peak_bytes = 0
            item: Item = (_read_failure(failure), wall_us, cpu_us, peak_kib, payload)
            items.append((*item, []) if self._is_kept(attempt, item) else item)
        if items:
            self.started_at = now
            if assigned:
                self._measure_kept_memory(assigned[0][1])
        return items, peeked

    def _is_kept(self, attempt: Attempt, item: Item) -> bool:
        """Returns whether the host must put files of the attempt, or its large result, into the cache before the result is sent."""
        is_call = attempt.spec.kind != "exec"
        if (not is_call or len(item[4]) >= EXCERPT_BYTES) and begins_with(item[4], UPLOAD_MARK):
            return True
        return is_call and len(item[4]) >= KEPT_RESULT_BYTES and item[0] is None and not self._shares

    def unflushed(self, now: float) -> List[Item]:
        """Returns results that are in the shared page and were not sent. If the slot changes the page meanwhile, returns an empty list."""
        words32 = self.page.words32
        first_look = (words32[UNFLUSHED_BYTES], words32[STARTED])
        reports = self.page.unflushed_reports()
        if first_look != (words32[UNFLUSHED_BYTES], words32[STARTED]):
            return []
        return self._sort(reports, now)[0]

    def begin_recall(self) -> None:
        """Asks the slot to skip the attempts that it has not started."""
        self.page.words64[SKIP] = (int(self.page.words32[STARTED]) + 1) << 32 | self._sequence

    def finish_recall(self) -> int:
        """Removes the attempts that the slot will not start; returns their number. Returns -1 if the number is not known yet."""
        words32 = self.page.words32
        started = words32[STARTED]
        if words32[INTENT] != started:
            return -1
        count = 0
        while self.assigned and self.assigned[-1][0] > started:
            self.assigned.pop()
            count += 1
        return count

    def started(self) -> int:
        """Returns the number of assigned attempts that the slot has started."""
        started = self.page.words32[STARTED]
        return sum(1 for sequence, _ in self.assigned if sequence <= started)

    def running(self) -> bool:
        """Returns True if the first assigned attempt has started."""
        return bool(self.assigned) and self.assigned[0][0] <= self.page.words32[STARTED]

    def pid(self) -> int:
        """Returns the pid of the slot itself, not of its monitor; 0 before it has started."""
        return int(self.page.words32[PID])

    def end_reason(self) -> int:
        """Returns the reason of the end: LIMITED (it reached a limit of the node), BROKEN (user code broke it), or 0 (another reason)."""
        return int(self.page.words32[END_REASON])

    # --- ending -------------------------------------------------------------------------------------------------------------------

    def runs_executable(self) -> bool:
        return bool(self.assigned) and self.assigned[0][1].spec.kind == "exec"

    def terminate(self) -> None:
        """Asks the running attempt to end."""
        if self.runs_executable():
            self.order(TERMINATE)
        elif self.assigned and self.pid():
            self.page.words32[STOP_ATTEMPT] = self.assigned[0][0]
            signal_all([self.pid()], TIME_IS_UP)
            signal_all(descendants_of(self.pid()), signal.SIGTERM)

    def warn(self, number: int) -> None:
        """Sends a signal to the program of the running attempt, but not to the children of that program. A call gets no signal."""
        if self.runs_executable() and self.running():
            signal_all(children_of(self.pid()), number)

    def kill_task(self) -> None:
        """Kills the running attempt. If it is an executable, the slot survives. If it is a call, the monitor process kills the slot."""
        if self.runs_executable():
            self.order(KILL)
        else:
            self.killing = True
            signal_all([self.monitor], signal.SIGTERM)

    def kill_all(self) -> None:
        """Kills the monitor, the slot and all their descendants at once, without the help of the monitor."""
        self.killing = True
        signal_all([self.monitor, *descendants_of(self.monitor)], signal.SIGKILL)

    def last_error_line(self) -> str:
        """Returns the last line of the standard error of the slot."""
        first = max(0, os.fstat(self.outputs[1]).st_size - ERROR_TAIL_BYTES)
        lines = os.pread(self.outputs[1], ERROR_TAIL_BYTES, first).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "no reason was given"

    def peek(self, query: int, stream: int, offset: int) -> Optional[Tuple[int, bytes]]:
        """Returns (start, bytes) of the output of the running attempt: see ``peek_at_call``. Returns None if the slot will send the answer.

        If ``stream`` is USAGE, the bytes are the CPU time and the peak memory of the attempt, as JSON.
        """
        if stream == USAGE:
            return 0, json.dumps(self._usage()).encode()
        if self.runs_executable() and not self.running():
            return max(0, offset), b""
        if self.runs_executable():
            self.peeks[query] = offset
            self.order(PEEK, json.dumps([query, stream, offset]).encode())
            return None
        return peek_at_call(self, stream, offset)

    def _usage(self) -> Tuple[float, int]:
        """Returns the CPU time of the running attempt so far in seconds, and its peak memory in bytes."""
        pid = self.pid()
        if not pid or not self.running():
            return 0.0, 0
        self.peak_bytes = max(self.peak_bytes, self.used_bytes())
        cpu_s = cpu_seconds(descendants_of(pid))
        if not self.runs_executable():
            cpu_s += max(0.0, cpu_seconds([pid], with_children=False) - self.page.words64[CPU_BEFORE] / 1e6)
        return cpu_s, self.peak_bytes

    def output_payload(self) -> bytes:
        """Returns the payload of a call that died with its slot. The payload contains the output of the call."""
        texts = [read_head_and_tail(output, os.fstat(output).st_size, OUTPUT_CAP) for output in self.outputs]
        (out, out_dropped), (error, error_dropped) = texts
        meta = {"type": "", "message": "", "traceback": "", "stdout_dropped": out_dropped, "stderr_dropped": error_dropped}
        meta.update(stdout_reason=DIED, stderr_reason=DIED)
        return pack([json.dumps(meta).encode(), b"", out, error])

    def has_ended(self) -> bool:
        """Returns True if the monitor process has ended. In this case, also reaps the monitor process."""
        try:
            pid, status = os.waitpid(self.monitor, os.WNOHANG)
        except ChildProcessError:
            pid, status = self.monitor, 0
        if pid:
            self.status = status
        return bool(pid)

    def is_open(self) -> bool:
        return self._open

    def close(self) -> None:
        self._end_channel()
        self.channel.close()
        self.page.close()
        for output in self.outputs:
            os.close(output)


def _append_file(name: str, closing: contextlib.ExitStack) -> int:
    import fcntl

    descriptor = memory_file(name)
    closing.callback(os.close, descriptor)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
    return descriptor


def _read_failure(text: bytes) -> Optional[Failure]:
    if not text:
        return None
    try:
        cause, blame, message = json.loads(text)
    except (ValueError, TypeError):
        raise SlotBroken("a report that cannot be read") from None
    # The master could not read a frame with a lone surrogate. Names of files can contain lone surrogates.
    return [str(part).encode("utf-8", "replace").decode("utf-8") for part in (cause, blame, message)]
