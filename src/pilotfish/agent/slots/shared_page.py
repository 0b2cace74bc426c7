"""Shares one page of memory between agent and slot, and defines the records they exchange.

The slot writes down what it starts before it starts it, so that after its death the attempt to blame is known exactly, without a message
per attempt. The agent may recall what the slot has not started: it writes the numbers to skip, waits a moment, then reads what was started
(each side writes before it reads, so both cannot miss the other). Results that the slot has not flushed are in the report buffer, where the
agent finds them even when user code keeps the slot busy or has killed it.
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
# END_REASON: the slot met a limit of the machine, or user code broke it.
LIMITED, BROKEN = 1, 2
# Index of the 64-bit word: first << 32 | last of the sequence numbers to skip.
SKIP = 4

HIGH_DESCRIPTOR = 200
"""Lowest descriptor for our own use, in slots that may have that many."""
TIME_IS_UP = signal.SIGRTMIN + 10
"""Signal from agent to slot: stop the attempt whose number is in STOP_ATTEMPT."""

REPORT_BUFFER_AT = 4096
REPORT_BUFFER_BYTES = 64 * 1024
PAGE_BYTES = REPORT_BUFFER_AT + REPORT_BUFFER_BYTES

# Agent to slot: kind, sequence, spec, attempt, task, cores, length of what follows.
ORDER = struct.Struct("<BIQIQfQ")
SPEC, TASK, TERMINATE, KILL, PEEK, QUIT = range(6)

# Slot to agent: sequence, wall_us, cpu_us, rss_kib, length of the failure (JSON), length of the payload.
REPORT = struct.Struct("<IQQIIQ")
PEEKED = 0xFFFFFFFF
"""In place of a sequence number: the answer to PEEK; wall_us is the query, cpu_us the offset, rss_kib 1 if known."""

UPLOAD_MARK = b'{"stow"'
"""Prefix of a payload that lists output files in the outbox: they are too large for the result."""

Report = Tuple[int, int, int, int, bytes, Any]
"""sequence, wall_us, cpu_us, rss_kib, failure, payload"""


def memory_file(name: str) -> int:
    """An anonymous file in memory, or in the temporary directory where the system has no such thing."""
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
    """Forbid shrinking: access beyond the end of a mapped file kills a process, and user code that truncates descriptors must not kill the
    agent."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    except (AttributeError, OSError):
        pass  # an ordinary file, or a system without seals


def move_high(descriptor: int) -> int:
    high = copy_high(descriptor)
    os.close(descriptor)
    return high


def copy_high(descriptor: int) -> int:
    """Duplicate a descriptor out of the way of user code that closes or counts descriptors; it is never inherited."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    lowest = HIGH_DESCRIPTOR if limit == resource.RLIM_INFINITY else min(HIGH_DESCRIPTOR, limit // 2)
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)


class SharedPage:
    """The shared page; ``descriptor`` is its file."""

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
            # A view of it is still in use; the memory is freed with the last one.
            pass

    def unflushed_reports(self) -> List[Report]:
        """Complete reports in the buffer. Call this only for a slot that is dead or was idle for a while."""
        length = min(int(self.words32[UNFLUSHED_BYTES]), REPORT_BUFFER_BYTES)
        return list(parse_reports(bytes(self.report_buffer[:length]))[0])


def parse_reports(data: bytes) -> Tuple[List[Report], int]:
    """All complete reports at the start of these bytes, and the offset of the rest."""
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
