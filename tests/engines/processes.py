"""Finds the processes of an engine by its directory, ends them by id and waits for them."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path

PATIENCE_S = 90.0
"""Seconds until a test counts as hung; not a measurement."""

PORTS = range(20000, 32000)
"""Mostly below the ports that the kernel gives to connections. Elsewhere another process may take a port before the daemon does."""


class EngineFailed(Exception):
    """An engine did not do what it was asked to. The argument says what, with the engine's own message."""


def wait_until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise EngineFailed(f"{what} did not happen in {patience_s:.0f} s")
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Find ports that are free on all addresses, because some daemons listen on all."""
    found: list[int] = []
    for port in random.Random().sample(PORTS, len(PORTS)):
        with socket.socket() as trial:
            try:
                trial.bind(("", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            break
    return found


def is_listening(port: int) -> bool:
    with socket.socket() as trial:
        trial.settimeout(5.0)
        return trial.connect_ex(("127.0.0.1", port)) == 0


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not count."""
    return _status_of(pid)[0] not in ("Z", "X", "")


def life_of(pid: int) -> str:
    """Return process id and start time in one word, because ids are reused, in containers even regularly. Empty for a dead process."""
    status = _status_of(pid)
    return f"{pid}x{status[19]}" if status[0] not in ("Z", "X", "") else ""


def is_over(life: str) -> bool:
    return life_of(int(life.partition("x")[0] or 0)) != life


def everybody() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and is_alive(int(name))]


def belonging_to(place: Path) -> list[int]:
    """Find processes with this directory in their arguments or environment, and their descendants; never this process."""
    mark = os.fsencode(place) + b"/"
    found = with_descendants(pid for pid in everybody() if mark in _said_at_start(pid))
    ours = os.getpid()
    while ours:
        found.discard(ours)
        ours = parent_of(ours)
    return sorted(found)


def mentioning(words: str) -> list[int]:
    """Find processes with these words in their arguments or environment. Useless for words in those of this process."""
    return [pid for pid in everybody() if words.encode() in _said_at_start(pid)]


def with_descendants(pids: Iterable[int]) -> set[int]:
    parents = {pid: parent_of(pid) for pid in everybody()}
    found = set(pids)
    heirs = found
    while heirs:
        heirs = {pid for pid, parent in parents.items() if parent in heirs and pid not in found}
        found |= heirs
    return found


def of_user(uid: int) -> list[int]:
    found = []
    for pid in everybody():
        try:
            if os.stat(f"/proc/{pid}").st_uid == uid:
                found.append(pid)
        except OSError:
            pass
    return found


def parent_of(pid: int) -> int:
    status = _status_of(pid)
    return int(status[1]) if status[0] else 0


def children_of(pid: int, name: str) -> list[int]:
    """Return the child processes that run a program of this name."""
    return [child for child in everybody() if parent_of(child) == pid and _name_of(child) == name[:15]]


def end(pids: Iterable[int]) -> None:
    """Kill processes with SIGKILL and wait for their end."""
    waiting = list(pids)
    for pid in waiting:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    wait_until(lambda: not any(is_alive(pid) for pid in waiting), f"the end of {waiting}")


def end_all(find: Callable[[], list[int]]) -> None:
    """Kill until none is found, because a dying process may have started another."""
    while found := find():
        end(found)


def _status_of(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, which may contain spaces; one empty word without such a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return [""]


def _said_at_start(pid: int) -> bytes:
    said = b""
    for part in ("cmdline", "environ"):
        try:
            said += Path(f"/proc/{pid}/{part}").read_bytes()
        except OSError:
            pass
    return said


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
