"""Finds, holds together and kills a process and its descendants, by /proc and child subreapers. Finds the processes of a pool."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Optional, Tuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
END_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals by which batch systems announce that a job will be ended or suspended: the agent must leave."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_libc: Optional[ctypes.CDLL] = None


def libc() -> ctypes.CDLL:
    global _libc
    if _libc is None:
        _libc = ctypes.CDLL(None, use_errno=True)
    return _libc


def keep_freed_memory(kept_bytes: int) -> None:
    """Let the allocator keep this much freed memory: faulting pages in again for each large payload costs more than copying."""
    mallopt = getattr(libc(), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, kept_bytes)
        mallopt(M_MMAP_THRESHOLD, kept_bytes)


def become_subreaper() -> bool:
    """Adopt orphaned descendants instead of init, so that none escapes."""
    return bool(libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def signal_on_parent_death(number: int, parent: int) -> None:
    """Let the kernel send us this signal when our parent dies; at once if it is dead already."""
    libc().prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if number and os.getppid() != parent:
        os.kill(os.getpid(), number)


def children_of(pid: int) -> List[int]:
    """The direct children of all threads of ``pid``."""
    found: List[int] = []
    try:
        threads = os.listdir("/proc/%d/task" % pid)
        for thread in threads:
            with open("/proc/%d/task/%s/children" % (pid, thread), "rb") as file:
                found.extend(map(int, file.read().split()))
    except FileNotFoundError:
        if os.path.exists("/proc/%d" % pid) and not os.path.exists("/proc/self/task/%d/children" % os.getpid()):
            return _parents().get(pid, [])
    except OSError:
        pass
    return found


def _parents() -> Dict[int, List[int]]:
    """Parent to children of all processes: the slow way, for kernels without children files."""
    children: Dict[int, List[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = stat_fields(int(name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(name))
    return children


def stat_fields(pid: int) -> List[bytes]:
    """The fields of /proc/PID/stat from the state on; empty if there is no such process."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def state_of(pid: int) -> str:
    """R, S, D, Z, T …; empty if there is no such process."""
    fields = stat_fields(pid)
    return fields[0].decode("ascii") if fields else ""


def descendants_of(pid: int, except_for: Iterable[int] = ()) -> List[int]:
    """All descendants of ``pid``, parents before children, without the trees of ``except_for``."""
    excluded = set(except_for)
    found: List[int] = []
    waiting = [pid]
    while waiting:
        for child in children_of(waiting.pop()):
            if child not in excluded:
                found.append(child)
                waiting.append(child)
    return found


def resident_bytes(pid: int) -> int:
    """Resident memory of the process and its descendants."""
    total = 0
    for process in [pid, *descendants_of(pid)]:
        try:
            with open("/proc/%d/statm" % process, "rb") as file:
                total += int(file.read().split()[1]) * PAGE_BYTES
        except (OSError, IndexError):
            continue
    return total


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue


class ChildCpuClock:
    """CPU time of ended children, since the last call."""

    def __init__(self) -> None:
        self._seen_s = 0.0
        self.lap_s()

    def lap_s(self) -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        before, self._seen_s = self._seen_s, usage.ru_utime + usage.ru_stime
        return self._seen_s - before


def has_children() -> bool:
    """Whether this process has any child, running or not yet reaped: one cheap call."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def kill_descendants(except_for: Iterable[int] = (), timeout_s: float = 10.0) -> bool:
    """Kill and reap all descendants except the trees of ``except_for``. Return whether all are gone. Requires a subreaper.

    It works in rounds, because a process may fork meanwhile; parents are killed before their children. Nothing is stopped first: if this
    process were killed at that moment, it would stay stopped. There is a time-out: a process that hangs in the kernel must not hang this
    one.
    """
    excluded = list(except_for)
    give_up_at = time.monotonic() + timeout_s
    pause_s = 0.0001
    while True:
        reap_children(excluded)
        found = descendants_of(os.getpid(), excluded)
        if not found:
            return True
        alive = [pid for pid in found if state_of(pid) not in ("Z", "X", "")]
        signal_all(alive, signal.SIGKILL)
        if time.monotonic() > give_up_at:
            return False
        time.sleep(pause_s)
        pause_s = min(0.02, pause_s * 2)


def reap_children(except_for: Iterable[int] = ()) -> None:
    """Reap ended children; never waits."""
    excluded = set(except_for)
    for pid in children_of(os.getpid()):
        if pid not in excluded:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue


def processes_of(directory: Path) -> Iterator[Tuple[int, str]]:
    """Processes of a pool: its directory is one of their arguments, or the beginning of one."""
    path = os.fsencode(directory)
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry.name}/cmdline", "rb") as file:
                arguments = file.read().split(b"\0")
        except OSError:
            continue
        found = any(argument == path or argument.startswith(path + b"/") for argument in arguments)
        if found and state_of(int(entry.name)) not in ("Z", "X", ""):
            yield int(entry.name), b" ".join(arguments[:4]).decode(errors="replace")


def started_at(pid: int) -> str:
    """Start time of a process in clock ticks since boot: with the pid, a name that is never reused. Empty if there is no such process."""
    fields = stat_fields(pid)
    return "" if not fields or fields[0] in (b"Z", b"X") else fields[19].decode()
