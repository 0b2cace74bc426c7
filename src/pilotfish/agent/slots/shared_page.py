"""Shares one page of memory between agent and slot, and defines the records that they exchange.

Before the slot starts an attempt, it writes the number of the attempt into the page. So if the slot dies, the agent knows which attempt to
blame, without a message per attempt.

The agent can recall attempts that the slot has not started. The agent writes the numbers of these attempts into the page, waits a moment,
and then reads which attempts have started. The slot skips the numbers that the agent has written. Agent and slot each write before they
read, so at least one of them sees what the other has written.

The slot collects reports in a buffer of the page. The agent finds these reports even if user code keeps the slot busy or has killed the
slot.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import resource
import signal
import struct
from typing import Any, List, Tuple

# Indices of the 32-bit words.
INTENT, STARTED, STOP_ATTEMPT, PID, UNFLUSHED_BYTES, END_REASON = 0, 1, 2, 3, 4, 5
# Values of END_REASON: the slot met a limit of the node, or user code broke the slot.
LIMITED, BROKEN = 1, 2
# Index of the 64-bit word with the sequence numbers to skip: first << 32 | last.
SKIP = 4
# FREED + 1 and FREED + 2 are the indices of 64-bit words for stdout and stderr of a call. Each word has an offset: the agent has freed the
# memory of the stream up to this offset, except the beginning of the stream.
FREED = 4
# Index of the 64-bit word with the CPU time that the slot itself had used before the running call, in microseconds.
CPU_BEFORE = 7

HIGH_DESCRIPTOR = 200
"""Lowest descriptor that a slot uses for itself, if the limit of open files allows it."""
TIME_IS_UP = signal.SIGRTMIN + 10
"""Signal of the agent to the slot: stop the attempt whose sequence number is in STOP_ATTEMPT."""

REPORT_BUFFER_AT = 4096
REPORT_BUFFER_BYTES = 64 * 1024
PAGE_BYTES = REPORT_BUFFER_AT + REPORT_BUFFER_BYTES

# Agent to slot: kind, sequence, spec, attempt, task, cores, length of the body that follows.
ORDER = struct.Struct("<BIQIQfQ")
SPEC, TASK, TERMINATE, KILL, PEEK, QUIT = range(6)

# Slot to agent: sequence, wall_us, cpu_us, rss_kib, length of the failure (JSON), length of the payload.
REPORT = struct.Struct("<IQQIIQ")
PEEKED = 0xFFFFFFFF
"""Sequence number of an answer to PEEK. In this answer, wall_us is the query, cpu_us is the offset, and rss_kib is 1 if the output is
known."""

UPLOAD_MARK = b'{"stow"'
"""Beginning of the first part of a payload in two cases: the payload lists output files in the outbox, or it says that output was left out.
Files go to the outbox if they are too large for the result, or stay with the worker."""

Report = Tuple[int, int, int, int, bytes, Any]
"""sequence, wall_us, cpu_us, rss_kib, failure, payload"""


def memory_file(name: str) -> int:
    """Returns the descriptor of an anonymous file in memory, or on old systems of a deleted file in the temporary directory."""
    create = getattr(os, "memfd_create", None)
    if create is not None:
        try:
            return int(create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        except OSError:
            pass
    import tempfile

    descriptor, path = tempfile.mkstemp()
    os.unlink(path)
    return descriptor


def _keep_size(descriptor: int) -> None:
    """Prevents the file of the shared page from shrinking. If user code truncated it, the next access to the page would kill the agent."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    except (AttributeError, OSError):
        pass  # an ordinary file, or a system without file seals


def move_high(descriptor: int) -> int:
    """Duplicates a descriptor as ``copy_high`` does, then closes the original."""
    high = copy_high(descriptor)
    os.close(descriptor)
    return high


def copy_high(descriptor: int) -> int:
    """Duplicates a descriptor to a high number, because user code possibly closes low descriptors. Programs do not inherit the
    duplicate."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    lowest = HIGH_DESCRIPTOR if limit == resource.RLIM_INFINITY else min(HIGH_DESCRIPTOR, limit // 2)
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)


class SharedPage:
    """The page of memory that agent and slot share. ``descriptor`` is the descriptor of its file."""

    def __init__(self, descriptor: int) -> None:
        if os.fstat(descriptor).st_size < PAGE_BYTES:
            os.ftruncate(descriptor, PAGE_BYTES)
            _keep_size(descriptor)
        self.memory = mmap.mmap(descriptor, PAGE_BYTES)
        view = memoryview(self.memory)
        self.words32 = view[:REPORT_BUFFER_AT].cast("I")
        self.words64 = view[:REPORT_BUFFER_AT].cast("Q")
        self.report_buffer = view[REPORT_BUFFER_AT:]

    def close(self) -> None:
        self.words32.release()
        self.words64.release()
        self.report_buffer.release()
        try:
            self.memory.close()
        except BufferError:
            # A view of the memory is still in use. The memory is freed with the last view.
            pass

    def unflushed_reports(self) -> List[Report]:
        """Returns the complete reports in the buffer. The reports are invalid if the slot wrote to the buffer at the same time."""
        length = min(int(self.words32[UNFLUSHED_BYTES]), REPORT_BUFFER_BYTES)
        return list(parse_reports(bytes(self.report_buffer[:length]))[0])


def parse_reports(data: bytes) -> Tuple[List[Report], int]:
    """Returns all complete reports at the start of these bytes, and the offset of the remaining bytes."""
    reports = []
    offset = 0
    end = len(data)
    while end - offset >= REPORT.size:
        sequence, wall_us, cpu_us, rss_kib, failure_length, payload_length = REPORT.unpack_from(data, offset)
        middle = offset + REPORT.size + failure_length
        if end - middle < payload_length:
            break
        offset = middle + payload_length
        reports.append((sequence, wall_us, cpu_us, rss_kib, data[middle - failure_length : middle], data[middle:offset]))
    return reports, offset
