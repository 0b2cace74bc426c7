"""Finds and kills a process and its descendants, with /proc and as a child subreaper. Finds the processes of a pool."""

from __future__ import annotations

import os
import resource
import signal
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Tuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
END_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals with which batch systems announce the end or suspension of a batch job. The agent must then leave the pool."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@lru_cache(maxsize=None)
def libc() -> Any:
    import ctypes  # imported here, because most commands never need ctypes

    return ctypes.CDLL(None, use_errno=True)


def keep_freed_memory(kept_bytes: int) -> None:
    """Lets the allocator keep this much freed memory. Otherwise, each large payload would need new memory pages, which cost more time than
    a copy of the payload."""
    mallopt = getattr(libc(), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, kept_bytes)
        mallopt(M_MMAP_THRESHOLD, kept_bytes)


def become_subreaper() -> bool:
    """Makes this process the parent of orphaned descendants, in place of init, so that all of them can be killed."""
    return bool(libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def signal_on_parent_death(number: int, parent: int) -> None:
    """Lets the kernel send this signal to this process when its parent dies. If the parent is dead already, the signal is sent at once."""
    libc().prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if number and os.getppid() != parent:
        os.kill(os.getpid(), number)


def children_of(pid: int) -> List[int]:
    """Returns the direct children of all threads of ``pid``."""
    found: List[int] = []
    try:
        threads = os.listdir("/proc/%d/task" % pid)
        for thread in threads:
            with open("/proc/%d/task/%s/children" % (pid, thread), "rb") as file:
                found.extend(map(int, file.read().split()))
    except FileNotFoundError:
        if os.path.exists("/proc/%d" % pid) and not os.path.exists("/proc/self/task/%d/children" % os.getpid()):
            return _children_by_parent().get(pid, [])
    except OSError:
        pass
    return found


def _children_by_parent() -> Dict[int, List[int]]:
    """Returns the children of each process. This is slow. It is needed only for kernels without files named ``children`` in /proc."""
    children: Dict[int, List[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = stat_fields(int(name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(name))
    return children


def stat_fields(pid: int) -> List[bytes]:
    """Returns the fields of /proc/PID/stat, beginning with the state; empty if there is no such process."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def state_of(pid: int) -> str:
    """Returns the state of a process: R, S, D, Z, T …; empty if there is no such process."""
    fields = stat_fields(pid)
    return fields[0].decode("ascii") if fields else ""


def descendants_of(pid: int, except_for: Iterable[int] = ()) -> List[int]:
    """Returns all descendants of ``pid``, parents before children. Processes in ``except_for`` and their descendants are not included."""
    excluded = set(except_for)
    found: List[int] = []
    waiting = [pid]
    while waiting:
        for child in children_of(waiting.pop()):
            if child not in excluded:
                found.append(child)
                waiting.append(child)
    return found


TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Returns the resident memory of the process and its descendants."""
    return sum(_resident_bytes(_memory_fields(process)) for process in [pid, *descendants_of(pid)])


def resident_bytes_of_descendants(pid: int) -> int:
    """Returns the resident memory of the descendants of a process, without the process itself.

    A new child shares the memory of its parent until it calls exec. So a child does not count while its memory numbers equal those of the
    process.
    """
    own = _memory_fields(pid)
    return sum(_resident_bytes(fields) for fields in map(_memory_fields, descendants_of(pid)) if fields != own)


def _memory_fields(pid: int) -> List[bytes]:
    """Returns the fields of /proc/PID/statm; empty if there is no such process."""
    try:
        with open("/proc/%d/statm" % pid, "rb") as file:
            return file.read().split()
    except OSError:
        return []


def _resident_bytes(fields: List[bytes]) -> int:
    return int(fields[1]) * PAGE_BYTES if len(fields) > 1 else 0


def cpu_seconds(pids: Iterable[int], with_children: bool = True) -> float:
    """Returns the CPU time of the processes. ``with_children``: also counts their children that have ended."""
    ticks = 0
    for pid in pids:
        ticks += sum(int(field) for field in stat_fields(pid)[11 : 15 if with_children else 13])
    return ticks / TICKS_PER_S


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
    """Measures the CPU time of reaped children. ``lap_s`` returns the CPU seconds of the children reaped since its last call."""

    def __init__(self) -> None:
        self._seen_s = 0.0
        self.lap_s()

    def lap_s(self) -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        before, self._seen_s = self._seen_s, usage.ru_utime + usage.ru_stime
        return self._seen_s - before


def has_children() -> bool:
    """Returns True if this process has a child that runs or is not reaped yet. The check needs only one system call."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def kill_descendants(except_for: Iterable[int] = (), timeout_s: float = 10.0) -> bool:
    """Kills and reaps all descendants, except processes in ``except_for`` and the descendants of these. Returns True if all have ended, and
    False after ``timeout_s`` seconds: a process can hang in the kernel.

    This process must be a subreaper. Killing is repeated, because a process can fork at the same time. Parents are killed before their
    children. Processes are not stopped with SIGSTOP first, because they would stay stopped for ever if this process died before it killed
    them.
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
    """Reaps ended children. It never waits."""
    excluded = set(except_for)
    for pid in children_of(os.getpid()):
        if pid not in excluded:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue


def processes_of(directory: Path) -> Iterator[Tuple[int, str]]:
    """Yields id and command of each process of a pool. Such a process has the directory of the pool, or a path in it, as an argument."""
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
    """Returns the start time of a process in clock ticks since boot. Returns an empty text if there is no such process, or if it has ended.
    The process id and the start time together identify a process for ever."""
    fields = stat_fields(pid)
    return "" if not fields or fields[0] in (b"Z", b"X") else fields[19].decode()
