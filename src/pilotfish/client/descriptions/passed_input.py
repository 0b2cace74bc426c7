"""Reads the standard input that ``pilotfish run`` passes on to a single task, as in ``echo x | pilotfish run -- cat``."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress

from pilotfish.errors import BadInput
from pilotfish.portable.processes import stat_fields

MAX_STDIN_BYTES = 64 << 20
IDLE_S = 1.0
"""Seconds to wait for the first data in a pipe. A pipe from cron or ssh possibly never contains data."""


def read_passed_input() -> bytes:
    """Reads standard input if it is a file, or a pipe that contains data or can still get data. In all other cases, returns no bytes."""
    try:
        descriptor = sys.stdin.fileno()
        mode = os.fstat(descriptor).st_mode
    except (AttributeError, OSError, ValueError):  # standard input is closed
        return b""
    if stat.S_ISREG(mode):
        return _read_file(descriptor)
    return _read_pipe(descriptor) if stat.S_ISFIFO(mode) else b""


def check_stdin_size(content: bytes, what: str = "standard input") -> bytes:
    if len(content) > MAX_STDIN_BYTES:
        fix = "Give large data as a file: --input FILE. If the task does not need standard input: < /dev/null"
        raise BadInput(f"{what}: more than {MAX_STDIN_BYTES >> 20} MiB", fix)
    return content


def _read_file(descriptor: int) -> bytes:
    """Reads an open file from the current position to the end, without changing the position. So in a shell loop such as ``while read line;
    do pilotfish …; done < FILE``, the loop still reads all lines of the file."""
    return check_stdin_size(os.pread(descriptor, MAX_STDIN_BYTES + 1, os.lseek(descriptor, 0, os.SEEK_CUR)))


def _read_pipe(descriptor: int) -> bytes:
    if not select.select([descriptor], [], [], IDLE_S)[0]:
        if not _has_producer(descriptor):
            note = "note: standard input is a pipe without data, so the task gets none. To wait for data: --stdin -"
            print(note, file=sys.stderr)
            return b""
        print("note: waiting for standard input. If the task needs none: < /dev/null", file=sys.stderr)
    with open(descriptor, "rb", closefd=False) as pipe:
        return check_stdin_size(pipe.read(MAX_STDIN_BYTES + 1))


def _has_producer(descriptor: int) -> bool:
    """Returns whether another process can write to the pipe, as in ``producer | pilotfish run -- cat``.

    Ancestors of this process do not count, because cron, ssh or a script often holds a pipe open and never writes to it. Returns False on
    systems without /proc.
    """
    ancestors = set(_ancestors())
    with suppress(OSError):
        pipe = os.readlink(f"/proc/self/fd/{descriptor}")
        return any(_may_write(int(name), pipe) for name in os.listdir("/proc") if name.isdecimal() and int(name) not in ancestors)
    return False


def _ancestors() -> Iterator[int]:
    """Yields the ids of this process and of its ancestors."""
    pid = os.getpid()
    while pid > 0:
        yield pid
        fields = stat_fields(pid)
        pid = int(fields[1]) if len(fields) > 1 else 0


def _may_write(pid: int, pipe: str) -> bool:
    with suppress(OSError):  # the process has ended, or belongs to another user
        for entry in os.scandir(f"/proc/{pid}/fd"):
            # The mode of the link shows whether the process opened the pipe for writing.
            if os.readlink(entry.path) == pipe and entry.stat(follow_symlinks=False).st_mode & stat.S_IWUSR:
                return True
    return False
