"""Finds the processes of a contestant and their resource usage in /proc.

Every contestant has a mark in its environment, which its children inherit. Daemons that left the process tree are therefore found too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MARK = "PILOTFISH_BENCHMARK_MARK"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    command: str
    cpu_s: float
    rss_bytes: int


def read_process(pid: int) -> Process | None:
    """Reads one process from /proc; returns None if it has ended or is a zombie."""
    root = Path("/proc") / str(pid)
    try:
        stat = (root / "stat").read_text()
        command = (root / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    name_end = stat.rindex(")")
    fields = stat[name_end + 2 :].split()
    if fields[0] == "Z":
        return None
    # The run time in nanoseconds is finer than the clock ticks of stat, but each value is for one thread: add up the threads.
    nanoseconds = 0
    try:
        for thread in (root / "task").iterdir():
            nanoseconds += int((thread / "schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        nanoseconds = 0
    own_ticks_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    # Child processes that have ended are counted in the process that waited for them.
    waited_for_s = (int(fields[13]) + int(fields[14])) / TICKS_PER_S
    return Process(
        pid=pid,
        parent=int(fields[1]),
        command=command or stat[stat.index("(") : name_end + 1],
        cpu_s=max(own_ticks_s, nanoseconds / 1e9) + waited_for_s,
        rss_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
    )


def marked_processes(mark: str) -> dict[int, Process]:
    """Returns all running processes that inherited the mark."""
    needle = f"{MARK}={mark}".encode()
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            environment = (Path(entry.path) / "environ").read_bytes()
        except OSError:
            continue
        if needle in environment.split(b"\0"):
            process = read_process(int(entry.name))
            if process is not None:
                found[process.pid] = process
    return found


def bytes_below(directory: str) -> int:
    """Returns the size of all files below a directory."""
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total
