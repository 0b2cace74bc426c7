"""A page of memory that the agent shares with one slot, and the records that travel between them.

The slot writes down what it starts before it starts it, so that after its death the guilty attempt is known exactly, without a message per
attempt. The agent may take back what the slot has not started: it writes the numbers to skip, waits a moment, then looks what was started
(each side writes before it reads, so both cannot miss the other). Results that the slot has not flushed yet lie in the outbox, where the
agent finds them also when user code keeps the slot busy, or has killed it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import resource
import signal
import struct
from typing import Any, List, Tuple

# Numbers of the 32-bit words.
INTENT, STARTED, CONDEMNED, PID, OUTBOX_LENGTH, GAVE_UP = 0, 1, 2, 3, 4, 5
# Why a slot gave up: it met a limit of the machine, or something of its own does not work any more.
LIMITED, BROKEN = 1, 2
# Number of the 64-bit word: first << 32 | last of the sequence numbers to skip.
SKIP = 4

HIGH_DESCRIPTOR = 200
"""From here on descriptors are ours, in slots that may have so many."""
TIME_IS_UP = signal.SIGRTMIN + 10
"""Agent to slot: the attempt that is condemned shall end."""

OUTBOX_AT = 4096
OUTBOX_BYTES = 64 * 1024
CELL_BYTES = OUTBOX_AT + OUTBOX_BYTES

# Agent to slot: what, sequence, spec, attempt, task, cores, length of what follows.
ORDER = struct.Struct("<BIQIQfQ")
SPEC, TASK, TERMINATE, KILL, PEEK, QUIT = range(6)

# Slot to agent: sequence, wall_us, cpu_us, rss_kib, length of the failure (JSON), length of the payload.
REPORT = struct.Struct("<IQQIIQ")
PEEKED = 0xFFFFFFFF
"""In place of a sequence number: the answer to PEEK; wall_us is the query, cpu_us the offset, rss_kib 1 if known."""

Report = Tuple[int, int, int, int, bytes, Any]
"""sequence, wall_us, cpu_us, rss_kib, failure, payload"""


def memory_file(name: str) -> int:
    """A nameless file in memory, or in the directory for temporary files where the system has no such thing."""
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
    """Whoever touches memory beyond the end of its file is killed: user code that truncates descriptors must not reach the agent."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    except (AttributeError, OSError):
        pass  # an ordinary file, or a system without seals


def move_high(descriptor: int) -> int:
    high = copy_high(descriptor)
    os.close(descriptor)
    return high


def copy_high(descriptor: int) -> int:
    """Out of the way of user code that closes or counts descriptors, and never inherited."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    lowest = HIGH_DESCRIPTOR if most == resource.RLIM_INFINITY else min(HIGH_DESCRIPTOR, most // 2)
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)


class SharedPage:
    """The shared page; ``descriptor`` names it."""

    def __init__(self, descriptor: int) -> None:
        if os.fstat(descriptor).st_size < CELL_BYTES:
            os.ftruncate(descriptor, CELL_BYTES)
            _keep_size(descriptor)
        self.memory = mmap.mmap(descriptor, CELL_BYTES)
        view = memoryview(self.memory)
        self.words = view[:OUTBOX_AT].cast("I")
        self.long_words = view[:OUTBOX_AT].cast("Q")
        self.outbox = view[OUTBOX_AT:]

    def close(self) -> None:
        self.words.release()
        self.long_words.release()
        self.outbox.release()
        try:
            self.memory.close()
        except BufferError:
            # Somebody still reads a view of it; the memory goes with the last one.
            pass

    def skip(self, first: int, last: int) -> None:
        self.long_words[SKIP] = first << 32 | last

    def left_in_outbox(self) -> List[Report]:
        """Complete reports in the outbox. Only to be asked of a slot that is dead or was quiet for a while."""
        length = min(int(self.words[OUTBOX_LENGTH]), OUTBOX_BYTES)
        return list(parse_reports(bytes(self.outbox[:length]))[0])


def parse_reports(data: bytes) -> Tuple[List[Report], int]:
    """All complete reports at the head of these bytes, and where the rest begins."""
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
