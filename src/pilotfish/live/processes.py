"""Which processes belong to a pool, and when they began."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def processes_of(directory: Path) -> Iterator[tuple[int, str]]:
    """Processes that belong to a pool: its directory is one of their arguments, or the beginning of one."""
    wanted = os.fsencode(directory)
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry.name}/cmdline", "rb") as file:
                arguments = file.read().split(b"\0")
            with open(f"/proc/{entry.name}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0]
        except OSError:
            continue
        if state in b"ZX":
            continue
        if any(argument == wanted or argument.startswith(wanted + b"/") for argument in arguments):
            yield int(entry.name), b" ".join(arguments[:4]).decode(errors="replace")


def started_at(pid: int) -> str:
    """When a process began, in clock ticks since boot: with the pid, a name that is never used again. Empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
